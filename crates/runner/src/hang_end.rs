//! Ends the steps of a job that hangs: announces the hang in Slurm, counts, and ends the steps as the job's owner.
//!
//! Children do the work: slurmctld may not answer, and a large cluster's list of nodes needs memory.

use std::time::{Duration, Instant};

use railgate_child::{Task, ask, become_user};
use railgate_fsutil::{FileLock, write_whole};
use railgate_guard::{GuardConfig, GuardMode};
use railgate_model::{Job, UnixMillis};
use railgate_rundir::{HangChoice, HangThen};
use railgate_slurm::{
    Acting, Client, Env, HangChange, HangLimits, HangNote, HangStage, SlurmError, UnixSeconds,
};
use serde::{Deserialize, Serialize};

use crate::act::loaded;
use crate::{Config, Places, acting, now};

const NOTE: &str = "note-hang";
const PERMIT: &str = "permit-hang-end";
const END: &str = "end-hung-steps";
pub(crate) const TASKS: [Task; 3] = [Task::new(NOTE, note), Task::new(PERMIT, permit), Task::new(END, end)];
/// Some commands of Slurm, each with `[slurm] timeout`.
const DEADLINE: Duration = Duration::from_secs(60);
/// A signal is sent again until Slurm answers, for this time.
const SENDS: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_secs(1);

/// The configuration of the guard for a job whose owner chose this. A site that has turned the guard off keeps it off.
#[must_use]
pub fn guard_of_job(config: &GuardConfig, choice: Option<HangChoice>) -> GuardConfig {
    let Some(choice) = choice.filter(|_| config.mode != GuardMode::Off) else { return config.clone() };
    let mode = match choice.then {
        HangThen::Report => GuardMode::Report,
        HangThen::Notify => GuardMode::Notify,
        HangThen::End => GuardMode::End,
    };
    GuardConfig { mode, end_after: choice.after.unwrap_or(config.end_after), ..config.clone() }
}

/// A hang of a job, for the count of the cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HungJob {
    /// The job.
    pub job: Job,
    /// This node, as Slurm names it.
    pub node: String,
    /// Its ranks wait for storage.
    pub storage: bool,
    /// When the hang was named.
    pub named: UnixMillis,
}

/// The steps to end: `0`; any other name is the batch script.
#[derive(Debug, Serialize, Deserialize)]
struct Steps {
    job: Job,
    step: String,
    kill: bool,
}

impl HungJob {
    fn named(&self) -> HangNote {
        let stage = if self.storage { HangStage::Storage } else { HangStage::Hangs };
        HangNote { time: self.named / 1000, job: self.job.id, stage }
    }

    /// Adds the hang to the count, so that other nodes see how many jobs hang.
    ///
    /// # Errors
    /// In words: slurmctld does not answer, or the node has a Slurm comment of the site's own.
    pub fn announce(&self) -> Result<(), String> {
        self.note(HangChange::Hangs(self.named()))
    }

    /// Removes the hang from the count: the ranks work.
    ///
    /// # Errors
    /// As [`HungJob::announce`].
    pub fn withdraw(&self) -> Result<(), String> {
        self.note(HangChange::Over { job: self.job.id })
    }

    /// The steps were ended, and the job has been started again in its allocation: how it ends has other reasons.
    ///
    /// # Errors
    /// As [`HungJob::announce`].
    pub fn restarted(&self) -> Result<(), String> {
        self.note(HangChange::Restarted { job: self.job.id })
    }

    fn note(&self, change: HangChange) -> Result<(), String> {
        let order = serde_json::to_vec(&(&self.node, change)).map_err(|why| why.to_string())?;
        ask(NOTE, &order, DEADLINE).map(drop)
    }
}

/// The end of a job that hangs, by the guard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HangEnd {
    hung: HungJob,
    time: UnixSeconds,
}

impl HangEnd {
    /// An end of the job after that has another reason.
    pub const COUNTS: Duration = Duration::from_secs(HangNote::ENDS_WITHIN_S);

    /// The guard ends the job at this time.
    pub fn new(hung: HungJob, now: UnixMillis) -> Self {
        HangEnd { hung, time: now / 1000 }
    }

