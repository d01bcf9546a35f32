//! `railgate accept`: plan, Slurm's output, journal, results and waivers.

use crate::stage::{Stage, hostile};

const PLAN: &str = "title = 't'\nnodes = 'gn1'\nattempts = 1\nwait_s = 0\n[node]\n";

pub(crate) fn accept(stage: &mut Stage) {
    let text = hostile();
    let flat = text.replace('\n', " ");
    let value = railgate_text::toml_text(&toml::Value::from(text.clone()).to_string());
    // A plan in which every text is hostile.
    for plan in [
        format!("title = {value}\nnodes = {value}\n[node]\n"),
        format!("title = 't'\nnodes = 'gn1'\n[node]\n{value} = 1\n"),
        format!("title = 't'\nnodes = 'gn1'\n[[leaf]]\nname = {value}\nnodes = 'gn1'\n[node]\n"),
        format!("title = 't'\nnodes = 'gn1'\n[storage]\ndirs = [{value}]\nmib_per_node = 1\n"),
        format!("title = 't'\nnodes = 'gn1'\n[[expect]]\nfigure = {value}\nsource = ''\n[node]\n"),
        format!("title = 't'\nnodes = 'gn1'\n[pairs]\nnet = {value}\n"),
    ] {
        stage.write("plan.toml", plan);
        stage.shows(&["accept", "plan.toml", "--dir", "refused"]);
    }
    stage.shows(&["accept", &text, "--dir", "refused"]);
    stage.shows(&["accept", "plan.toml", "--dir", &format!("{text}/absent")]);
    stage.shows(&["accept", "report", &text]);

    // Slurm refuses the job, then reports a node that is down.
    stage.write("plan.toml", PLAN);
    stage.program("sinfo", "echo 'gn1|idle|none'");
    stage.program("squeue", "true");
    stage.program("sacct", "true");
    stage.program("sbatch", &format!("cat <<'END' >&2\n{text}\nEND\nexit 1"));
    stage.shows(&["accept", "plan.toml", "--dir", "accept"]);
    stage.shows(&["accept", "report", "accept"]);
    stage.write("sinfo", format!("gn1|down*|{flat}\n{text}\n"));
    stage.program("sinfo", &format!("cat {}", stage.path("sinfo").display()));
    stage.shows(&["accept", "plan.toml", "--dir", "accept"]);

    // What a person writes, and what programs printed.
    stage.run(&["accept", "waive", "accept", "run.complete", "--by", &text, "--why", &text]);
    stage.shows(&["accept", "waive", "accept", &text, "--by", "a", "--why", "b"]);
    stage.write(format!("accept/results/{flat}.json"), &text);
    stage.shows(&["accept", "report", "accept"]);
    stage.shows(&["accept", "report", "accept", "--format", "json"]);
    stage.shows(&["accept", "report", "accept", "--format", "html"]);
    stage.shows(&["accept", "report", "accept", "--before", "accept"]);
    result(stage, &text);
    stage
        .write("accept/journal.jsonl", format!("{{\"at\":1,\"event\":{{{:?}:1}}}}\n", "x\u{202e}\u{1b}[31m"));
    stage.run(&["accept", "report", "accept"]);
    stage.run(&["accept", "plan.toml", "--dir", "accept"]);

    // In a job.
    stage.run(&["accept", "--dir", "accept", "--unit", &text, "--attempt", "1"]);
    stage.shows(&["accept", "--storage-test", &text, "--mib", "1", "--files", "1"]);
    stage.shows(&["accept", "--fio-test", &text, "--pattern", "randread", "--seconds", "1"]);
}

/// A result of which every text is hostile.
fn result(stage: &mut Stage, text: &str) {
    let output =
        serde_json::json!({ "command": "check", "line": text, "exit": 1, "stdout": text, "stderr": text });
    let result = serde_json::json!({
        "schema": 1, "run": "r", "unit": "node.gn1.r1", "attempt": 1, "job": text, "nodes": [text], "began": 0, "ended": 1,
        "railgate": text, "outputs": [output],
    });
    let content = result.to_string();
    stage.write("accept/results/a.json", &content);
    stage.write("digest", &content);
    let sum = std::process::Command::new("sha256sum").arg(stage.path("digest")).output();
    let sum = String::from_utf8_lossy(&sum.map(|output| output.stdout).unwrap_or_default()).into_owned();
    let sum = sum.split(' ').next().unwrap_or_default();
    let plan = std::process::Command::new("sha256sum").arg(stage.path("accept/plan.toml")).output();
    let plan = String::from_utf8_lossy(&plan.map(|output| output.stdout).unwrap_or_default()).into_owned();
    let plan = plan.split(' ').next().unwrap_or_default();
    let lines = [
        serde_json::json!({ "begin": { "run": "r", "plan": plan } }),
        serde_json::json!({ "submit": { "unit": "node.gn1.r1", "attempt": 1, "nodes": [text] } }),
        serde_json::json!({ "result": { "unit": "node.gn1.r1", "attempt": 1, "file": "a.json", "digest": sum } }),
    ];
    let lines = lines.map(|event| format!("{}\n", serde_json::json!({ "at": 1, "event": event })));
    stage.write("accept/journal.jsonl", lines.concat());
    for format in ["text", "json", "html"] {
        stage.shows(&["accept", "report", "accept", "--format", format]);
    }
}
