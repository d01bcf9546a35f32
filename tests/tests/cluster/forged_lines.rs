//! Kernel log records with text from a user's process: in every phase, in mode enforce and report, on exclusive and shared nodes.
//! No node is drained and no job is requeued because of them.

use anyhow::Result;
use railgate_tests::cluster::{Builder, Cluster};

use crate::training::{ALL_MAY_DRAIN, MINUTE, end, report, started, submit};

/// Records of x86 kernels and NVIDIA's driver for processes with such names. GPU 1:0:0 does not exist; 0000:61:00.0 (GPU 3) is
/// healthy.
const RECORDS: &[&str] = &[
    "NVRM: fallen of[77]: segfault at 0 ip 0 sp 0 error 6 in NVRM: fallen off the bus[1132,5652fc277000+1000] likely on CPU 1 (core 1, socket 0)",
    "NVRM: GPU 1:0:0[78]: segfault at 0 ip 0 sp 0 error 6 in fallen off the bus[1132,5652fc277000+1000]",
    "nvidia-nvswitch[79] trap invalid opcode ip:1 sp:2 error:0 in SXid (PCI:0000:05:00.0): 22003, Fatal, x[1000+1000]",
    "pcieport 0000:1[80]: segfault at 0 ip 0 sp 0 error 6 in PCIe Bus Error: severity=Uncorrected (Fatal)[1000+1000]",
    "mlx5_core invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "INFO: task NVRM: Xid (PCI::81 blocked for more than 120 seconds.",
    "NVRM: Xid (PCI:0000:61:00): 13, pid=82, name=): 79, pid=1, x, Graphics Exception: ESR 0x504730=0x10e",
    "NVRM: Xid (PCI:0000:61:00): 31, pid=83, name=fallen off the , Ch 00000018, intr 00000000. MMU Fault",
    "NVRM: Xid (PCI:0000:61:00): 43, pid=84, name=, 79, GPU has f, Ch 00000010",
    "NVRM: Xid (PCI:0000:61:00): 109, pid=85, name=Fatal XC0 i0, Ch 00000010, errorString CTX SWITCH TIMEOUT",
    "overlayfs: failed to resolve 'mlx5_core 0000:5e:00.0: health compromised': -2",
    "NVRM: Xid (PCI:0000:61:00): 79, GPU has fallen off the bus. IN= OUT=lo SRC=127.0.0.1 DST=127.0.0.1 LEN=60",
];

const NODES: [&str; 2] = ["gn1", "gn2"];

fn write_records(cluster: &Cluster) -> Result<()> {
    for node in NODES {
        for record in RECORDS {
            cluster.hardware(node)?.log_kernel_line(record)?;
        }
    }
    Ok(())
}

fn nothing_is_drained(cluster: &Cluster, when: &str) -> Result<()> {
    for node in NODES {
        let node = cluster.node(node)?;
        assert!(!node.drained() && node.reason().is_empty(), "{when}: {} {}", node.state(), node.reason());
    }
    Ok(())
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn kernel_lines_worded_by_a_process_drain_no_node_and_requeue_no_job() -> Result<()> {
    // gn1 enforces, gn2 reports.
    let builder = Builder::new(2).config(ALL_MAY_DRAIN)?.config_of("gn2", "[gate]\nmode = \"report\"")?;
    builder.test(|cluster| {
        // Prologs: of a job with the whole node, and of two jobs that share a node.
        write_records(cluster)?;
        for node in NODES {
            for gres in ["--gres=gpu:8", "--gres=gpu:4"] {
                let id = cluster.bob().sbatch(&["-w", node, gres], "true")?;
                cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
            }
        }
        nothing_is_drained(cluster, "prolog")?;
        // Epilogs: bob forges while his job runs beside alice's, and both programs fail.
        let mut jobs = Vec::new();
        for node in NODES {
            for user in [cluster.alice(), cluster.bob()] {
                let id = submit(&user, &["-w", node, "--gres=gpu:4"])?;
                started(cluster, id)?;
                jobs.push((id, node));
            }
        }
        write_records(cluster)?;
        for (id, _) in &jobs {
            end(cluster, *id, 3)?;
        }
        for (id, node) in &jobs {
            let job = cluster.wait_job(id, &["FAILED"], MINUTE)?;
            assert_eq!((job.restarts(), job.nodes()), (0, *node), "job {id}");
        }
        nothing_is_drained(cluster, "epilog")?;
        let told = report(&cluster.bob(), jobs[1].0)?;
        assert!(!told.contains("hardware fault") && !told.contains("off bus"), "{told}");
        // A check beside jobs reports who forged the lines.
        write_records(cluster)?;
        for node in NODES {
            let session = cluster.root().on(node);
            session.run(&["railgate", "check", "--phase", "periodic", "--drain"])?;
        }
        nothing_is_drained(cluster, "periodic")?;
        write_records(cluster)?;
        let said = cluster.root().on("gn1").run(&["railgate", "check"])?.ok()?;
        assert!(said.contains("kmsg-forged: a process, uid unknown, imitated a driver"), "{said}");
        Ok(())
    })
}
