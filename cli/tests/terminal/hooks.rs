//! Programs that Slurm starts for jobs print only their log: tested with hostile variables, arguments and Slurm
//! output.

use crate::stage::{MARK, Stage, hostile};

/// Variables that slurmd and slurmctld set, all valid.
const RIGHT: [(&str, &str); 15] = [
    ("SLURMD_NODENAME", "gn1"),
    ("SLURM_CLUSTER_NAME", "alpha"),
    ("SLURM_JOB_DERIVED_EC", "0"),
    ("SLURM_JOB_EXIT_CODE", "256"),
    ("SLURM_JOB_GID", "1000"),
    ("SLURM_JOB_GPUS", "0,1"),
    ("SLURM_JOB_ID", "7"),
    ("SLURM_JOB_NODELIST", "gn[1-2]"),
    ("SLURM_JOB_PARTITION", "gpu"),
    ("SLURM_JOB_RESTART_COUNT", "1"),
    ("SLURM_JOB_UID", "1000"),
    ("SLURM_JOB_USER", "alice"),
    ("SLURM_NODELIST", "gn[1-2]"),
    ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd"),
    ("SLURM_CONF", "/etc/slurm/slurm.conf"),
];

/// Variables that are set for some jobs only.
const MORE: [&str; 11] = [
    "CUDA_VISIBLE_DEVICES",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_ARRAY_TASK_ID",
    "SLURM_HET_JOB_ID",
    "SLURM_HET_JOB_NODELIST",
    "SLURM_JOB_COMMENT",
    "SPANK_RAILGATE_GATE",
    "SPANK_RAILGATE_OPEN_MODE",
    "SPANK_RAILGATE_PROFILE",
    "SPANK_RAILGATE_PROFILER",
    "SPANK_RAILGATE_REQUEUE",
];

/// Runs one of the programs with one hostile variable at a time. Returns how many runs showed the text.
pub(crate) fn run(program: &'static str, arguments: &[&str]) -> usize {
    let text = hostile();
    let Some(mut stage) = Stage::new(program) else { return usize::MAX };
    let config = std::fs::read_to_string(stage.path("railgate.toml")).unwrap();
    let config = config
        .replace("[source]", "[stats]\nsampler = false\n[requeue]\nwait = '1s'\n[source]\ntest_node = true");
    stage.write("etc/railgate.toml", &config);
    for name in ["scontrol", "squeue", "sinfo", "sacct", "sacctmgr", "scancel"] {
        stage.program(name, &format!("cat <<'END' >&2\n{text}\nEND\nexit 1"));
    }
    let mut shown = 0;
    let mut once = |stage: &mut Stage, arguments: &[&str]| {
        let ran = stage.run_bare(None, arguments);
        shown += usize::from(ran.err.contains(MARK));
    };
    for (name, value) in RIGHT {
        stage.env(name, value);
    }
    once(&mut stage, arguments);
    for name in RIGHT.iter().map(|(name, _)| *name).chain(MORE) {
        stage.env(name, &text);
        once(&mut stage, arguments);
        let right = RIGHT.iter().find(|(right, _)| *right == name);
        match right {
            Some((_, value)) => stage.env(name, value),
            None => stage.unset(name),
        }
    }
    for odd in [&[text.as_str()][..], &["--help"], &["7", &text], &[&text, "7"], &["7", "0"]] {
        once(&mut stage, odd);
    }
    // A quoted key, a quoted value, and a file that is not TOML.
    let escaped: String = text.chars().map(|c| format!("\\U{:08x}", u32::from(c))).collect();
    for bad in [format!("\"{MARK}{escaped}\" = 1\n"), format!("[gate]\nmode = \"{escaped}\"\n"), text] {
        stage.write("etc/railgate.toml", bad);
        once(&mut stage, arguments);
    }
    stage.end();
    shown
}
