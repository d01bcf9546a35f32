use std::collections::{BTreeMap, BTreeSet};

use railgate_diagnosis::{Analysis, Outcome, Rules, analyse};
use railgate_model::{Allocation, UnixMillis};
use railgate_node_report::plain::stamp;
use railgate_node_report::stacks::{GpuGroup, Group, Groups, LineOf, RankLine, gpu_groups};
use railgate_node_report::{
    Decision, DecisionKind, DownNode, Exit, Launched, NodeReport, PortUse, REPORT_SCHEMA, SlurmView,
};
use railgate_store::{Parts, ReportConfig};
use serde::{Deserialize, Serialize};

use crate::first_error::{FirstError, explains, first_error, of_the_guard, unsearched};
use crate::next_step::{next_steps, request};
use crate::timeline::{Event, timeline};
use crate::why::{EndKind, Ended, Next, why_ended};

/// Report of a job: the merged node reports and controller decisions of all attempts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// [`REPORT_SCHEMA`] of the writer.
    pub schema: u32,
    /// Version of the railgate that merged it.
    pub railgate: String,
    /// Cluster name.
    pub cluster: String,
    /// Job id; of a heterogeneous job the leader's.
    pub job: u32,
    /// Ids of the components of a heterogeneous job that reported; empty for other jobs.
    #[serde(default)]
    pub components: Vec<u32>,
    /// Owner, from the node reports; `None` without one.
    pub uid: Option<u32>,
    /// Job name, from Slurm or from `SLURM_JOB_NAME` of its processes, as the owner chose it; `None` if not
    /// known.
    #[serde(default)]
    pub name: Option<String>,
    /// Owner's name.
    pub user: String,
    /// Partition.
    pub partition: String,
    /// Slurm's current state of the job, if it was queried.
    pub slurm: Option<SlurmView>,
    /// Why the last attempt ended.
    pub ended: Ended,
    /// File of the job's standard error, if Slurm or the controller's decision names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// The first error in the last attempt's own logs. Only the job's owner and root get it; a redacted copy has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<FirstError>,
    /// What the job's owner should do next, the most useful first; empty if there is nothing to do.
    #[serde(default)]
    pub next_steps: Vec<String>,
    /// Attempts in order.
    pub attempts: Vec<Attempt>,
    /// Events of all attempts, in time order.
    pub timeline: Vec<Event>,
    /// Missing node reports, and how to collect them.
    pub missing: Vec<Missing>,
    /// Refused files, with the reason.
    pub problems: Vec<String>,
    /// Leaf switches of the job's ports, from the site's cable table (`[report] cables`): node, then
    /// `mlx5_2:1`. Empty without a table.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub leafs: BTreeMap<String, BTreeMap<String, String>>,
    /// Thresholds used by the diagnoses, needed for a redacted copy.
    #[serde(skip)]
    pub(crate) rules: Rules,
}

impl JobReport {
    /// Leaf switch of a port, if the site's table has it.
    pub(crate) fn leaf(&self, node: &str, port: &PortUse) -> Option<&str> {
        let leaf = self.leafs.get(node)?.get(&format!("{}:{}", port.hca, port.port))?;
        Some(leaf.as_str()).filter(|leaf| !leaf.is_empty())
    }
}

