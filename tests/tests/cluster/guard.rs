//! Hangs that the guard finds while a job runs: their names in the job's own log and in the report, and work that only waits.

use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster, REPORTS};
use railgate_tests::hang::RANK;
use railgate_tests::poll;
use serde_json::Value;

use crate::training::{MINUTE, one_line, report};

pub(crate) const CONFIG: &str = "[stats]\nsample = '1s'\n[report]\nlive = '1s'\n\
                      [guard]\nmode = 'notify'\nafter_exit = '10s'\nafter_stop = '20s'\nafter = '1m'\n";

pub(crate) fn log(cluster: &Cluster, id: u32) -> String {
    cluster.output(&format!("/home/rgalice/log.{id}")).unwrap_or_default()
}

pub(crate) fn until_named(cluster: &Cluster, id: u32) -> Result<String> {
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

/// Gives all GPUs GPM: without it whether one waits is not known.
pub(crate) fn with_gpm(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        cluster.hardware(node)?.works(&[1, 2, 3, 5, 7, 10].map(|metric| (metric, 0.0)))?;
    }
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_rank_that_left_or_stopped_is_named_while_the_others_wait() -> Result<()> {
    let builder = Builder::new(2).config(CONFIG)?.file("/usr/local/bin/rank", RANK);
    builder.test(|cluster| {
        with_gpm(cluster)?;
        let alice = cluster.alice();
        let submit = |node: &str, play: &str| {
            let words = ["-N1", "-n2", "-w", node, "--gres=gpu:2", "-o", "log.%j"];
            alice.clone().env("PLAY", play).sbatch(&words, "srun rank")
        };
        let (leaves, stops) = (submit("gn1", "leaves")?, submit("gn2", "stops")?);

        let said = until_named(cluster, leaves)?;
        assert!(said.starts_with("railgate: the job has been hung on gn1 since "), "{said}");
        let what = "the process of rank 1 ended with exit code 0, and 1 GPU waits";
        assert!(said.contains(what), "{said}");
        let said = until_named(cluster, stops)?;
        assert!(said.contains("rank 1 is stopped (SIGSTOP), and 1 GPU waits"), "{said}");

        // The owner ends the first one.
        poll::until(MINUTE, "the hang in the partial report", || {
            let live = alice.run(&["railgate", "report", &leaves.to_string(), "--live"])?.ok()?;
            Ok(one_line(&live).contains(what).then_some(()))
        })?;
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

        let why = poll::until(MINUTE, "the hang in the answer", || {
            let why = one_line(&alice.run(&["railgate", "why", &stops.to_string()])?.ok()?);
            Ok(Some(why).filter(|why| why.contains("ANSWER it has been hung since ")))
        })?;
        let answer =
            why.split_once("ANSWER it has been hung since ").map(|(_, answer)| answer).unwrap_or_default();
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
        assert!(took.is_some_and(|took| took < 2 * u64::try_from(MINUTE.as_millis()).unwrap()), "{list}");
        Ok(())
    })
}
