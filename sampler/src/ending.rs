//! When the steps of a job that hangs are ended.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railgate_guard::GuardConfig;
use railgate_model::UnixMillis;
use railgate_node_report::plain::clock;
use railgate_node_report::{Hang, HangKind};
use railgate_runner::{HangEnd, HungJob};

use crate::job_log::JobLog;
use crate::run::Mine;

/// Time from SIGTERM to SIGKILL, as Slurm's `KillWait` by default, and from there until the step counts as not ended.
const KILL_AFTER: Duration = Duration::from_secs(30);

/// What to do with a hang, in the order of time.
#[derive(Debug, Default)]
enum Stage {
    /// No hang, or one whose steps are not to be ended.
    #[default]
    Idle,
    /// Other nodes know of it.
    Announced(HungJob),
    /// The steps are being ended.
    Ending(Attempt),
    /// Nothing more is done about it.
    Done,
}

/// An attempt to end a step.
#[derive(Debug)]
struct Attempt {
    end: HangEnd,
    step: String,
    /// When the last signal was sent.
    since: UnixMillis,
    /// It was SIGKILL.
    killed: bool,
    /// For the job's log, with `WHY` for the reason.
    not_ended: String,
}

/// Ends steps, in a thread that sleeps while its children ask Slurm.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    stage: Stage,
    worker: Option<JoinHandle<Result<(), String>>>,
    /// The hang whose steps were ended last, and their start under `railgate launch`.
    ended: Option<Ended>,
}

#[derive(Debug)]
struct Ended {
    hung: HungJob,
    start: u32,
    at: Instant,
}

/// A hang whose steps are to be ended.
#[derive(Debug)]
pub(crate) struct Wish<'a> {
    pub(crate) config: &'a GuardConfig,
    /// `--railgate-hang=end` or `[guard] mode = "end"`.
    pub(crate) whose: &'a str,
    /// Waits for storage count as well: the owner named a time.
    pub(crate) storage: bool,
    /// The hang was found again a moment ago. One that an earlier sampler found, or of a job that is suspended now, is not enough.
    pub(crate) confirmed: bool,
    /// The step of the ranks.
    pub(crate) step: &'a str,
    /// Their start under `railgate launch`.
    pub(crate) start: u32,
    /// A rank of this node has not ended, or none is known. The script of the job may run on without them.
    pub(crate) runs: bool,
    pub(crate) log: JobLog,
}

/// What has to be recorded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Nothing,
    /// The steps are to be ended now. [`Ending::begin`] does it, after this has been recorded.
    Due,
    /// They were not ended; why.
    NotEnded(String),
}

impl Ending {
    /// Goes on with a hang that has not ended; `None`: there is none.
    pub(crate) fn step(
        &mut self,
        mine: &Mine,
        wish: &Wish<'_>,
        hang: Option<&Hang>,
        now: UnixMillis,
    ) -> Told {
        let finished = self.worker.as_ref().is_none_or(JoinHandle::is_finished);
        if !finished {
            return Told::Nothing;
        }
        let answer = self
            .worker
            .take()
            .map(|worker| worker.join().unwrap_or_else(|_| Err("a thread failed".to_owned())));
        match (std::mem::take(&mut self.stage), hang) {
            (Stage::Idle, Some(hang)) => {
                let (job, node) = (mine.report.job.clone(), mine.report.node.clone());
                let storage = hang.kind == HangKind::Storage;
                let hung = HungJob { job, node, storage, named: hang.named };
                let (announced, log) = (hung.clone(), wish.log.clone());
                self.stage = Stage::Announced(hung);
                let (_, not_ended) = lines(&mine.report.node, mine.job, hang, wish.whose);
                self.work(mine, move || {
                    announced
                        .announce()
                        .inspect_err(|why| log.append(&announced.job, &not_ended.replace("WHY", why)))
                });
            }
            (Stage::Announced(hung), None) => self.work(mine, move || hung.withdraw()),
            (Stage::Announced(hung), Some(hang)) => {
                if let Some(Err(why)) = answer {
                    tracing::info!(job = mine.job, "guard: the hang is not announced: {why}");
                    self.stage = Stage::Done;
                    return Told::NotEnded(why);
                }
                let is_due = wish.confirmed && wish.config.ends(hang, wish.storage, now);
                self.stage = Stage::Announced(hung);
                if is_due {
                    return Told::Due;
                }
            }
            (Stage::Ending(_), _) if matches!(answer, Some(Err(_))) => {
                (self.stage, self.ended) = (Stage::Done, None);
                let why = answer.and_then(Result::err).unwrap_or_default();
                tracing::warn!(job = mine.job, "guard: the steps are not ended: {why}");
                return Told::NotEnded(why);
            }
            (Stage::Ending(_), Some(_)) if !wish.runs => self.stage = Stage::Done,
            (Stage::Ending(attempt), Some(_)) if now.saturating_sub(attempt.since) < millis(KILL_AFTER) => {
                self.stage = Stage::Ending(attempt);
            }
            (Stage::Ending(attempt), Some(_)) if attempt.killed => {
                (self.stage, self.ended) = (Stage::Done, None);
                let why = format!("the step still runs {} s after SIGKILL", KILL_AFTER.as_secs());
                let (log, said) = (wish.log.clone(), attempt.not_ended.replace("WHY", &why));
                self.work(mine, move || {
                    log.append(&attempt.end.hung().job, &said);
                    log_failure(attempt.end.hung(), attempt.end.take_back());
                    Ok(())
                });
                return Told::NotEnded(why);
            }
            (Stage::Ending(attempt), Some(_)) => {
                let (end, step) = (attempt.end.clone(), attempt.step.clone());
                self.stage = Stage::Ending(Attempt { since: now, killed: true, ..attempt });
                self.work(mine, move || {
                    signal(&end, &step, true);
                    Ok(())
                });
            }
            (Stage::Done, Some(_)) => self.stage = Stage::Done,
            (Stage::Idle | Stage::Ending(..) | Stage::Done, None) => {}
        }
        if self.worker.is_none()
            && let Some(Ended { hung, .. }) = self.ended.take_if(|ended| wish.start > ended.start)
        {
            self.work(mine, move || {
                log_failure(&hung, hung.restarted());
                Ok(())
            });
        }
        Told::Nothing
    }

