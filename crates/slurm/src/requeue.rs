//! Whether a job comes back. Pure: everything it needs is in [`Facts`].

use std::time::Duration;

use railgate_model::{Class, Severity, UnixMillis, is_site_check};
use serde::{Deserialize, Serialize};

use crate::{Acting, Consent, ExitCodes, JobState, RequeueConfig, Used};

/// Signals that Slurm itself, its owner or the kernel's out-of-memory killer sends to a batch script.
const SENT_BY_SLURM: [u32; 9] = [1, 2, 9, 10, 12, 15, 18, 20, 24];
/// Its mark for a job that ran out of memory, where others have a signal.
const OUT_OF_MEMORY: u32 = 125;

/// What Slurm says of a job that failed by itself.
const FAILED_BY_ITSELF: [&str; 3] = ["NonZeroExitCode", "RaisedSignal", "JobLaunchFailure"];

/// States that a job does not come back from.
const FINAL: [&str; 8] =
    ["CANCELLED", "TIMEOUT", "PREEMPTED", "COMPLETED", "DEADLINE", "OUT_OF_MEMORY", "NODE_FAIL", "REVOKED"];

/// How evidence reached the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channel {
    /// Our drain reason names the job.
    DrainReason,
    /// The node's part of the job's report. The job's owner could have forged it, and would gain a restart.
    Report,
}

/// What a node has to say about the job's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvidence {
    /// Slurm's name of the node.
    pub node: String,
    /// `gpu-lost@3`.
    pub subject: String,
    /// Serial number, UUID, GUID or PCI address of the part, where known.
    pub part: String,
    /// How it came.
    pub channel: Channel,
    /// How bad.
    pub severity: Severity,
    /// Whose.
    pub class: Class,
    /// The job held the device; `None` where that could not be told.
    pub own: Option<bool>,
    /// When it happened, where that is known.
    pub at: Option<UnixMillis>,
    /// The node takes no new jobs, so nothing needs to be excluded.
    pub held: bool,
}

/// All that the decision rests on.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// How the job ended, from the environment.
    pub exit: ExitCodes,
    /// The attempt that ended, from the environment.
    pub attempt: u32,
    /// The job as slurmctld has it (the leader).
    pub job: &'a JobState,
    /// What its owner wants, after policy.
    pub consent: Consent,
    /// The log of the ended attempt survives a restart.
    pub keeps_log: bool,
    /// What the nodes say.
    pub evidence: &'a [NodeEvidence],
    /// What of the budget is used.
    pub used: Used,
    /// Whether anything may be changed.
    pub acting: &'a Acting,
}

/// What happens to the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Back into the queue.
    Requeue {
        /// Nodes to exclude: those that are blamed and still take jobs.
        exclude: Vec<String>,
        /// One sentence.
        why: String,
    },
    /// Back into the queue and held: the budget is spent.
    Hold {
        /// One sentence.
        why: String,
    },
    /// It stays ended.
    Leave {
        /// One sentence.
        why: String,
    },
}

impl Decision {
    /// The sentence.
    pub fn why(&self) -> &str {
        match self {
            Decision::Requeue { why, .. } | Decision::Hold { why } | Decision::Leave { why } => why,
        }
    }
}

/// Whether evidence counts as the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// It does: node-fatal, on the job's own devices, not later than its end.
    Counts,
    /// It speaks of no fault of a node, or of another job's device.
    Beside,
    /// A fault of a node that does not count, and why.
    Discounted(&'static str),
}

/// The one judgement about a piece of evidence.
pub fn weigh(item: &NodeEvidence, job: &JobState, config: &RequeueConfig) -> Weight {
    let of_a_node = item.severity == Severity::Fail && matches!(item.class, Class::Node | Class::Fabric);
    if !of_a_node || item.own == Some(false) {
        return Weight::Beside;
    }
    if !config.site_checks && is_site_check(&item.subject) {
        return Weight::Discounted(
            "findings of the site's own checks do not count here (requeue.site_checks)",
        );
    }
    if item.own.is_none() {
        return Weight::Discounted("unknown whether the job held the part");
    }
    let slack = u64::try_from(config.clock_slack.as_millis()).unwrap_or(u64::MAX);
    match (item.at, job.end) {
        // Slurm's times are whole seconds, so the end is anywhere in its second.
        (Some(at), Some(end)) if at > end.saturating_add(1).saturating_mul(1000).saturating_add(slack) => {
            Weight::Discounted("it came after the job's end")
        }
        _ => Weight::Counts,
    }
}

