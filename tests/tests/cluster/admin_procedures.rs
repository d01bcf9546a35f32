//! The procedures of an admin: a drained node is explained, repaired and resumed, and a new site switches to enforce with the
//! commands of docs/install.md.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use railgate_tests::cluster::{Builder, Cluster, SLURM_ROOT, slurm_release};

use crate::training::{started, submit_as};

const MINUTE: Duration = Duration::from_secs(60);
const CONFIG: &str = "/etc/railgate/railgate.toml";

fn readmit(cluster: &Cluster, node: &str) -> Result<(i32, String)> {
    let said = cluster.root().on(node).run(&["railgate", "readmit", node])?;
    Ok((said.code, said.both()))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_drained_node_is_explained_repaired_and_resumed() -> Result<()> {
    let builder = Builder::new(2).slurm_conf("HealthCheckInterval", "0");
    builder.hardware_of("gn1", "h100-sxm:gpu-lost@3").test(|cluster| {
        let root = |machine| cluster.root().on(machine);
        let id = cluster.alice().sbatch(&["-N1", "-w", "gn1", "--gres=gpu:8", "--no-requeue"], "hostname")?;
        cluster.wait_job(id, &["CANCELLED"], MINUTE)?;

        // Any user on any machine can list the drained nodes.
        let nodes = cluster.alice().run(&["railgate", "nodes"])?.ok()?;
        for text in [
            "gn1",
            "gpu-lost@3: 0000:61:00.0 off bus, Xid 79",
            "reboot",
            &id.to_string(),
            "nodes drained by railgate: 1 of ",
        ] {
            assert!(nodes.contains(text), "no '{text}' in:\n{nodes}");
        }
        // The reason and the next step, on the controller and on the node.
        let far = root("ctl").run(&["railgate", "explain", "gn1"])?.ok()?;
        for text in ["repair: reboot", "then on gn1: railgate readmit gn1", "a GPU"] {
            assert!(far.contains(text), "no '{text}' in:\n{far}");
        }
        let near = root("gn1").run(&["railgate", "explain", "gn1"])?.ok()?;
        for text in ["still there", "gpu-lost@3: 0000:61:00.0 off bus, Xid 79", "drained 20", &id.to_string()]
        {
            assert!(near.contains(text), "no '{text}' in:\n{near}");
        }
        let other = root("ctl").run(&["railgate", "readmit", "gn1"])?;
        assert_eq!(other.code, 2, "{other}");
        assert!(other.stderr.contains("ssh gn1 railgate readmit gn1"), "{other}");

        // Not repaired; then in a maintenance reservation; then drained by another owner.
        let (code, said) = readmit(cluster, "gn1")?;
        assert!(code == 1 && said.contains("stays drained") && said.contains("gpu-lost@3"), "{code} {said}");
        cluster.hardware("gn1")?.heal()?;
        let reserve = [
            "scontrol",
            "create",
            "reservation",
            "ReservationName=m",
            "StartTime=now",
            "Duration=10",
            "Users=root",
            "Flags=MAINT,IGNORE_JOBS",
            "Nodes=gn[1-2]",
        ];
        root("ctl").run(&reserve)?.ok()?;
        cluster.wait_node("gn1", "maintained", MINUTE, |node| node.state().contains("MAINT"))?;
        let (code, said) = readmit(cluster, "gn1")?;
        assert!(code == 1 && said.contains("in a maintenance reservation"), "{code} {said}");
        assert!(cluster.node("gn1")?.drained());
        // There a fault is only reported, without a drain.
        cluster.hardware("gn2")?.inject("gpu-lost@5")?;
        let looked = root("gn2").run(&["railgate", "check", "--drain"])?.ok()?;
        assert!(
            looked.contains("gpu-lost@5") && looked.contains("drain: drained by others: maint"),
            "{looked}"
        );
        assert!(!cluster.node("gn2")?.drained());
        cluster.hardware("gn2")?.heal()?;
        root("ctl").run(&["scontrol", "delete", "ReservationName=m"])?.ok()?;
        cluster.wait_node("gn1", "out of maintenance", MINUTE, |node| !node.state().contains("MAINT"))?;
        let ours = cluster.node("gn1")?.reason().to_owned();
        let set = |reason: &str| {
            let reason = format!("reason={reason}");
            root("ctl").run(&["scontrol", "update", "nodename=gn1", &reason])?.ok()
        };
        set("bad dimm, ticket 9")?;
        let (code, said) = readmit(cluster, "gn1")?;
        assert!(code == 1 && said.contains("drained by others: bad dimm, ticket 9"), "{code} {said}");
        set(&ours)?;

        let (code, said) = readmit(cluster, "gn1")?;
        assert!(code == 0 && said.contains("back in service"), "{code} {said}");
        let node = cluster.wait_node("gn1", "idle", MINUTE, |node| !node.drained())?;
        // 24.11 keeps the reason of a resumed node.
        let root_dir = std::env::var_os(SLURM_ROOT).unwrap_or_else(|| "/".into());
        let kept = slurm_release(Path::new(&root_dir))? == (24, 11) && node.reason() == ours;
        assert!(kept || node.reason().is_empty(), "{}", node.reason());
        assert_eq!(readmit(cluster, "gn1")?, (0, "gn1: not drained\n".to_owned()));
        let near = root("gn1").run(&["railgate", "explain", "gn1"])?.ok()?;
        assert!(near.contains("Resumed\n") && !near.contains("still there"), "{near}");
        let counted = root("gn1").run(&["railgate", "check", "--history"])?.ok()?;
        let line = counted.lines().find(|line| line.starts_with("gpu-lost ")).context("no gpu-lost")?;
        let words: Vec<&str> = line.split_whitespace().take(5).collect();
        assert_eq!(words, ["gpu-lost", "drain", "1", "1", "1"], "{counted}");
        assert!(
            cluster.alice().run(&["railgate", "nodes"])?.ok()?.contains("nodes drained by railgate: 0 of ")
        );

        // The next job runs there. An Xid of this boot must be acknowledged before the node is resumed.
        let id = cluster.alice().sbatch(&["-w", "gn1", "--gres=gpu:8"], "hostname")?;
        cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        cluster.hardware("gn1")?.inject("gpu-xid-48@2")?;
        root("gn1").run(&["railgate", "check", "--drain"])?.ok()?;
        let reason = cluster.node("gn1")?.reason().to_owned();
        assert!(reason.starts_with("railgate: gpu-xid@2: "), "{reason}");
        // A reset clears NVML's counters, but the kernel log still has the line.
        cluster.hardware("gn1")?.heal()?;
        let (code, said) = readmit(cluster, "gn1")?;
        assert!(code == 1 && said.contains("or use --repaired"), "{code} {said}");
        root("gn1").run(&["railgate", "readmit", "gn1", "--repaired"])?.ok()?;
        assert!(!cluster.node("gn1")?.drained());
        let packed = root("gn1").run(&["railgate", "rma", "gn1"])?.ok()?;
        assert!(packed.contains(": 48, ") && packed.contains("SERIAL"), "{packed}");
        Ok(())
    })
}

/// The commands in the section of docs/install.md that switches to enforce.
fn commands() -> Result<Vec<String>> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/install.md"))?;
    let (_, section) = page.split_once(" From report to enforce\n").context("no such section")?;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut commands = Vec::new();
    let mut inside = false;
    for line in section.lines().map(str::trim) {
        match line {
            "```sh" => inside = true,
            _ if line.starts_with("```") => inside = false,
            _ if inside && !line.is_empty() => commands.push(line.to_owned()),
            _ => {}
        }
    }
    Ok(commands)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_site_switches_from_report_to_enforce_with_the_commands_of_the_page() -> Result<()> {
    let builder = Builder::new(2).slurm_conf("HealthCheckInterval", "0").config(
        "gate = { mode = \"report\" }\nbreaker = { max_percent = 100.0, partition_max_percent = 100.0 }",
    )?;
    builder.hardware("h100-sxm:gpu-lost@3").test(|cluster| {
        let root = |node| cluster.root().on(node);
        let commands = commands()?;
        assert!(commands.len() >= 7, "{commands:?}");
        let run_all = |node: &str| -> Result<String> {
            let mut said = String::new();
            for command in &commands {
                let output = cluster.root().on(node).run(&["sh", "-c", command])?;
                // A check of a faulty node exits with 1.
                let fine = output.code == 0 || (output.code == 1 && command.starts_with("railgate check"));
                assert!(fine, "{command}: {output}");
                said.push_str(&output.both());
            }
            Ok(said)
        };
        // Mode report: the job runs, and the log has what enforce would have done.
        for node in ["gn1", "gn2"] {
            let id = cluster.alice().sbatch(&["-w", node, "--gres=gpu:8"], "hostname")?;
            cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        }
        let said = run_all("gn1")?;
        for text in [
            "policy: drain for gpu-lost@3, but nothing is done: [gate] mode = \"report\"",
            "would drain gn1: railgate: gpu-lost@3: ",
            "gate.mode",
            "nodes drained by railgate: 0 of ",
        ] {
            assert!(said.contains(text), "no '{text}' in:\n{said}");
        }
        let count = said.lines().find(|line| line.starts_with("gpu-lost ")).context("no count")?;
        let words: Vec<&str> = count.split_whitespace().take(5).collect();
        assert_eq!(words, ["gpu-lost", "drain", "1", "1", "0"], "{said}");

        // A few nodes enforce: the page's table with this site's names.
        let config = cluster.read("gn2", CONFIG)?;
        let table = "\n[[node]]\nnames = \"gn2\"\n[node.gate]\nmode = \"enforce\"\n";
        for node in ["gn1", "gn2"] {
            cluster.write(node, CONFIG, &(config.clone() + table))?;
        }
        let said = run_all("gn2")?;
        assert!(said.contains("the next prolog or periodic check acts"), "{said}");
        for node in ["gn1", "gn2"] {
            root(node).run(&["railgate", "check", "--drain"])?.ok()?;
        }
        assert!(!cluster.node("gn1")?.drained());
        assert!(cluster.node("gn2")?.reason().starts_with("railgate: gpu-lost@3: "));
        // All nodes enforce.
        for node in ["gn1", "gn2"] {
            cluster.write(node, CONFIG, &config.replace("mode = \"report\"", "mode = \"enforce\""))?;
        }
        root("gn1").run(&["railgate", "check", "--drain"])?.ok()?;
        assert!(cluster.node("gn1")?.reason().starts_with("railgate: gpu-lost@3: "));
        assert!(run_all("gn1")?.contains("nodes drained by railgate: 2 of "));
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_pending_reboot_is_kept_and_stale_directories_are_removed() -> Result<()> {
    let builder = Builder::new(2)
        .slurm_conf("HealthCheckInterval", "0")
        .slurm_conf("RebootProgram", "/bin/true")
        .config("breaker = { max_percent = 100.0, partition_max_percent = 100.0 }")?;
    builder.test(|cluster| {
        let alice = cluster.alice();
        let long =
            |node: &str| submit_as(&alice, &["-w", node, "--gres=gpu:1"], "echo attempt 0; sleep 1000");
        let (first, second) = (long("gn1")?, long("gn2")?);
        // Their gates have ended as well, which Slurm's state RUNNING does not tell.
        for job in [first, second] {
            started(cluster, job)?;
        }

        // The node reboots when its job has ended. Until then Slurm may start other jobs there.
        cluster.root().run(&["scontrol", "reboot", "gn1"])?.ok()?;
        cluster.wait_node("gn1", "about to reboot", MINUTE, |node| node.state().contains("REBOOT"))?;
        assert!(!cluster.node("gn1")?.drained());
        cluster.hardware("gn1")?.inject("gpu-lost@5")?;
        let beside = cluster.root().on("gn1").run(&["railgate", "check", "--drain"])?.ok()?;
        assert!(beside.contains("drain: drained by others: reboot_requested"), "{beside}");
        let refused = alice.sbatch(&["-w", "gn1", "--gres=gpu:7", "--no-requeue"], "hostname")?;
        cluster.wait_job(refused, &["CANCELLED"], MINUTE)?;
        let node = cluster.node("gn1")?;
        assert!(node.drained() && node.state().contains("REBOOT"), "{node:?}");
        assert!(node.reason().starts_with("railgate: gpu-lost@5: "), "{}", node.reason());

        // Old directories: of an unknown job, and of a running one.
        let sh = |script: &str| cluster.root().on("gn2").run(&["sh", "-c", script])?.ok();
        let stale = |job: u32| {
            let place = format!("/run/railgate/jobs/{job}/0-1000000/user");
            sh(&format!("mkdir -p {place} && mount -t tmpfs -o size=1m left {place}"))
        };
        stale(4711)?;
        sh(&format!("cd /run/railgate/jobs/{second} && mv 0-* 0-1000000 && ln -sfn 0-1000000 current"))?;
        cluster.root().on("gn2").run(&["railgate", "check", "--drain"])?.ok()?;
        assert_eq!(
            sh("ls /run/railgate/jobs; grep -c 4711 /proc/self/mounts || true")?,
            format!("{second}\n0\n")
        );
        // If slurmctld does not answer, nothing is removed.
        stale(4712)?;
        cluster.stop_slurmctld()?;
        cluster.root().on("gn2").run(&["railgate", "check", "--drain"])?.ok()?;
        assert!(sh("ls /run/railgate/jobs")?.contains("4712"));
        Ok(())
    })
}