/// One attempt of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number from 0: Slurm's restart count.
    pub attempt: u32,
    /// When the first prolog began.
    pub start: Option<UnixMillis>,
    /// When the last epilog began.
    pub end: Option<UnixMillis>,
    /// The job's nodes, unexpanded.
    pub nodelist: String,
    /// Number of nodes; 0 if the list could not be expanded.
    pub node_count: usize,
    /// Nodes without a report.
    pub silent_nodes: Vec<String>,
    /// Nodes without an epilog report that Slurm has shown as down since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub down: Vec<DownNode>,
    /// Why it ended.
    pub ended: Ended,
    /// Node reports, sorted by name.
    pub nodes: Vec<NodeReport>,
    /// Nodes that took part in no start of `railgate launch`, as it reports itself. `analysis` leaves them out: their GPUs wait on
    /// purpose.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<String>,
    /// Decision of the controller.
    pub decision: Option<Decision>,
    /// Interpretation of the figures; `None` if no node report has any.
    #[serde(default)]
    pub analysis: Option<Analysis>,
    /// The first error in its own logs, as in [`JobReport::first_error`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_error: Option<FirstError>,
    /// What its ranks did while it hung, the largest group first. Only the job's owner and root get it; a redacted copy has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<Group>,
    /// The operations that did not complete then, by PyTorch's flight recorder; the largest group first. As `stacks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recorded: Vec<Group>,
    /// What NCCL's RAS answered then, one sentence each. As `stacks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ras: Vec<String>,
    /// What its GPUs did then, the largest group first. As `stacks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hang_gpus: Vec<GpuGroup>,
}

impl Attempt {
    /// The starts of `railgate launch`, which the node of the batch script has.
    pub(crate) fn launched(&self) -> Option<&Launched> {
        self.nodes.iter().find_map(|node| node.launched.as_ref())
    }

    /// Nodes without an epilog report.
    pub fn without_epilog(&self) -> impl Iterator<Item = &String> {
        let unfinished = self.nodes.iter().filter(|node| node.end.is_none()).map(|node| &node.node);
        self.silent_nodes.iter().chain(unfinished)
    }

    /// The worst exit status that an epilog received, otherwise the controller's.
    pub fn exit(&self) -> Option<Exit> {
        let of_nodes = self.nodes.iter().filter_map(|node| node.exit);
        let of_controller = self
            .decision
            .iter()
            .filter_map(|decision| Some(Exit { status: decision.exit_status?, derived: None }));
        of_nodes.chain(of_controller).max_by_key(|exit| (exit.status != 0, exit.derived.unwrap_or(0)))
    }
}

/// The lines of an attempt from one source, grouped.
fn grouped(lines: &[RankLine], attempt: u32, of: LineOf) -> Vec<Group> {
    let mut groups = Groups::default();
    let wanted = lines.iter().filter(|line| line.attempt == attempt && line.of == of);
    wanted.cloned().for_each(|line| groups.add_line(line));
    groups.finish()
}

/// Slurm's view, as of the end of the last run: of a job that the controller requeued in order to cancel it, Slurm shows an attempt that
/// never ran.
fn of_last_run(view: SlurmView, last_run: Option<&Decision>) -> SlurmView {
    let cancelled = |decision: &&Decision| decision.what == DecisionKind::Cancelled;
    let Some(decision) = last_run.filter(cancelled) else { return view };
    if view.restarts.is_some_and(|restarts| restarts != decision.attempt + 1) {
        return view;
    }
    SlurmView {
        state: "FAILED".to_owned(),
        reason: "NonZeroExitCode".to_owned(),
        restarts: Some(decision.attempt),
        exit: decision.exit_status.map(|status| (status >> 8 & 0xff, status & 0x7f)),
        start: None,
        end: Some(decision.time),
        ..view
    }
}

/// A missing node report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Attempt and node, `attempt 0: n3`.
    pub what: String,
    /// Likely cause.
    pub why: String,
    /// How to collect it.
    pub collect: String,
}