/// The evidence that counts.
pub fn fatal<'a>(
    evidence: &'a [NodeEvidence],
    job: &JobState,
    config: &RequeueConfig,
) -> Vec<&'a NodeEvidence> {
    evidence.iter().filter(|item| weigh(item, job, config) == Weight::Counts).collect()
}

/// Whether the job could come back at all; `Err` says why not. Asks for nothing but the job itself, so that
/// nobody waits for the nodes of a job that will stay ended.
///
/// # Errors
/// The sentence for [`Decision::Leave`].
pub fn may_come_back(
    config: &RequeueConfig,
    exit: ExitCodes,
    attempt: u32,
    job: &JobState,
    consent: Consent,
) -> Result<(), String> {
    let Some(status) = exit.job else { return Err("Slurm gave no exit code".to_owned()) };
    if status == 0 {
        return Err("Slurm counts it as ended without failure (completed, cancelled or timed out)".to_owned());
    }
    if exit.signal() == Some(OUT_OF_MEMORY) {
        return Err("it ran out of memory".to_owned());
    }
    if let Some(signal) = exit.signal().filter(|signal| SENT_BY_SLURM.contains(signal)) {
        return Err(format!("its script was ended by signal {signal}, which Slurm or its owner sends"));
    }
    if let Some(state) = job.state.split('+').find(|state| FINAL.contains(state)) {
        return Err(format!("it ended as {state}"));
    }
    if job.preempted {
        return Err("it was preempted".to_owned());
    }
    if job.state.contains("PENDING") || job.state.contains("RUNNING") || job.restarts > attempt {
        return Err("it was requeued by others already".to_owned());
    }
    if !FAILED_BY_ITSELF.iter().any(|known| job.reason.starts_with(known)) {
        return Err(format!("Slurm ended it ({})", job.reason));
    }
    if let (Some(start), Some(end), Some(limit)) = (job.start, job.end, job.time_limit)
        && Duration::from_secs(end.saturating_sub(start)) >= limit
    {
        return Err("it reached its time limit".to_owned());
    }
    if !job.batch {
        return Err("only batch jobs can come back".to_owned());
    }
    if !job.requeue {
        return Err("it was submitted with --no-requeue".to_owned());
    }
    if !job.gpus && !config.without_gpus {
        return Err("this site restarts no jobs that asked for no GPU (requeue.without_gpus)".to_owned());
    }
    if consent == Consent::Never {
        return Err("a restart was not asked for (--railgate-requeue)".to_owned());
    }
    Ok(())
}

/// Whether the job comes back.
pub fn decide(config: &RequeueConfig, facts: &Facts<'_>) -> Decision {
    if let Err(why) = may_come_back(config, facts.exit, facts.attempt, facts.job, facts.consent) {
        return Decision::Leave { why };
    }
    let fatal = fatal(facts.evidence, facts.job, config);
    if fatal.is_empty() {
        return Decision::Leave { why: without_cause(config, facts) };
    }
    let mut blamed: Vec<String> =
        fatal.iter().map(|item| format!("{} on {}", item.subject, item.node)).collect();
    blamed.sort_unstable();
    blamed.dedup();
    let blamed = if blamed.len() > 4 {
        format!("{} and {} more", blamed[..3].join(", "), blamed.len() - 3)
    } else {
        blamed.join(", ")
    };
    let allowed = facts.consent.at_most(config.max_restarts);
    if allowed == 0 {
        return Decision::Leave { why: format!("{blamed}; this site restarts no jobs") };
    }
    if let Acting::Forbidden(why) = facts.acting {
        return Decision::Leave { why: format!("{blamed}; would come back, but {why}") };
    }
    if !facts.keeps_log && !config.allow_truncated_log {
        let why = format!("{blamed}; a restart would truncate its log (submit with --open-mode=append)");
        return Decision::Leave { why };
    }
    if facts.used.deaths >= allowed {
        return Decision::Hold { why: held(&blamed, facts.used.deaths, allowed) };
    }
    let mut exclude: Vec<String> =
        fatal.iter().filter(|item| !item.held).map(|item| item.node.clone()).collect();
    exclude.sort_unstable();
    exclude.dedup();
    let why = format!("{blamed}; restart {} of {allowed}", facts.used.deaths + 1);
    Decision::Requeue { exclude, why }
}

