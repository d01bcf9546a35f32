//! The SPANK plugin inside real srun, sbatch and slurmstepd: options, missing files, panics, and valgrind.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Builder, Cluster, SLURM_ROOT, plugin_target, slurm_release};
use railgate_tests::{poll, skipped};

const MINUTE: Duration = Duration::from_secs(60);
const PLUGSTACK: &str = "/etc/slurm/plugstack.conf";

/// Shared directory for the files of a test.
const PLACE: &str = "/shared/plugin";

/// Release of the Slurm under test.
fn release() -> Result<(u32, u32)> {
    slurm_release(Path::new(&std::env::var_os(SLURM_ROOT).unwrap_or_else(|| "/".into())))
}

fn built(file: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).context("no target directory")?;
    let path = plugin_target(target, release()?).join(file);
    if !path.exists() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let done = Command::new(cargo)
            .args(["build", "-q", "-p", "spank-railgate-fault"])
            .current_dir(root)
            .status()?;
        ensure!(done.success(), "{} cannot be built", path.display());
    }
    Ok(path)
}

fn put(cluster: &Cluster, name: &str, content: &[u8]) -> Result<String> {
    let dir = cluster.path("ctl", PLACE)?;
    fs::create_dir_all(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))?;
    let place = dir.join(name);
    fs::write(&place, content)?;
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755))?;
    Ok(format!("{PLACE}/{name}"))
}

/// Runs one step with srun and one batch job; returns the output of both.
fn both_ways(cluster: &Cluster, plugstack: &str) -> Result<(String, String)> {
    for machine in ["ctl", "gn1"] {
        cluster.write(machine, PLUGSTACK, &format!("{plugstack}\n"))?;
    }
    let step = cluster.alice().srun(&["bash", "-c", "echo ran"])?;
    ensure!(step.code == 0 && step.stdout == "ran\n", "{plugstack}: {step}");
    let id = cluster.alice().sbatch(&["-o", "log.%j"], "echo ran; srun echo inner")?;
    cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
    let log = cluster.output(&format!("/home/rgalice/log.{id}")).unwrap_or_default();
    ensure!(log.contains("ran\n") && log.contains("inner\n"), "{plugstack}: {log}");
    ensure!(!cluster.node("gn1")?.drained(), "{plugstack}: {}", cluster.node("gn1")?.reason());
    Ok((step.stderr, log))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn options_work_in_sbatch_lines_and_invalid_ones_are_refused_at_submit() -> Result<()> {
    Builder::new(1).test(|cluster| {
        let script = "#!/bin/bash\n#SBATCH --railgate-gate=full --railgate-requeue=2\n\
                      #SBATCH --railgate-profile=debug\nsleep 60\n";
        let id = cluster.alice().sbatch(&["--gres=gpu:8"], script)?;
        cluster.wait_job(id, &["RUNNING"], MINUTE)?;
        // For Slurm a job is running while its prolog still runs.
        let run = poll::until(MINUTE, "the run's directory", || {
            let words = ["cat", &format!("/run/railgate/jobs/{id}/current/run.json")];
            Ok(cluster.root().on("gn1").run(&words)?.ok().ok())
        })?;
        let run: serde_json::Value = serde_json::from_str(&run)?;
        assert_eq!(run["gate"], "full", "{run}");
        assert_eq!(run["requeue"], "2", "{run}");
        cluster.root().run(&["scancel", &id.to_string()])?.ok()?;

        // The profile names that nodes know.
        let names = railgate_rails::RailsConfig::default().profile_names();
        let (last, first) = names.split_last().context("no profile")?;
        let profiles = format!("{} or {last} (/etc/railgate/railgate.toml)", first.join(", "));
        for (option, value, takes) in [
            ("--railgate-gate", "fast", "off, quick, full or preflight"),
            ("--railgate-requeue", "x", "auto, never or a number of restarts"),
            ("--railgate-profile", "../x", "a name such as debug"),
            ("--railgate-profile", "debgu", profiles.as_str()),
        ] {
            let given = format!("{option}={value}");
            for command in [
                ["sbatch", &given, "--wrap", "true"],
                ["srun", &given, "-n1", "true"],
                ["salloc", &given, "-n1", "true"],
            ] {
                let said = cluster.alice().run(&command)?;
                assert_ne!(said.code, 0, "{said}");
                refused_once(&said.stderr, command[0], option, value, takes);
            }
            let script = format!("#!/bin/bash\n#SBATCH {given}\ntrue\n");
            let said = cluster.alice().input(script).run(&["sbatch"])?;
            assert_ne!(said.code, 0, "{said}");
            refused_once(&said.stderr, "sbatch", option, value, takes);
        }
        Ok(())
    })
}

/// railgate prints one line about the option's values; Slurm prints which value was refused.
fn refused_once(said: &str, command: &str, option: &str, value: &str, takes: &str) {
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with(&format!("{command}: error: railgate: {option} takes {takes}")), "{said}");
    assert_eq!(lines[1..], [format!("{command}: error: Invalid {option} argument: {value}")], "{said}");
}

