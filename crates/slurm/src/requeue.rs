//! Decides whether a job is requeued. Pure: all input is in [`Facts`].

use std::time::Duration;

use railgate_model::{Class, PREFLIGHT_CHECK, Severity, UnixMillis, is_site_check};
use serde::{Deserialize, Serialize};

use crate::hostlist;
use crate::{Acting, Consent, ExitCodes, JobState, RequeueConfig, Used};

/// Signals that Slurm, the job's owner or the kernel's out-of-memory killer sends to a batch script.
const SENT_BY_SLURM: [u32; 9] = [1, 2, 9, 10, 12, 15, 18, 20, 24];
/// Signals with which the guard ends a batch script.
const SENT_BY_GUARD: [u32; 2] = [9, 15];
/// Slurm's code for a job that ran out of memory, in place of a signal.
const OUT_OF_MEMORY: u32 = 125;

/// Slurm's reasons for a job that failed by itself.
const FAILED_BY_ITSELF: [&str; 3] = ["NonZeroExitCode", "RaisedSignal", "JobLaunchFailure"];

/// States after which a job is not requeued.
const FINAL: [&str; 8] =
    ["CANCELLED", "TIMEOUT", "PREEMPTED", "COMPLETED", "DEADLINE", "OUT_OF_MEMORY", "NODE_FAIL", "REVOKED"];

/// How evidence reached the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Channel {
    /// The drain reason names the job.
    DrainReason,
    /// The node report. The job's owner could have forged it, to gain a restart.
    Report,
}

/// Evidence of one node about the job's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvidence {
    /// Slurm's name for the node.
    pub node: String,
    /// `gpu-lost@3`.
    pub subject: String,
    /// Serial number, UUID, GUID or PCI address of the part, if known.
    pub part: String,
    /// How it reached the controller.
    pub channel: Channel,
    /// Severity of the finding.
    pub severity: Severity,
    /// Class of the finding.
    pub class: Class,
    /// Whether the job held the device; `None` if unknown.
    pub own: Option<bool>,
    /// When it happened, if known.
    pub at: Option<UnixMillis>,
    /// The node takes no new jobs, so it need not be excluded.
    pub held: bool,
}

/// All input of the decision.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// How the job ended, from the hook's environment.
    pub exit: ExitCodes,
    /// The attempt that ended, from the hook's environment.
    pub attempt: u32,
    /// The job's state in slurmctld (the leader's).
    pub job: &'a JobState,
    /// The owner's choice, after policy.
    pub consent: Consent,
    /// Whether the log of the ended attempt survives a restart.
    pub keeps_log: bool,
    /// Evidence of the nodes.
    pub evidence: &'a [NodeEvidence],
    /// The node whose guard ended the job because it hung; `None`: it did not.
    pub hung_on: Option<&'a str>,
    /// The used part of the budget.
    pub used: Used,
    /// Whether anything may be changed.
    pub acting: &'a Acting,
}

/// The decision about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Requeue the job.
    Requeue {
        /// Nodes to exclude: those that are blamed and still take jobs.
        exclude: Vec<String>,
        /// One sentence of explanation.
        why: String,
    },
    /// Requeue and hold the job: the budget is spent.
    Hold {
        /// One sentence of explanation.
        why: String,
    },
    /// Do not requeue the job.
    Leave {
        /// One sentence of explanation.
        why: String,
    },
}

impl Decision {
    /// The explanation.
    pub fn why(&self) -> &str {
        match self {
            Decision::Requeue { why, .. } | Decision::Hold { why } | Decision::Leave { why } => why,
        }
    }
}

/// Whether evidence counts as the cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// It counts: node-fatal, on the job's own devices, not later than its end.
    Counts,
    /// It is not a fault of a node, or concerns a device of another job.
    Beside,
    /// A fault of a node that does not count; the reason.
    Discounted(&'static str),
}

