//! Reports of jobs, and programs that a user runs beside railgate.

use railgate_model::{Allocation, GpuId, Job, Phase, Snapshot};
use railgate_node_report::{
    Exit, GateRun, NodeReport, RunGpus, Window, evidence, gpu_uses, kernel_events, port_uses,
};
use railgate_simulate::{parse, simulated};
use serde_json::{Value, json};

use crate::stage::{Stage, hostile, places, spoiled};

/// A node report of a job that lost a GPU.
fn part() -> Value {
    let (profile, faults) = parse("h100-sxm:gpu-lost@3", &[]).unwrap();
    let (before, after) = (simulated(&profile, &[]), simulated(&profile, &faults));
    let after = Snapshot { taken: before.taken + 3_600_000, ..after };
    let job: Job = serde_json::from_value(json!({
        "id": 7, "uid": 0, "gid": 0, "user": "root", "het_leader": null, "partition": "gpu", "nodelist": "n[1-2]",
        "restarts": 0, "allocation": Allocation::Gpus((0..8).map(GpuId::Index).collect()),
    }))
    .unwrap();
    let map = railgate_rails::rail_map(&before, &profile);
    let mut part = NodeReport::new("alpha", "n1", job, 0, before.taken);
    let seen = railgate_gate::Seen {
        phase: Phase::Epilog,
        now: &after,
        before: Some(&before),
        job: None,
        profile: Some(&profile),
        memory: &railgate_gate::Memory::default(),
    };
    let verdict = railgate_gate::judge(&railgate_gate::GateConfig::default(), &seen);
    part.end = Some(after.taken);
    part.kernel = kernel_events(&after, part.start, &part.job, &railgate_node_report::StatsConfig::default());
    let held = RunGpus::resolve(
        &part.job.allocation,
        Some(&before),
        &after,
        &railgate_model::GpuInventory::default(),
    );
    part.evidence = evidence(&verdict, Some(&before), &after, &part.kernel, &held, Some(&map));
    part.window = Some(Window { start: before.taken, end: after.taken });
    part.gpus = gpu_uses(Some(&before), &after, &held);
    part.ports = port_uses(Some(&before), &after, Some(&map));
    part.rail_map = Some(map);
    part.epilog = Some(GateRun::new(&after, verdict, 27.0));
    part.exit = Some(Exit { status: 256, derived: None });
    part.faults = vec!["a fault".to_owned()];
    let shape = railgate_rails::JobShape::default();
    let rails = railgate_rails::RailsConfig::default();
    part.settings = railgate_rails::environment(part.rail_map.as_ref().unwrap(), &before, &rails, &shape);
    let mut value = serde_json::to_value(&part).unwrap();
    // Text that the job's own programs and libraries write.
    let own = json!({
        "application": {
            "ranks": [{ "file": "rank0", "rank": 0, "steps": 9, "model": { "name": "a model", "dtype": "bf16" } }],
            "problems": ["a file that is none"],
        },
        "communication": {
            "processes": [{ "pid": 1, "nccl": "2.28.9", "mode": "full" }],
            "communicators": [{}],
            "collectives": [{ "op": "AllReduce", "datatype": "Float32", "algorithm": "RING", "protocol": "LL", "calls": 3 }],
            "blind_spots": ["a blind spot"],
            "unread": ["a file that could not be read"],
        },
        "steps": [{ "step": "0", "settings": [{ "name": "NCCL_DEBUG", "value": "INFO", "from": "user", "over": "WARN" }] }],
        "applied": [{
            "name": "NCCL_IB_HCA", "wanted": "mlx5_0", "value": "mlx5_1", "by": "user", "processes": 8, "steps": ["0"],
        }],
        "transport": { "over": "sockets", "sure": "likely", "why": "a sign", "cause": "NCCL_IB_DISABLE=1" },
        "acts": [{ "what": "drained", "time": after.taken, "by": "epilog", "detail": "a reason" }],
        "tasks": { "looks": 1, "problems": ["a look that failed"] },
    });
    // Each at its place in the report: renaming a field must not silently disable its test.
    for (name, field) in own.as_object().unwrap() {
        value[name] = field.clone();
        serde_json::from_value::<NodeReport>(value.clone()).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
    value
}

/// Every output format of a report.
const SHOW: [&[&str]; 9] = [
    &["--full"],
    &["--brief"],
    &["--live"],
    &["--redact"],
    &["--format", "json"],
    &["--format", "json", "--redact"],
    &["--format", "html"],
    &["--format", "html", "--redact"],
    &["--format", "html", "--samples", "n1"],
];

/// Slurm's lists of jobs, for requests without a job id.
fn which(stage: &mut Stage) {
    let text = hostile();
    // The fields are separated by a mark that is passed to the program.
    let list = |name: &str| {
        format!(
            "for word; do case $word in %A*) mark=${{word#%A}}; mark=${{mark%%%i*}};; --delimiter=*) mark=${{word#*=}};; esac; done\n\
             row() {{ for field; do printf '%s%s' \"$field\" \"$mark\"; done; echo; }}\n\
             for task in 1 2; do row 7 7_$task $(id -u) '{text}' '{text}' '' 2026-01-01T00:00:00 '{text}' '{text}' '{name}'; done"
        )
    };
    for program in ["squeue", "sacct"] {
        stage.program(program, &list(&text));
        stage.run(&["report"]);
        stage.run(&["report", "--name", &text]);
        stage.shows(&["report", "7", "--array"]);
        stage.shows(&["report", "7_[1-2]", "--cluster", &text]);
        stage.program(program, &format!("cat <<'END' >&2\n{text}\nEND\nexit 1"));
        stage.run(&["report"]);
        stage.shows(&["report", "--name", &text]);
        stage.run(&["report", "7_1"]);
    }
}

/// A hang and stacks whose texts a user wrote, of a job that ended and of one that runs.
pub(crate) fn why(stage: &mut Stage) {
    let text = hostile();
    let mut all = part();
    all["hangs"] = json!({ "list": [{
        "kind": "behind", "since": all["start"], "named": all["start"], "waiting_gpus": 7,
        "culprits": [{ "rank": 1, "pid": 4711, "state": "S", "kernel": text }],
        "operation": { "communicator": text, "op": text, "seq": 7 }, "signs": [text, text],
    }]});
    let frame = json!({ "function": text, "file": format!("/home/{text}/train.py"), "line": 88 });
    let rank = json!({ "rank": 1, "pid": 4711, "state": "S", "kernel": text, "threads": 1, "python": [frame], "why": text });
    let stacks = json!({
        "schema": 1, "cluster": "alpha", "job": 7, "attempt": 0, "node": "n1",
        "stacks": { "taken": all["start"], "took_ms": 3, "ranks": [rank], "left_out": 0, "problems": [text] },
    });
    stage.write("reports/alpha/7/0/n1.stacks", serde_json::to_vec(&stacks).unwrap());
    for ended in [true, false] {
        if !ended {
            all["end"] = Value::Null;
            stage.program("scontrol", &format!("cat <<'END'\nJobId=7 JobName={text} UserId=root(0) JobState=RUNNING Reason={text} Requeue=1 Restarts=0 BatchFlag=1 SubmitTime=2026-01-01T00:00:00 StartTime=2026-01-01T00:00:00 EndTime=2027-01-01T00:00:00 NodeList={text}\nEND"));
        }
        stage.write("reports/alpha/7/0/n1.json", serde_json::to_vec(&all).unwrap());
        stage.shows(&["why", "7"]);
        stage.shows(&["report", "7", "--full"]);
        stage.run(&["why", "7", "--cluster", &text]);
    }
    stage.write("reports/alpha/7/0/n1.stacks", &text);
    stage.run(&["why", "7"]);
    stage.shows(&["why", "7", "--dir", &text]);
}

pub(crate) fn report(stage: &mut Stage) {
    let text = hostile();
    let report = ["report", "7"];
    let mut all = part();
    let mut kept = 0;
    for place in places(&all) {
        let one = spoiled(&all, &place);
        stage.write("reports/alpha/7/0/n1.json", serde_json::to_vec(&one).unwrap());
        let ran = stage.run(&[&report[..], &["--full"]].concat());
        // A file that is no longer a valid report is listed as a problem.
        if ran.code == Some(0) && !ran.out.contains("not a node report") {
            (all, kept) = (one, kept + 1);
        }
    }
    if kept < 20 {
        stage.problem(format!("only {kept} texts of a part are read"));
    }
    stage.write("reports/alpha/7/0/n1.json", serde_json::to_vec(&all).unwrap());
    stage.shows(&[&report[..], &["--full"]].concat());
    stage.shows(&[&report[..], &["--format", "json"]].concat());
    for words in SHOW {
        stage.run(&[&report[..], words].concat());
    }
    stage.run(&["report", "--rules"]);
    stage.run(&["report", "--idle", "--dir", "reports"]);
    stage.run(&["report", "--idle", "--cluster", &text]);
    // Slurm's output about the job, files that are no reports, and file names in the directory.
    stage.program("scontrol", &format!("cat <<'END'\nJobId=7 JobName={text} UserId=root(0) JobState=RUNNING Reason={text} Requeue=1 Restarts=0 BatchFlag=1 SubmitTime=2026-01-01T00:00:00 StartTime=2026-01-01T00:00:00 EndTime=2027-01-01T00:00:00 NodeList={text} StdOut={text}\nEND"));
    stage.write("reports/alpha/7/0/n2.json", &text);
    stage.write("reports/alpha/7/0/n3.json", format!("{{\"{}\": 1}}", text.escape_default()));
    stage.write("reports/alpha/7/0/decision.json", &text);
    stage.write(format!("reports/alpha/7/0/{text}.json"), "{}");
    stage.write(format!("reports/alpha/7/{text}/n1.json"), "{}");
    stage.write(format!("reports/{text}/7/0/n1.json"), serde_json::to_vec(&all).unwrap());
    for words in SHOW {
        stage.run(&[&report[..], words].concat());
        stage.run(&[&report[..], words, &["--cluster", "alpha"]].concat());
        stage.run(&[&report[..], words, &["--cluster", &text]].concat());
    }
    stage.program("scontrol", &format!("cat <<'END' >&2\n{text}\nEND\nexit 1"));
    stage.run(&["report", "9"]);
    stage.shows(&["report", "9", "--dir", &text]);
    stage.shows(&["report", "7", "--format", "html", "--samples", &text]);
    stage.shows(&["report", &format!("7_{text}")]);
    which(stage);
    stage.write("reports/alpha/7/0/mine", "");
    stage.run(&["report", "--prune", "--days", "0"]);
    stage.shows(&["report", "--prune", "--dir", &text]);
    let config = std::fs::read_to_string(stage.path("railgate.toml")).unwrap();
    stage.write(
        "railgate.toml",
        config.replace(
            "[log]",
            &format!(
                "cables = {}\n[log]",
                railgate_text::toml_text(&toml::Value::from(text.clone()).to_string())
            ),
        ),
    );
    stage.write(&text, &text);
    stage.shows(&["report", "7", "--dir", "reports"]);
}

pub(crate) fn calibrate(stage: &mut Stage) {
    let text = hostile();
    stage.write("load", format!("{text}\nbf16 1e12\n"));
    stage.run(&["calibrate", "--for", "10s", "--", "/bin/cat", "load"]);
    stage.shows(&["calibrate", "--", &text]);
    // Lines of a self-test, of which every text is hostile, and one that is no such line.
    let line = serde_json::json!({
        "gpu": "0000:61:00.0", "uuid": text, "model": text, "test": "gemm-rate-bf16", "seconds": 0.1, "values": "none",
        "measured": { "clock_factor": 1.1, &text: 1.0 },
    });
    let without = serde_json::json!({
        "gpu": "0000:62:00.0", "uuid": format!("2{text}"), "model": text, "test": text, "seconds": 0.1, "values": "none",
        "measured": {}, "unknown": text,
    });
    stage.write(&text, format!("{line}\n{without}\n"));
    stage.shows(&["calibrate", "--no-save", "--self-test", &text]);
    stage.write("lines", &text);
    stage.run(&["calibrate", "--self-test", "lines"]);
}

pub(crate) fn stand_aside(stage: &mut Stage) {
    let text = hostile();
    stage.shows(&["yield", "--job", "7", "--", &text]);
    stage.env("SLURM_JOB_ID", &text);
    stage.shows(&["yield", "--", "/bin/true"]);
    stage.unset("SLURM_JOB_ID");
    stage.run(&["yield", "--", &text]);
}

pub(crate) fn preflight(stage: &mut Stage) {
    let text = hostile();
    let outcome = serde_json::json!({
        "device": text, "peer_device": text, "gbps": {}, "latency_us": {}, "wrong_words": {}, "first_wrong": {}, "error": text,
    });
    let wrong = serde_json::json!({
        "gpu": "0000:61:00.0", "model": text, "test": text, "seconds": 0.1, "measured": { &text: 1.0 },
        "values": { "wrong": { "compared": 9, "wrong": 1, "first": [{ "place": text, "got": text, "want": text }] } },
    });
    let unknown = serde_json::json!({
        "gpu": "0000:61:00.0", "model": text, "test": text, "seconds": 0.1, "measured": {}, "values": "none", "unknown": text,
    });
    let lines = [
        serde_json::json!({ "problem": { "node": "gn1", "why": text } }),
        serde_json::json!({ "gpu": { "node": "gn1", "test": wrong } }),
        serde_json::json!({ "gpu": { "node": "gn2", "test": unknown } }),
        serde_json::json!({ "devices": { "node": "gn1", "devices": [text] } }),
        serde_json::json!({ "rail": { "node": "gn1", "rail": 0, "outcome": outcome } }),
        serde_json::json!({ "rail": { "node": "gn2", "rail": 0, "outcome": outcome } }),
    ];
    let mut printed = lines.map(|line| format!("{line}\n")).concat();
    printed.push_str(&text);
    stage.write("printed", printed);
    stage.program("srun", &format!("cat '{}'\nexit 1", stage.path("printed").display()));
    stage.env("SLURM_JOB_ID", &text);
    stage.env("SLURM_JOB_NODELIST", "gn[1-2]");
    stage.shows_both(&["preflight", "--net", "tcp"], false);
    // NCCL's test, of a program with a hostile name.
    let program = stage.path(format!("bin/{text}"));
    stage.program(&text, "");
    stage.write("printed", format!("failure {text}\n# nccl-tests nccl-library={text}\n"));
    stage.env("SLURM_GPUS_ON_NODE", "2");
    stage.shows_both(&["preflight", "--gpus", "none", "--nccl", program.to_str().unwrap()], false);
    stage.env("SLURM_JOB_NODELIST", &text);
    stage.shows(&["preflight"]);
    stage.env("RAILGATE_PREFLIGHT", &text);
    stage.run(&["preflight", "--on-node"]);
    for name in ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_GPUS_ON_NODE", "RAILGATE_PREFLIGHT"] {
        stage.unset(name);
    }
}