impl JobReport {
    /// Merges the files of a job into its report.
    ///
    /// `expand` turns a node list into names (`None` if it cannot). `config` has the thresholds of the
    /// diagnosis rules, and the local directory of reports that could not be written to the shared one.
    pub fn merge(
        cluster: &str,
        job: u32,
        parts: Parts,
        slurm: Option<SlurmView>,
        expand: &dyn Fn(&str) -> Option<Vec<String>>,
        config: &ReportConfig,
    ) -> Self {
        let local_dir = &*config.local_dir.to_string_lossy();
        let mut problems = parts.problems;
        let mut by_attempt: BTreeMap<u32, Attempt> = BTreeMap::new();
        let empty = |attempt| Attempt {
            attempt,
            start: None,
            end: None,
            nodelist: String::new(),
            node_count: 0,
            silent_nodes: Vec::new(),
            down: Vec::new(),
            ended: Ended::default(),
            nodes: Vec::new(),
            spares: Vec::new(),
            decision: None,
            analysis: None,
            first_error: None,
            stacks: Vec::new(),
            recorded: Vec::new(),
            ras: Vec::new(),
            hang_gpus: Vec::new(),
        };
        let mut uid = None;
        for node in parts.nodes {
            if *uid.get_or_insert(node.job.uid) != node.job.uid {
                problems.push(format!(
                    "attempt {} {}: written for uid {}, unlike the other reports",
                    node.attempt, node.node, node.job.uid
                ));
                continue;
            }
            let attempt = by_attempt.entry(node.attempt).or_insert_with(|| empty(node.attempt));
            // The same report may be in the shared and in the local directory; the later one is more complete.
            let same = |have: &&mut NodeReport| have.node == node.node && have.job.id == node.job.id;
            match attempt.nodes.iter_mut().find(same) {
                Some(have) if (have.end, have.as_of) <= (node.end, node.as_of) => *have = node,
                Some(_) => {}
                None => attempt.nodes.push(node),
            }
        }
        for decision in parts.decisions {
            let attempt = by_attempt.entry(decision.attempt).or_insert_with(|| empty(decision.attempt));
            attempt.decision = Some(decision);
        }
        let last_run = by_attempt.values().next_back().and_then(|attempt| attempt.decision.as_ref());
        let slurm = slurm.map(|view| of_last_run(view, last_run));
        // Slurm counts restarts: an attempt without any report still counts.
        let recorded = parts.ends.iter().map(|end| end.attempt);
        let known = by_attempt.keys().copied().chain(recorded).max();
        let of_slurm = slurm.as_ref().map(|view| view.restarts.unwrap_or(0));
        let last = of_slurm.into_iter().chain(known).max();
        // The database does not count restarts. If a job was requeued and then cancelled, the cancelled attempt
        // is a further one.
        let further = slurm.as_ref().is_some_and(|view| {
            let given_up = ["CANCELLED", "DEADLINE"].iter().any(|state| view.state.starts_with(state));
            given_up && view.restarts.is_none()
        });
        let last = last.map(|last| {
            let decision = by_attempt.get(&last).and_then(|attempt| attempt.decision.as_ref());
            let is_over = further && decision.is_some_and(|decision| decision.what.went_back());
            last.saturating_add(u32::from(is_over))
        });
        if let Some(last) = last.filter(|last| *last < 10_000) {
            for attempt in 0..=last {
                by_attempt.entry(attempt).or_insert_with(|| empty(attempt));
            }
        }

        // For an attempt that Slurm no longer shows, the recorded end is used.
        let recorded =
            |attempt: u32| parts.ends.iter().find(|end| end.attempt == attempt).map(|end| &end.slurm);
        let slurm = slurm.or_else(|| last.and_then(recorded).cloned());

        let mut missing = Vec::new();
        let mut attempts: Vec<Attempt> = by_attempt.into_values().collect();
        let count = attempts.len();
        let mut held: Option<String> = None;
        let mut reached: Option<u64> = None;
        for (position, attempt) in attempts.iter_mut().enumerate() {
            let is_last = position + 1 == count;
            let next = if is_last { Next::Nothing { held: held.as_deref() } } else { Next::Attempt };
            let view = slurm.as_ref().filter(|view| match view.restarts {
                Some(restarts) => restarts == attempt.attempt,
                None => is_last,
            });
            let view = view.or_else(|| recorded(attempt.attempt));
            complete(attempt, view, expand);
            attempt.spares = spares(attempt, expand);
            attempt.down =
                slurm.iter().flat_map(|view| &view.down).filter(|d| died_in(attempt, d)).cloned().collect();
            attempt.ended = why_ended(attempt, view, next);
            let decision = attempt.decision.as_ref().filter(|decision| decision.what == DecisionKind::Held);
            held = decision.map(|decision| decision.why.clone());
            missing.extend(lacking(attempt, job, local_dir));
            attempt.analysis = analysis(attempt, &mut reached, &config.rules);
            attempt.stacks = grouped(&parts.stacks, attempt.attempt, LineOf::Stack);
            attempt.recorded = grouped(&parts.stacks, attempt.attempt, LineOf::Recorder);
            let ras =
                parts.stacks.iter().filter(|line| line.attempt == attempt.attempt && line.of == LineOf::Ras);
            attempt.ras = ras.map(|line| line.what.clone()).collect();
            attempt.hang_gpus =
                gpu_groups(parts.stacks.iter().filter(|line| line.attempt == attempt.attempt));
            if explains(attempt) {
                let found = first_error(attempt, &parts.logs);
                attempt.first_error = found.filter(|error| !of_the_guard(attempt, error));
                problems.extend(unsearched(attempt, &parts.logs));
            }
        }
        let ended = attempts.last().map_or_else(Ended::nothing_known, |attempt| attempt.ended.clone());
        let mut components: Vec<u32> = attempts
            .iter()
            .flat_map(|attempt| &attempt.nodes)
            .filter(|node| node.job.het_leader.is_some())
            .map(|node| node.job.id)
            .collect();
        components.sort_unstable();
        components.dedup();
        let sample = attempts.iter().flat_map(|attempt| &attempt.nodes).next_back();
        let name = slurm.as_ref().and_then(|view| view.name.clone()).or_else(|| name_seen(&attempts));
        let mut report = JobReport {
            schema: REPORT_SCHEMA,
            railgate: env!("CARGO_PKG_VERSION").to_owned(),
            cluster: cluster.to_owned(),
            job,
            components,
            uid,
            name: name.filter(|name| !name.is_empty()),
            user: sample.map(|node| node.job.user.clone()).unwrap_or_default(),
            partition: sample.map(|node| node.job.partition.clone()).unwrap_or_default(),
            timeline: timeline(&attempts),
            slurm,
            ended,
            attempts,
            missing,
            problems,
            leafs: BTreeMap::new(),
            log: None,
            first_error: None,
            next_steps: Vec::new(),
            rules: config.rules.clone(),
        };
        report.log = request(&report).log;
        report.first_error = report.attempts.last().and_then(|attempt| attempt.first_error.clone());
        report.next_steps = next_steps(&report, &report.job);
        report
    }
}

