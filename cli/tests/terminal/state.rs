//! Slurm's output, and the state of railgate on the node and on the controller: findings, ledger, pause.

use crate::stage::{Stage, hostile};

/// Hostile output of every Slurm command that is used.
fn slurm(stage: &Stage) {
    let text = hostile();
    let flat = text.replace('\n', " ");
    stage.write(
        "node",
        format!("NodeName=gn1 State=IDLE+DRAIN Partitions={flat} Reason=railgate: gpu-lost@3: {flat}; fix: {flat} [prolog] [root@2026-01-01T00:00:00]\n"),
    );
    stage.write("job", format!("JobId=7 JobName={text} UserId={text} JobState={text} Reason={text}\n"));
    stage.write(
        "sinfo",
        format!(
            "{flat}|main|drained|2026-01-01T00:00:00|railgate: {flat}: {flat}; {flat} [periodic]\n\
             gn1|{flat}|drained|{flat}|railgate: gpu-lost@3: {flat}; fix: {flat} [prolog]\ngn2|main|down*|Unknown|{flat}\n{text}\n"
        ),
    );
    stage.write(
        "config",
        format!(
            "SLURM_VERSION = 22.05.8{flat}\nSLURM_CONF = {}/slurm/slurm.conf\nProlog = /{flat}\nEpilog = {flat}\nPrologFlags = {flat}\n\
             SchedulerParameters = {flat}\nEpilogSlurmctld = {flat}\nHealthCheckProgram = {flat}\nSlurmUser = {flat}(0)\n\
             PlugStackConfig = {0}/slurm/plugstack.conf\nSlurmctldHost[0] = gn1\n{flat} = {flat}\n{text}\n",
            stage.path("").display()
        ),
    );
    stage.write("slurm/slurm.conf", &text);
    stage.write(
        "slurm/plugstack.conf",
        format!("include {flat}/*\noptional /{flat}/spank_railgate.so {flat}\n{text}\n"),
    );
    let at = stage.path("");
    let at = at.display();
    stage.program(
        "scontrol",
        &format!("case \"$*\" in *'show config'*) cat {at}/config ;; *'show node'*) cat {at}/node ;; *) cat {at}/job ;; esac"),
    );
    for program in ["sinfo", "squeue", "sacct", "sacctmgr"] {
        stage.program(program, &format!("cat {at}/sinfo"));
    }
}

/// Every Slurm command fails with a hostile message.
fn refusing(stage: &Stage) {
    for program in ["scontrol", "sinfo", "squeue", "sacct", "sacctmgr"] {
        stage.program(program, &format!("cat <<'END' >&2\n{}\nEND\nexit 1", hostile()));
    }
}

/// Finding history of this node, and the controller's ledger.
fn remembered(stage: &Stage) {
    let text = hostile();
    let finding = serde_json::json!({
        "check": format!("site-{text}"), "part": text, "severity": "fail", "class": "node", "what": text, "fix": text, "evidence": [],
    });
    let episode = serde_json::json!({
        "finding": finding, "identity": text, "phase": "periodic", "first": 1, "last": 2, "looks": 1, "open": true, "outcome": text,
    });
    let past = serde_json::json!({
        "schema": 1, "begun": 1, "episodes": [episode],
        "counts": { format!("site-{text}"): { "seen": 1, "would_drain": 1, "drained": 1, "last": 2 } },
        "given_back": [{ "time": 1, "by": text, "reason": text }],
    });
    stage.write("state/findings.json", past.to_string());
    let entry = serde_json::json!({
        "schema": 1, "time": 1_800_000_000_000_u64, "event": "death", "job": 7, "name": text, "attempt": 0,
        "blamed": [{ "node": "gn1", "subject": text, "part": text }], "why": text,
    });
    stage.write("state/controller/ledger.jsonl", format!("{entry}\n{text}\n"));
}

pub(crate) fn explain(stage: &mut Stage) {
    slurm(stage);
    remembered(stage);
    stage.shows_both(&["explain", "gn1"], true);
    stage.shows(&["check", "--history"]);
    stage.run(&["check", "--history", "--format", "json"]);
    stage.shows(&["explain", &hostile()]);
    stage.run(&["explain", &format!("site-{}", hostile())]);
    stage.run(&["explain", "slow-clock"]);
    stage.run(&["explain", &format!("slow-clock@{}", hostile())]);
    refusing(stage);
    stage.shows_both(&["explain", "gn1"], false);
    stage.shows(&["explain", "gn2"]);
    for name in ["findings.json", "history.json", "controller/ledger.jsonl"] {
        stage.write(format!("state/{name}"), hostile());
    }
    stage.run(&["explain", "gn1"]);
    stage.run(&["check", "--history"]);
}

pub(crate) fn nodes(stage: &mut Stage) {
    slurm(stage);
    remembered(stage);
    stage.shows_both(&["nodes"], false);
    stage.shows_both(&["nodes", "--all"], false);
    refusing(stage);
    stage.shows(&["nodes"]);
}

pub(crate) fn doctor(stage: &mut Stage) {
    slurm(stage);
    stage.write("state/controller/lost.json", hostile());
    stage.write(
        "state/pause.json",
        serde_json::json!({ "until": null, "by": hostile(), "why": hostile() }).to_string(),
    );
    stage.shows_both(&["doctor"], false);
    stage.shows(&["doctor", "--fix-hints"]);
    refusing(stage);
    stage.shows_both(&["doctor"], false);
}

pub(crate) fn pause(stage: &mut Stage) {
    let text = hostile();
    slurm(stage);
    stage.env("SUDO_USER", &text);
    stage.run(&["pause", "--why", &text, "--for", "1h"]);
    stage.shows(&["doctor"]);
    stage.run(&["resume"]);
    stage.shows(&["pause", "--for", &text]);
    for bad in [text.clone(), format!("{{\"{text}\": 1}}")] {
        stage.write("state/pause.json", bad);
        stage.run(&["doctor"]);
        stage.run(&["check"]);
        stage.run(&["resume"]);
    }
}

pub(crate) fn readmit(stage: &mut Stage) {
    stage.env("SUDO_USER", hostile());
    let config = std::fs::read_to_string(stage.path("railgate.toml")).unwrap();
    stage.write("railgate.toml", config.replace("[source]", "[source]\ntest_node = true"));
    slurm(stage);
    stage.run(&["readmit", "gn1"]);
    stage.run(&["readmit", "gn1", "--repaired"]);
    let flat = hostile().replace('\n', " ");
    stage.write("node", format!("NodeName=gn1 State=IDLE+DRAIN Reason={flat} [root@2026-01-01T00:00:00]\n"));
    stage.shows(&["readmit", "gn1"]);
    stage.shows(&["readmit", &hostile()]);
    refusing(stage);
    stage.shows(&["readmit", "gn1"]);
}
