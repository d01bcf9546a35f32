//! The report at the end of the demo: a training on 16 H100s, from their counters, the profiler plugin and the application report.
//! The simulated figures are known (`railgate_tests::training`), so the report must contain the same.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use railgate_tests::training::{self, Group, Kind, STEP_S, STEPS, kinds};
use serde_json::Value;

use crate::training::{MINUTE, in_order, report};

const NODES: u32 = 2;
const GPUS: u32 = 8;

fn ranks(kind: &Kind) -> u32 {
    match kind.group {
        Group::Node => GPUS,
        Group::Rail => NODES,
        Group::World => NODES * GPUS,
    }
}

/// Asserts that a value is within a relative deviation, 0.01 for one percent.
fn near(said: &Value, want: f64, within: f64) {
    let number = said.as_f64().unwrap_or(f64::NAN);
    assert!((number / want - 1.0).abs() <= within, "{said} instead of {want}");
}

/// Seconds that a rank spends in collectives, over all steps.
fn in_collectives() -> f64 {
    kinds(GPUS).iter().map(|kind| f64::from(STEPS * kind.calls) * kind.seconds(ranks(kind))).sum()
}

/// Bytes that a rank sends over NVLink or its rail, over all steps.
fn sent(group: Group) -> f64 {
    let of = kinds(GPUS).into_iter().filter(|kind| kind.group == group);
    of.map(|kind| f64::from(STEPS * kind.calls) * kind.wire_bytes(ranks(&kind))).sum()
}

/// Checks the analysis derived from the figures.
fn analysis(found: &Value) -> Result<()> {
    near(&found["model"]["known"]["fraction"], training::mfu(), 0.01);
    near(&found["model"]["known"]["step_s"], STEP_S, 0.01);
    let goodput = &found["goodput"]["known"];
    let allocated = goodput["allocated_s"].as_f64().context("no goodput")?;
    let in_steps = f64::from(STEPS) * STEP_S / allocated;
    // The sampler starts after the prolog and ends before the epilog; docs/accuracy.md has the accuracy on real GPUs.
    near(&found["hardware"]["known"]["tensor_fraction"]["known"], training::hfu() * in_steps, 0.1);
    near(&goodput["productive_s"], f64::from(STEPS - 1) * STEP_S, 0.01);
    assert_eq!(goodput["redone_s"], 0.0, "{goodput}");

    // While it trained. Whole samples are judged: a sample at the edge has less, and a save of a second may lie in samples of the
    // training, in which the tensor cores then rest.
    let phases = found["phases"].as_array().context("no phases")?;
    let trained = phases.iter().find(|phase| phase["kind"] == "steady").context("no training")?;
    println!("{} tensor, phases {}", found["training"]["tensor_fraction"], found["phases"]);
    near(&trained["seconds"], f64::from(STEPS) * STEP_S, 0.2);
    let seconds = trained["seconds"].as_f64().context("no seconds")?;
    let working = (f64::from(STEPS) * STEP_S / seconds).min(1.0);
    near(&found["training"]["tensor_fraction"]["known"], training::hfu() * working, 0.05);

    let shares = &found["shares"]["known"];
    let communicates = 100.0 * in_collectives() / (f64::from(STEPS) * STEP_S);
    assert!(shares["comm_wire"]["known"].as_f64().is_some_and(|wire| wire < 1.5 * communicates), "{shares}");
    assert!(shares["comm_wait"]["known"].as_f64().is_some_and(|wait| wait > 0.0 && wait < 1.0), "{shares}");
    assert!(shares["compute"].as_f64().is_some_and(|compute| compute > 40.0), "{shares}");
    assert_eq!((&shares["unknown"], &shares["launch"]), (&0.0.into(), &0.0.into()), "{shares}");
    assert_eq!(shares["confidence"], "high", "{shares}");
    assert_eq!(found["diagnoses"].as_array().map(Vec::len), Some(0), "{}", found["diagnoses"]);
    assert_eq!((found["ranks"].as_u64(), found["world"].as_u64()), (Some(16), Some(16)));
    Ok(())
}