/// From the batch script if it was observed, because a step may have another name.
fn name_seen(attempts: &[Attempt]) -> Option<String> {
    let tasks = || attempts.iter().flat_map(|attempt| &attempt.nodes).filter_map(|node| node.tasks.as_ref());
    let of_batch = tasks().filter(|tasks| tasks.groups.iter().any(|group| group.step == "batch"));
    of_batch.chain(tasks()).find_map(|tasks| tasks.name.clone())
}

/// Outcome of an ended attempt, by its exit status if known.
fn outcome(kind: EndKind, status: Option<i32>) -> Outcome {
    match kind {
        EndKind::Timeout | EndKind::Deadline | EndKind::Cancelled => Outcome::CutOff,
        _ if status == Some(0) => Outcome::Good,
        EndKind::Preempted | EndKind::Requeued => Outcome::CutOff,
        _ => Outcome::Failed,
    }
}

/// Nodes that were spares in all starts of launch. Its file belongs to the user: a list that does not fit the job counts for nothing.
fn spares(attempt: &Attempt, expand: &dyn Fn(&str) -> Option<Vec<String>>) -> Vec<String> {
    let (Some(launched), Some(known)) = (attempt.launched(), expand(&attempt.nodelist)) else {
        return Vec::new();
    };
    let known: BTreeSet<String> = known.into_iter().collect();
    let (mut used, mut spare) = (BTreeSet::new(), BTreeSet::new());
    for start in &launched.starts {
        let (Some(nodes), Some(spares)) = (expand(&start.nodes), expand(&start.spares)) else {
            return Vec::new();
        };
        let fit = nodes.iter().chain(&spares).all(|name| known.contains(name));
        if nodes.is_empty() || !fit || nodes.len() + spares.len() > known.len() {
            return Vec::new();
        }
        used.extend(nodes);
        spare.extend(spares);
    }
    let names = attempt.nodes.iter().map(|node| &node.node);
    names.filter(|name| spare.contains(*name) && !used.contains(*name)).cloned().collect()
}

