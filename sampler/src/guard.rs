//! Feeds the guard with what the sampler sees, and records what it finds.

use std::collections::BTreeMap;

use railgate_guard::{Guard, GuardConfig, GuardMode, News, NodeSample, RankSample};
use railgate_model::{UnixMillis, XidEvent};
use railgate_node_report::phases::{GpuActivity, gpu_activities};
use railgate_node_report::plain::clock;
use railgate_node_report::stacks::GpuState;
use railgate_node_report::usage::format::HeadGpu;
use railgate_node_report::usage::{Sample, State};
use railgate_node_report::{Hang, HangAct, HangActKind, HangKind, Hangs, TaskRank, programs};
use railgate_rundir::HangChoice;
use railgate_runner::{SAMPLER_HANGS, guard_of_job, looks_at_others};
use railgate_stacks::Target;

use crate::ending::{Ending, Told, Wish};
use crate::evidence::Evidence;
use crate::gpu_errors::GpuErrors;
use crate::job_log::{JobLog, LastWrite};
use crate::nodes::Nodes;
use crate::outputs::Outputs;
use crate::pauses::Pausing;
use crate::run::Mine;
use crate::states::States;

/// What the sampler sees of the job.
pub(crate) struct Seen<'a> {
    /// The newest sample.
    pub(crate) sample: &'a Sample,
    /// The GPUs in it.
    pub(crate) gpus: &'a [HeadGpu],
    /// The processes of ranks.
    pub(crate) ranks: &'a [TaskRank],
    pub(crate) pausing: &'a Pausing,
    pub(crate) outputs: &'a Outputs,
    /// Xids from NVML; `None`: the kernel log has them.
    pub(crate) xids: Option<&'a [XidEvent]>,
}

/// The guard of a run.
#[derive(Debug)]
pub(crate) struct Guarding {
    /// `None`: the site has turned it off.
    guard: Option<Guard>,
    states: States,
    log: JobLog,
    written: LastWrite,
    gpu_errors: GpuErrors,
    evidence: Evidence,
    /// The stacks of this wait are taken.
    taken: bool,
    ending: Ending,
    nodes: Nodes,
    config: GuardConfig,
    /// The owner's choice, if there is one.
    choice: Option<HangChoice>,
}

impl Guarding {
    pub(crate) fn new(mine: &Mine) -> Self {
        let choice = mine.report.options.hang.as_ref().and_then(|text| text.parse().ok());
        let config = guard_of_job(&mine.config.guard, choice);
        let before: Hangs = mine.dir.read_json(SAMPLER_HANGS).unwrap_or_default();
        let guard = (config.mode != GuardMode::Off).then(|| Guard::new(config.clone(), before));
        let (states, evidence, ending) = (States::default(), Evidence::default(), Ending::default());
        let nodes = Nodes::new(mine);
        let gpu_errors = GpuErrors::new(mine);
        let (log, written) = (JobLog::default(), LastWrite::default());
        Guarding {
            guard,
            states,
            log,
            written,
            gpu_errors,
            evidence,
            taken: false,
            ending,
            nodes,
            config,
            choice,
        }
    }

    /// Adds a sample. Returns whether the partial report is to be written soon.
    pub(crate) fn step(&mut self, mine: &Mine, seen: &Seen<'_>) -> bool {
        let Seen { sample, ranks, outputs, .. } = *seen;
        let Some(guard) = &mut self.guard else { return false };
        let job = &mine.report.job;
        let alone = job.nodelist == mine.report.node && job.het_leader.is_none();
        let gpus = gpu_activities(sample, sample.gpus.len() > 1 || !alone);
        let of_step = of_last_step(ranks);
        let rank_samples: Vec<RankSample> =
            of_step.iter().map(|(rank, of)| rank_sample(*rank, of, &self.states)).collect();
        let node_sample = NodeSample {
            start: sample.start,
            end: sample.end(),
            running: sample.state == State::Running,
            gpus: &gpus,
            ranks: &rank_samples,
            counts: seen.pausing.counts(),
            alone,
            logged: self.written.of_job(self.states.logged(), &self.log),
            ports_down: self.states.ports_down(),
            gpu_errors: self.gpu_errors.known(),
        };
        let mut news = guard.add(&node_sample);
        let wait = guard.stands_still(&node_sample);
        let nodes = self.nodes.step(mine, &self.config, wait.as_ref(), sample.end());
        if news.is_none() {
            news = nodes.judged.and_then(|found| guard.add_of_nodes(found, sample.end()));
        }
        let soon = nodes.soon || news.is_some();
        if guard.is_suspicious(sample.end()) {
            let running = of_step.values().flatten().filter(|one| one.ended.is_none());
            let programs = running.map(|one| (one.pid, one.ticks)).collect();
            self.states.step(mine, programs, outputs.paths(), guard.waits_since().is_some());
            let numbers: Vec<u32> = seen.gpus.iter().map(|gpu| gpu.index).collect();
            self.gpu_errors.step(mine, seen.xids, &numbers);
        } else {
            self.states.clear();
        }
        // A node whose ranks only wait for another node takes its stacks as well, and so does one whose ranks are at rest.
        let lasts = guard.waits_for(sample.end()) >= self.config.stacks_after() || wait.is_some();
        if guard.waits_since().is_none() && wait.is_none() {
            self.taken = false;
        } else if !self.taken && (lasts || matches!(news, Some(News::Named(_)))) {
            self.taken = true;
            let running = of_step.values().flatten().filter(|one| one.ended.is_none());
            // The end of a process and a stopped one are proof, and NCCL has no complete answer then.
            let proof = rank_samples.iter().any(|one| one.ended.is_some() || is_stopped(one));
            let ras = !proof && (alone || looks_at_others(&mine.report));
            let targets = running.map(|one| Target::from(*one)).collect();
            self.evidence.take(mine, targets, gpu_states(seen, &gpus), ras);
        }
        if let Some(news) = news {
            self.record(mine, &news, self.log.at(outputs.log()));
        }
        if self.config.mode == GuardMode::End {
            let rank = of_step.values().flatten().next().copied();
            let runs = rank_samples.is_empty() || rank_samples.iter().any(|one| one.ended.is_none());
            self.end(mine, rank, runs, sample.end(), self.log.at(outputs.log()));
        }
        soon
    }

