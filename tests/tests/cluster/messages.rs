//! Messages to users: no false promises, states instead of bare exit codes, and no gaps where data exist.

use anyhow::{Result, ensure};
use railgate_tests::cluster::Builder;
use serde_json::Value;

use crate::training::{ALL_MAY_DRAIN, MINUTE, end, one_line, report, started, submit};

/// The job requested that node by name: its log says that it waits there, and how to start it elsewhere.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_bound_to_an_unfit_node_is_not_promised_another() -> Result<()> {
    let builder = Builder::new(2).hardware_of("gn2", "h100-sxm:gpu-lost@3").config(ALL_MAY_DRAIN)?;
    builder.test(|cluster| {
        let alice = cluster.alice();
        let id = alice.sbatch(&["-w", "gn2", "--gres=gpu:8", "-o", "bound"], "hostname")?;
        cluster
            .wait_job_until(id, "put back", MINUTE, |job| job.restarts() == 1 && job.state() == "PENDING")?;
        let log = cluster.output("/home/rgalice/bound").unwrap_or_default();
        let way = format!("scontrol update JobId={id} ReqNodeList=");
        ensure!(
            log.contains("It waits for gn2, because it requests this node by name (--nodelist)"),
            "{log}"
        );
        ensure!(log.contains(&format!("`{way}` lets it start on other nodes")), "{log}");
        let told = report(&alice, id)?;
        let page = one_line(&told);
        ensure!(page.contains("waiting to start") && page.contains(&way), "{told}");
        // The notice says what the command does; nothing else may promise other nodes.
        let rest = page.replace("lets it start on other nodes", "");
        ensure!(!rest.contains("other nodes") && !rest.contains("by itself"), "{told}");
        // The owner is permitted to run the suggested command.
        let words: Vec<&str> = way.split(' ').collect();
        alice.run(&words)?.ok()?;
        let job = cluster.wait_job(id, &["COMPLETED"], 3 * MINUTE)?;
        ensure!(job.nodes() == "gn1", "{job:?}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_report_of_a_waiting_job_names_the_reason_and_the_remedy() -> Result<()> {
    Builder::new(1).test(|cluster| {
        let alice = cluster.alice();
        let failed = alice.sbatch(&["-o", "/dev/null"], "exit 1")?;
        cluster.wait_job(failed, &["FAILED"], MINUTE)?;
        let after = format!("--dependency=afterok:{failed}");
        let never = alice.sbatch(&[&after, "-o", "/dev/null"], "true")?;
        let later = alice.sbatch(&["--begin=now+1hour", "-o", "/dev/null"], "true")?;
        let held = alice.sbatch(&["--hold", "-o", "/dev/null"], "true")?;
        for (id, reason, says, way) in [
            (
                never,
                "DependencyNeverSatisfied",
                "It can never start",
                format!("scontrol update JobId={never} Dependency="),
            ),
            (later, "BeginTime", "It waits: Slurm does not start it before 20", String::new()),
            (held, "JobHeldUser", "It is held", format!("scontrol release {held}")),
        ] {
            cluster.wait_job_until(id, reason, MINUTE, |job| job.reason() == reason)?;
            let told = report(&alice, id)?;
            let page = one_line(&told);
            ensure!(
                page.contains("waiting to start") && page.contains(says) && page.contains(&way),
                "{told}"
            );
            let json = alice.run(&["railgate", "report", &id.to_string(), "--format", "json"])?.ok()?;
            let json: Value = serde_json::from_str(&json)?;
            ensure!((id == later) == json["slurm"]["may_start"].is_u64(), "{json}");
        }
        for words in
            [format!("scontrol update JobId={never} Dependency="), format!("scontrol release {held}")]
        {
            alice.run(&words.split(' ').collect::<Vec<_>>())?.ok()?;
        }
        cluster.wait_job(never, &["COMPLETED"], MINUTE)?;
        cluster.wait_job(held, &["COMPLETED"], MINUTE)?;
        Ok(())
    })
}

/// A job without GPUs, so that figures do not replace words.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_report_names_the_final_state_and_stays_complete_when_redacted() -> Result<()> {
    Builder::new(3).test(|cluster| {
        let (alice, root) = (cluster.alice(), cluster.root());
        let mut jobs = Vec::new();
        for node in cluster.nodes() {
            let id = submit(&alice, &["-w", node, "-J", "falcon9"])?;
            started(cluster, id)?;
            jobs.push(id);
        }
        let [cancelled, timed_out, failed] = jobs.as_slice() else { unreachable!("three nodes") };
        alice.run(&["scancel", &cancelled.to_string()])?.ok()?;
        root.run(&["scontrol", "update", &format!("jobid={timed_out}"), "EndTime=now+1"])?.ok()?;
        end(cluster, *failed, 3)?;
        for (id, state, title) in [
            (cancelled, "CANCELLED", "cancelled"),
            (timed_out, "TIMEOUT", "ran into its time limit"),
            (failed, "FAILED", "looks like the application, exit code 3"),
        ] {
            cluster.wait_job(id, &[state], MINUTE)?;
            let of = |more: &[&str]| -> Result<String> {
                alice.run(&[&["railgate", "report", &id.to_string()], more].concat())?.ok()
            };
            let pages = [of(&["--full"])?, of(&["--format", "html"])?];
            for page in &pages {
                ensure!(one_line(page).contains(&format!("the job ended: {title}")), "{page}");
                ensure!(!page.contains("exit code 0") && !page.contains("signal "), "{page}");
                ensure!(!page.to_lowercase().contains("nccl environment"), "{page}");
            }
            let short = title.split(',').next().unwrap_or_default();
            let covered = of(&["--redact"])?;
            ensure!(
                covered.lines().count() >= 4 && covered.contains("RAN") && covered.contains("WHY"),
                "{covered}"
            );
            let json = of(&["--redact", "--format", "json"])?;
            for page in [&covered, &json, &of(&["--redact", "--format", "html"])?] {
                ensure!(page.contains(short), "no '{short}' in {page}");
                for name in ["rgalice", "falcon9", "gn1", "gn2", "gn3", "/home"] {
                    ensure!(!page.contains(name), "{name} in {page}");
                }
            }
        }
        Ok(())
    })
}

/// A directory without files is no ledger.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_node_without_the_ledger_does_not_claim_that_no_job_failed() -> Result<()> {
    Builder::new(1).test(|cluster| {
        let root = cluster.root();
        root.clone().on("gn1").run(&["mkdir", "-p", "/var/lib/railgate/controller"])?.ok()?;
        let here = root.clone().on("gn1").run(&["railgate", "explain", "gn1"])?.ok()?;
        let there = "Jobs that failed on it: not known here. The ledger is on the controller: there, as root, railgate \
                     explain gn1";
        ensure!(here.contains(there), "{here}");
        let json = root.clone().on("gn1").run(&["railgate", "explain", "gn1", "--format", "json"])?.ok()?;
        ensure!(serde_json::from_str::<Value>(&json)?["jobs"].is_null(), "{json}");
        let controller = root.run(&["railgate", "explain", "gn1"])?.ok()?;
        ensure!(controller.contains("Jobs that failed on it: none in the ledger"), "{controller}");
        Ok(())
    })
}
