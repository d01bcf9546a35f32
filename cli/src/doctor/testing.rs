//! A correct installation, and mistakes to plant in it.

use std::path::PathBuf;

use railgate_runner::Config;
use railgate_slurm::{Consent, Lost};

use super::facts::{Dir, Facts, PluginFile, Roles, SlurmConf};
use super::files::{Hook, Program};
use super::plugstack::{Line, Plugstack};
use super::slurm_file::SlurmFile;

fn hook(value: &str, path: &str) -> Hook {
    let ours = Program { path: PathBuf::from(path), ours: true, trouble: None };
    let site = Program { path: PathBuf::from("/etc/slurm/10-site"), ours: false, trouble: None };
    Hook { value: value.to_owned(), programs: vec![site, ours] }
}

/// An installation as in docs/install.md, on a controller that is also a compute node.
pub(crate) fn right() -> Facts {
    let mut config = Config { profile: "h100-sxm".to_owned(), ..Config::default() };
    config.requeue.default = Consent::Auto;
    let conf = [
        ("SLURM_VERSION", "22.05.8"),
        ("PrologFlags", "Alloc,Contain,DeferBatch"),
        ("SchedulerParameters", "nohold_on_prolog_fail"),
        ("JobRequeue", "1"),
        ("PrologEpilogTimeout", "120"),
        ("BatchStartTimeout", "180 sec"),
        ("JobFileAppend", "1"),
        ("AuthInfo", "cred_expire=60"),
        ("HealthCheckInterval", "300 sec"),
    ];
    let line = Line {
        at: "plugstack.conf:1".to_owned(),
        required: false,
        plugin: PathBuf::from("/usr/lib/railgate/spank_railgate.so"),
    };
    Facts {
        node: "gn1".to_owned(),
        roles: Roles { compute: true, controller: true },
        config: Ok(config),
        config_file: PathBuf::from("/dev/null"),
        slurm: Ok(SlurmConf(conf.map(|(key, value)| (key.to_owned(), value.to_owned())).into())),
        prolog: hook("/etc/slurm/prolog.d/*", "/etc/slurm/prolog.d/95-railgate"),
        epilog: hook("/etc/slurm/epilog.d/*", "/etc/slurm/epilog.d/95-railgate"),
        ctld: hook(
            "/usr/libexec/railgate/railgate-epilog-ctld",
            "/usr/libexec/railgate/railgate-epilog-ctld",
        ),
        periodic: hook("/etc/railgate/periodic.sh", "/etc/railgate/periodic.sh"),
        plugstack: Ok(Plugstack { lines: vec![line.clone()] }),
        plugin: Some(PluginFile {
            path: line.plugin,
            release: Ok((22, 5)),
            packaged: Vec::new(),
            untrusted: None,
        }),
        sampler: Ok(()),
        untrusted: Vec::new(),
        ledger: Ok(Dir { uid: 64030, mode: 0o755 }),
        in_ledger: vec![("waiters".to_owned(), 64030)],
        lost_ends: Ok(None),
        slurm_uid: Some(64030),
        report_dir: Some(Ok(Dir { uid: 0, mode: 0o1777 })),
        report_cluster: Some(Dir { uid: 0, mode: 0o755 }),
        gpus: Ok(8),
        slurm_file: Ok(SlurmFile::default()),
        metrics_dir: None,
        profile: Ok(()),
        stopped: None,
    }
}

fn slurm_file(text: &str) -> Result<SlurmFile, String> {
    let place = tempfile::NamedTempFile::new().map_err(|why| why.to_string())?;
    std::fs::write(place.path(), text).map_err(|why| why.to_string())?;
    SlurmFile::read(place.path())
}

fn set(facts: &mut Facts, key: &str, value: &str) {
    if let Ok(conf) = &mut facts.slurm {
        conf.0.insert(key.to_owned(), value.to_owned());
    }
}

fn expedite(facts: &mut Facts) {
    if let Ok(config) = &mut facts.config {
        config.requeue.expedite = true;
    }
}

type Mistake = (&'static str, &'static str, fn(&mut Facts));

