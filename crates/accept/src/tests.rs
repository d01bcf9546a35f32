//! Tests of the crate: plans, journals, states, reports.

mod hostile;
mod journals;
mod limits;
mod plans;
mod reports;
mod rest;

use serde_json::{Value, json};

use crate::{Entry, Event, Facts, File, Plan, Report, Unit, digest, report};

/// Expands `a[1-3]` and lists with commas.
fn expand(list: &str) -> Result<Vec<String>, String> {
    if let Some((start, rest)) = list.split_once('[') {
        let (low, high) = rest.trim_end_matches(']').split_once('-').ok_or("no range")?;
        let number = |text: &str| text.parse::<u32>().map_err(|why| why.to_string());
        return Ok((number(low)?..=number(high)?).map(|number| format!("{start}{number}")).collect());
    }
    Ok(list.split(',').map(str::to_owned).collect())
}

fn plan(text: &str) -> Plan {
    let head = if text.starts_with("nodes =") { "title = 't'\n" } else { "title = 't'\nnodes = 'n[1-4]'\n" };
    Plan::parse(&format!("{head}{text}"), &expand).unwrap()
}

/// Results of all units, each with the outputs that `outputs` returns, an hour each.
struct Played {
    plan: Plan,
    entries: Vec<Entry>,
    files: Vec<File>,
}

fn entry(event: Event) -> Entry {
    Entry { at: 1_700_000_000_000, event }
}

fn played(plan: Plan, outputs: &dyn Fn(&Unit) -> Value) -> Played {
    let begin = Event::Begin { run: "r".to_owned(), plan: "p".to_owned() };
    let mut played = Played { entries: vec![entry(begin)], files: Vec::new(), plan };
    for (number, unit) in played.plan.units().iter().enumerate() {
        let result = json!({
            "schema": 1, "run": "r", "unit": unit.id, "attempt": 1, "job": number.to_string(), "nodes": unit.nodes,
            "began": 0, "ended": 3_600_000, "railgate": "0", "outputs": outputs(unit),
        });
        let content = result.to_string().into_bytes();
        let file = format!("{}.a1.j{number}.json", unit.id);
        let (unit, nodes) = (unit.id.clone(), unit.nodes.clone());
        played.entries.push(entry(Event::Submit { unit: unit.clone(), attempt: 1, nodes }));
        let digest = digest(&content);
        played.entries.push(entry(Event::Result { unit, attempt: 1, file: file.clone(), digest }));
        played.files.push(File { name: file, content });
    }
    played
}

impl Played {
    fn report(&self) -> Report {
        let facts = Facts {
            plan: &self.plan,
            plan_digest: "p",
            entries: &self.entries,
            journal_digest: "j",
            hostlist: "n[1-4]",
            files: &self.files,
            now: 1_700_000_100_000,
            railgate: "0",
        };
        report(&facts).unwrap()
    }
}

/// The word of an item: pass, fail, waived, unknown.
fn word<'a>(report: &'a Report, id: &str) -> Option<&'a str> {
    report.items.iter().find(|item| item.id == id).map(crate::Item::word)
}

/// What `railgate-gpu-selftest` prints for one GPU.
fn gpu(rate: f64) -> Value {
    let line = json!({
        "gpu": "0000:61:00.0", "model": "H", "test": "gemm-rate-bf16", "seconds": 1.0,
        "values": { "right": { "compared": 10 } }, "measured": { "rate_tflops": rate, "temperature_c": 60.0 },
    });
    json!({ "command": "gpus", "line": "", "exit": 0, "stdout": format!("{line}\n{}\n", last("0000:61:00.0")), "stderr": "" })
}

/// The last line of a GPU alone.
fn last(gpu: &str) -> Value {
    json!({ "gpu": gpu, "model": "H", "test": "host-copy", "seconds": 1.0, "values": { "right": { "compared": 10 } }, "measured": {} })
}

fn check(findings: &Value) -> Value {
    let verdict = json!({ "phase": "periodic", "fitness": "fit", "action": "off", "findings": findings, "decided": null, "shadow": [] });
    json!({ "command": "check", "line": "", "exit": 0, "stdout": json!({ "verdict": verdict }).to_string(), "stderr": "" })
}
