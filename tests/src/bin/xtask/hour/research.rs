//! A researcher's first jobs, as docs/researchers.md and docs/templates.md describe, and the on-call procedure for one of them.

use anyhow::{Context as _, Result, ensure};
use railgate_tests::poll;

use super::Hour;
use super::site::{HEAD, MINUTE};

const PAGE: &str = "researchers.md";
const ON_CALL: &str = "oncall.md";
/// The job id that the pages use in examples.
const THEIRS: &str = "48213";

impl Hour<'_> {
    pub(super) fn research(&self) -> Result<()> {
        let record = self.record;
        record.step("a template, submitted and reported", || self.template());
        record.step("a job without GPUs, found by its name", || self.without_gpus());
        record.step("an array: an overview, and one task", || self.array());
        record.step("a job whose program fails", || self.fails());
        record.step("a job that runs out of memory", || self.out_of_memory());
        record.step("a job cancelled by its owner", || self.cancelled());
        record.step("a job leaves the node whose GPU is off the bus", || self.moved());
        record.need("on call: the reason, the node, and its return to service", || self.on_call())
    }

    /// `railgate report` of a job that has ended, once every node has reported.
    fn report(&self, id: &str) -> Result<String> {
        self.report_complete(id)?;
        let said = self.typist.user(PAGE, "railgate report 48213", &[(THEIRS, id)])?;
        ensure!(said.code == 0 && said.stderr.is_empty(), "{said}");
        Ok(said.stdout)
    }

    /// Waits until the report describes a job that has ended.
    fn report_complete(&self, id: &str) -> Result<()> {
        poll::until(MINUTE, "the report of a job that has ended", || {
            let said = self.cluster.alice().run(&["railgate", "report", id])?;
            let open =
                ["running", "still", "not reported yet"].iter().any(|word| head(&said.stdout).contains(word));
            Ok((said.code == 0 && !open).then_some(()))
        })
    }

    fn template(&self) -> Result<()> {
        let show =
            "railgate template show torchrun-multinode --set nodes=4 --set partition=h100 --out train.sbatch";
        let typist = &self.typist;
        typist
            .user("templates.md", show, &[("nodes=4", "nodes=2"), ("partition=h100", "partition=main")])?
            .ok()?;
        let said = typist.user("templates.md", "sbatch train.sbatch", &[])?.ok()?;
        let id = said.split_whitespace().next_back().context("no number")?.to_owned();
        self.cluster.wait_job(&id, &["COMPLETED"], 2 * MINUTE)?;
        self.site_prolog_ran(id.parse()?)?;
        self.begins(&id, "completed")?;
        let last = typist.user(PAGE, "railgate report", &[])?.ok()?;
        ensure!(head(&last).contains(&format!("job {id} ")), "the last job is {id}: {}", head(&last));
        let html = "railgate report 48213 --format html --out 48213.html";
        typist.user(PAGE, html, &[(THEIRS, &id)])?.ok()?;
        let page = self.cluster.output(&format!("/home/rgalice/{id}.html")).context("no page")?;
        ensure!(page.contains("<html") && page.contains(&id), "the page: {page}");
        Ok(())
    }

    fn without_gpus(&self) -> Result<()> {
        let id =
            self.cluster.alice().sbatch(&["-J", "pretrain", "-w", "cn1", "-o", "log"], "srun hostname")?;
        self.cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        self.begins(&id.to_string(), "completed")?;
        let said = self.typist.user(PAGE, "railgate report --name pretrain", &[])?.ok()?;
        ensure!(head(&said).contains(&format!("job {id} 'pretrain'")), "{}", head(&said));
        Ok(())
    }

    fn array(&self) -> Result<()> {
        let words = ["--array=1-4", "--gres=gpu:1", "-o", "/dev/null", "-J", "sweep"];
        let id = self.cluster.alice().sbatch(&words, "exit $((SLURM_ARRAY_TASK_ID == 3))")?;
        for task in 1..=4 {
            let state = if task == 3 { "FAILED" } else { "COMPLETED" };
            self.cluster.wait_job(format!("{id}_{task}"), &[state], MINUTE)?;
            self.report_complete(&format!("{id}_{task}"))?;
        }
        let id = id.to_string();
        let overview = self.typist.user(PAGE, "railgate report 48213 --array", &[(THEIRS, &id)])?.ok()?;
        for (task, state) in [("1", "COMPLETED"), ("2", "COMPLETED"), ("3", "FAILED"), ("4", "COMPLETED")] {
            let mut rows = overview.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let row = rows.find(|row| row.first() == Some(&task));
            ensure!(row.is_some_and(|row| row.get(2) == Some(&state)), "task {task}: {overview}");
        }
        let one = self.typist.user(PAGE, "railgate report 48213_4", &[(THEIRS, &id)])?.ok()?;
        ensure!(head(&one).contains("completed"), "{}", head(&one));
        Ok(())
    }

    fn fails(&self) -> Result<()> {
        let script = "echo \"KeyError: 'lr'\" >&2; exit 1";
        let id = self.cluster.alice().sbatch(&["--gres=gpu:1", "-J", "bug", "-o", "bug.%j"], script)?;
        self.cluster.wait_job(id, &["FAILED"], MINUTE)?;
        let text = self.begins(&id.to_string(), "looks like the application")?;
        ensure!(text.contains(&format!("bug.{id}")), "the report does not name the job's log: {text}");
        Ok(())
    }

    /// The test machines have no memory control groups, so the OOM kill is written to the node's kernel log.
    fn out_of_memory(&self) -> Result<()> {
        let alice = self.cluster.alice();
        let script = "echo begun; until [ -e hungry ]; do sleep 0.2; done; exit 137";
        let id = alice.sbatch(&["-w", "gn2", "--gres=gpu:1", "-J", "hungry", "-o", "hungry.%j"], script)?;
        poll::until(MINUTE, "its script to run", || {
            Ok(self
                .cluster
                .output(&format!("/home/rgalice/hungry.{id}"))
                .is_some_and(|log| log == "begun\n")
                .then_some(()))
        })?;
        let uid = alice.run(&["id", "-u"])?.ok()?;
        let uid = uid.trim();
        let path = format!("/slurm_gn2/uid_{uid}/job_{id}");
        let mut hardware = self.cluster.hardware("gn2")?;
        hardware.log_kernel_line(&format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={path},\
             task_memcg={path}/step_batch,task=python3,pid=770077,uid={uid}"
        ))?;
        hardware.log_kernel_line(&format!(
            "Memory cgroup out of memory: Killed process 770077 (python3) total-vm:9kB, anon-rss:9kB, file-rss:0kB, \
             shmem-rss:0kB, UID:{uid} pgtables:4kB oom_score_adj:0"
        ))?;
        drop(hardware);
        self.cluster.write(HEAD, "/home/rgalice/hungry", "")?;
        self.cluster.wait_job(id, &["FAILED"], MINUTE)?;
        let text = self.begins(&id.to_string(), "out of memory")?;
        ensure!(text.contains("--mem"), "the report suggests no remedy: {text}");
        Ok(())
    }

    fn cancelled(&self) -> Result<()> {
        let alice = self.cluster.alice();
        let id = alice
            .sbatch(&["--gres=gpu:1", "-J", "changed-my-mind", "-o", "mind.%j"], "echo begun; sleep 600")?;
        poll::until(MINUTE, "its script to run", || {
            Ok(self
                .cluster
                .output(&format!("/home/rgalice/mind.{id}"))
                .is_some_and(|log| log == "begun\n")
                .then_some(()))
        })?;
        self.typist.researcher(&format!("scancel {id}"))?.ok()?;
        self.cluster.wait_job(id, &["CANCELLED"], MINUTE)?;
        self.begins(&id.to_string(), "cancelled").map(drop)
    }

    fn moved(&self) -> Result<()> {
        self.cluster.hardware("gn1")?.inject("gpu-lost@3")?;
        let words = ["--gres=gpu:8", "-J", "moves", "-o", "moves.%j"];
        let id = self.cluster.alice().sbatch(&words, "srun hostname")?;
        let job = self.cluster.wait_job(id, &["COMPLETED"], 3 * MINUTE)?;
        ensure!(job.nodes() == "gn2", "job {id} ran on {}", job.nodes());
        let reason = self.cluster.node("gn1")?.reason().to_owned();
        ensure!(reason.starts_with("railgate: gpu-lost@3: "), "gn1: '{reason}'");
        let text = self.begins(&id.to_string(), "completed")?;
        ensure!(
            text.contains("gn1") && text.contains("gpu-lost@3"),
            "no reason for the move in the report: {text}"
        );
        Ok(())
    }

    fn on_call(&self) -> Result<()> {
        let typist = &self.typist;
        let reasons = typist.admin(HEAD, ON_CALL, "sinfo -R -o '%120E %19H %N'", &[])?.ok()?;
        ensure!(reasons.contains("railgate: gpu-lost@3: ") && reasons.contains("gn1"), "{reasons}");
        let nodes = typist.admin(HEAD, ON_CALL, "railgate nodes", &[])?.ok()?;
        ensure!(nodes.contains("gn1") && nodes.contains("gpu-lost@3"), "{nodes}");
        let check = typist.admin("gn1", ON_CALL, "railgate check", &[])?;
        ensure!(check.code == 1 && check.stdout.contains("gpu-lost@3"), "{check}");
        typist.admin("gn1", ON_CALL, "railgate explain gpu-lost", &[])?.ok()?;
        let command = "grep -a railgate /var/log/slurm/slurmd.log; tail -n 50 /var/log/railgate.log";
        typist.admin("gn1", ON_CALL, command, &[])?.ok()?;
        let gn1 = [("gn7", "gn1")];
        typist.admin("gn1", ON_CALL, "railgate explain gn7", &gn1)?.ok()?;
        let refused = typist.admin("gn1", ON_CALL, "railgate readmit gn7", &gn1)?;
        ensure!(refused.code == 1 && self.cluster.node("gn1")?.drained(), "{refused}");
        typist.admin("gn1", ON_CALL, "railgate rma gn7 --out gn7.json", &gn1)?.ok()?;
        self.cluster.hardware("gn1")?.heal()?;
        let back = typist.admin("gn1", ON_CALL, "railgate readmit gn7", &gn1)?;
        ensure!(back.code == 0, "{back}");
        // Slurm reports a resumed node as not responding until the node has answered.
        self.cluster.wait_node("gn1", "in service", MINUTE, |node| node.state() == "IDLE")?;
        self.no_node_drained()
    }

    /// Checks that a report's first lines contain `words`; returns the whole report.
    fn begins(&self, id: &str, words: &str) -> Result<String> {
        let text = self.report(id)?;
        ensure!(
            head(&text).starts_with(&format!("job {id} ")) && head(&text).contains(words),
            "the report of job {id} does not begin with '{words}': {text}"
        );
        Ok(text)
    }
}

/// First line of a report.
fn head(report: &str) -> &str {
    report.lines().next().unwrap_or_default()
}