/// Interprets the figures of an attempt. `reached` is the highest step of the attempts so far.
pub(crate) fn analysis(attempt: &mut Attempt, reached: &mut Option<u64>, rules: &Rules) -> Option<Analysis> {
    // Taken out and put back: a copy of the reports of a large job would need too much memory.
    let mut spares = Vec::new();
    for at in (0..attempt.nodes.len()).rev() {
        if attempt.nodes.get(at).is_some_and(|node| attempt.spares.contains(&node.node)) {
            spares.push((at, attempt.nodes.remove(at)));
        }
    }
    let found = analysis_of_used(attempt, reached, rules);
    for (at, node) in spares.into_iter().rev() {
        attempt.nodes.insert(at, node);
    }
    found
}

fn analysis_of_used(attempt: &Attempt, reached: &mut Option<u64>, rules: &Rules) -> Option<Analysis> {
    let runs = matches!(attempt.ended.kind, EndKind::Running | EndKind::Waiting);
    let end = attempt.end.filter(|_| !runs);
    let status = attempt.exit().map(|exit| exit.status);
    let outcome = if end.is_none() { Outcome::Good } else { outcome(attempt.ended.kind, status) };
    let found = analyse(&attempt.nodes, end, outcome, *reached, rules);
    let ranks =
        attempt.nodes.iter().filter_map(|node| node.application.as_ref()).flat_map(|told| &told.ranks);
    *reached = ranks.filter_map(|rank| rank.last_number).chain(*reached).max();
    found
}

fn complete(attempt: &mut Attempt, view: Option<&SlurmView>, expand: &dyn Fn(&str) -> Option<Vec<String>>) {
    attempt.nodes.sort_by(|a, b| a.node.cmp(&b.node));
    attempt.start = attempt.nodes.iter().map(|node| node.start).min().or(view.and_then(|view| view.start));
    attempt.end = attempt.nodes.iter().filter_map(|node| node.end).max().or(view.and_then(|view| view.end));
    // Each component of a heterogeneous job has its own list.
    let mut lists: Vec<&str> = Vec::new();
    for list in attempt.nodes.iter().map(|node| node.job.nodelist.as_str()) {
        if !list.is_empty() && !lists.contains(&list) {
            lists.push(list);
        }
    }
    attempt.nodelist = match lists.as_slice() {
        [] => {
            let of_controller = attempt.decision.as_ref().map(|decision| decision.nodelist.clone());
            let known = of_controller.filter(|list| !list.is_empty());
            known.or_else(|| view.map(|view| view.nodelist.clone())).unwrap_or_default()
        }
        lists => lists.join(","),
    };
    let mut expected = expand(&attempt.nodelist).unwrap_or_default();
    let mut seen = BTreeSet::new();
    expected.retain(|name| seen.insert(name.clone()));
    attempt.node_count = expected.len();
    attempt.silent_nodes = expected
        .into_iter()
        .filter(|name| !attempt.nodes.iter().any(|node| node.node == *name))
        .take(100_000)
        .collect();
}

/// Whether the node went down during the attempt: after its start, and without an epilog report.
fn died_in(attempt: &Attempt, down: &DownNode) -> bool {
    attempt.start.is_some_and(|start| down.since >= start)
        && attempt.without_epilog().any(|name| *name == down.node)
}

fn some_of(names: &[String]) -> String {
    const MOST: usize = 8;
    let shown = names.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(MOST) {
        Some(more) if more > 0 => format!("{shown} and {more} more"),
        _ => shown,
    }
}

