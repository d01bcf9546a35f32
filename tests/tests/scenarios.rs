//! Every file of `tests/scenarios/` describes one check run on a simulated node and the expected verdict.
//!
//! ```toml
//! about = "condition: expected verdict"
//! node = "h100-sxm:gpu-lost@3"         # profile and faults, as for `railgate check --simulate`
//! phase = "prolog"                      # prolog, epilog, periodic
//! gpus = "all"                          # "all", "none", a list of indices; absent: no job
//! before = "h100-sxm"                   # the baseline; absent in an epilog: the same node without faults
//! remembers = true                      # an earlier check run found the node without faults
//! later = "30m"                         # time from the baseline and the earlier check run to this one
//! usual = { symbol_error = 3 }          # hourly growth of every port's counters over the last days
//! silent = ["gpus"]                     # parts without an answer in the previous check run
//! again = true                          # a check run ten minutes ago had the same result
//! machine = { fabric = { link_layer = "ethernet" } }   # differences of the machine from its type
//! profile = { gpus = { count = 4 } }    # expected values that differ from the machine's
//! [config]                              # as in `[gate]`
//! [expect]
//! fitness = "unfit"
//! action = "drain"
//! deciding = "gpu-lost@3"               # absent if the node must be fit
//! what = "0000:61:00.0 off bus, Xid 79"
//! fix = "reboot"
//! findings = ["fail gpu-lost@3"]        # all findings, worst first; absent: not compared
//! shadow = ["fail gpu-lost@3"]          # findings of checks in shadow; absent: not compared
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use railgate_gate::{CHECKS, GateConfig, Memory, Sample, Seen, judge};
use railgate_model::{
    Action, Allocation, Finding, Fitness, GpuId, Job, PartName, Phase, Profile, Severity, Snapshot, Verdict,
};
use railgate_slurm::{LEADER, MAX_REASON, Reason};
use serde::Deserialize;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    #[serde(rename = "about")]
    _about: String,
    node: String,
    phase: Phase,
    gpus: Option<Held>,
    before: Option<String>,
    #[serde(default)]
    remembers: bool,
    #[serde(default, with = "railgate_model::duration_text")]
    later: Duration,
    #[serde(default)]
    usual: BTreeMap<String, u64>,
    #[serde(default)]
    silent: Vec<PartName>,
    #[serde(default)]
    again: bool,
    machine: Option<toml::Table>,
    profile: Option<toml::Table>,
    #[serde(default)]
    config: GateConfig,
    expect: Expect,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Held {
    Named(String),
    These(Vec<u32>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    fitness: Fitness,
    action: Action,
    deciding: Option<String>,
    what: Option<String>,
    fix: Option<String>,
    findings: Option<Vec<String>>,
    shadow: Option<Vec<String>>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

fn scenarios() -> Result<Vec<(String, Scenario)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder())? {
        let path = entry?.path();
        if path.extension().is_none_or(|end| end != "toml") {
            continue;
        }
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&path)?;
        let scenario = toml::from_str(&text).with_context(|| path.display().to_string())?;
        found.push((name, scenario));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

fn node(
    text: &str,
    machine: Option<&toml::Table>,
    differs: Option<&toml::Table>,
) -> Result<(Profile, Snapshot)> {
    let (mut profile, faults) = railgate_simulate::parse(text, &[])?;
    if let Some(machine) = machine {
        let mut table = toml::Table::try_from(&profile)?;
        merge(&mut table, machine);
        profile = table.try_into()?;
    }
    let snapshot = railgate_simulate::simulated(&profile, &faults);
    let Some(differs) = differs else { return Ok((profile, snapshot)) };
    let mut table = toml::Table::try_from(&profile)?;
    merge(&mut table, differs);
    Ok((table.try_into()?, snapshot))
}

fn merge(table: &mut toml::Table, over: &toml::Table) {
    for (key, value) in over {
        match (table.get_mut(key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(over)) => merge(inner, over),
            _ => {
                table.insert(key.clone(), value.clone());
            }
        }
    }
}

fn job(held: &Held, healthy: &Snapshot) -> Result<Job> {
    let all = healthy.gpus.data().map_or(&[][..], |gpus| gpus.gpus.as_slice());
    let indices: Vec<u32> = match held {
        Held::Named(name) if name == "all" => all.iter().map(|gpu| gpu.index).collect(),
        Held::Named(name) if name == "none" => Vec::new(),
        Held::Named(name) => anyhow::bail!("gpus: '{name}' is neither 'all' nor 'none' nor a list"),
        Held::These(indices) => indices.clone(),
    };
    Ok(Job {
        id: 48213,
        uid: 1000,
        gid: 1000,
        user: "alice".to_owned(),
        restarts: 0,
        nodelist: "n[1-2]".to_owned(),
        het_leader: None,
        allocation: if indices.is_empty() {
            Allocation::NoGpus
        } else {
            Allocation::Gpus(indices.into_iter().map(GpuId::Index).collect())
        },
        partition: "gpu".to_owned(),
    })
}

fn judged(scenario: &Scenario) -> Result<Verdict> {
    let (profile, mut now) = node(&scenario.node, scenario.machine.as_ref(), scenario.profile.as_ref())?;
    let healthy =
        node(scenario.node.split(':').next().unwrap_or_default(), scenario.machine.as_ref(), None)?.1;
    let before = match (&scenario.before, scenario.phase) {
        (Some(text), _) => Some(node(text, scenario.machine.as_ref(), scenario.profile.as_ref())?.1),
        (None, Phase::Epilog) => Some(healthy.clone()),
        (None, _) => None,
    };
    let mut memory = Memory::default();
    if scenario.remembers {
        memory = memory.after(&healthy, true);
    }
    memory.boot_id.clone_from(&now.boot_id);
    memory.silent.clone_from(&scenario.silent);
    for link in &mut memory.links {
        let rate = Sample { time: 1, counters: scenario.usual.clone() };
        link.rates = if scenario.usual.is_empty() { Vec::new() } else { vec![rate; 28] };
    }
    now.taken += u64::try_from(scenario.later.as_millis())?;
    let problems = scenario.config.problems();
    ensure!(problems.is_empty(), "{problems:?}");
    let job = scenario.gpus.as_ref().map(|held| job(held, &healthy)).transpose()?;
    let seen = Seen {
        phase: scenario.phase,
        now: &now,
        before: before.as_ref(),
        job: job.as_ref(),
        profile: Some(&profile),
        memory: &memory,
    };
    let first = judge(&scenario.config, &seen);
    if !scenario.again {
        return Ok(first);
    }
    let mut memory = memory.after(&now, false);
    memory.silent.clone_from(&scenario.silent);
    memory.strike(&now, &first);
    let mut later = now.clone();
    later.taken += 600_000;
    Ok(judge(&scenario.config, &Seen { now: &later, memory: &memory, ..seen }))
}

fn differences(expect: &Expect, verdict: &Verdict) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut compare = |what: &str, got: String, want: String| {
        if got != want {
            wrong.push(format!("{what}: got {got:?}, want {want:?}"));
        }
    };
    compare("fitness", verdict.fitness.to_string(), expect.fitness.to_string());
    compare("action", format!("{:?}", verdict.action), format!("{:?}", expect.action));
    let of_cause = |get: fn(&Finding) -> String| verdict.cause().map(get).unwrap_or_default();
    compare("deciding", of_cause(Finding::subject), expect.deciding.clone().unwrap_or_default());
    if let Some(what) = &expect.what {
        compare("what", of_cause(|finding| finding.what.clone()), what.clone());
    }
    if let Some(fix) = &expect.fix {
        compare("fix", of_cause(|finding| finding.fix.clone()), fix.clone());
    }
    for (what, found, expected) in
        [("findings", &verdict.findings, &expect.findings), ("shadow", &verdict.shadow, &expect.shadow)]
    {
        if let Some(expected) = expected {
            let line = |finding: &Finding| format!("{} {}", finding.severity, finding.subject());
            let got: Vec<String> = found.iter().map(line).collect();
            compare(what, got.join("; "), expected.join("; "));
        }
    }
    wrong
}