/// A login node may know a profile that the compute node does not, or have no configuration file at all.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn an_unknown_profile_is_refused_at_submit_or_reported_in_the_log() -> Result<()> {
    let careful = "[rails.profiles.careful]\nset = { NCCL_CROSS_NIC = '0' }\n";
    let near = "[[node]]\nnames = 'gn1'\n[[node.rails.rules]]\nwhy = 'x'\nprofile = 'near'\nset = { NCCL_X = '1' }\n";
    let builder = Builder::new(2).config_of("ctl", &format!("{careful}{near}"))?;
    builder.test(|cluster| {
        let submit = |words: &[&str]| cluster.alice().sbatch(&[&["-w", "gn2", "-o", "log.%j"], words].concat(), "true");
        let refused = format!("{:#}", submit(&["--railgate-profile=farther"]).unwrap_err());
        assert!(refused.contains("takes careful, debug, latency, near or throughput ("), "{refused}");
        submit(&["--railgate-profile=near"])?;
        let told = |id: u32| -> Result<()> {
            cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
            let log = cluster.output(&format!("/home/rgalice/log.{id}")).unwrap_or_default();
            let line = "railgate: no environment profile 'careful' (known: debug, latency, throughput): the job runs without it\n";
            ensure!(log.contains(line), "{log}");
            Ok(())
        };
        // With and without GPUs.
        told(submit(&["--railgate-profile=careful", "--gres=gpu:8"])?)?;
        told(submit(&["--railgate-profile=careful"])?)?;
        // If the known names cannot be read, any name is passed on.
        cluster.write("ctl", "/etc/railgate/railgate.toml", "[rails.profiles\n")?;
        submit(&["--railgate-profile=farther"])?;
        cluster.root().run(&["rm", "/etc/railgate/railgate.toml"])?.ok()?;
        submit(&["--railgate-profile=farther"])?;
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_missing_damaged_or_mismatched_plugin_does_not_stop_jobs() -> Result<()> {
    Builder::new(1).plain().test(|cluster| {
        let library = built("libspank_railgate.so")?;
        let ours = fs::read(&library)?;
        let version = {
            let release = release()?;
            [0, u8::try_from(release.1)?, u8::try_from(release.0)?, 0]
        };
        // Constants are at the beginning of a library, where a symbol's address equals its offset in the file.
        let symbols = Command::new("nm").arg("--dynamic").arg(&library).output()?;
        let symbols = String::from_utf8_lossy(&symbols.stdout);
        let line =
            symbols.lines().find(|line| line.ends_with(" plugin_version")).context("no plugin_version")?;
        let at = usize::from_str_radix(line.split(' ').next().unwrap_or_default(), 16)?;
        let mut other = ours.clone();
        assert_eq!(other[at..at + 4], version);
        other[at + 2] = 99;
        let other = put(cluster, "other.so", &other)?;
        let begun = put(cluster, "begun.so", &ours[..100])?;
        let text = put(cluster, "text.so", b"no library\n")?;

        let (said, _) = both_ways(cluster, &format!("optional {other}"))?;
        assert!(said.contains("Incompatible"), "{said}");
        for file in [begun, text, format!("{PLACE}/missing.so")] {
            let (said, _) = both_ways(cluster, &format!("optional {file}"))?;
            // 26.05 continues without a message.
            let silent = release()? >= (26, 5) && said.is_empty();
            assert!(silent || said.contains("Dlopen of plugin file failed"), "{said}");
        }
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_panic_in_a_hook_does_not_stop_jobs_even_if_the_plugin_is_required() -> Result<()> {
    Builder::new(1).plain().test(|cluster| {
        let fault = put(cluster, "fault.so", &fs::read(built("libspank_railgate_fault.so")?)?)?;
        for kind in ["optional", "required"] {
            for hook in ["init", "init_post_opt", "task_init", "task_exit", "exit"] {
                let (said, log) = both_ways(cluster, &format!("{kind} {fault} panic={hook}"))?;
                let told = "internal error, the job continues without it";
                assert!(format!("{said}{log}").contains(told), "{hook}: {said}\n{log}");
            }
        }
        // A broken plugin does not refuse jobs either.
        cluster.write("ctl", PLUGSTACK, &format!("optional {fault} panic=option\n"))?;
        let step = cluster.alice().srun(&["--railgate-gate=nonsense", "true"])?;
        assert_eq!(step.code, 0, "{step}");
        assert!(step.stderr.contains("internal error"), "{step}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn valgrind_reports_no_error_in_srun_and_slurmstepd() -> Result<()> {
    Builder::new(1).plain().test(|cluster| {
        if cluster.root().run(&["test", "-x", "/usr/bin/valgrind"])?.code != 0 {
            return skipped("plugin: this Slurm's root has no valgrind");
        }
        let logs = format!("{PLACE}/logs");
        let fault = put(cluster, "fault.so", &fs::read(built("libspank_railgate_fault.so")?)?)?;
        let known = put(cluster, "slurm.supp", include_bytes!("slurm.supp"))?;
        let valgrind = format!(
            "/usr/bin/valgrind --log-file={logs}/%p --num-callers=40 --read-inline-info=no --suppressions={known}"
        );
        let wrapper =
            format!("#!/bin/sh\nexec {valgrind} --trace-children=no /usr/sbin/slurmstepd \"$@\"\n");
        let wrapper = put(cluster, "slurmstepd", wrapper.as_bytes())?;
        fs::create_dir_all(cluster.path("ctl", &logs)?)?;
        fs::set_permissions(cluster.path("ctl", &logs)?, fs::Permissions::from_mode(0o1777))?;
        cluster.kill_slurmd("gn1")?;
        cluster.root().on("gn1").run(&["slurmd", "-d", &wrapper])?.ok()?;

        // The files that the prolog would leave, for every job.
        let jobs = cluster.path("gn1", "/run/railgate/jobs")?;
        for job in 1..20 {
            let run = jobs.join(job.to_string()).join("0-1");
            fs::create_dir_all(run.join("user"))?;
            fs::set_permissions(run.join("user"), fs::Permissions::from_mode(0o1777))?;
            let env = "railgate-task-env 1\nnotice hello\ndefault NCCL_IB_HCA==mlx5_0:1\nforce X=1\n";
            fs::write(run.join("task.env"), env)?;
            std::os::unix::fs::symlink("0-1", jobs.join(job.to_string()).join("current"))?;
        }
        for panic in ["", " panic=task_init"] {
            let (_, log) = both_ways(cluster, &format!("optional {fault}{panic}"))?;
            assert_eq!(log.contains("hello\n"), panic.is_empty(), "{log}");
            let mut srun: Vec<&str> = valgrind.split(' ').collect();
            srun.extend(["/usr/bin/srun", "--railgate-gate=quick", "-n2", "printenv", "PATH"]);
            cluster.alice().run(&srun)?.ok()?;
        }
        // Slurm shows a job as ended shortly before its slurmstepds write their last lines.
        poll::until(MINUTE, "every slurmstepd to end", || {
            Ok((cluster.root().on("gn1").run(&["pgrep", "memcheck"])?.code == 1).then_some(()))
        })?;
        let mut seen = 0;
        for entry in fs::read_dir(cluster.path("ctl", &logs)?)? {
            let text = String::from_utf8_lossy(&fs::read(entry?.path())?).into_owned();
            // The process of a task executes the user's program, with which its log ends.
            if let Some(summary) = text.lines().find(|line| line.contains("ERROR SUMMARY")) {
                assert!(summary.contains("ERROR SUMMARY: 0 errors"), "{text}");
                seen += 1;
            }
            assert!(!text.contains("Invalid "), "{text}");
        }
        // Two rounds of extern, step, extern, batch, step; then srun itself with extern and step.
        assert!(seen >= 12, "only {seen} logs");
        Ok(())
    })
}