    /// Asks whether the steps may be ended, and counts this job as ended if so.
    ///
    /// # Errors
    /// Why not, in words: a switch or a limit forbids it, or nothing could be counted.
    pub fn permit(&self) -> Result<(), String> {
        let order = serde_json::to_vec(self).map_err(|why| why.to_string())?;
        ask(PERMIT, &order, DEADLINE).map(drop)
    }

    /// Ends a step as the job's owner, with SIGTERM, or with SIGKILL if `kill` is set. Of a program that the batch script starts without
    /// srun the script is ended.
    ///
    /// # Errors
    /// What Slurm said, in words. Nevertheless some or all processes may have received the signal: `scancel` of Slurm 22.05 sends it to all nodes
    /// of the job, and fails if the step does not run on one of them.
    pub fn signal(&self, step: &str, kill: bool) -> Result<(), String> {
        let steps = Steps { job: self.hung.job.clone(), step: step.to_owned(), kill };
        let order = serde_json::to_vec(&steps).map_err(|why| why.to_string())?;
        ask(END, &order, DEADLINE).map(drop)
    }

    /// The steps have not ended: the job no longer counts as ended.
    ///
    /// # Errors
    /// As [`HungJob::announce`].
    pub fn take_back(&self) -> Result<(), String> {
        self.hung.note(HangChange::NotEnded(self.note()))
    }

    /// Its job.
    pub fn hung(&self) -> &HungJob {
        &self.hung
    }

    fn note(&self) -> HangNote {
        HangNote { time: self.time, job: self.hung.job.id, stage: HangStage::Ended }
    }
}

/// In the directory of runs: this node's Slurm comment has had an entry about a hang.
const NOTED: &str = "hang-noted";
/// In the same directory: held while the comment is read and written.
const LOCK: &str = "hang-noted.lock";
/// Longer than the two commands of another child usually take.
const LOCK_WAIT: Duration = Duration::from_secs(20);

/// Removes entries that no longer count from the Slurm comment of this node. A node without any asks slurmctld nothing.
pub(crate) fn forget_old(config: &Config, places: &Places, env: &Env, node: &str, until: Instant) {
    let marker = places.run.join(NOTED);
    let Ok(noted) = std::fs::metadata(&marker).and_then(|found| found.modified()) else { return };
    let is_old = noted.elapsed().is_ok_and(|age| age > Duration::from_secs(HangNote::COUNTS_S));
    if !is_old || acting(config, places) != Acting::Allowed {
        return;
    }
    let client = Client::new(&config.slurm, env).until(until);
    match change(places, &client, node, &HangChange::Age, Duration::ZERO) {
        Ok(()) => {
            let _ = std::fs::remove_file(&marker);
        }
        Err(why) => tracing::info!("old entries about hangs stay in the node's comment: {why}"),
    }
}

/// Changes the entries in this node's comment, one process of the node at a time.
fn change(
    places: &Places,
    client: &Client,
    node: &str,
    entries: &HangChange,
    wait: Duration,
) -> Result<(), String> {
    let path = places.run.join(LOCK);
    let _lock = FileLock::take(&path, wait).map_err(|why| format!("{}: {why}", path.display()))?;
    client.note_hang(node, entries, now() / 1000)
}

/// The same, and records that the comment may have entries.
fn put_note(places: &Places, client: &Client, node: &str, entries: &HangChange) -> Result<(), String> {
    if let Err(why) = write_whole(&places.run.join(NOTED), b"", 0o600) {
        tracing::info!("{NOTED}: {why}: an entry about a hang stays in the node's comment");
    }
    change(places, client, node, entries, LOCK_WAIT)
}

fn note(input: &[u8]) -> Result<Vec<u8>, String> {
    let (node, change): (String, HangChange) =
        serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let (places, config, client) = loaded()?;
    if let Acting::Forbidden(why) = acting(&config, &places) {
        return Err(why);
    }
    put_note(&places, &client, &node, &change).map(|()| Vec::new())
}

