//! Ends the steps of a job that hangs: announces the hang in Slurm, counts, and ends the steps as the job's owner.
//!
//! Children do the work: slurmctld may not answer, and a large cluster's list of nodes needs memory.

use std::time::{Duration, Instant};

use railgate_child::{Task, ask, become_user};
use railgate_fsutil::write_whole;
use railgate_guard::{GuardConfig, GuardMode};
use railgate_model::{Job, UnixMillis};
use railgate_rundir::{HangChoice, HangThen};
use railgate_slurm::{Acting, Client, Env, HangLimits, HangNote, HangStage};
use serde::{Deserialize, Serialize};

use crate::{Config, Loaded, Places, acting, node_name, now};

const NOTE: &str = "note-hang";
const PERMIT: &str = "permit-hang-end";
const END: &str = "end-hung-steps";
pub(crate) const TASKS: [Task; 3] = [Task::new(NOTE, note), Task::new(PERMIT, permit), Task::new(END, end)];
/// Some commands of Slurm, each with `[slurm] timeout`.
const DEADLINE: Duration = Duration::from_secs(60);

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
        self.note(&[self.named()])
    }

    /// Removes the hang from the count: work went on.
    ///
    /// # Errors
    /// As [`HungJob::announce`].
    pub fn withdraw(&self) -> Result<(), String> {
        self.note(&[])
    }

    fn note(&self, notes: &[HangNote]) -> Result<(), String> {
        let order = serde_json::to_vec(&(&self.node, self.job.id, notes)).map_err(|why| why.to_string())?;
        ask(NOTE, &order, DEADLINE).map(drop)
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
    /// In words.
    pub fn end(&self, step: &str, kill: bool) -> Result<(), String> {
        let steps = Steps { job: self.job.clone(), step: step.to_owned(), kill };
        let order = serde_json::to_vec(&steps).map_err(|why| why.to_string())?;
        ask(END, &order, DEADLINE).map(drop)
    }
}

/// In the directory of runs: this node's Slurm comment has had an entry about a hang.
const NOTED: &str = "hang-noted";

/// Removes entries that no longer count from the Slurm comment of this node. A node without any asks slurmctld nothing.
pub(crate) fn forget_old(config: &Config, places: &Places, env: &Env, node: &str, until: Instant) {
    let marker = places.run.join(NOTED);
    let Ok(noted) = std::fs::metadata(&marker).and_then(|found| found.modified()) else { return };
    let is_old = noted.elapsed().is_ok_and(|age| age > Duration::from_secs(HangNote::COUNTS_S));
    if !is_old || acting(config, places) != Acting::Allowed {
        return;
    }
    let client = Client::new(&config.slurm, env).until(until);
    match client.note_hang(node, 0, &[], now() / 1000) {
        Ok(()) => {
            let _ = std::fs::remove_file(&marker);
        }
        Err(why) => tracing::info!("old entries about hangs stay in the node's comment: {why}"),
    }
}

/// Replaces the entries of a job in this node's comment.
fn put_note(
    places: &Places,
    client: &Client,
    node: &str,
    job: u32,
    notes: &[HangNote],
) -> Result<(), String> {
    if !notes.is_empty()
        && let Err(why) = write_whole(&places.run.join(NOTED), b"", 0o600)
    {
        tracing::info!(job, "{NOTED}: {why}: the entry about the hang stays in the node's comment");
    }
    client.note_hang(node, job, notes, now() / 1000)
}

fn loaded() -> Result<(Places, Config, Client), String> {
    let places = Places::default();
    let config = Loaded::read(&places.config(), false, &node_name()).map_err(|why| why.in_one_line())?.config;
    let env: Env = std::env::vars_os().collect();
    let client = Client::new(&config.slurm, &env);
    Ok((places, config, client))
}

fn note(input: &[u8]) -> Result<Vec<u8>, String> {
    let (node, job, notes): (String, u32, Vec<HangNote>) =
        serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let (places, config, client) = loaded()?;
    if let Acting::Forbidden(why) = acting(&config, &places) {
        return Err(why);
    }
    put_note(&places, &client, &node, job, &notes).map(|()| Vec::new())
}

fn permit(input: &[u8]) -> Result<Vec<u8>, String> {
    let hung: HungJob = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let (places, config, client) = loaded()?;
    if let Acting::Forbidden(why) = acting(&config, &places) {
        return Err(why);
    }
    let (job, time) = (hung.job.id, now() / 1000);
    let mine = HangNote { time, job, stage: HangStage::Ended };
    put_note(&places, &client, &hung.node, job, &[hung.named(), mine])?;
    let limits = HangLimits { per_hour: config.guard.max_per_hour, at_once: config.guard.max_at_once };
    let permitted = match client.comments() {
        Ok(all) => {
            let notes: Vec<HangNote> = all.iter().flat_map(|(_, comment)| HangNote::all(comment)).collect();
            mine.may_end(&notes, limits)
        }
        Err(why) => Err(format!("the jobs that hang in the cluster could not be counted: {why}")),
    };
    if permitted.is_err()
        && let Err(why) = put_note(&places, &client, &hung.node, job, &[hung.named()])
    {
        tracing::warn!(job, "the job stays counted as ended, because it hung: {why}");
    }
    permitted.map(|()| Vec::new())
}

fn end(input: &[u8]) -> Result<Vec<u8>, String> {
    let steps: Steps = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    // Read as root: the configuration may not be readable for the owner.
    let (_, _, client) = loaded()?;
    become_user(steps.job.uid, steps.job.gid, &[]).map_err(|why| why.to_string())?;
    let step = steps.step.parse().ok();
    let send = |signal| client.signal(steps.job.id, step, signal).map_err(|why| why.to_string());
    if steps.kill {
        return send("KILL").map(|()| Vec::new());
    }
    send("TERM")?;
    // A stopped process receives it only when it runs. If this one ended at once, there is nothing left to be continued.
    let _ = send("CONT");
    Ok(Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

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
