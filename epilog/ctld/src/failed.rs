//! A job that ended with an exit code: decides whether it is requeued.

use std::time::Duration;

use railgate_node_report::{DecisionKind, Discounted};
use railgate_slurm::effect::{RequeueOrder, requeue, requeue_held};
use railgate_slurm::{
    Consent, Decision, Event, Facts, JobState, NodeEvidence, Used, Weight, decide, fatal, may_be_requeued,
    weigh,
};

use crate::call::Call;
use crate::evidence::{Gathered, gather, hung_on, states};
use crate::expedited;
use crate::kept_log::keeps_log;
use crate::record::{Record, blamed, budget, decision, entry, not_counted};
use crate::requeued;
use crate::tally;
use crate::wait::{for_nodes, turn};

/// Longest time that Slurm needs to requeue a job whose prolog failed.
const SLURMS_OWN: Duration = Duration::from_secs(1);

pub(crate) fn handle(mut call: Call) {
    let turn = turn(&call);
    let answer = call.client.job(&call.name);
    drop(turn);
    let job = match answer {
        Ok(job) => job,
        Err(why) => return leave(&call, (DecisionKind::Left, format!("its state is unknown: {why}")), None),
    };
    let Some(leader) = job.first() else { return };
    call.consent = expedited::consent(&call, leader);
    let call = &call;
    if put_back_already(call, leader) {
        return requeued::explain(call, leader);
    }
    if let Err(why) = allowed(call, leader, call.consent, false).or_else(|why| after_signal(call, &job, why))
    {
        return if_not_refused(call, |refused| {
            leave(call, expedited::end(call, leader, format!("{refused}{why}")), Some(leader));
        });
    }
    let waited = for_nodes(call, job);
    let Some(leader) = waited.job.first() else { return };
    if put_back_already(call, leader) {
        return requeued::explain(call, leader);
    }
    let found = gather(call, &waited.job);
    for problem in &found.problems {
        tracing::warn!(job = %call.name, "{problem}");
    }
    let settled = |refused: String| {
        // What is missing may be the node whose epilog failed.
        let complete = waited.missing.is_none() && found.untold.is_none();
        let (what, mut why, used) = settle(call, leader, &found, complete);
        for missing in waited.missing.iter().chain(&found.untold) {
            why = format!("{why} ({missing})");
        }
        let record = Record {
            attempt: call.job.restarts,
            what,
            why: format!("{refused}{why}"),
            state: Some(shown(leader)),
            request: leader.request.clone(),
            discounted: discounted(call, leader, &found),
            not_asked: false,
            used: Some(used),
            nodes: &found.nodes,
            waited: waited.took,
        };
        decision(call, record);
    };
    if found.evidence.is_empty() { if_not_refused(call, settled) } else { settled(String::new()) }
}

fn put_back_already(call: &Call, job: &JobState) -> bool {
    job.restarts > call.job.restarts
}

/// If the batch host's own prolog failed, Slurm ends the job with exit code 1 and requeues it a moment later. Calls
/// `otherwise` with the text about a refusal, unless this is what happened.
fn if_not_refused(call: &Call, otherwise: impl FnOnce(String)) {
    if call.exit.code() != Some(1) {
        return otherwise(String::new());
    }
    let mut problems = Vec::new();
    let refused = requeued::refused(call, &states(call, &mut problems));
    if refused.is_empty() {
        return otherwise(String::new());
    }
    std::thread::sleep(SLURMS_OWN);
    match call.client.job(&call.name).ok().and_then(|job| job.into_iter().next()) {
        Some(job) if put_back_already(call, &job) => requeued::explain(call, &job),
        _ => otherwise(format!("refused before it started ({}); ", requeued::named(&refused))),
    }
}

fn leave(call: &Call, (what, why): (DecisionKind, String), job: Option<&JobState>) {
    let record = Record {
        attempt: call.job.restarts,
        what,
        why,
        state: job.map(shown),
        request: job.map(|job| job.request.clone()).unwrap_or_default(),
        discounted: Vec::new(),
        not_asked: job.is_some_and(|job| {
            call.consent == Consent::Never && allowed(call, job, Consent::Auto, false).is_ok()
        }),
        used: None,
        nodes: &[],
        waited: Duration::ZERO,
    };
    decision(call, record);
}