/// Judges one piece of evidence.
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
        // Slurm's times are whole seconds, so the end is anywhere within its second.
        (Some(at), Some(end)) if at > end.saturating_add(1).saturating_mul(1000).saturating_add(slack) => {
            Weight::Discounted("it happened after the job's end")
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

/// Whether the job could be requeued at all; `Err` gives the reason. Needs only the job itself, so that the
/// controller does not wait for the nodes of a job that will not be requeued. `hung`: the guard ended the job, so a signal
/// that ended its script is not its owner's.
///
/// # Errors
/// The explanation for [`Decision::Leave`].
pub fn may_be_requeued(
    config: &RequeueConfig,
    exit: ExitCodes,
    attempt: u32,
    job: &JobState,
    consent: Consent,
    hung: bool,
) -> Result<(), String> {
    let Some(status) = exit.job else { return Err("Slurm gave no exit code".to_owned()) };
    if status == 0 {
        return Err("Slurm counts it as ended without failure (completed, cancelled or timed out)".to_owned());
    }
    if exit.signal() == Some(OUT_OF_MEMORY) {
        return Err("it ran out of memory".to_owned());
    }
    let by_guard = |signal: &u32| hung && SENT_BY_GUARD.contains(signal);
    if let Some(signal) = exit.signal().filter(|signal| SENT_BY_SLURM.contains(signal) && !by_guard(signal)) {
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
        return Err(match job.reason.as_str() {
            "" | "None" => "Slurm records no exit code or signal as the reason of its end".to_owned(),
            reason => format!("Slurm ended it (Reason={reason})"),
        });
    }
    if let (Some(start), Some(end), Some(limit)) = (job.start, job.end, job.time_limit)
        && Duration::from_secs(end.saturating_sub(start)) >= limit
    {
        return Err("it reached its time limit".to_owned());
    }
    if !job.batch {
        return Err("only batch jobs can be requeued".to_owned());
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

/// Decides whether the job is requeued.
pub fn decide(config: &RequeueConfig, facts: &Facts<'_>) -> Decision {
    let hung = facts.hung_on.is_some();
    if let Err(why) = may_be_requeued(config, facts.exit, facts.attempt, facts.job, facts.consent, hung) {
        return Decision::Leave { why };
    }
    let fatal = fatal(facts.evidence, facts.job, config);
    if fatal.is_empty() && !hung {
        return Decision::Leave { why: without_cause(config, facts) };
    }
    let mut blamed: Vec<String> =
        fatal.iter().map(|item| format!("{} on {}", item.subject, item.node)).collect();
    // A hang alone excludes no node: its cause is usually the program.
    blamed.extend(
        facts.hung_on.filter(|_| fatal.is_empty()).map(|node| format!("hung, ended by the guard of {node}")),
    );
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
        return Decision::Leave { why: format!("{blamed}; would be requeued, but {why}") };
    }
    if !facts.keeps_log && !config.allow_truncated_log {
        let why = format!("{blamed}; a restart would truncate its log (submit with --open-mode=append)");
        return Decision::Leave { why };
    }
    if let Some(why) = requires_named_nodes(facts.job, &fatal).filter(|_| !hung) {
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

/// The explanation for a job that can only start on the nodes which its own preflight names: it would be stopped again. `None` if there is
/// other evidence, or a node that it can leave out.
fn requires_named_nodes(job: &JobState, fatal: &[&NodeEvidence]) -> Option<String> {
    let required = hostlist::expand(&job.required).ok()?;
    let hopeless = |item: &&NodeEvidence| item.subject == PREFLIGHT_CHECK && required.contains(&item.node);
    if fatal.is_empty() || !fatal.iter().all(hopeless) {
        return None;
    }
    let mut nodes: Vec<String> = fatal.iter().map(|item| item.node.clone()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let names = hostlist::compress(&nodes);
    Some(format!("the job requires {names} (--nodelist), which its preflight names"))
}

/// Explains why none of the evidence counts.
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

/// Decides about a job that Slurm itself requeued because a node failed (`died` names it): `Some` holds it, with this
/// explanation.
pub fn after_node_fail(config: &RequeueConfig, consent: Consent, used: Used, died: &str) -> Option<String> {
    let allowed = consent.at_most(config.max_restarts);
    // Without consent, Slurm's own requeue is left as it is.
    (consent != Consent::Never && allowed > 0 && used.deaths >= allowed)
        .then(|| held(died, used.deaths, allowed))
}

/// Delay of a job after `moves` moves by the gate, this one included; `None`: no delay.
pub fn move_delay(config: &RequeueConfig, moves: u32) -> Option<Duration> {
    let doublings = moves.min(config.max_moves).checked_sub(2)?;
    let delay = config.move_backoff.saturating_mul(1 << doublings.min(16)).min(Duration::from_secs(3600));
    (!delay.is_zero()).then_some(delay)
}

fn held(blamed: &str, deaths: u32, allowed: u32) -> String {
    let times = if deaths == 1 { "once".to_owned() } else { format!("{deaths} times") };
    format!(
        "{blamed}, and the job was restarted {times} already (at most {allowed}); `scontrol release` lets it continue"
    )
}

/// Whether a batch script requests that its log is appended to: the last `#SBATCH --open-mode` before its first
/// command. `None` without one.
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

    #[test]
    fn a_job_that_requires_the_node_that_its_preflight_names_is_not_requeued() {
        let of = |required: &str, evidence: Vec<NodeEvidence>| {
            let job = JobState { required: required.to_owned(), ..job() };
            outcome(&Case { job, evidence, ..Case::default() })
        };
        let named = |node: &str| NodeEvidence {
            subject: "preflight".to_owned(),
            channel: Channel::Report,
            held: false,
            ..lost(node)
        };
        assert_eq!(
            of("n[1-2]", vec![named("n2")]),
            Decision::Leave { why: "the job requires n2 (--nodelist), which its preflight names".to_owned() }
        );
        // It can leave out a node, or the evidence is root's own.
        for (required, evidence) in [
            ("", vec![named("n2")]),
            ("n1", vec![named("n2")]),
            ("n2", vec![named("n2"), named("n3")]),
            ("n2", vec![named("n2"), lost("n2")]),
        ] {
            assert!(
                matches!(of(required, evidence.clone()), Decision::Requeue { .. }),
                "{required} {evidence:?}"
            );
        }
    }

    struct Case {
        status: u32,
        job: JobState,
        consent: Consent,
        keeps_log: bool,
        evidence: Vec<NodeEvidence>,
        hung_on: Option<&'static str>,
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
                hung_on: None,
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
                hung_on: case.hung_on,
                used: case.used,
                acting: &case.acting,
            },
        )
    }

    #[test]
    fn a_job_that_failed_because_of_its_node_is_requeued() {
        assert_eq!(
            outcome(&Case::default()),
            Decision::Requeue { exclude: vec![], why: "gpu-lost@3 on n2; restart 1 of 3".to_owned() }
        );
        let undrained = NodeEvidence { held: false, channel: Channel::Report, ..lost("n2") };
        let case = Case { evidence: vec![lost("n1"), undrained], ..Case::default() };
        assert!(matches!(outcome(&case), Decision::Requeue { exclude, .. } if exclude == ["n2"]));
    }

    #[test]
    fn a_job_that_ended_in_another_way_is_not_requeued() {
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
            ("requeued by another user", with(&|job| job.restarts = 1)),
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
    fn a_job_that_the_guard_ended_is_requeued_without_excluding_a_node() {
        let hung = |status| Case { status, evidence: vec![], hung_on: Some("n1"), ..Case::default() };
        for status in [143 << 8, 1 << 8, 15, 9] {
            let why = "hung, ended by the guard of n1; restart 1 of 3".to_owned();
            assert_eq!(outcome(&hung(status)), Decision::Requeue { exclude: vec![], why }, "{status}");
        }
        // Ended by others all the same.
        for case in [hung(0), hung(2), hung(125), Case { consent: Consent::Never, ..hung(143 << 8) }] {
            assert!(matches!(outcome(&case), Decision::Leave { .. }), "{}", case.status);
        }
        assert!(matches!(
            outcome(&Case { used: Used { deaths: 3, moves: 0 }, ..hung(15) }),
            Decision::Hold { .. }
        ));
        // Evidence of hardware names the node, and excludes it if it still takes jobs.
        let undrained = NodeEvidence { held: false, ..lost("n2") };
        let case = Case { evidence: vec![undrained], ..hung(143 << 8) };
        assert!(
            matches!(outcome(&case), Decision::Requeue { exclude, why } if exclude == ["n2"] && why.starts_with("gpu-lost@3"))
        );
    }

    #[test]
    fn evidence_that_does_not_count_is_explained() {
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
        // The key concerns only the site's own checks, and a device of another job is irrelevant.
        assert!(matches!(outcome(&case(false, lost("n2"))), Decision::Requeue { .. }));
        assert_eq!(why(&case(true, site(Some(false)))), "no node has evidence of a fault that ended it");
    }

    #[test]
    fn a_job_without_gpus_is_requeued_unless_the_site_forbids_it() {
        let case = |without_gpus, consent| Case {
            job: JobState { gpus: false, ..job() },
            consent,
            config: RequeueConfig { without_gpus, ..RequeueConfig::default() },
            ..Case::default()
        };
        assert!(RequeueConfig::default().without_gpus);
        assert!(matches!(outcome(&case(true, Consent::Auto)), Decision::Requeue { .. }));
        // Also where the owner's request would not help.
        for consent in [Consent::Auto, Consent::Never] {
            let why = "this site restarts no jobs that asked for no GPU (requeue.without_gpus)";
            assert_eq!(outcome(&case(false, consent)), Decision::Leave { why: why.to_owned() });
        }
        let with_gpus = Case { job: job(), ..case(false, Consent::Auto) };
        assert!(matches!(outcome(&with_gpus), Decision::Requeue { .. }));
    }

    #[test]
    fn evidence_of_another_class_device_or_time_does_not_count() {
        let base = || lost("n2");
        for (name, item) in [
            ("a warning", NodeEvidence { severity: Severity::Warn, ..base() }),
            ("unknown", NodeEvidence { severity: Severity::Unknown, ..base() }),
            ("the user's own", NodeEvidence { class: Class::User, ..base() }),
            ("the site's", NodeEvidence { class: Class::Site, ..base() }),
            ("railgate's own", NodeEvidence { class: Class::Internal, ..base() }),
            ("another job's GPU", NodeEvidence { own: Some(false), ..base() }),
            ("owner unknown", NodeEvidence { own: None, ..base() }),
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
    fn a_job_beyond_its_budget_is_held() {
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
    fn the_delay_after_moves_doubles_up_to_a_maximum() {
        let config = RequeueConfig::default();
        let seconds = |moves| move_delay(&config, moves).map(|delay| delay.as_secs());
        assert_eq!([0, 1, 2, 3, 4].map(seconds), [None, None, Some(30), Some(60), Some(120)]);
        assert_eq!(seconds(10), seconds(5000));
        let none = RequeueConfig { move_backoff: Duration::ZERO, ..config };
        assert_eq!(move_delay(&none, 5), None);
    }

    #[test]
    fn the_open_mode_of_a_script_is_parsed() {
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
