//! Whether an imported nhc.conf gives the same verdicts as NHC, line by line, on healthy and on faulty machines.
//!
//! `tests/nhc/verdicts.txt` has the verdicts of NHC 1.4.3. With `RAILGATE_NHC` (a checkout of that release) and as
//! root, the test also runs both on the machines of `tests/nhc/states.txt`, and compares the record as well.
//! `RAILGATE_NHC_CONFS` names a directory of configurations, each of which must import.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod machine;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use machine::{Machine, machines};

const VERDICTS: &str = include_str!("../nhc/verdicts.txt");

/// A configuration, and NHC's verdicts.
struct Case {
    /// The configuration as recorded.
    shown: &'static str,
    conf: String,
    /// By the machine's name; true if NHC passes.
    verdicts: BTreeMap<&'static str, bool>,
}

fn cases() -> Vec<Case> {
    let lines = VERDICTS.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let [good, bad, shown]: [&str; 3] =
                line.splitn(3, " :: ").collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("{line}"));
            let names = |list: &'static str| list.split(',').filter(|name| *name != "-");
            let good = names(good).map(|name| (name, true));
            let verdicts = good.chain(names(bad).map(|name| (name, false))).collect();
            Case { shown, conf: format!("{}\n", shown.replace(" ¶ ", "\n").replace('¶', "\n")), verdicts }
        })
        .collect()
}

/// Writes to standard error, which the harness does not capture this way.
#[expect(clippy::disallowed_methods, reason = "a skipped test is shown where output is captured, too")]
fn say(text: &str) {
    std::io::stderr().write_all(format!("{text}\n").as_bytes()).unwrap();
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn railgate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_railgate")).args(words).output().unwrap()
}

/// Imports a configuration, and returns the new directory.
fn import(dir: &Path, conf: &str) -> PathBuf {
    let (file, new) = (dir.join("nhc.conf"), dir.join("new"));
    fs::write(&file, conf).unwrap();
    let done = railgate(&["import", "nhc", file.to_str().unwrap(), "--out", new.to_str().unwrap()]);
    assert!(done.status.success(), "{conf}: {}", text(&done));
    new
}

/// Stands in for NHC: checks its arguments, then returns the recorded verdict.
const STAND_IN: &str = r#"#!/bin/bash
NAME=nhc SYSCONFIGDIR=/nowhere
for argument; do eval "$argument"; done
. "$SYSCONFIGDIR/$NAME"
[[ $MARK_OFFLINE$OFFLINE_NODE$ONLINE_NODE$DETACHED_MODE$LOGFILE == 0::0- ]] || exit 99
cmp -s "$CONFFILE" "$RECORDED" || exit 98
[[ $VERDICT == pass ]] && exit 0
echo 'ERROR:  nhc:  Health check failed:  check_x:  a "b\c" | d'
exit 7
"#;

