//! Jobs whose nodes are unfit, die, become faulty or are drained.

use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::Node;
use railgate_tests::poll;

use super::row::{Ending, How, Stage, When};

const WORK: &str = "again; mark began; sleep 120";
/// Slurm 22.05 starts EpilogSlurmctld for an attempt on a dead node only after the node is back, and not at all if the next
/// attempt has ended by then: the second attempt waits until the first is recorded.
const RECORDED: &str = "\
if [ ${SLURM_RESTART_COUNT:-0} != 0 ]; then
    for i in $(seq 200); do
        [ -e /shared/railgate/test/$SLURM_JOB_ID/0/decision.json ] && exit 0
        sleep 0.3
    done
    exit 0
fi
mark began; sleep 120";
const DIED: &str = "a node died";
const AGAIN: &str = "completed, 2 attempts";

pub(super) fn endings() -> Vec<Ending> {
    let mut all = dying();
    all.extend(refused());
    all.extend(broken());
    all
}

fn dying() -> Vec<Ending> {
    let job = |name, node, script, says| {
        Ending::batch(name, &["-p", "mortal", "-w", node, "--gres=gpu:1"], script, says)
    };
    let began = When::Began(0);
    vec![
        job("node set down, back", "gn8", WORK, AGAIN)
            .when(began, |stage| stage.node("gn8", &["state=down", "reason=bad DIMM, ticket 4711"]))
            .when(When::Back, |stage| stage.node("gn8", &["state=resume"])),
        job("node dead, back", "gn9", RECORDED, AGAIN)
            .when(began, |stage| dies(stage, "gn9"))
            .when(When::Back, |stage| returns(stage, "gn9")),
        job("node dead, no requeue", "gn10", WORK, DIED)
            .with(&["--no-requeue"])
            .when(began, |stage| dies(stage, "gn10")),
    ]
}

/// Powers the node off and sets it down in Slurm: how fast Slurm notices is tested elsewhere.
fn dies(stage: &Stage<'_>, node: &str) -> Result<()> {
    stage.cluster.kill_node(node)?;
    // A slurmd response still in transit would set the node up again.
    std::thread::sleep(Duration::from_secs(2));
    stage.node(node, &["state=down", "reason=Not responding"])
}

/// Powers the node on; it takes jobs once its slurmd has registered. Slurm 22.05 drains a node that gets a job while slurmd is
/// still starting, because the second launch message of the job is a duplicate. And only when the node takes jobs again, it
/// is told to end the first attempt: if the second one starts at that moment, slurmd runs no prolog for it and the
/// controller no epilog. So the job is held until slurmd has reported the end of the first attempt's epilog. Where slurmctld
/// knew that the node did not answer, it has not asked for that epilog, and none comes.
fn returns(stage: &Stage<'_>, node: &str) -> Result<()> {
    stage.node(node, &["state=drain", "reason=boots"])?;
    let started = |node: &Node| node.field("SlurmdStartTime").to_owned();
    let before = started(&stage.cluster.node(node)?);
    stage.cluster.boot_node(node)?;
    stage.cluster.wait_node(node, "its slurmd has registered", Duration::from_secs(60), |node| {
        started(node) != before
    })?;
    stage.admin(&["scontrol", "hold"])?;
    stage.node(node, &["state=resume"])?;
    let log = stage.cluster.path(node, "/var/log/slurm/slurmd.log")?;
    // Not the line of railgate's epilog, which slurmd waits for before it ends the attempt.
    let ended = format!("JobId={}: sent epilog complete msg", stage.job);
    let ran = poll::until(Duration::from_secs(20), "the epilog of the first attempt", || {
        Ok(std::fs::read_to_string(&log).unwrap_or_default().contains(&ended).then_some(()))
    });
    if let Err(why) = ran {
        println!("job {}: no epilog of the first attempt: {why:#}", stage.job);
    }
    stage.admin(&["scontrol", "release"])
}

fn refused() -> Vec<Ending> {
    let job = |name, words: &[&'static str], says| {
        Ending::batch(name, &[&["--gres=gpu:8"], words].concat(), "exit 0", says)
    };
    vec![
        job("refused and moved", &["-p", "edge"], AGAIN),
        job("refused with -w", &["-p", "unfit", "-w", "gn13"], "waiting to start, 2 attempts")
            .when(When::Back, |_| Ok(()))
            .waits()
            .after(|stage| stage.owner(&["scancel"]), "cancelled, 2 attempts")
            .forgotten("could not tell", "cancelled, 2 attempts"),
        job("refused, no requeue", &["-p", "unfit", "-w", "gn14", "--no-requeue"], "refused by the gate"),
        job("srun refused", &["-p", "unfit", "-w", "gn15"], "refused by the gate").how(How::Srun),
    ]
}

fn broken() -> Vec<Ending> {
    let job = |name, node, script, says| Ending::batch(name, &["-p", "leaving", "-w", node], script, says);
    let began = When::Began(0);
    vec![
        job("node drained, job succeeds", "gn16", "go", "completed")
            .when(began, |stage| drain(stage, "gn16")),
        job("node drained, job fails", "gn17", "go; exit 6", "looks like the application")
            .with(&["--gres=gpu:8"])
            .when(began, |stage| drain(stage, "gn17")),
        Ending::batch(
            "GPU lost",
            &["-p", "breaking", "--gres=gpu:8", "--railgate-requeue=never"],
            "go; exit 1",
            "hardware fault during the run",
        )
        .when(began, |stage| {
            stage.cluster.hardware("gn18")?.inject("gpu-lost@3")?;
            stage.go()
        }),
    ]
}

/// An admin drains the node.
fn drain(stage: &Stage<'_>, node: &str) -> Result<()> {
    stage.node(node, &["state=drain", "reason=new firmware"])?;
    stage.go()
}