/// Faults that were found but do not count.
fn discounted(call: &Call, job: &JobState, found: &Gathered) -> Vec<Discounted> {
    let of = |item: &NodeEvidence| match weigh(item, job, &call.config.requeue) {
        Weight::Discounted(why) => {
            Some(Discounted { node: item.node.clone(), subject: item.subject.clone(), why: why.to_owned() })
        }
        Weight::Counts | Weight::Beside => None,
    };
    found.evidence.iter().filter_map(of).collect()
}

/// Decides, and carries out the decision. `complete`: all nodes have reported.
fn settle(call: &Call, job: &JobState, found: &Gathered, complete: bool) -> (DecisionKind, String, Used) {
    let config = &call.config.requeue;
    let ran = ran(job);
    let used = match budget(call, call.job.restarts, ran) {
        Ok(used) => used,
        Err(why) => return (DecisionKind::Left, not_counted(&why), Used::default()),
    };
    let mut facts = Facts {
        exit: call.exit,
        attempt: call.job.restarts,
        job,
        consent: call.consent,
        keeps_log: true,
        evidence: &found.evidence,
        hung_on: found.hung_on.as_deref(),
        used,
        acting: &call.acting,
    };
    let mut decided = decide(config, &facts);
    // Two queries that are only needed for a job that would be requeued.
    if !matches!(decided, Decision::Leave { .. }) && !keeps_log(call, job) {
        facts.keeps_log = false;
        decided = decide(config, &facts);
    }
    let blamed = blamed(&fatal(&found.evidence, job, config));
    let event = match &decided {
        Decision::Requeue { .. } => Event::Death,
        Decision::Hold { .. } => Event::Held,
        Decision::Leave { .. } => Event::Left,
    };
    if event != Event::Left || !blamed.is_empty() {
        // Written first, so that no restart goes uncounted.
        let line = entry(call, event, call.job.restarts, ran, blamed, decided.why());
        if let Err(why) = call.ledger.append(&line) {
            return (DecisionKind::Left, format!("the ledger cannot be used: {why}"), used);
        }
        tally::count(&call.config, &call.own, &line);
    }
    let counted = Used { deaths: used.deaths + 1, ..used };
    match decided {
        Decision::Leave { why } if complete => {
            let (what, why) = expedited::end(call, job, why);
            (what, why, used)
        }
        Decision::Leave { why } => (DecisionKind::Left, why, used),
        Decision::Hold { why } => match requeue_held(&call.client, &call.name, &why) {
            Ok(()) => (DecisionKind::Held, why, counted),
            Err(failed) => (DecisionKind::Failed, format!("{why}, but: {failed}"), counted),
        },
        Decision::Requeue { exclude, why }
            if exclude.is_empty() && expedited::restarts(call, job, &found.evidence) =>
        {
            (DecisionKind::Requeued, format!("{why}; {}", expedited::RESTARTED), counted)
        }
        Decision::Requeue { exclude, why } => {
            let note = format!("attempt {} failed, {why}", call.job.restarts);
            let how =
                RequeueOrder { name: &call.name, job, exclude: &exclude, start: config.start, note: &note };
            match requeue(&call.client, &how) {
                Ok(()) => (DecisionKind::Requeued, why, counted),
                Err(failed) => (DecisionKind::Failed, format!("{why}, but: {failed}"), counted),
            }
        }
    }
}

fn allowed(call: &Call, job: &JobState, consent: Consent, hung: bool) -> Result<(), String> {
    may_be_requeued(&call.config.requeue, call.exit, call.job.restarts, job, consent, hung)
}

/// Whether the guard sent the signal that ended the script; `why` if it did not, or another reason is against a requeue.
fn after_signal(call: &Call, job: &[JobState], why: String) -> Result<(), String> {
    let Some(leader) = job.first() else { return Err(why) };
    if call.exit.signal().is_none() || allowed(call, leader, call.consent, true).is_err() {
        return Err(why);
    }
    let ids: Vec<u32> = job.iter().map(|job| job.id).collect();
    let mut problems = Vec::new();
    match hung_on(&states(call, &mut problems), &ids, leader) {
        Some(_) => Ok(()),
        None => Err(why),
    }
}