#[test]
fn the_import_keeps_recorded_verdicts() {
    let cases = cases();
    let both =
        |case: &&Case| case.verdicts.values().any(|pass| *pass) && case.verdicts.values().any(|pass| !pass);
    assert!(cases.iter().filter(both).count() >= 200, "lines with a good and a bad machine");
    let machines = machines();
    let place = tempfile::tempdir().unwrap();
    let nhc = place.path().join("nhc");
    fs::write(&nhc, STAND_IN).unwrap();
    fs::set_permissions(&nhc, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", place.path().display());
    std::thread::scope(|scope| {
        for some in cases.chunks(cases.len().div_ceil(4)) {
            let (machines, path) = (&machines, &path);
            scope.spawn(move || some.iter().for_each(|case| play(case, machines, path)));
        }
    });
}

/// Imports a configuration and compares each of its recorded verdicts.
fn play(case: &Case, machines: &BTreeMap<String, machine::Files>, path: &str) {
    let dir = tempfile::tempdir().unwrap();
    let script = import(dir.path(), &case.conf).join("checks.d/nhc.sh");
    let comments = case.conf.lines().all(|line| line.starts_with('#')) || case.shown.starts_with('#');
    assert_eq!(script.exists(), !comments, "{}", case.shown);
    for (name, pass) in &case.verdicts {
        assert!(machines.contains_key(*name), "no machine {name}");
        if comments {
            assert!(pass, "{}", case.shown);
            continue;
        }
        let done = Command::new(&script)
            .env_clear()
            .envs([("PATH", path), ("VERDICT", if *pass { "pass" } else { "fail" })])
            .env("RECORDED", dir.path().join("nhc.conf"))
            .output()
            .unwrap();
        let wanted = if *pass {
            (Some(0), String::new())
        } else {
            (Some(2), "{\"status\": \"fail\", \"what\": \"check_x: a \\\"b\\\\c\\\" | d\"}\n".to_owned())
        };
        assert_eq!((done.status.code(), text(&done)), wanted, "{}", case.shown);
    }
}

/// Verdict of railgate with the imported configuration: whether NHC passes; `None` if unknown.
fn railgate_passes(machine: &Machine, new: &Path) -> Option<bool> {
    let config = new.join("railgate.toml");
    let done = machine.run(
        Command::new(env!("CARGO_BIN_EXE_railgate"))
            .args(["--config", config.to_str().unwrap()])
            .args(["check", "--format", "json"]),
    );
    let said: serde_json::Value =
        serde_json::from_slice(&done.stdout).unwrap_or_else(|_| panic!("{}", text(&done)));
    let findings = said["verdict"]["findings"].as_array().unwrap();
    let mut found = findings.iter().filter(|finding| finding["check"] == "site-nhc");
    match found.next().map(|finding| finding["severity"].as_str().unwrap()) {
        None => Some(true),
        Some("warn") => Some(false),
        Some(_) => None,
    }
}

/// A checkout of NHC, if there is one and it can run here.
fn checkout() -> Option<PathBuf> {
    let checkout = std::env::var_os("RAILGATE_NHC").map(PathBuf::from);
    let skipped = match checkout {
        None => "RAILGATE_NHC names no checkout of NHC 1.4.3",
        Some(_) if !nix::unistd::geteuid().is_root() => "mounting another /proc needs root",
        Some(checkout) => return Some(checkout),
    };
    say(&format!("skipped: {skipped}"));
    None
}

/// NHC's own settings apply, except for those about marking nodes and result files.
#[test]
fn settings_of_nhc_apply_but_it_marks_no_node() {
    let Some(checkout) = checkout() else { return };
    let place = tempfile::tempdir().unwrap();
    let machine = Machine::start(&place.path().join("machine"), &machines()["settings"], &checkout);
    let lines = [
        ("* || check_hw_eth lo", true),
        ("* || check_hw_mcelog", false),
        ("* || export MARK_OFFLINE=1 NHC_CHECK_ALL=0 ¶ * || false", false),
        ("* || export MARK_OFFLINE=1 NHC_CHECK_ALL=0 ¶ * || true", true),
        ("* || check_ps_service -r absentd", false),
        ("* || check_cmd_status -t 4 true", false),
        ("* || sleep 60", false),
    ];
    for (index, (conf, wanted)) in lines.into_iter().enumerate() {
        let dir = place.path().join(index.to_string());
        fs::create_dir(&dir).unwrap();
        let new = import(&dir, &format!("{}\n", conf.replace(" ¶ ", "\n")));
        assert_eq!(railgate_passes(&machine, &new), Some(wanted), "{conf}");
        let marked = machine.run(Command::new("test").args(["-e", "/etc/machine/marked"]));
        assert!(!marked.status.success(), "{conf}");
    }
    // A background process that a line starts is not killed.
    assert!(machine.run(Command::new("test").args(["-e", "/etc/machine/restarted"])).status.success());
}

#[test]
fn nhc_and_railgate_agree_on_every_line() {
    let Some(checkout) = checkout() else { return };
    for script in fs::read_dir(checkout.join("scripts")).unwrap() {
        let script = fs::read_to_string(script.unwrap().path()).unwrap();
        for name in script.lines().filter_map(|line| line.strip_prefix("function check_")?.split('(').next())
        {
            let known = VERDICTS.contains(&format!("check_{name}"));
            assert!(known || name == "hw_gm" || name.starts_with("moab_"), "no line with check_{name}");
        }
    }
    let (cases, machines) = (cases(), machines());
    let place = tempfile::tempdir().unwrap();
    let (mut compared, mut wrong) = (0, Vec::new());
    // NHC sleeps most of the time, so several run at once, each with few lines.
    let mut jobs: Vec<(&String, &machine::Files, Vec<&Case>)> = Vec::new();
    for (name, files) in &machines {
        let own: Vec<&Case> = cases.iter().filter(|case| case.verdicts.contains_key(name.as_str())).collect();
        jobs.extend(own.chunks(30).map(|some| (name, files, some.to_vec())));
    }
    for (round, some) in jobs.chunks(16).enumerate() {
        std::thread::scope(|scope| {
            let mut running = Vec::new();
            for (index, (name, files, cases)) in some.iter().enumerate() {
                let (place, checkout) = (place.path().join(format!("{round}-{index}")), checkout.as_path());
                running.push(scope.spawn(move || {
                    fs::create_dir(&place).unwrap();
                    compare(&place, name, &Machine::start(&place.join("machine"), files, checkout), cases)
                }));
            }
            for done in running {
                let (count, found) = done.join().unwrap();
                compared += count;
                wrong.extend(found);
            }
        });
    }
    say(&format!("{} lines, {compared} comparisons, {} wrong", cases.len(), wrong.len()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Number of verdicts compared on one machine, and those that differ.
fn compare(place: &Path, name: &str, machine: &Machine, cases: &[&Case]) -> (usize, Vec<String>) {
    let (mut compared, mut wrong) = (0, Vec::new());
    for (index, case) in cases.iter().enumerate() {
        let Some(recorded) = case.verdicts.get(name) else { continue };
        let dir = place.join(index.to_string());
        fs::create_dir(&dir).unwrap();
        let new = import(&dir, &case.conf);
        let own = machine.run(
            Command::new("/usr/sbin/nhc")
                .args(["-l", "-", "-c"])
                .arg(dir.join("nhc.conf"))
                .args(["MARK_OFFLINE=0", "OFFLINE_NODE=:"]),
        );
        let nhc = own.status.success();
        let ours = railgate_passes(machine, &new);
        compared += 1;
        if nhc != *recorded || ours != Some(nhc) {
            wrong.push(format!(
                "{name}: {}\n    recorded {recorded}, NHC {nhc}, railgate {ours:?}: {}",
                case.shown,
                text(&own).trim()
            ));
        }
    }
    (compared, wrong)
}

#[test]
fn public_configurations_import() {
    let Some(dir) = std::env::var_os("RAILGATE_NHC_CONFS").map(PathBuf::from) else {
        return say("skipped: RAILGATE_NHC_CONFS names no directory of nhc.conf files");
    };
    let (mut files, mut counts) = (0, [0; 3]);
    for file in fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|end| end == "tsv") {
            continue;
        }
        let place = tempfile::tempdir().unwrap();
        let new = place.path().join("new");
        let done = railgate(&["import", "nhc", file.to_str().unwrap(), "--out", new.to_str().unwrap()]);
        assert!(done.status.success(), "{}: {}", file.display(), text(&done));
        let checked = railgate(&["--config", new.join("railgate.toml").to_str().unwrap(), "config", "check"]);
        assert!(checked.status.success(), "{}: {}", file.display(), text(&checked));
        let listing = text(&done);
        let rows: Vec<&str> = listing.lines().skip(1).take_while(|line| !line.is_empty()).collect();
        let conf = String::from_utf8_lossy(&fs::read(&file).unwrap()).into_owned();
        let lines = conf.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        if !conf.lines().any(|line| line.ends_with('\\')) {
            assert_eq!(rows.len(), lines.count(), "{}", file.display());
        }
        for row in &rows {
            let outcome = ["same meaning", "under NHC", "not imported"].iter().position(|outcome| {
                row.split_once(' ').is_some_and(|(_, rest)| rest.trim_start().starts_with(outcome))
            });
            counts[outcome.unwrap_or_else(|| panic!("{}: {row}", file.display()))] += 1;
        }
        files += 1;
    }
    let [same, under, not] = counts;
    say(&format!(
        "{files} configurations, {} lines: {same} same meaning, {under} under NHC, {not} not imported",
        same + under + not
    ));
}