/// Oldest last partial report of the nodes without an epilog report; `None` if one of them has no report at
/// all.
fn unfinished_as_of(attempt: &Attempt) -> Option<UnixMillis> {
    let last = attempt.nodes.iter().filter(|node| node.end.is_none()).map(|node| node.as_of);
    last.min().flatten()
}

fn lacking(attempt: &Attempt, job: u32, local_dir: &str) -> Vec<Missing> {
    let mut missing = Vec::new();
    // The epilogs have not run yet.
    if matches!(attempt.ended.kind, EndKind::Running | EndKind::Waiting) {
        return missing;
    }
    let number = attempt.attempt;
    let collect = format!("as root on the node: railgate report {job} --dir {local_dir}");
    if attempt.nodes.is_empty() && attempt.silent_nodes.is_empty() && attempt.decision.is_none() {
        missing.push(Missing {
            what: format!("attempt {number}: all node reports"),
            why: "none of its nodes has reported: railgate was off, the nodes died, or the reports are still on them"
                .to_owned(),
            collect: format!("sacct -D -j {job} lists the nodes; {collect}"),
        });
    }
    if !attempt.silent_nodes.is_empty() {
        missing.push(Missing {
            what: format!("attempt {number}: {}", some_of(&attempt.silent_nodes)),
            why: "no report in the report directory: the node died before its epilog, or its report is still on it"
                .to_owned(),
            collect: collect.clone(),
        });
    }
    let unfinished: Vec<String> = attempt
        .nodes
        .iter()
        .filter(|node| node.end.is_none() && attempt.end.is_some())
        .map(|node| node.node.clone())
        .collect();
    if !unfinished.is_empty() {
        missing.push(Missing {
            what: format!("attempt {number}: the epilog of {}", some_of(&unfinished)),
            why: match unfinished_as_of(attempt) {
                Some(time) => format!("its last partial report is from {}, while the job ran", stamp(time)),
                None => "only the prolog has reported".to_owned(),
            },
            collect: collect.clone(),
        });
    }
    let failed = attempt.exit().is_some_and(|exit| exit.status != 0);
    // Jobs that hold no checked device have no check run.
    let looked =
        attempt.node_count != 1 || attempt.nodes.iter().any(|node| node.job.allocation != Allocation::NoGpus);
    if failed && looked && attempt.decision.is_none() {
        missing.push(Missing {
            what: format!("attempt {number}: the controller's decision"),
            why: "railgate-epilog-ctld has not run, or could not write into the job's report directory"
                .to_owned(),
            collect: format!("as root on the controller: railgate report {job} --dir {local_dir}"),
        });
    }
    missing
}

#[cfg(test)]
mod tests {
    use railgate_node_report::LaunchStart;
    use railgate_node_report::testing::decision;
    use serde_json::json;

    use super::*;
    use crate::testing::{large, merged};
    use crate::{brief, html, redacted, text};

    #[test]
    fn job_stopped_from_outside_did_not_fail() {
        assert_eq!(outcome(EndKind::Application, Some(256)), Outcome::Failed);
        assert_eq!(outcome(EndKind::Unknown, None), Outcome::Failed);
        assert_eq!(outcome(EndKind::Completed, Some(0)), Outcome::Good);
        // A program that exits with success on the stop signal was stopped all the same.
        assert_eq!(outcome(EndKind::Timeout, Some(0)), Outcome::CutOff);
        assert_eq!(outcome(EndKind::Cancelled, Some(15)), Outcome::CutOff);
        assert_eq!(outcome(EndKind::Preempted, Some(15)), Outcome::CutOff);
        assert_eq!(outcome(EndKind::Requeued, Some(0)), Outcome::Good);
    }