/// How long the attempt ran; `None` if unknown.
pub(crate) fn ran(job: &JobState) -> Option<Duration> {
    Some(Duration::from_secs(job.end?.saturating_sub(job.start?)))
}

fn shown(job: &JobState) -> String {
    format!("{} ({})", job.state, job.reason)
}

#[cfg(test)]
mod tests {
    use railgate_slurm::Acting;

    use super::*;
    use crate::testing::{Scene, job, node};

    const LOST: &str = "railgate: gpu-lost@3: 0000:9b:00.0 off bus, Xid 79; reboot [epilog job=5,7]";

    fn died() -> Scene {
        let scene = Scene::new("256", "0");
        scene.file("nodes", &(node("n1", "IDLE", "") + &node("n2", "IDLE+DRAIN", LOST)));
        scene
    }

    #[test]
    fn a_job_that_failed_because_of_its_node_is_requeued() {
        let scene = died();
        // The epilogs of two nodes still run, then of one, then of none.
        scene.jobs(&[job(&[("NodeList", "n[1-2]")]), job(&[("NodeList", "n2")]), job(&[])]);
        handle(scene.call());
        let changes = scene.changes();
        assert_eq!(changes[0], "requeue 7");
        assert!(
            changes[1]
                .starts_with("update JobId=7 AdminComment=railgate: attempt 0 failed, gpu-lost@3 on n2")
        );
        assert_eq!(changes.len(), 2, "{changes:?}");
        let ledger = scene.ledger();
        assert_eq!((ledger.len(), ledger[0].event, ledger[0].ran_s), (1, Event::Death, Some(600)));
        assert_eq!(ledger[0].blamed[0].node, "n2");
    }

    #[test]
    fn only_the_failed_array_member_is_requeued() {
        let mut scene = died();
        scene.set("SLURM_ARRAY_JOB_ID", "7");
        scene.set("SLURM_ARRAY_TASK_ID", "3");
        handle(scene.call());
        assert_eq!(scene.changes()[0], "requeue 7_3");
    }

    #[test]
    fn without_evidence_or_consent_a_job_is_not_requeued() {
        let scene = Scene::new("256", "0");
        handle(scene.call());
        assert!(scene.changes().is_empty() && scene.ledger().is_empty());
        let mut scene = died();
        scene.set("SPANK_RAILGATE_REQUEUE", "never");
        scene.set("SLURM_JOB_EXIT_CODE", "512");
        handle(scene.call());
        assert_eq!(scene.calls(), ["scontrol -o show job 7"]);
        // A drain that names other jobs, or that is older than this run.
        for reason in [
            "railgate: gpu-lost@3: off bus; reboot [epilog job=5,77]",
            "railgate: gpu-lost@3: off bus; reboot [prolog job=7]",
            "bad dimm",
        ] {
            let scene = died();
            scene.file("nodes", &node("n2", "IDLE+DRAIN", reason));
            handle(scene.call());
            assert!(scene.changes().is_empty(), "{reason}");
        }
        let scene = died();
        scene.file("nodes", &node("n2", "IDLE+DRAIN", LOST).replace("T01:10:01", "T00:10:01"));
        handle(scene.call());
        assert!(scene.changes().is_empty());
    }

    #[test]
    fn a_job_without_gpus_on_one_node_is_requeued_like_others() {
        let on_one_node = || {
            let mut scene = died();
            scene.set("SLURM_JOB_NODELIST", "n2");
            scene.jobs(&[job(&[("TresPerNode", "(null)")])]);
            scene
        };
        let scene = on_one_node();
        handle(scene.call());
        assert_eq!(scene.changes()[0], "requeue 7");

        let mut scene = on_one_node();
        scene.requeue.without_gpus = false;
        scene.set("SLURM_JOB_EXIT_CODE", "512");
        handle(scene.call());
        assert_eq!(scene.calls(), ["scontrol -o show job 7"], "no node is asked, and none waited for");
    }

    #[test]
    fn a_job_that_slurm_ended_is_not_waited_for() {
        let mut scene = died();
        scene.set("SLURM_JOB_EXIT_CODE", "512");
        scene.jobs(&[job(&[("NodeList", "n[1-2]"), ("Reason", "OutOfMemory")])]);
        handle(scene.call());
        assert_eq!(scene.calls(), ["scontrol -o show job 7"]);
    }

