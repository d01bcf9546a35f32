//! Hangs that the guard finds while a job runs: their names in the job's own log and in the report, and work that only waits.

use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster, REPORTS};
use railgate_tests::poll;
use serde_json::Value;

use crate::training::{MINUTE, one_line, report};

/// A rank of a silent program. It works on its GPU for twenty seconds; then rank 1 does what `$PLAY` says, and the others wait for
/// it in a kernel, as in a collective.
const RANK: &str = r#"#!/usr/bin/python3
import json, os, signal, sys, time
rank, play = int(os.environ["SLURM_PROCID"]), os.environ["PLAY"]
gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[rank]
place = "/opt/railgate-test/nvml-loads/" + gpu
done, last = {"metrics": {}, "joules": 0.0, "rest_s": 0.0}, None
def load(metrics):
    # Totals go on from one load to the next, as the counters of a GPU do.
    global last
    now = time.time_ns()
    if last:
        begun, rates = last
        seconds = (now - begun) / 1e9
        for metric, rate in rates.items():
            done["metrics"][metric] = done["metrics"].get(metric, 0.0) + rate * seconds
        done["joules"] += 130.0 * seconds
    last = (now, metrics)
    work = {"metrics": metrics, "clock_mhz": 1980, "power_w": 130.0, "temperature_c": 40, "memory_mib": 1000}
    text = json.dumps({"pid": os.getpid(), "since": now, "until": now + 600 * 10**9, "work": work, "done": done})
    with open(f"{place}.{rank}", "w") as file:
        file.write(text)
    os.rename(f"{place}.{rank}", place)
WORKS = {"1": 99.0, "2": 90.0, "3": 40.0, "5": 50.0, "7": 50.0, "10": 25.0}
WAITS = {"1": 100.0, "2": 12.0, "3": 3.0, "5": 0.0, "7": 0.0, "10": 0.1}
IDLE = {metric: 0.0 for metric in WORKS}
load(WORKS)
print("at work", flush=True)
time.sleep(20)
if rank != 1:
    load(WAITS)
    goes_on = os.path.expanduser("~/goes-on." + os.environ["SLURM_JOB_ID"])
    while not os.path.exists(goes_on):
        time.sleep(0.2)
    load(WORKS)
    time.sleep(3)
    sys.exit(0)
load(IDLE)
if play == "leaves":
    sys.exit(0)
if play == "stops":
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(3 if play == "stops" else 600)
"#;

const CONFIG: &str = "[stats]\nsample = '1s'\n[report]\nlive = '1s'\n\
                      [guard]\nmode = 'notify'\nafter_exit = '10s'\nafter_stop = '20s'\nafter = '1m'\n";

fn log(cluster: &Cluster, id: u32) -> String {
    cluster.output(&format!("/home/rgalice/log.{id}")).unwrap_or_default()
}

fn until_named(cluster: &Cluster, id: u32) -> Result<String> {
    poll::until(3 * MINUTE, &format!("the hang of job {id} to be named"), || {
        Ok(log(cluster, id).lines().find(|line| line.starts_with("railgate: ")).map(str::to_owned))
    })
    .with_context(|| log(cluster, id))
}

