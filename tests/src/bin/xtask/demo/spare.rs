//! The scene of a node that dies under a job with a spare node.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::Cluster;
use railgate_tests::poll;

use super::{Story, follow, show_head};
use crate::build;

const TEMPLATE: &str = "sbatch-templates/torchrun-multinode.sbatch";
const LOG: &str = "spare.log";
/// One line for each step, with the node of each rank. It is the checkpoint as well.
const STEPS: &str = "/shared/spare/steps";
/// Steps of the training.
const COUNT: usize = 16;
/// The node dies after this step.
const DEATH: usize = 5;

/// A training of two ranks, one on each node. A step needs both ranks, as an all-reduce does.
pub(super) const PROGRAM: &str = r#"#!/bin/bash
dir=/shared/spare
count() { wc -l 2>/dev/null <$dir/steps || echo 0; }
step=$(count)
echo "start $RAILGATE_START: rank $SLURM_PROCID on $SLURMD_NODENAME begins with step $((step + 1))"
echo $SLURMD_NODENAME >$dir/node.$RAILGATE_START.$SLURM_PROCID
while [ $step -lt 16 ]; do
    step=$((step + 1))
    touch $dir/sent.$RAILGATE_START.$SLURM_PROCID.$step
    until [ -e $dir/sent.$RAILGATE_START.$((1 - SLURM_PROCID)).$step ]; do sleep 0.05; done
    sleep 0.3
    if [ $SLURM_PROCID = 0 ]; then
        echo "$step $SLURMD_NODENAME $(cat $dir/node.$RAILGATE_START.1)" >>$dir/steps
    else
        until [ $(count) -ge $step ]; do sleep 0.05; done
    fi
done
"#;

/// Starts the job and kills one of its nodes. Returns the job's id.
pub(super) fn begin(story: &Story, cluster: &Cluster) -> Result<u32> {
    println!("\na node dies under a job that holds a spare node (see below):");
    cluster.root().run(&["install", "-d", "-o", "rgalice", "/shared/spare"])?.ok()?;
    let template =
        fs::read_to_string(build::workspace().join(TEMPLATE)).with_context(|| TEMPLATE.to_owned())?;
    let words = ["-N3", "--gres=gpu:4", "--no-kill", "-o", LOG, "-J", "spare"];
    let alice = cluster.alice().env("SPARES", "1").env("TRAIN", "steps");
    let id = alice.sbatch(&words, &template)?;
    story.line(&format!("rgalice: SPARES=1 TRAIN=steps sbatch {} {TEMPLATE}   -> job {id}", words.join(" ")));
    poll::until(Duration::from_secs(60), "the training's first steps", || {
        story.go_on()?;
        Ok((steps(cluster).lines().count() >= DEATH).then_some(()))
    })?;
    let node = steps(cluster).split_whitespace().nth(2).context("no node in the first step")?.to_owned();
    cluster.kill_node(&node)?;
    story.line(&format!(
        "{node} dies after step {DEATH} of {COUNT}: slurmd and all of its processes are killed"
    ));
    Ok(id)
}

/// Follows the job to its end.
pub(super) fn end(story: &Story, cluster: &Cluster, id: u32) -> Result<()> {
    println!("\nmeanwhile job {id} waits for a rank on the node that died, until Slurm sets that node down:");
    follow(story, cluster, id, LOG)?;
    story.line(&summary(&steps(cluster))?);
    let report = cluster.alice().run(&["railgate", "report", &id.to_string()])?;
    println!("\n$ railgate report {id}");
    show_head(&report.both());
    Ok(())
}

fn steps(cluster: &Cluster) -> String {
    cluster.output(STEPS).unwrap_or_default()
}

/// Where the steps ran.
///
/// # Errors
/// A step is missing or was run twice.
fn summary(steps: &str) -> Result<String> {
    let mut places: BTreeMap<usize, String> = BTreeMap::new();
    for (number, line) in (1..).zip(steps.lines()) {
        let (step, nodes) = line.split_once(' ').context("a line without nodes")?;
        ensure!(step.parse() == Ok(number), "step {number} is missing or was run twice:\n{steps}");
        if places.values().next_back().is_none_or(|last| last != nodes) {
            places.insert(number, nodes.to_owned());
        }
    }
    ensure!(steps.lines().count() == COUNT, "{} of {COUNT} steps:\n{steps}", steps.lines().count());
    let parts: Vec<String> = places
        .iter()
        .map(|(first, nodes)| format!("from step {first} on {}", nodes.replace(' ', " and ")))
        .collect();
    Ok(format!("all {COUNT} steps ran once: {}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_is_missing_or_doubled_is_an_error() {
        let whole: Vec<String> =
            (1..=COUNT).map(|step| format!("{step} gn1 {}", if step < 6 { "gn3" } else { "gn4" })).collect();
        let said = summary(&whole.join("\n")).unwrap();
        assert_eq!(said, "all 16 steps ran once: from step 1 on gn1 and gn3, from step 6 on gn1 and gn4");
        let (mut missing, mut doubled) = (whole.clone(), whole.clone());
        missing.remove(3);
        doubled.insert(3, "3 gn1 gn3".to_owned());
        for steps in [missing, doubled, whole[..COUNT - 1].to_vec()] {
            assert!(summary(&steps.join("\n")).is_err(), "{steps:?}");
        }
    }
}