pub(crate) fn launch(stage: &mut Stage) {
    let text = hostile();
    stage.env("SLURM_JOB_ID", &text);
    stage.shows(&["launch", "--", "program"]);
    stage.env("SLURM_JOB_ID", "7");
    stage.env("SLURM_JOB_NODELIST", &text);
    stage.shows(&["launch", "--", "program"]);
    stage.env("SLURM_JOB_NODELIST", "gn[1-2]");
    stage.env("SLURM_NTASKS", "3");
    stage.env("SLURM_TASKS_PER_NODE", &text);
    stage.shows(&["launch", "--spares", "1", "--", "program"]);
    stage.unset("SLURM_NTASKS");
    // A step that fails, a node that is down, and one whose check prints hostile text.
    stage.program(
        "squeue",
        "printf '%-12s%-24s%-12s%-20s%-20s%-20s\\n' 7 RUNNING 0 2026-01-01T00:00:00 2026-01-01T00:00:00 2027-01-01T00:00:00",
    );
    let line = text.replace('\n', " ");
    let nodes = format!(
        "cat <<'END'\nNodeName=gn1 State=DOWN Partitions=x Reason={line} [root@2026-01-01T00:00:00]\nNodeName=gn2 State=IDLE Partitions=x\nEND"
    );
    stage.program(
        "scontrol",
        &format!("case \"$*\" in *topology*) cat <<'END'\n{text}\nEND\n;; *config*) echo 'SlurmdTimeout = 1 sec' ;; *) {nodes}\n;; esac"),
    );
    let answer = serde_json::json!({ "node": "gn2", "check": null, "why": text });
    stage.write("answer", format!("{answer}\n{text}\n"));
    let answer = stage.path("answer");
    stage.program(
        "srun",
        &format!("case \"$*\" in *--on-node*) cat '{}' ;; *) exit 3 ;; esac", answer.display()),
    );
    stage.shows(&["launch", "--", "program"]);
    stage.run(&["launch", "--on-node", "0"]);
    for name in ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"] {
        stage.unset(name);
    }
}