    /// The steps were ended a short time ago, and no new start was seen.
    pub(crate) fn awaits_start(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| ended.at.elapsed() < HangEnd::COUNTS)
    }

    /// Ends the steps, if the limits of the cluster allow it.
    pub(crate) fn begin(&mut self, mine: &Mine, wish: &Wish<'_>, hang: &Hang, now: UnixMillis) {
        let Stage::Announced(hung) = std::mem::take(&mut self.stage) else { return };
        let end = HangEnd::new(hung.clone(), now);
        let (step, log) = (wish.step.to_owned(), wish.log.clone());
        let (done, not_ended) = lines(&mine.report.node, mine.job, hang, wish.whose);
        let (of_end, not_permitted) = (end.clone(), not_ended.clone());
        self.ended = Some(Ended { hung, start: wish.start, at: Instant::now() });
        self.stage = Stage::Ending(Attempt { end, step: step.clone(), since: now, killed: false, not_ended });
        self.work(mine, move || {
            let permitted = of_end.permit();
            match &permitted {
                Ok(()) => {
                    log.append(&of_end.hung().job, &done);
                    signal(&of_end, &step, false);
                }
                Err(why) => log.append(&of_end.hung().job, &not_permitted.replace("WHY", why)),
            }
            permitted
        });
    }

    fn work(&mut self, mine: &Mine, work: impl FnOnce() -> Result<(), String> + Send + 'static) {
        match std::thread::Builder::new().stack_size(256 << 10).spawn(work) {
            Ok(worker) => self.worker = Some(worker),
            Err(why) => {
                tracing::warn!(job = mine.job, "guard: {why}");
                self.stage = Stage::Done;
            }
        }
    }
}

fn millis(time: Duration) -> UnixMillis {
    UnixMillis::try_from(time.as_millis()).unwrap_or(UnixMillis::MAX)
}

fn log_failure(hung: &HungJob, changed: Result<(), String>) {
    if let Err(why) = changed {
        tracing::info!(job = hung.job.id, "guard: the job stays counted as ended, because it hung: {why}");
    }
}

/// Whether the step has ended is seen from its processes: an error does not tell.
fn signal(end: &HangEnd, step: &str, kill: bool) {
    if let Err(why) = end.signal(step, kill) {
        tracing::info!(job = end.hung().job.id, step, "guard: {why}");
    }
}

/// Lines for the job's log if its steps are ended, and if they are not, with `WHY` for the reason.
fn lines(node: &str, job: u32, hang: &Hang, whose: &str) -> (String, String) {
    let since = clock(hang.since);
    let since = since.get(..8).unwrap_or_default();
    let what =
        format!("it has been hung on {node} since {since} UTC: {} (railgate report {job})", hang.sentence());
    (
        format!("railgate: the job's steps are ended by {whose}: {what}"),
        format!("railgate: the job's steps are not ended, although {whose} asks for it: WHY; {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hang(kind: HangKind) -> Hang {
        Hang { kind, ..railgate_node_report::testing::hang(1_700_000_000_000) }
    }

    #[test]
    fn the_lines_in_the_log_name_the_wish_and_the_hang() {
        let (done, not_done) = lines("gn4", 7, &hang(HangKind::Stopped), "--railgate-hang=end");
        let what = "it has been hung on gn4 since 22:13:20 UTC: rank 2 is stopped (SIGSTOP), and 3 GPUs wait (railgate report 7)";
        assert_eq!(done, format!("railgate: the job's steps are ended by --railgate-hang=end: {what}"));
        assert_eq!(
            not_done,
            format!(
                "railgate: the job's steps are not ended, although --railgate-hang=end asks for it: WHY; {what}"
            )
        );
    }
}