    #[test]
    fn a_job_that_the_controller_cancelled_failed_and_has_no_attempt_that_never_ran() {
        let of = |what, restarts| {
            let nodes = large(2).attempts.remove(0).nodes;
            let view = SlurmView { state: "CANCELLED".to_owned(), restarts, ..SlurmView::default() };
            let decisions = vec![decision(0, what, 256)];
            let report = merged(nodes, decisions, Some(view));
            (report.attempts.len(), report.ended.kind)
        };
        for restarts in [Some(1), None] {
            let (attempts, ended) = of(DecisionKind::Cancelled, restarts);
            assert_eq!((attempts, ended == EndKind::Cancelled), (1, false), "{restarts:?}");
        }
        // Requeued by its owner after that, and cancelled there.
        assert_eq!(of(DecisionKind::Cancelled, Some(2)), (3, EndKind::Cancelled));
        assert_eq!(of(DecisionKind::Left, Some(1)), (2, EndKind::Cancelled));
    }

    #[test]
    fn report_uses_configured_thresholds_and_names_the_rule() {
        let report = large(2);
        let parts = || Parts {
            nodes: report.attempts.iter().flat_map(|attempt| attempt.nodes.clone()).collect(),
            ..Parts::default()
        };
        let merged = |rules: Rules| {
            let config = ReportConfig { rules, ..ReportConfig::default() };
            let report = JobReport::merge("alpha", 48_213, parts(), report.slurm.clone(), &|_| None, &config);
            let ids = report.attempts.iter().filter_map(|attempt| attempt.analysis.as_ref());
            let ids = ids.flat_map(|analysis| &analysis.diagnoses).map(|one| one.rule.clone());
            (ids.collect::<Vec<_>>(), report)
        };
        let (ids, report) = merged(Rules::DEFAULT);
        assert_eq!(ids, ["slow-clock"]);
        let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for page in
            [text(&report, false).to_string(), brief(&report).to_string(), redacted(&report).to_string()]
        {
            assert!(
                one_line(&page).contains("every step waits for it (railgate explain slow-clock)"),
                "{page}"
            );
        }
        assert!(html(&report).contains("(railgate explain slow-clock)"));
        let (ids, _) =
            merged(serde_json::from_value(json!({ "slow-clock": { "below_percent": 14.3 } })).unwrap());
        assert_eq!(ids, [""; 0]);
    }

    #[test]
    fn figures_are_without_spares_that_no_start_used() {
        let nodes = large(2).attempts.pop().unwrap().nodes;
        let names: Vec<String> = nodes.iter().map(|node| node.node.clone()).collect();
        let [one, two] = names.as_slice() else { panic!("{names:?}") };
        let of = |starts: &[(&str, &str)]| {
            let mut nodes = nodes.clone();
            nodes.iter_mut().for_each(|node| node.job.nodelist = names.join(","));
            let start = |(nodes, spares): &(&str, &str)| LaunchStart {
                nodes: (*nodes).to_owned(),
                spares: (*spares).to_owned(),
                ..LaunchStart::default()
            };
            let starts = starts.iter().map(start).collect();
            nodes[1].launched = Some(Launched { restarts: 3, starts });
            let expand = |list: &str| Some(list.split_terminator(',').map(str::to_owned).collect());
            let parts = Parts { nodes, ..Parts::default() };
            let merged = JobReport::merge("alpha", 48_213, parts, None, &expand, &ReportConfig::default());
            let attempt = merged.attempts.into_iter().next_back().unwrap();
            let kept: Vec<&String> = attempt.nodes.iter().map(|node| &node.node).collect();
            assert_eq!(kept, [one, two]);
            let gpus = attempt.analysis.unwrap().hardware.known().unwrap().gpus;
            (attempt.spares, gpus)
        };
        let (none, all) = of(&[(&names.join(","), "")]);
        assert_eq!(none, [""; 0]);
        assert_eq!(of(&[(two, one)]), (vec![one.clone()], all / 2));
        assert_eq!(of(&[(one, two)]), (vec![two.clone()], all / 2));
        // A start has used it, or the lists are not those of the job.
        let both = names.join(",");
        let foreign = of(&[("other", one), ("other", two)]).0;
        assert_eq!(foreign, [""; 0], "a list with nodes that are not the job's");
        for starts in [&[(two.as_str(), one.as_str()), (one, two)][..], &[("", one)], &[(&both, "n9")]] {
            assert_eq!(of(starts), (Vec::new(), all), "{starts:?}");
        }
    }
}