fn hangs(cluster: &Cluster, id: u32) -> Result<Value> {
    let json = cluster.alice().run(&["railgate", "report", &id.to_string(), "--format", "json"])?.ok()?;
    let report: Value = serde_json::from_str(&json)?;
    Ok(report["attempts"][0]["nodes"][0]["hangs"]["list"].clone())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_rank_that_left_or_stopped_is_named_while_the_others_wait() -> Result<()> {
    let builder = Builder::new(2).config(CONFIG)?.file("/usr/local/bin/rank", RANK);
    builder.test(|cluster| {
        for node in cluster.nodes() {
            // Whether a GPU waits is known only with GPM.
            cluster.hardware(node)?.works(&[1, 2, 3, 5, 7, 10].map(|metric| (metric, 0.0)))?;
        }
        let alice = cluster.alice();
        let submit = |node: &str, play: &str| {
            let words = ["-N1", "-n2", "-w", node, "--gres=gpu:2", "-o", "log.%j"];
            alice.clone().env("PLAY", play).sbatch(&words, "srun rank")
        };
        let (leaves, stops) = (submit("gn1", "leaves")?, submit("gn2", "stops")?);

        let said = until_named(cluster, leaves)?;
        assert!(said.starts_with("railgate: the job hangs on gn1 since "), "{said}");
        let what = "the process of rank 1 ended with exit code 0, and 1 GPU waits";
        assert!(said.contains(what), "{said}");
        let said = until_named(cluster, stops)?;
        assert!(said.contains("rank 1 is stopped (SIGSTOP), and 1 GPU waits"), "{said}");

        // The owner ends the first one.
        let live = alice.run(&["railgate", "report", &leaves.to_string(), "--live"])?.ok()?;
        assert!(one_line(&live).contains(what), "{live}");
        alice.run(&["scancel", &leaves.to_string()])?.ok()?;
        cluster.wait_job(leaves, &["CANCELLED"], MINUTE)?;
        let text = poll::until(MINUTE, "the report", || {
            Ok(Some(report(&alice, leaves)?).filter(|text| text.contains("VERDICT")))
        })?;
        let text = one_line(&text);
        assert!(
            text.contains("HANG gn1, ") && text.contains(&format!("to the end: {what}; named after ")),
            "{text}"
        );

        // The stacks are the owner's alone, and every rank that still ran has one.
        let stacks = |user: &railgate_tests::cluster::Session<'_>| -> Result<String> {
            Ok(one_line(&user.run(&["railgate", "report", &stops.to_string(), "--live"])?.both()))
        };
        let text = poll::until(MINUTE, "the stacks", || {
            Ok(Some(stacks(&alice)?).filter(|text| text.contains("STACKS")))
        })?;
        assert!(text.contains("rank 1 on gn2 stopped (state T) in "), "{text}");
        assert!(text.contains("rank 0 on gn2 in ") && text.contains("(rank:"), "{text}");
        assert!(!stacks(&cluster.bob())?.contains("STACKS"));
        let file = format!("{REPORTS}/test/{stops}/0/gn2.stacks");
        let mode = std::fs::metadata(cluster.path(CONTROLLER, &file)?)?.mode() & 0o777;
        assert_eq!(mode, 0o600);

        let why = one_line(&alice.run(&["railgate", "why", &stops.to_string()])?.ok()?);
        let answer = why.split_once("ANSWER it hangs since ").map(|(_, answer)| answer).unwrap_or_default();
        assert!(
            answer.contains("rank 1 is stopped (SIGSTOP), and 1 GPU waits (gn2) SIGN 1 of 2 GPUs"),
            "{why}"
        );

        // The second one goes on, and nothing is wrong any more.
        let program = ["pkill", "-CONT", "-u", "rgalice", "-f", "/usr/local/bin/rank"];
        cluster.root().on("gn2").run(&program)?.ok()?;
        cluster.write("ctl", &format!("/home/rgalice/goes-on.{stops}"), "")?;
        cluster.wait_job(stops, &["COMPLETED"], MINUTE)?;
        let list = poll::until(MINUTE, "the report", || {
            Ok(Some(hangs(cluster, stops)?).filter(|list| list[0]["over"].is_number()))
        })?;
        assert_eq!(
            (&list[0]["kind"], &list[0]["culprits"][0]["rank"]),
            (&"stopped".into(), &1.into()),
            "{list}"
        );
        let took =
            list[0]["named"].as_u64().zip(list[0]["since"].as_u64()).map(|(named, since)| named - since);
        assert!(took.is_some_and(|took| took < u64::try_from(MINUTE.as_millis()).unwrap()), "{list}");
        Ok(())
    })
}