/// Why nothing that was found counts.
fn without_cause(config: &RequeueConfig, facts: &Facts<'_>) -> String {
    const MOST: usize = 3;
    let mut found: Vec<String> = facts
        .evidence
        .iter()
        .filter_map(|item| match weigh(item, facts.job, config) {
            Weight::Discounted(why) => {
                Some(format!("{} on {} does not count: {why}", item.subject, item.node))
            }
            _ => None,
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    let more = found.len().saturating_sub(MOST);
    found.truncate(MOST);
    match (found.is_empty(), more) {
        (true, _) => "no node has evidence of a fault that ended it".to_owned(),
        (false, 0) => found.join("; "),
        (false, more) => format!("{}; and {more} more", found.join("; ")),
    }
}

/// What follows when Slurm itself has put a job back because a node died (`died` says which): `Some` holds it.
pub fn after_node_fail(config: &RequeueConfig, consent: Consent, used: Used, died: &str) -> Option<String> {
    let allowed = consent.at_most(config.max_restarts);
    // Without consent what Slurm does stays Slurm's.
    (consent != Consent::Never && allowed > 0 && used.deaths >= allowed)
        .then(|| held(died, used.deaths, allowed))
}

/// How long a job waits that the gate has moved `moves` times, this one included.
pub fn move_delay(config: &RequeueConfig, moves: u32) -> Option<Duration> {
    let doublings = moves.min(config.max_moves).checked_sub(2)?;
    let delay = config.move_backoff.saturating_mul(1 << doublings.min(16)).min(Duration::from_secs(3600));
    (!delay.is_zero()).then_some(delay)
}

fn held(blamed: &str, deaths: u32, allowed: u32) -> String {
    let times = if deaths == 1 { "once".to_owned() } else { format!("{deaths} times") };
    format!(
        "{blamed}, and the job has come back {times} already ({allowed} allowed); scontrol release lets it go on"
    )
}

/// Whether a batch script asks for its log to be kept: the last `#SBATCH --open-mode` before its first command.
pub fn script_appends(script: &str) -> Option<bool> {
    script
        .lines()
        .skip(1)
        .map(str::trim_end)
        .take_while(|line| line.is_empty() || line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("#SBATCH"))
        .flat_map(|options| {
            let words: Vec<&str> =
                options.split_whitespace().take_while(|word| !word.starts_with('#')).collect();
            let modes: Vec<bool> = words
                .iter()
                .enumerate()
                .filter_map(|(at, word)| match word.strip_prefix("--open-mode")? {
                    "" => words.get(at + 1).copied(),
                    rest => rest.strip_prefix('='),
                })
                .map(|mode| mode.trim_matches(['"', '\'']).to_ascii_lowercase().starts_with('a'))
                .collect();
            modes
        })
        .last()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobState {
        JobState {
            id: 7,
            state: "COMPLETING".to_owned(),
            reason: "NonZeroExitCode".to_owned(),
            requeue: true,
            batch: true,
            start: Some(1000),
            end: Some(2000),
            time_limit: Some(Duration::from_secs(86_400)),
            gpus: true,
            ..JobState::default()
        }
    }

    fn lost(node: &str) -> NodeEvidence {
        NodeEvidence {
            node: node.to_owned(),
            subject: "gpu-lost@3".to_owned(),
            part: String::new(),
            channel: Channel::DrainReason,
            severity: Severity::Fail,
            class: Class::Node,
            own: Some(true),
            at: None,
            held: true,
        }
    }

    struct Case {
        status: u32,
        job: JobState,
        consent: Consent,
        keeps_log: bool,
        evidence: Vec<NodeEvidence>,
        used: Used,
        acting: Acting,
        config: RequeueConfig,
    }

    impl Default for Case {
        fn default() -> Self {
            Case {
                status: 256,
                job: job(),
                consent: Consent::Auto,
                keeps_log: true,
                evidence: vec![lost("n2")],
                used: Used::default(),
                acting: Acting::Allowed,
                config: RequeueConfig::default(),
            }
        }
    }

    fn outcome(case: &Case) -> Decision {
        decide(
            &case.config,
            &Facts {
                exit: ExitCodes { job: Some(case.status), derived: None },
                attempt: 0,
                job: &case.job,
                consent: case.consent,
                keeps_log: case.keeps_log,
                evidence: &case.evidence,
                used: case.used,
                acting: &case.acting,
            },
        )
    }

    #[test]
    fn a_job_that_died_of_its_node_comes_back() {
        assert_eq!(
            outcome(&Case::default()),
            Decision::Requeue { exclude: vec![], why: "gpu-lost@3 on n2; restart 1 of 3".to_owned() }
        );
        let undrained = NodeEvidence { held: false, channel: Channel::Report, ..lost("n2") };
        let case = Case { evidence: vec![lost("n1"), undrained], ..Case::default() };
        assert!(matches!(outcome(&case), Decision::Requeue { exclude, .. } if exclude == ["n2"]));
    }

    #[test]
    fn it_never_comes_back_from_these() {
        let with = |change: &dyn Fn(&mut JobState)| {
            let mut case = Case::default();
            change(&mut case.job);
            case
        };
        let cases = [
            ("exit code 0", Case { status: 0, ..Case::default() }),
            ("killed", Case { status: 9, ..Case::default() }),
            ("terminated", Case { status: 15, ..Case::default() }),
            ("out of memory", Case { status: 125, ..Case::default() }),
            ("time limit by reason", with(&|job| job.reason = "TimeLimit".to_owned())),
            ("out of memory by reason", with(&|job| job.reason = "OutOfMemory".to_owned())),
            ("cancelled", with(&|job| job.state = "CANCELLED+COMPLETING".to_owned())),
            ("timeout", with(&|job| job.state = "TIMEOUT".to_owned())),
            ("time used up", with(&|job| job.time_limit = Some(Duration::from_secs(1000)))),
            ("preempted", with(&|job| job.preempted = true)),
            ("requeued by somebody", with(&|job| job.restarts = 1)),
            ("waiting again", with(&|job| job.state = "PENDING".to_owned())),
            ("srun", with(&|job| job.batch = false)),
            ("--no-requeue", with(&|job| job.requeue = false)),
            ("no consent", Case { consent: Consent::Never, ..Case::default() }),
            ("log lost", Case { keeps_log: false, ..Case::default() }),
            ("site allows none", {
                let config = RequeueConfig { max_restarts: 0, ..RequeueConfig::default() };
                Case { config, ..Case::default() }
            }),
            ("report mode", Case { acting: Acting::Forbidden("report mode".to_owned()), ..Case::default() }),
            ("no evidence", Case { evidence: vec![], ..Case::default() }),
        ];
        for (name, case) in cases {
            assert!(matches!(outcome(&case), Decision::Leave { .. }), "{name}: {:?}", outcome(&case));
            assert!(!outcome(&case).why().contains("signal 125"), "{name}: it is no signal");
        }
    }

    #[test]
    fn what_does_not_count_is_named_with_its_reason() {
        let site = |own| NodeEvidence { subject: "site-raid".to_owned(), own, ..lost("n1") };
        let case = |site_checks, item| Case {
            evidence: vec![item],
            config: RequeueConfig { site_checks, ..RequeueConfig::default() },
            ..Case::default()
        };
        assert!(matches!(outcome(&case(true, site(Some(true)))), Decision::Requeue { .. }));
        let why = |case: &Case| outcome(case).why().to_owned();
        assert_eq!(
            why(&case(true, site(None))),
            "site-raid on n1 does not count: unknown whether the job held the part"
        );
        assert_eq!(
            why(&case(false, site(Some(true)))),
            "site-raid on n1 does not count: findings of the site's own checks do not count here (requeue.site_checks)"
        );
        // The key is about the site's checks alone, and another job's device is no news.
        assert!(matches!(outcome(&case(false, lost("n2"))), Decision::Requeue { .. }));
        assert_eq!(why(&case(true, site(Some(false)))), "no node has evidence of a fault that ended it");
    }

    #[test]
    fn a_job_without_gpus_comes_back_unless_the_site_forbids_it() {
        let case = |without_gpus, consent| Case {
            job: JobState { gpus: false, ..job() },
            consent,
            config: RequeueConfig { without_gpus, ..RequeueConfig::default() },
            ..Case::default()
        };
        assert!(RequeueConfig::default().without_gpus);
        assert!(matches!(outcome(&case(true, Consent::Auto)), Decision::Requeue { .. }));
        // Also where asking for it would not help.
        for consent in [Consent::Auto, Consent::Never] {
            let why = "this site restarts no jobs that asked for no GPU (requeue.without_gpus)";
            assert_eq!(outcome(&case(false, consent)), Decision::Leave { why: why.to_owned() });
        }
        let with_gpus = Case { job: job(), ..case(false, Consent::Auto) };
        assert!(matches!(outcome(&with_gpus), Decision::Requeue { .. }));
    }

    #[test]
    fn evidence_that_does_not_count() {
        let base = || lost("n2");
        for (name, item) in [
            ("a warning", NodeEvidence { severity: Severity::Warn, ..base() }),
            ("unknown", NodeEvidence { severity: Severity::Unknown, ..base() }),
            ("the user's own", NodeEvidence { class: Class::User, ..base() }),
            ("the site's", NodeEvidence { class: Class::Site, ..base() }),
            ("railgate's own", NodeEvidence { class: Class::Internal, ..base() }),
            ("another job's GPU", NodeEvidence { own: Some(false), ..base() }),
            ("nobody knows whose", NodeEvidence { own: None, ..base() }),
            ("after the end", NodeEvidence { at: Some(2_010_000), ..base() }),
        ] {
            let case = Case { evidence: vec![item], ..Case::default() };
            assert!(matches!(outcome(&case), Decision::Leave { .. }), "{name}");
        }
        for at in [1_500_000, 2_000_999, 2_005_000] {
            let item = NodeEvidence { at: Some(at), ..base() };
            let case = Case { evidence: vec![item], ..Case::default() };
            assert!(matches!(outcome(&case), Decision::Requeue { .. }), "{at}");
        }
        let fabric = NodeEvidence { class: Class::Fabric, ..base() };
        let case = Case { evidence: vec![fabric], ..Case::default() };
        assert!(matches!(outcome(&case), Decision::Requeue { .. }));
    }

    #[test]
    fn beyond_the_budget_it_is_held() {
        for (consent, deaths, held) in [
            (Consent::Auto, 2, false),
            (Consent::Auto, 3, true),
            (Consent::Times(1), 0, false),
            (Consent::Times(1), 1, true),
            (Consent::Times(50), 2, false),
            (Consent::Times(50), 3, true),
        ] {
            let case = Case { consent, used: Used { deaths, moves: 99 }, ..Case::default() };
            assert_eq!(matches!(outcome(&case), Decision::Hold { .. }), held, "{consent} {deaths}");
            let used = Used { deaths, moves: 99 };
            assert_eq!(after_node_fail(&RequeueConfig::default(), consent, used, "n2 died").is_some(), held);
        }
        assert_eq!(
            after_node_fail(
                &RequeueConfig::default(),
                Consent::Never,
                Used { deaths: 9, moves: 0 },
                "n2 died"
            ),
            None
        );
        let config = RequeueConfig { allow_truncated_log: true, ..RequeueConfig::default() };
        let case = Case { keeps_log: false, config, ..Case::default() };
        assert!(matches!(outcome(&case), Decision::Requeue { .. }));
    }

    #[test]
    fn moves_wait_longer_each_time_and_never_for_ever() {
        let config = RequeueConfig::default();
        let seconds = |moves| move_delay(&config, moves).map(|delay| delay.as_secs());
        assert_eq!([0, 1, 2, 3, 4].map(seconds), [None, None, Some(30), Some(60), Some(120)]);
        assert_eq!(seconds(10), seconds(5000));
        let none = RequeueConfig { move_backoff: Duration::ZERO, ..config };
        assert_eq!(move_delay(&none, 5), None);
    }

    #[test]
    fn scripts_say_whether_their_log_is_kept() {
        for (script, expected) in [
            ("#!/bin/bash\n#SBATCH --open-mode=append\nsrun x\n", Some(true)),
            ("#!/bin/bash\n# words\n\n#SBATCH -N2 --open-mode append # why\nsrun x\n", Some(true)),
            ("#!/bin/bash\n#SBATCH --open-mode=truncate\n", Some(false)),
            ("#!/bin/bash\n#SBATCH --open-mode=append\n#SBATCH --open-mode=truncate\n", Some(false)),
            ("#!/bin/bash\nsrun x\n#SBATCH --open-mode=append\n", None),
            ("#!/bin/bash\n#SBATCH # --open-mode=append\n", None),
            ("", None),
        ] {
            assert_eq!(script_appends(script), expected, "{script}");
        }
    }
}
