//! Every file of `tests/scenarios/` is one look at a simulated node, and what the gate must say of it.
//!
//! ```toml
//! about = "why this scenario exists"
//! node = "h100-sxm:gpu-lost@3"         # profile and faults, as for `railgate check --simulate`
//! phase = "prolog"                      # prolog, epilog, periodic
//! gpus = "all"                          # "all", "none", a list of indices; absent: no job
//! before = "h100-sxm"                   # the baseline; absent in an epilog: the same node without faults
//! remembers = true                      # an earlier look found the node without faults
//! silent = ["gpus"]                     # parts without an answer at the previous look
//! again = true                          # a look a minute ago saw the same
//! profile = { gpus = { count = 4 } }    # the machine is held against other numbers than its own
//! [config]                              # as in `[gate]`
//! [expect]
//! fitness = "unfit"
//! action = "drain"
//! deciding = "gpu-lost@3"               # absent where the node must be fit
//! what = "0000:61:00.0 off bus, Xid 79"
//! fix = "reboot"
//! findings = ["fail gpu-lost@3"]        # all of them, worst first; absent: not looked at
//! shadow = ["fail gpu-lost@3"]          # what checks in shadow found; absent: not looked at
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use railgate_gate::{CHECKS, GateConfig, Memory, Seen, judge};
use railgate_node::{
    Action, Allocation, Finding, Fitness, GpuId, Job, PartName, Phase, Profile, Snapshot, Verdict, simulate,
};
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
    #[serde(default)]
    silent: Vec<PartName>,
    #[serde(default)]
    again: bool,
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

fn node(text: &str, differs: Option<&toml::Table>) -> Result<(Profile, Snapshot)> {
    let (profile, faults) = simulate::parse(text, &[])?;
    let snapshot = simulate::simulated(&profile, &faults);
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
    let (profile, now) = node(&scenario.node, scenario.profile.as_ref())?;
    let healthy = node(scenario.node.split(':').next().unwrap_or_default(), None)?.1;
    let before = match (&scenario.before, scenario.phase) {
        (Some(text), _) => Some(node(text, scenario.profile.as_ref())?.1),
        (None, Phase::Epilog) => Some(healthy.clone()),
        (None, _) => None,
    };
    let mut memory = Memory::default();
    if scenario.remembers {
        memory = memory.after(&healthy, true);
    }
    memory.boot_id.clone_from(&now.boot_id);
    memory.silent.clone_from(&scenario.silent);
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
    let mut memory = memory.clone();
    memory.strike(&now, &first);
    let mut later = now.clone();
    later.taken += 60_000;
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
fn every_scenario_is_judged_as_it_says() {
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

/// A check without a scenario has never been seen from outside.
#[test]
fn every_check_decides_in_a_scenario() {
    let decided: BTreeSet<String> = scenarios()
        .unwrap()
        .iter()
        .flat_map(|(_, scenario)| scenario.expect.deciding.clone())
        .map(|subject| subject.split('@').next().unwrap_or_default().to_owned())
        .collect();
    let missing: Vec<_> = CHECKS.iter().map(|check| check.id).filter(|id| !decided.contains(*id)).collect();
    assert!(missing.is_empty(), "no scenario for {missing:?}");
}
