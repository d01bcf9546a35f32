//! Runs site checks as real executables: their results, how they end, and that no process of them remains.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test without the standard harness")]

#[path = "../../child/tests/one_by_one/mod.rs"]
mod one_by_one;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use railgate_model::{Extra, Phase, Plan, Severity, SiteCheck, SiteFinding, SiteOutcome, SiteRequest};
use railgate_probe::dispatch;
use railgate_probe::{Request, SourceConfig, live};

/// A generous limit: each check ends at its own deadline or at once.
const GATE: Duration = Duration::from_secs(30);

struct Site {
    dir: tempfile::TempDir,
    deadline: Duration,
    named: BTreeMap<String, Option<Duration>>,
}

impl Site {
    fn new() -> Self {
        Site { dir: tempfile::tempdir().unwrap(), deadline: Duration::from_secs(20), named: BTreeMap::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn script(&self, name: &str, body: &str) {
        let path = self.dir.path().join("checks.d").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn look(&self) -> BTreeMap<String, SiteCheck> {
        let site = SiteRequest {
            directory: self.dir.path().join("checks.d"),
            phase: Phase::Prolog,
            job: Some(48213),
            deadline: Some(self.deadline),
            named: self.named.clone(),
        };
        let plan = Plan { parts: Vec::new(), extras: vec![Extra::SiteChecks(site)] };
        let request = Request { plan, ..Request::everything("gn1", GATE) };
        let checks = live(&SourceConfig::default(), &request).extras.site_checks;
        checks.into_iter().map(|check| (check.name.clone(), check)).collect()
    }

    fn says(&self, name: &str) -> SiteOutcome {
        self.look().remove(name).unwrap_or_else(|| panic!("no {name}")).outcome
    }
}

fn only(outcome: SiteOutcome) -> SiteFinding {
    match outcome {
        SiteOutcome::Said(findings) if findings.len() == 1 => findings.into_iter().next().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Whether the process with the id in this file is alive.
fn lives(pid: &Path) -> bool {
    let pid = fs::read_to_string(pid).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
    // A zombie that has not been reaped counts as dead.
    stat.is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with('Z'))
}

fn exit_codes_and_output_are_parsed() {
    let site = Site::new();
    site.script("good", "echo 'OK - 8 disks'");
    site.script("bad", "echo 'RAID CRITICAL - md0 degraded | x=1'; exit 2");
    site.script("json", r#"echo '{"status": "warn", "part": "psu1", "what": "no input"}'"#);
    site.script("crash", "kill -SEGV $$");
    fs::write(site.path("checks.d/foreign"), "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(site.path("checks.d/foreign"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut seen = site.look();
    let mut outcome = |name: &str| seen.remove(name).unwrap().outcome;
    assert_eq!(outcome("good"), SiteOutcome::Said(Vec::new()));
    let bad = only(outcome("bad"));
    assert_eq!(
        (bad.severity, bad.what.as_str(), bad.proof.as_str()),
        (Severity::Fail, "md0 degraded", "exit code 2")
    );
    let json = only(outcome("json"));
    assert_eq!((json.severity, json.part.as_str(), json.what.as_str()), (Severity::Warn, "psu1", "no input"));
    assert_eq!(outcome("crash"), SiteOutcome::Failed("killed by signal 11".to_owned()));
    assert!(matches!(outcome("foreign"), SiteOutcome::Failed(why) if why.starts_with("cannot be started: ")));
}

fn the_environment_is_built_from_scratch() {
    let site = Site::new();
    site.script("look", "echo $(/usr/bin/env | sort); cat; exit 1");
    let said = only(site.says("look")).what;
    assert_eq!(
        said,
        "LC_ALL=C PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PWD=/ RAILGATE_JOB_ID=48213 \
         RAILGATE_NODE=gn1 RAILGATE_PHASE=prolog"
    );
}

fn a_check_that_never_ends_leaves_nothing_behind() {
    let mut site = Site::new();
    site.deadline = Duration::from_millis(700);
    // One process in a session of its own, which a signal to the group does not reach. Both ignore SIGTERM.
    let (own, other) = (site.path("own"), site.path("other"));
    site.script(
        "hang",
        &format!(
            "trap '' TERM INT HUP; echo $$ > {}; setsid sh -c 'echo $$ > {}; exec sleep 600' & sleep 600",
            own.display(),
            other.display()
        ),
    );
    site.script("good", "exit 0");
    let mut seen = site.look();
    let hang = seen.remove("hang").unwrap();
    assert_eq!(hang.outcome, SiteOutcome::Silent { stuck: false, after_ms: 700.0 });
    assert!(!lives(&own) && !lives(&other));
    assert_eq!(seen["good"].outcome, SiteOutcome::Said(Vec::new()));
}

fn background_processes_of_a_check_are_killed() {
    let site = Site::new();
    let pid = site.path("pid");
    site.script(
        "daemon",
        &format!("setsid sh -c 'echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600' & while [ ! -e {0} ]; do :; done; exit 2", pid.display()),
    );
    assert_eq!(only(site.says("daemon")).severity, Severity::Fail);
    assert!(!lives(&pid));
}

fn a_check_with_endless_output_is_killed() {
    let mut site = Site::new();
    site.named.insert("yes".to_owned(), Some(Duration::from_millis(500)));
    site.script("yes", "exec yes");
    site.script("much", "head -c 3000000 /dev/zero | tr '\\0' x; exit 1");
    let mut seen = site.look();
    assert_eq!(seen.remove("yes").unwrap().outcome, SiteOutcome::Silent { stuck: false, after_ms: 500.0 });
    assert_eq!(only(seen.remove("much").unwrap().outcome).what, "x".repeat(200));
}

fn only_requested_checks_are_run() {
    let mut site = Site::new();
    let ran = site.path("ran");
    site.script("off", &format!("touch {}", ran.display()));
    site.script("on", "exit 0");
    site.named.insert("off".to_owned(), None);
    assert_eq!(site.look().into_keys().collect::<Vec<_>>(), ["on"]);
    assert!(!ran.exists());
}

fn main() -> ExitCode {
    if let Some(code) = dispatch(&[]) {
        return code;
    }
    let tests: &[(&str, fn())] = &[
        ("exit_codes_and_output_are_parsed", exit_codes_and_output_are_parsed),
        ("the_environment_is_built_from_scratch", the_environment_is_built_from_scratch),
        ("a_check_that_never_ends_leaves_nothing_behind", a_check_that_never_ends_leaves_nothing_behind),
        ("background_processes_of_a_check_are_killed", background_processes_of_a_check_are_killed),
        ("a_check_with_endless_output_is_killed", a_check_with_endless_output_is_killed),
        ("only_requested_checks_are_run", only_requested_checks_are_run),
    ];
    one_by_one::run(tests)
}