fn permit(input: &[u8]) -> Result<Vec<u8>, String> {
    let end: HangEnd = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let (places, config, client) = loaded()?;
    if let Acting::Forbidden(why) = acting(&config, &places) {
        return Err(why);
    }
    let (node, ended) = (&end.hung.node, end.note());
    let limits = HangLimits { per_hour: config.guard.max_per_hour, at_once: config.guard.max_at_once };
    let permitted = put_note(&places, &client, node, &HangChange::Ends(end.hung.named(), ended))
        .and_then(|()| count(&client, ended, limits));
    if permitted.is_err()
        && let Err(stays) = put_note(&places, &client, node, &HangChange::NotEnded(ended))
    {
        tracing::warn!(job = ended.job, "the job stays counted as ended, because it hung: {stays}");
    }
    permitted.map(|()| Vec::new())
}

fn count(client: &Client, ended: HangNote, limits: HangLimits) -> Result<(), String> {
    let comments = client
        .comments()
        .map_err(|why| format!("the jobs that hang in the cluster could not be counted: {why}"))?;
    let notes: Vec<HangNote> = comments.iter().flat_map(|(_, comment)| HangNote::all(comment)).collect();
    ended.may_end(&notes, limits)
}

fn end(input: &[u8]) -> Result<Vec<u8>, String> {
    let steps: Steps = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    // Read as root: the configuration may not be readable for the owner.
    let (_, _, client) = loaded()?;
    become_user(steps.job.uid, steps.job.gid, &[]).map_err(|why| why.to_string())?;
    let step = steps.step.parse().ok();
    let send = |signal| client.signal(steps.job.id, step, signal);
    if steps.kill {
        return until_answered(SENDS, || send("KILL")).map_err(|why| why.to_string()).map(|()| Vec::new());
    }
    let sent = until_answered(SENDS, || send("TERM"));
    // A stopped process receives it only when it runs. If this one ended at once, there is nothing left to be continued.
    if sent.as_ref().err().is_none_or(|why| !why.no_answer()) {
        let _ = send("CONT");
    }
    sent.map_err(|why| why.to_string()).map(|()| Vec::new())
}

/// Sends a signal until Slurm answers.
fn until_answered(time: Duration, send: impl Fn() -> Result<(), SlurmError>) -> Result<(), SlurmError> {
    let until = Instant::now() + time;
    loop {
        match send() {
            Err(why) if why.no_answer() && Instant::now() < until => std::thread::sleep(PAUSE),
            answered => return answered,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn silent() -> Result<(), SlurmError> {
        Err(SlurmError::Silent { what: "scancel".to_owned(), after: Duration::from_secs(5) })
    }

    fn refused() -> Result<(), SlurmError> {
        let said = "scancel: error: Kill job error on job step id 7.0: Invalid job id specified".to_owned();
        Err(SlurmError::Refused { what: "scancel".to_owned(), said })
    }

    #[test]
    fn a_signal_is_sent_again_until_slurm_answers() {
        let sent = |time, answers: Vec<Result<(), SlurmError>>| {
            let answers = RefCell::new(answers.into_iter());
            let sent = until_answered(time, || answers.borrow_mut().next().unwrap_or_else(silent));
            (sent.is_ok(), answers.into_inner().count())
        };
        assert_eq!(sent(SENDS, vec![silent(), Ok(()), Ok(())]), (true, 1));
        assert_eq!(sent(SENDS, vec![refused(), Ok(())]), (false, 1));
        assert_eq!(sent(Duration::ZERO, vec![silent(), Ok(())]), (false, 1));
    }

    #[test]
    fn the_owner_chooses_what_follows_unless_the_site_has_turned_the_guard_off() {
        let site = |mode| GuardConfig { mode, ..GuardConfig::default() };
        let choice = |text: &str| text.parse().ok();
        let of = |mode, text: &str| guard_of_job(&site(mode), choice(text)).mode;
        assert_eq!(of(GuardMode::Report, "end"), GuardMode::End);
        assert_eq!(of(GuardMode::End, "report"), GuardMode::Report);
        assert_eq!(of(GuardMode::Off, "end"), GuardMode::Off);
        assert_eq!(guard_of_job(&site(GuardMode::End), None), site(GuardMode::End));
        let after = guard_of_job(&site(GuardMode::Report), choice("end,after=10m")).end_after;
        assert_eq!(after, Duration::from_secs(600));
        assert_eq!(
            guard_of_job(&site(GuardMode::Report), choice("end")).end_after,
            GuardConfig::default().end_after
        );
    }
}