/// Each row: the rule that must find it, part of its finding, the mistake.
pub(crate) static MISTAKES: &[Mistake] = &[
    ("slurm-release", "21.08", |facts| {
        set(facts, "SLURM_VERSION", "21.08.1");
        if let Some(plugin) = &mut facts.plugin {
            plugin.release = Ok((21, 8));
        }
    }),
    ("configuration", "gate.modus", |facts| {
        facts.config = Err("unknown key gate.modus".to_owned());
    }),
    ("slurm-conf-read", "EpilogSlurmctld=/new is not in force: slurmctld has no value", |facts| {
        facts.ctld = Hook::default();
        facts.slurm_file = slurm_file("EpilogSlurmctld=/new\nPrologEpilogTimeout=120\n");
    }),
    (
        "slurm-conf-read",
        "PrologFlags=Alloc,Contain,DeferBatch is not in force: slurmctld has 'Alloc'",
        |facts| {
            set(facts, "PrologFlags", "Alloc");
            facts.slurm_file = slurm_file("PrologFlags=Alloc,Contain,DeferBatch\n");
        },
    ),
    ("slurm-conf-read", "JobRequeue=0 is not in force: slurmctld has '1'", |facts| {
        facts.slurm_file = slurm_file("JobRequeue=0\nBatchStartTimeout=180\n");
    }),
    ("slurm-conf-doubles", "SchedulerParameters is set 2 times, and defer is lost", |facts| {
        facts.slurm_file =
            slurm_file("SchedulerParameters=defer\nSchedulerParameters=nohold_on_prolog_fail\n");
    }),
    ("prolog-flags", "DeferBatch", |facts| set(facts, "PrologFlags", "Alloc,Contain")),
    ("prolog-flags", "Alloc, Contain, DeferBatch", |facts| set(facts, "PrologFlags", "(null)")),
    ("held-jobs", "nohold_on_prolog_fail", |facts| set(facts, "SchedulerParameters", "bf_window=100")),
    ("job-requeue", "JobRequeue=0", |facts| set(facts, "JobRequeue", "0")),
    ("gate-time", "PrologEpilogTimeout=60", |facts| set(facts, "PrologEpilogTimeout", "60")),
    ("gate-time", "PrologTimeout=30", |facts| set(facts, "PrologTimeout", "30 sec")),
    ("batch-start", "BatchStartTimeout=10", |facts| set(facts, "BatchStartTimeout", "10 sec")),
    ("job-log", "JobFileAppend=0", |facts| set(facts, "JobFileAppend", "0")),
    ("expedited-requeue", "expedite needs Slurm 25.11, this is 22.05", expedite),
    ("expedited-requeue", "lacks enable_expedited_requeue", |facts| {
        expedite(facts);
        set(facts, "SLURM_VERSION", "26.05.5");
        set(facts, "SchedulerParameters", "nohold_on_prolog_fail,requeue_delay=10");
        if let Some(plugin) = &mut facts.plugin {
            plugin.release = Ok((26, 5));
        }
    }),
    ("prolog-hook", "is not set", |facts| facts.prolog = Hook::default()),
    ("prolog-hook", "matches no file", |facts| facts.prolog.programs.clear()),
    ("prolog-hook", "does not lead to railgate-prolog", |facts| {
        facts.prolog.programs.pop();
    }),
    ("prolog-hook", "not executable", |facts| {
        facts.prolog.programs[1].trouble = Some("not executable".to_owned());
    }),
    ("epilog-hook", "does not lead to railgate-epilog", |facts| {
        facts.epilog.programs.pop();
    }),
    ("controller-hook", "is not set", |facts| facts.ctld = Hook::default()),
    ("controller-hook", "does not lead", |facts| {
        facts.ctld.programs.pop();
    }),
    ("ledger", "No such file", |facts| facts.ledger = Err("No such file or directory".to_owned())),
    ("ledger", "controller/waiters belongs to uid 0, SlurmUser is uid 64030", |facts| {
        facts.in_ledger[0].1 = 0
    }),
    ("ledger", "SlurmUser is uid 64030", |facts| facts.ledger = Ok(Dir { uid: 0, mode: 0o755 })),
    (
        "job-ends",
        "17 job ends were not recorded or not summed up, the last one at 1970-01-01T00:00:07Z: given up",
        |facts| {
            facts.lost_ends = Ok(Some(Lost { count: 17, last: 7000, why: "given up".to_owned() }));
        },
    ),
    ("periodic-check", "is not set", |facts| facts.periodic = Hook::default()),
    ("periodic-check", "never runs", |facts| set(facts, "HealthCheckInterval", "0 sec")),
    ("plugstack", "not configured", |facts| facts.plugstack = Ok(Plugstack::default())),
    ("plugstack", "required", |facts| {
        if let Ok(stack) = &mut facts.plugstack {
            stack.lines[0].required = true;
        }
    }),
    ("plugstack", "pyxis", |facts| {
        if let Ok(stack) = &mut facts.plugstack {
            let plugin = PathBuf::from("spank_pyxis.so");
            stack.lines.insert(0, Line { at: "plugstack.conf:1".to_owned(), required: true, plugin });
        }
    }),
    ("plugin-file", "for Slurm 24.11", |facts| {
        if let Some(plugin) = &mut facts.plugin {
            plugin.release = Ok((24, 11));
        }
    }),
    ("plugin-file", "No such file", |facts| {
        if let Some(plugin) = &mut facts.plugin {
            plugin.release = Err("No such file or directory".to_owned());
        }
    }),
    ("sampler", "No such file", |facts| {
        facts.sampler = Err("/usr/libexec/railgate/railgate-sampler: No such file".to_owned());
    }),
    ("owners", "belongs to uid 1000", |facts| {
        facts.untrusted = vec!["/etc/railgate belongs to uid 1000".to_owned()]
    }),
    ("machine-source", "other places", |facts| {
        if let Ok(config) = &mut facts.config {
            config.source.sysfs = PathBuf::from("/opt/sys");
        }
    }),
    ("gpus", "libnvidia-ml", |facts| facts.gpus = Err("libnvidia-ml.so.1: not found".to_owned())),
    ("profile", "no profile 'h10-sxm'", |facts| {
        facts.profile = Err("no profile 'h10-sxm'".to_owned());
    }),
    ("metrics-dir", "No such file", |facts| {
        facts.metrics_dir = Some(Err("/var/lib/node_exporter: No such file or directory".to_owned()));
    }),
    ("report-dir", "mode 0755", |facts| facts.report_dir = Some(Ok(Dir { uid: 0, mode: 0o755 }))),
    ("report-dir", "belongs to uid 1000", |facts| {
        facts.report_dir = Some(Ok(Dir { uid: 1000, mode: 0o755 }));
    }),
    ("report-dir", "mode 0775", |facts| facts.report_dir = Some(Ok(Dir { uid: 64030, mode: 0o775 }))),
    ("report-dir", "directories of future jobs", |facts| {
        facts.report_cluster = Some(Dir { uid: 65_534, mode: 0o1777 });
    }),
    ("report-dir", "uid 1000 owns the cluster's directory", |facts| {
        facts.report_cluster = Some(Dir { uid: 1000, mode: 0o755 });
    }),
    ("report-dir", "No such file", |facts| facts.report_dir = Some(Err("No such file".to_owned()))),
];