    #[test]
    fn a_job_that_the_guard_ended_is_requeued() {
        let hung = |status: &str, stage: &str| {
            let scene = Scene::new(status, "0");
            let comment = format!("railgate: hangs: 7 {stage} 2026-11-21T01:09:50Z");
            let n1 = node("n1", "IDLE", "").replace('\n', &format!(" Comment={comment}\n"));
            scene.file("nodes", &(n1 + &node("n2", "IDLE", "")));
            scene
        };
        for status in ["36608", "15", "9"] {
            let scene = hung(status, "ended");
            handle(scene.call());
            assert_eq!(scene.changes()[0], "requeue 7", "{status}");
            let ledger = scene.ledger();
            assert_eq!((ledger.len(), ledger[0].event), (1, Event::Death));
            assert!(
                ledger[0].blamed.is_empty() && ledger[0].why.starts_with("hung, ended by the guard of n1")
            );
        }
        // Named and not ended; ended and started again in the allocation; ended long before; an earlier attempt; no consent.
        for (status, stage) in [("15", "hangs"), ("256", "restarted")] {
            let scene = hung(status, stage);
            handle(scene.call());
            assert!(scene.changes().is_empty(), "{stage}");
        }
        let scene = hung("256", "ended");
        scene.jobs(&[job(&[("StartTime", "2026-11-21T01:09:55")])]);
        handle(scene.call());
        assert!(scene.changes().is_empty());
        let scene = hung("36608", "ended");
        scene.file(
            "nodes",
            &std::fs::read_to_string(scene.path("nodes")).unwrap().replace("01:09:50Z", "00:50:00Z"),
        );
        handle(scene.call());
        assert!(scene.changes().is_empty());
        let mut scene = hung("36608", "ended");
        scene.set("SPANK_RAILGATE_REQUEUE", "never");
        handle(scene.call());
        assert!(scene.changes().is_empty());
    }

    #[test]
    fn a_job_whose_log_would_be_truncated_is_not_requeued() {
        let scene = died();
        scene.file("config", "JobFileAppend           = 0\n");
        handle(scene.call());
        assert!(scene.changes().is_empty());
        assert_eq!(scene.ledger()[0].event, Event::Left);
        scene.file("script", "#!/bin/sh\n#SBATCH --open-mode=append\n");
        handle(scene.call());
        assert_eq!(scene.changes()[0], "requeue 7");
    }

    #[test]
    fn a_job_beyond_its_budget_is_held() {
        for attempt in 0..4 {
            let mut scene = died();
            scene.set("SLURM_JOB_RESTART_COUNT", &attempt.to_string());
            scene.jobs(&[job(&[("Restarts", &attempt.to_string())])]);
            let call = scene.call();
            for earlier in 0..attempt {
                call.ledger.append(&entry(&call, Event::Death, earlier, None, Vec::new(), "")).unwrap();
            }
            handle(call);
            let expected = if attempt < 3 { "requeue 7" } else { "requeuehold 7" };
            assert_eq!(scene.changes()[0], expected, "{attempt}");
        }
    }

    /// A job of `--requeue=expedite` without `--railgate-requeue`, which a lost GPU ended.
    fn expedited() -> Scene {
        let mut scene = died();
        scene.env.remove(std::ffi::OsStr::new("SPANK_RAILGATE_REQUEUE"));
        scene.requeue.expedite = true;
        scene.jobs(&[job(&[("ExpeditedRequeue", "Yes")])]);
        scene
    }

    #[test]
    fn slurm_restarts_an_expedited_job_whose_node_failed() {
        let scene = expedited();
        handle(scene.call());
        assert!(scene.changes().is_empty(), "{:?}", scene.changes());
        assert_eq!(scene.ledger()[0].event, Event::Death, "it counts");
        // A node that takes jobs is excluded, which only an own requeue can do.
        let hung = expedited();
        let comment = " Comment=railgate: hangs: 7 ended 2026-11-21T01:09:50Z\n";
        hung.file("nodes", &(node("n1", "IDLE", "").replace('\n', comment) + &node("n2", "IDLE", "")));
        handle(hung.call());
        assert_eq!(hung.changes()[0], "requeue 7");
        let mut off = expedited();
        off.requeue.expedite = false;
        off.set("SPANK_RAILGATE_REQUEUE", "auto");
        handle(off.call());
        assert_eq!(off.changes()[0], "requeue 7");
    }