    /// The hang that has not ended.
    pub(crate) fn hang(&self) -> Option<&Hang> {
        self.guard.as_ref()?.open()
    }

    /// The steps were ended, and `railgate launch` may start the job again.
    pub(crate) fn awaits_start(&self) -> bool {
        self.ending.awaits_start()
    }

    /// Ends the step of this rank if the job hangs for long enough.
    fn end(&mut self, mine: &Mine, rank: Option<&TaskRank>, runs: bool, now: UnixMillis, log: JobLog) {
        let Some(guard) = &mut self.guard else { return };
        let (whose, storage) = match self.choice {
            Some(choice) => ("--railgate-hang=end", choice.after.is_some()),
            None => ("[guard] mode = \"end\"", false),
        };
        let confirmed = guard.is_confirmed(now);
        let (step, start) = rank.map_or(("", 0), |rank| (rank.step.as_str(), rank.start_number));
        let wish = Wish { config: &self.config, whose, storage, confirmed, step, start, runs, log };
        let hang = guard.open().cloned();
        let act = match self.ending.step(mine, &wish, hang.as_ref(), now) {
            Told::Nothing => return,
            Told::Due => HangAct { time: now, what: HangActKind::Ended, why: whose.to_owned() },
            Told::NotEnded(why) => HangAct { time: now, what: HangActKind::NotEnded, why },
        };
        let ends = act.what == HangActKind::Ended;
        guard.record(act);
        // Written before the steps are ended, and they are not if it cannot be written: the report has to show who ended the job.
        match (mine.dir.write_json(SAMPLER_HANGS, guard.hangs()), hang) {
            (Ok(()), Some(hang)) if ends => self.ending.begin(mine, &wish, &hang, now),
            (Err(why), _) => tracing::warn!(job = mine.job, "sampler: {SAMPLER_HANGS}: {why}"),
            _ => {}
        }
    }

    fn record(&self, mine: &Mine, news: &News, log: JobLog) {
        let Some(guard) = &self.guard else { return };
        if let Err(why) = mine.dir.write_json(SAMPLER_HANGS, guard.hangs()) {
            tracing::warn!(job = mine.job, "sampler: {SAMPLER_HANGS}: {why}");
        }
        match news {
            News::Named(hang) => {
                tracing::info!(job = mine.job, kind = ?hang.kind, "guard: {}", hang.signs.join("; "));
                if matches!(self.config.mode, GuardMode::Notify | GuardMode::End) {
                    notify(mine, hang, log);
                }
            }
            News::Over(hang) => tracing::info!(job = mine.job, kind = ?hang.kind, "guard: the hang is over"),
        }
    }
}

/// Adds a line to the job's log, in a thread: a file server may not answer.
fn notify(mine: &Mine, hang: &Hang, log: JobLog) {
    let (job, text) = (mine.report.job.clone(), line(&mine.report.node, mine.job, hang));
    if let Err(why) = std::thread::Builder::new().stack_size(256 << 10).spawn(move || log.append(&job, &text))
    {
        tracing::info!(job = mine.job, "sampler: the line about the hang is not written: {why}");
    }
}