#[test]
fn every_scenario_gets_its_expected_verdict() {
    let scenarios = scenarios().unwrap();
    assert!(scenarios.len() >= 30, "only {} scenarios in {}", scenarios.len(), folder().display());
    let mut wrong = Vec::new();
    for (name, scenario) in &scenarios {
        match judged(scenario) {
            Ok(verdict) => {
                wrong.extend(
                    differences(&scenario.expect, &verdict).iter().map(|line| format!("{name}: {line}")),
                );
            }
            Err(why) => wrong.push(format!("{name}: {why:#}")),
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The check's name in the register; all checks defined by the site share one row.
fn row_of(subject: &str) -> &str {
    let id = subject.split('@').next().unwrap_or_default();
    if id.starts_with("site-") { "site" } else { id }
}

/// Every check of the register decides the verdict of a scenario.
#[test]
fn every_check_decides_in_a_scenario() {
    let scenarios = scenarios().unwrap();
    let decided: BTreeSet<&str> = scenarios
        .iter()
        .filter_map(|(_, scenario)| Some(row_of(scenario.expect.deciding.as_ref()?)))
        .collect();
    let missing: Vec<_> = CHECKS.iter().map(|check| check.id).filter(|id| !decided.contains(*id)).collect();
    assert!(missing.is_empty(), "no scenario for {missing:?}");
}

/// Every fault that `railgate simulate --list` prints has a scenario.
#[test]
fn every_fault_has_a_scenario() {
    let scenarios = scenarios().unwrap();
    let faults: BTreeSet<&str> = scenarios
        .iter()
        .filter_map(|(_, scenario)| Some(scenario.node.split_once(':')?.1))
        .flat_map(|list| list.split(','))
        .map(|fault| fault.trim().split('@').next().unwrap_or_default())
        .map(|fault| if fault.starts_with("gpu-xid-") { "gpu-xid-<code>" } else { fault })
        .collect();
    let missing: Vec<&str> =
        railgate_simulate::FAULTS.iter().map(|fault| fault.id).filter(|id| !faults.contains(id)).collect();
    assert!(missing.is_empty(), "no scenario for {missing:?}");
    assert!(railgate_simulate::FAULTS.len() >= 90, "{} faults", railgate_simulate::FAULTS.len());
}

/// The reason that Slurm shows for a deciding finding has at most the allowed length and begins with check and device.
#[test]
fn every_drain_reason_fits_and_begins_with_check_and_device() {
    const SINFO: usize = 20;
    let mut wrong = Vec::new();
    for (name, scenario) in &scenarios().unwrap() {
        let verdict = judged(scenario).unwrap();
        for finding in verdict.findings.iter().filter(|finding| finding.severity > Severity::Note) {
            let subject = finding.subject();
            let reason = Reason::new(finding, scenario.phase, &[48213, 48214]);
            let text = reason.to_string();
            let whole = format!("{LEADER} {subject}: ");
            if text.len() > MAX_REASON || !text.starts_with(&whole) || !text.is_ascii() {
                wrong.push(format!("{name}: {} characters: {text}", text.len()));
            }
            if finding.what.is_empty() || finding.fix.is_empty() {
                wrong.push(format!("{name}: {subject} has no description or no fix"));
            }
            // `sinfo -R` prints twenty characters, which must identify the check.
            let seen = &text[..SINFO.min(text.len())];
            let check = row_of(&subject);
            let alike = CHECKS.iter().find(|other| {
                let other_text = format!("{LEADER} {}: ", subject.replacen(&finding.check, other.id, 1));
                other.id != check && other_text.get(..SINFO.min(other_text.len())) == Some(seen)
            });
            if let Some(other) = alike {
                wrong.push(format!("{name}: '{seen}' could be {} as well", other.id));
            }
            if Reason::parse(&text).is_none_or(|back| back.subject != subject.replace(' ', "-")) {
                wrong.push(format!("{name}: cannot be parsed: {text}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The beginning of each drain reason that `sinfo -R` prints by default. The prefix takes ten characters, then comes the check:
/// it is always identifiable, the device only if the check's name is short.
#[test]
fn sinfo_shows_the_check_of_every_drain() {
    let mut seen = BTreeSet::new();
    for (_, scenario) in &scenarios().unwrap() {
        let verdict = judged(scenario).unwrap();
        if let Some(cause) = verdict.cause().filter(|_| verdict.fitness == Fitness::Unfit) {
            let text = Reason::new(cause, scenario.phase, &[]).to_string();
            seen.insert(text.get(..20).unwrap_or(&text).to_owned());
        }
    }
    let expected: BTreeSet<String> = SHOWN.iter().map(|text| format!("{LEADER} {text}")).collect();
    assert_eq!(seen, expected);
}

const SHOWN: &[&str] = &[
    "cloud-main",
    "disk@/: 0.",
    "gpu-count@",
    "gpu-ecc@3:",
    "gpu-fabric",
    "gpu-lost@3",
    "gpu-nvlink",
    "gpu-pcie@3",
    "gpu-proces",
    "gpu-recove",
    "gpu-remap@",
    "gpu-retire",
    "gpu-self-t",
    "gpu-sxid@0",
    "gpu-thrott",
    "gpu-xid@3:",
    "ib-count@m",
    "ib-errors@",
    "ib-port@ml",
    "ib-rate@ml",
    "mounts@/ho",
    "mounts@/sc",
    "part-silen",
    "site-raid:",
    "site-raid@",
];

/// Every fault leads to a finding in at least one scenario: in a time window, with the site's settings, or as a note. The faults
/// that never do are listed here with the reason.
#[test]
fn every_fault_has_a_finding_in_some_scenario() {
    let silent = [
        // These simulate healthy behaviour.
        "gpu-process-exiting", // the process is exiting
        "nvml-slow",           // slow, but it answers
        "ib-renamed",          // the same devices under other names
    ];
    let mut told = BTreeSet::new();
    for (_, scenario) in &scenarios().unwrap() {
        let Some((_, faults)) = scenario.node.split_once(':') else { continue };
        let verdict = judged(scenario).unwrap();
        let says_something = !verdict.findings.is_empty() || !verdict.shadow.is_empty();
        if !faults.contains(',') && says_something {
            let id = faults.trim().split('@').next().unwrap_or_default();
            told.insert(if id.starts_with("gpu-xid-") { "gpu-xid-<code>" } else { id }.to_owned());
        }
    }
    let untold: Vec<&str> =
        railgate_simulate::FAULTS.iter().map(|fault| fault.id).filter(|id| !told.contains(*id)).collect();
    assert_eq!(untold, silent);
}