/// Checks the counters of one node.
fn counted(node: &Value) -> Result<()> {
    let rows = node["communication"]["collectives"].as_array().context("no collectives")?;
    for kind in kinds(GPUS) {
        let of = |row: &&Value| row["op"] == kind.op && row["size"].as_u64() == Some(ranks(&kind).into());
        let found: Vec<&Value> = rows.iter().filter(of).collect();
        let sum = |field: &str| found.iter().filter_map(|row| row[field].as_u64()).sum::<u64>();
        let calls = u64::from(STEPS * kind.calls * GPUS);
        assert_eq!((sum("calls"), sum("bytes")), (calls, calls * kind.bytes), "{kind:?}: {found:?}");
        for row in found {
            near(&row["busbw_gb_s"], kind.busbw_gb_s, 0.02);
        }
    }
    assert_eq!(node["transport"]["over"], "rails", "{}", node["transport"]);
    let ports = node["ports"].as_array().context("no ports")?;
    let rails: Vec<&Value> = ports.iter().filter(|port| !port["rail"].is_null()).collect();
    assert_eq!(rails.len(), 8);
    for rail in rails {
        near(&rail["tx_bytes"]["delta"]["known"], sent(Group::Rail), 1e-6);
        near(&rail["rx_bytes"]["delta"]["known"], sent(Group::Rail), 1e-6);
    }
    for gpu in node["gpus"].as_array().context("no GPUs")? {
        // On a busy machine a step that begins late also begins late on the simulated GPU.
        near(&gpu["nvlink_tx_bytes"]["delta"]["known"], sent(Group::Node), 0.25);
    }
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_report_of_a_training_has_all_its_figures() -> Result<()> {
    training::cluster(NODES as usize)?.test(|cluster| {
        training::put_on(cluster)?;
        let template =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../sbatch-templates/torchrun-multinode.sbatch");
        let alice = cluster.alice();
        let id = alice.sbatch(&["-o", "training.log"], &fs::read_to_string(template)?)?;
        cluster.wait_job(id, &["COMPLETED"], 3 * MINUTE)?;

        let text = report(&alice, id)?;
        let screen = text.split("\n\n").next().unwrap_or_default();
        in_order(
            screen,
            &[
                "on simulated: completed",
                "\nVERDICT  completed. GPU utilisation ",
                " % while training; no performance problem found\n",
                "\nMODEL    40.4 % MFU, ",
                "\nHW       ",
                " % HFU while training ",
                "\nGOODPUT  ",
                "\nTIME %   compute ",
                " | comm ",
                "\nNCCL     2.28.9, profiler sample, over 8 rails (InfiniBand), no TCP",
                "busbw GB/s    ref  % of ref\n",
                "AllGather ",
                "\nRAILS    balance +-0.0 %",
            ],
        );
        // On a busy machine a sample may be missing, but nothing else.
        let unknown = screen.replace("UNKNOWN  samples cover ", "");
        assert!(!unknown.to_lowercase().contains("unknown"), "{screen}");

        let json = alice.run(&["railgate", "report", &id.to_string(), "--format", "json"])?.ok()?;
        let json: Value = serde_json::from_str(&json)?;
        let attempt = &json["attempts"][0];
        analysis(&attempt["analysis"])?;
        // The start and a save of a second may fall into samples of the training, which is then the only phase.
        let phases = attempt["analysis"]["phases"].as_array().context("no phases")?;
        let long = phases.iter().filter(|phase| phase["seconds"].as_f64().is_some_and(|s| s >= 0.5));
        assert!(long.count() < 2 || screen.contains("\nPHASES   "), "{screen}");
        for node in attempt["nodes"].as_array().context("no nodes")? {
            counted(node)?;
        }

        // No process uses the GPUs afterwards.
        let gpus = alice.on("gn1").run(&["railgate", "snapshot"])?.ok()?;
        let gpus: Value = serde_json::from_str(&gpus)?;
        let power = &gpus["gpus"]["read"]["data"]["gpus"][0]["power_w"];
        assert_eq!(power["known"], 70.0, "{gpus}");
        Ok(())
    })
}