fn line(node: &str, job: u32, hang: &Hang) -> String {
    let since = clock(hang.since);
    let since = since.get(..8).unwrap_or_default();
    let (what, may) = match hang.kind {
        HangKind::Storage => ("the job has been waiting", "; it continues if the storage answers"),
        _ => ("the job has been hung", ""),
    };
    format!(
        "railgate: {what} on {node} since {since} UTC: {}{may} (railgate report {job} --live)",
        hang.sentence()
    )
}

/// What the GPUs did during the sample.
fn gpu_states(seen: &Seen<'_>, activities: &[GpuActivity]) -> Vec<GpuState> {
    let states = seen.gpus.iter().zip(&seen.sample.gpus).zip(activities);
    states.map(|((gpu, values), activity)| GpuState::new(gpu.index, *activity, values)).collect()
}

/// The programs of each rank of the newest step of the newest start.
fn of_last_step(ranks: &[TaskRank]) -> BTreeMap<u32, Vec<&TaskRank>> {
    let newest = ranks.iter().max_by_key(|one| (one.start_number, one.began));
    let same = |one: &&TaskRank| {
        newest.is_some_and(|last| (last.start_number, &last.step) == (one.start_number, &one.step))
    };
    let mut all: BTreeMap<u32, Vec<&TaskRank>> = BTreeMap::new();
    for one in ranks.iter().filter(same) {
        all.entry(one.rank).or_default().push(one);
    }
    all.into_iter().map(|(rank, of)| (rank, programs(&of))).collect()
}

fn is_stopped(rank: &RankSample) -> bool {
    rank.state.as_ref().is_some_and(|state| state.state == Some('T'))
}

fn rank_sample(rank: u32, programs: &[&TaskRank], states: &States) -> RankSample {
    let ended: Option<Vec<_>> = programs.iter().map(|one| one.ended.zip(one.exit)).collect();
    let runs = programs.iter().rev().find(|one| one.ended.is_none());
    let last = runs.or(programs.last());
    RankSample {
        rank,
        pid: last.map_or(0, |one| one.pid),
        ended: ended.and_then(|ends| ends.into_iter().max_by_key(|(time, _)| *time)),
        state: runs.and_then(|one| states.of((one.pid, one.ticks)).cloned()),
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::ProcessExit;

    use super::*;

    fn process(rank: u32, step: &str, began: u64, ended: Option<u64>) -> TaskRank {
        let exit = ended.map(|_| ProcessExit::Code(1));
        let pid = u32::try_from(began).unwrap();
        TaskRank { rank, pid, step: step.to_owned(), began: Some(began), ended, exit, ..TaskRank::default() }
    }

    fn rank_samples(ranks: &[TaskRank]) -> Vec<(u32, u32, bool)> {
        let of_step = of_last_step(ranks);
        let all = of_step.iter().map(|(rank, of)| rank_sample(*rank, of, &States::default()));
        all.map(|rank_sample| (rank_sample.rank, rank_sample.pid, rank_sample.ended.is_some())).collect()
    }

    #[test]
    fn the_line_in_the_log_names_node_time_rank_and_command() {
        let hang = |kind| Hang { kind, ..railgate_node_report::testing::hang(1_700_000_000_000) };
        assert_eq!(
            line("gn4", 7, &hang(HangKind::Stopped)),
            "railgate: the job has been hung on gn4 since 22:13:20 UTC: rank 2 is stopped (SIGSTOP), and 3 GPUs wait (railgate \
             report 7 --live)"
        );
        assert!(line("gn4", 7, &hang(HangKind::Storage)).contains("the job has been waiting on gn4"));
    }

    #[test]
    fn ranks_are_those_of_the_newest_step_and_start() {
        let earlier = process(0, "0", 10, Some(20));
        let first = process(0, "1", 30, Some(40));
        let second = process(1, "1", 31, None);
        assert_eq!(rank_samples(&[earlier, first, second]), [(0, 30, true), (1, 31, false)]);
        let again = TaskRank { start_number: 1, ..process(0, "1", 50, None) };
        assert_eq!(
            rank_samples(&[process(0, "1", 30, Some(40)), process(1, "1", 31, None), again]),
            [(0, 50, false)]
        );
        assert_eq!(rank_samples(&[]), []);
    }

    #[test]
    fn a_rank_is_gone_when_its_program_is_and_not_when_another_one_has_begun() {
        let shell = process(0, "1", 10, None);
        let program = TaskRank { gpu: true, ..process(0, "1", 11, Some(50)) };
        assert_eq!(rank_samples(&[shell.clone(), program.clone()]), [(0, 11, true)]);
        let again = TaskRank { gpu: true, ..process(0, "1", 60, None) };
        assert_eq!(rank_samples(&[shell, program, again]), [(0, 60, false)]);
    }
}