    #[test]
    fn an_expedited_job_that_failed_by_itself_is_cancelled() {
        let fit = |scene: &Scene| scene.file("nodes", &(node("n1", "IDLE", "") + &node("n2", "IDLE", "")));
        let cancelled = ["scontrol requeuehold 7", "scancel 7"];
        let acts = |scene: &Scene| -> Vec<String> {
            let calls = scene.calls().into_iter();
            calls.filter(|call| call.contains("scancel") || call.contains("requeue")).collect()
        };
        let scene = expedited();
        fit(&scene);
        handle(scene.call());
        assert_eq!(acts(&scene), cancelled);
        // Known before the nodes are asked.
        let mut scene = expedited();
        scene.requeue.without_gpus = false;
        scene.jobs(&[job(&[("ExpeditedRequeue", "Yes"), ("TresPerNode", "(null)")])]);
        scene.set("SLURM_JOB_EXIT_CODE", "512");
        handle(scene.call());
        assert_eq!(acts(&scene), cancelled);
        // Slurm does not hold these, or was told otherwise, or not all nodes have answered.
        let mut never = expedited();
        never.set("SPANK_RAILGATE_REQUEUE", "never");
        let mut report = expedited();
        report.acting = Acting::Forbidden("report mode".to_owned());
        let mut signal = expedited();
        signal.set("SLURM_JOB_EXIT_CODE", "9");
        let pending = expedited();
        pending.jobs(&[job(&[("ExpeditedRequeue", "Yes"), ("JobState", "PENDING")])]);
        let mut silent = expedited();
        silent.requeue.wait = std::time::Duration::from_millis(200);
        silent.jobs(&[job(&[("ExpeditedRequeue", "Yes"), ("NodeList", "n[1-2]")])]);
        for scene in [never, report, signal, pending, silent] {
            fit(&scene);
            handle(scene.call());
            assert!(acts(&scene).is_empty(), "{:?}", acts(&scene));
        }
    }

    #[test]
    fn an_expedited_job_beyond_its_budget_is_held() {
        let mut scene = expedited();
        scene.set("SLURM_JOB_RESTART_COUNT", "3");
        scene.jobs(&[job(&[("ExpeditedRequeue", "Yes"), ("Restarts", "3")])]);
        let call = scene.call();
        for earlier in 0..3 {
            call.ledger.append(&entry(&call, Event::Death, earlier, None, Vec::new(), "")).unwrap();
        }
        handle(call);
        assert_eq!(scene.changes()[0], "requeuehold 7");
    }

    #[test]
    fn without_a_ledger_no_job_is_requeued() {
        let scene = died();
        std::fs::create_dir(scene.path("ledger.jsonl")).unwrap();
        handle(scene.call());
        assert!(scene.changes().is_empty());
    }

    #[test]
    fn in_report_mode_nothing_is_changed() {
        let mut scene = died();
        scene.acting = Acting::Forbidden("report mode".to_owned());
        handle(scene.call());
        assert!(scene.changes().is_empty());
        assert!(scene.ledger()[0].why.contains("would be requeued, but report mode"));
    }

    #[test]
    fn beyond_the_limit_of_waiters_a_call_checks_once() {
        let mut scene = died();
        scene.requeue.waiters = 1;
        scene.jobs(&[job(&[("NodeList", "n[1-2]")])]);
        let waiters = scene.path("waiters");
        std::fs::create_dir(&waiters).unwrap();
        let taken = railgate_fsutil::FileLock::try_take(&waiters.join("0")).unwrap().unwrap();
        handle(scene.call());
        assert_eq!(scene.calls().iter().filter(|call| call.contains("show job")).count(), 1);
        assert_eq!(scene.changes()[0], "requeue 7", "what is known already counts");
        drop(taken);
    }

    #[test]
    fn without_an_answer_of_slurmctld_the_job_is_left_alone() {
        let scene = died();
        scene.file("dead", "");
        handle(scene.call());
        assert_eq!(scene.calls().len(), 1);
        assert!(scene.ledger().is_empty());
    }
}
