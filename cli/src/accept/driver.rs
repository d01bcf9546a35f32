//! The driver: submits the units of a plan as jobs, and waits for their results.

mod progress;
mod signals;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use railgate_accept::{Entry, Event, Plan, State, Unit, UnitState, digest};
use railgate_slurm::{Batch, BatchJob, Client, NodeStanding, SlurmError};

use super::dir::{Dir, Run, Writer};
use crate::output::complain;
use crate::{Site, exit};
use progress::Progress;
use signals::Signals;

/// First and longest time between two questions to slurmctld.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15);
/// How long a job that ended otherwise, or that Slurm does not know, is waited for: a sbatch of a killed driver may still be on its way.
const ABSENT: Duration = Duration::from_secs(30);
/// How long the result of a job that completed is waited for: a file may appear late on shared storage.
const UNSEEN: Duration = Duration::from_secs(120);

/// Stages whose units load the GPUs of one node each: `[selftest] max_nodes_at_once` of the site limits them.
const LOADS_GPUS: [&str; 2] = ["node", "soak"];

/// The state of a run and what is known only while the driver works.
struct Driver<'a> {
    dir: &'a Dir,
    run: Run,
    units: Vec<Unit>,
    client: Client,
    writer: Writer,
    /// Since when the job of a unit is not in the queue, while it has no result.
    absent: BTreeMap<String, Instant>,
    /// Since when a unit waits for nodes, or its job for something that does not change by itself.
    waits: BTreeMap<String, Instant>,
    /// Units whose job was seen to run.
    ran: BTreeMap<String, bool>,
    progress: Progress,
    /// Most nodes whose GPUs are loaded at a time.
    loaded_at_once: usize,
    /// slurmctld did not answer the last question.
    silent: bool,
}

pub(crate) fn run(
    site: &Site,
    plan: &Path,
    dir: &Path,
    cancel: bool,
    inject_faults: bool,
) -> anyhow::Result<u8> {
    let dir = Dir::make(dir)?;
    let mut writer = dir.write()?;
    dir.keep_plan(plan)?;
    let mut run = dir.run()?;
    let config = site.config()?;
    let client = Client::new(&config.slurm, &std::env::vars_os().collect());
    if !cancel {
        may_inject(&run.plan, inject_faults, &client)?;
    }
    let torn = run.journal.torn;
    if torn > 0 {
        writer.cut(run.journal.length)?;
    }
    let mut first = Vec::new();
    if run.journal.entries.is_empty() {
        let number = railgate_pair::random_number().map_err(anyhow::Error::msg)?;
        first.push(Event::Begin { run: format!("{number:016x}"), plan: run.plan_digest.clone() });
    } else {
        if torn > 0 {
            first.push(Event::Torn { bytes: torn });
        }
        first.push(Event::Continue {});
    }
    for event in first {
        step(&mut run.state, &writer.append(event)?)?;
    }
    let signals = Signals::catch()?;
    let units = run.plan.units();
    let mut driver = Driver {
        dir: &dir,
        progress: Progress::default(),
        units,
        run,
        client,
        writer,
        absent: BTreeMap::new(),
        waits: BTreeMap::new(),
        ran: BTreeMap::new(),
        loaded_at_once: config.selftest.max_nodes_at_once.max(1),
        silent: false,
    };
    if cancel { driver.cancel() } else { driver.work(&signals, plan) }
}

/// Faults are injected only if the caller asks for it, and only into nodes that run no other jobs.
fn may_inject(plan: &Plan, asked: bool, client: &Client) -> anyhow::Result<()> {
    if plan.faults() == 0 {
        return Ok(());
    }
    ensure!(asked, "the plan injects faults: add --inject-faults");
    let reservation = reservation(&plan.sbatch)?;
    let is_maintenance =
        client.is_maintenance(reservation).with_context(|| format!("reservation {reservation}"))?;
    ensure!(
        is_maintenance,
        "faults are injected only inside a MAINT reservation, and {reservation} is not one"
    );
    Ok(())
}

/// The one reservation in the options of sbatch, which also accepts the beginning of an option, and takes the last of several.
fn reservation(sbatch: &[String]) -> anyhow::Result<&str> {
    let mut named = sbatch.iter().filter(|option| option.starts_with("--res"));
    let name = named.next().and_then(|option| option.strip_prefix("--reservation="));
    ensure!(named.next().is_none(), "sbatch in the plan names more than one reservation");
    name.context(
        "faults are injected only inside a MAINT reservation: add '--reservation=NAME' to sbatch in the plan",
    )
}

fn step(state: &mut State, entry: &Entry) -> anyhow::Result<()> {
    state.step(entry).map_err(|why| anyhow::anyhow!("journal: {why}"))
}

/// Whether a node of an attempt failed, and why it has no result.
struct Loss {
    why: String,
    /// `None`: not known.
    node_failed: Option<bool>,
}

impl Driver<'_> {
    fn work(&mut self, signals: &Signals, plan: &Path) -> anyhow::Result<u8> {
        let mut pause = SHORTEST;
        loop {
            let before = self.run.state.clone();
            self.find_results()?;
            self.ask_about_jobs()?;
            self.submit()?;
            let open = self.open().len();
            if let Some(line) = self.progress.line(&self.units, &self.run.state, self.run.plan.attempts, open)
            {
                complain!("accept: {line}");
            }
            if self.units.iter().all(|unit| self.settled(unit)) {
                return Ok(self.end());
            }
            pause = if before == self.run.state { (pause * 3 / 2).min(LONGEST) } else { SHORTEST };
            if let Some(signal) = signals.wait(pause) {
                self.log(Event::Stop { why: signal.to_string() })?;
                complain!("accept: {signal}: {open} jobs stay in the queue; to continue:");
                complain!("  railgate accept {} --dir {}", plan.display(), self.dir.path().display());
                return Ok(exit::UNKNOWN);
            }
        }
    }

    fn end(&self) -> u8 {
        let done =
            self.units.iter().filter(|unit| self.of(unit).is_some_and(|of| of.done().is_some())).count();
        complain!(
            "accept: {done} of {} jobs of the plan have a result: railgate accept report {}",
            self.units.len(),
            self.dir.path().display()
        );
        if done == self.units.len() { exit::OK } else { exit::UNKNOWN }
    }

    /// Writes a line of the journal, and follows it.
    fn log(&mut self, event: Event) -> anyhow::Result<()> {
        let entry = self.writer.append(event)?;
        step(&mut self.run.state, &entry)
    }

    fn of(&self, unit: &Unit) -> Option<&UnitState> {
        self.run.state.of(unit)
    }

    fn settled(&self, unit: &Unit) -> bool {
        self.of(unit).is_some_and(|of| of.is_settled(self.run.plan.attempts))
    }

    /// Units whose job may be in the queue, with the number of the attempt and the job.
    fn open(&self) -> Vec<(String, u32, Option<u32>)> {
        let open = |unit: &Unit| {
            let attempt = self.of(unit)?.open()?;
            Some((unit.id.clone(), attempt.number, attempt.job))
        };
        self.units.iter().filter_map(open).collect()
    }

    fn name(&self, unit: &str, attempt: u32) -> String {
        format!("railgate-accept:{}:{unit}:{attempt}", self.run.state.run)
    }

    /// Records the results that jobs wrote.
    fn find_results(&mut self) -> anyhow::Result<()> {
        let open = self.open();
        if open.is_empty() {
            return Ok(());
        }
        let names = self.dir.result_names()?;
        for (unit, attempt, _) in open {
            let start = format!("{unit}.a{attempt}.j");
            if let Some(file) = names.iter().find(|name| name.starts_with(&start)) {
                let digest = digest(&self.dir.result(file)?);
                self.log(Event::Result { unit, attempt, file: file.clone(), digest })?;
            }
        }
        Ok(())
    }

    /// Records the newest result of an earlier attempt, which came after that was counted as lost. Returns whether there is one.
    fn find_late(&mut self, unit: &str) -> anyhow::Result<bool> {
        let attempts = self.run.state.units.get(unit).map_or(&[][..], |of| &of.attempts);
        let numbers: Vec<u32> = attempts.iter().rev().map(|attempt| attempt.number).collect();
        if numbers.is_empty() {
            return Ok(false);
        }
        let names = self.dir.result_names()?;
        let file = |number: u32| {
            let start = format!("{unit}.a{number}.j");
            names.iter().find(|name| name.starts_with(&start)).map(|name| (number, name.clone()))
        };
        let Some((attempt, file)) = numbers.into_iter().find_map(file) else { return Ok(false) };
        let digest = digest(&self.dir.result(&file)?);
        self.log(Event::LateResult { unit: unit.to_owned(), attempt, file, digest })?;
        Ok(true)
    }

    /// Whether Slurm accepted the job of an attempt.
    fn has_job(&self, unit: &str, attempt: u32) -> bool {
        let of = self.run.state.units.get(unit).and_then(UnitState::open);
        of.is_some_and(|open| open.number == attempt && open.job.is_some())
    }

    /// Finds the jobs of open units by their names, and which were lost.
    fn ask_about_jobs(&mut self) -> anyhow::Result<()> {
        let open = self.open();
        if open.is_empty() {
            return Ok(());
        }
        let names: Vec<String> = open.iter().map(|(unit, attempt, _)| self.name(unit, *attempt)).collect();
        let asked: Vec<&str> = names.iter().map(String::as_str).collect();
        let Some(jobs) = self.answer(|client| client.jobs_named(&asked))? else { return Ok(()) };
        for ((unit, attempt, known), name) in open.iter().zip(&names) {
            let job = jobs.iter().filter(|job| job.name == *name).max_by_key(|job| job.is_alive());
            if let (Some(job), None) = (job, known) {
                self.log(Event::Submitted { unit: unit.clone(), attempt: *attempt, job: job.id })?;
            }
            if job.is_some_and(|job| job.state == "RUNNING") {
                self.ran.insert(unit.clone(), true);
            }
            match job {
                Some(job) if job.is_alive() => {
                    self.absent.remove(unit);
                    self.stuck(unit, *attempt, job)?;
                }
                _ => self.missing(unit, *attempt, name, job)?,
            }
        }
        Ok(())
    }

    /// A job that waits for a node that is down is cancelled after the time of the plan.
    fn stuck(&mut self, unit: &str, attempt: u32, job: &BatchJob) -> anyhow::Result<()> {
        if !job.is_stuck() {
            self.waits.remove(unit);
            return Ok(());
        }
        let since = *self.waits.entry(unit.to_owned()).or_insert_with(Instant::now);
        if since.elapsed() < self.wait() {
            return Ok(());
        }
        let name = self.name(unit, attempt);
        if self.answer(|client| client.cancel_named(&name))?.is_some() {
            self.waits.remove(unit);
            let why = format!("its job {} did not start: {}", job.id, job.reason);
            self.lose(unit, attempt, Loss { why, node_failed: Some(false) })?;
        }
        Ok(())
    }

    /// A job that is not in the queue any more, and has no result.
    fn missing(
        &mut self,
        unit: &str,
        attempt: u32,
        name: &str,
        job: Option<&BatchJob>,
    ) -> anyhow::Result<()> {
        let since = self.absent.entry(unit.to_owned()).or_insert_with(Instant::now).elapsed();
        if since < ABSENT || (since < UNSEEN && job.is_some_and(BatchJob::is_completed)) {
            return Ok(());
        }
        let begin = railgate_model::rfc3339(self.run.state.began.saturating_sub(86_400_000));
        let begin = begin.and_then(|time| Some(time.get(..19)?.to_owned())).unwrap_or_default();
        // Without an accounting database, squeue alone knows how it ended, for a while.
        let accounted = self.client.accounted_named(name, &begin).unwrap_or_default();
        let job = job.or(accounted.last());
        // A job that slurmctld has forgotten may have completed.
        if since < UNSEEN && job.is_none_or(BatchJob::is_completed) && self.has_job(unit, attempt) {
            return Ok(());
        }
        let ran = self.ran.get(unit).copied().unwrap_or_default();
        let loss = match job {
            Some(job) => Loss {
                why: format!("job {}: {} ({})", job.id, job.state, job.reason),
                node_failed: Some(job.node_failed()),
            },
            None if ran => Loss { why: "its job ran and is gone".to_owned(), node_failed: None },
            None => Loss { why: "its job is not in the queue".to_owned(), node_failed: None },
        };
        self.lose(unit, attempt, loss)
    }

    fn lose(&mut self, unit: &str, attempt: u32, loss: Loss) -> anyhow::Result<()> {
        self.absent.remove(unit);
        self.ran.remove(unit);
        // The job may have ended between the search for results and the question to slurmctld.
        self.find_results()?;
        if !self.run.state.is_open(unit, attempt) {
            return Ok(());
        }
        complain!("accept: {unit}: attempt {attempt} has no result: {}", loss.why);
        let Loss { why, node_failed } = loss;
        self.log(Event::Lost { unit: unit.to_owned(), attempt, why, node_failed })
    }

    fn wait(&self) -> Duration {
        Duration::from_secs(self.run.plan.wait_s.into())
    }

    /// Submits units of the first stage that is not finished.
    fn submit(&mut self) -> anyhow::Result<()> {
        let Some(stage) = self.units.iter().find(|unit| !self.settled(unit)).map(|unit| unit.stage) else {
            return Ok(());
        };
        let waiting = |unit: &&Unit| {
            unit.stage == stage && !self.settled(unit) && self.of(unit).is_none_or(|of| of.open().is_none())
        };
        let mut most = usize::try_from(self.run.plan.jobs_at_once)?;
        if LOADS_GPUS.contains(&stage) {
            most = most.min(self.loaded_at_once);
        }
        let room = most.saturating_sub(self.open().len());
        let candidates: Vec<Unit> = self.units.iter().filter(waiting).cloned().collect();
        if candidates.is_empty() || room == 0 {
            return Ok(());
        }
        let Some(nodes) = self.answer(Client::standing_of_nodes)? else { return Ok(()) };
        let mut submitted = 0;
        for unit in &candidates {
            if submitted == room {
                break;
            }
            if self.find_late(&unit.id)? {
                continue;
            }
            let (usable, missing) = split(unit, &nodes);
            if !missing.is_empty() {
                let since = *self.waits.entry(unit.id.clone()).or_insert_with(Instant::now);
                if since.elapsed() < self.wait() {
                    continue;
                }
                if usable.len() < unit.fewest {
                    let why = format!("nodes are not available: {}", missing.join("; "));
                    complain!("accept: {}: not run: {why}", unit.id);
                    self.log(Event::GivenUp { unit: unit.id.clone(), why })?;
                    continue;
                }
            }
            self.waits.remove(&unit.id);
            if !self.submit_one(unit, usable, missing)? {
                break;
            }
            submitted += 1;
        }
        Ok(())
    }

    /// Returns `false` if slurmctld gave no answer.
    fn submit_one(&mut self, unit: &Unit, nodes: Vec<String>, missing: Vec<String>) -> anyhow::Result<bool> {
        let attempt = self.of(unit).map_or(0, |of| of.attempts.len()) + 1;
        let attempt = u32::try_from(attempt)?;
        let id = unit.id.clone();
        let stem = format!("{id}.a{attempt}");
        let script = self.dir.path().join("jobs").join(format!("{stem}.sh"));
        let program = std::env::current_exe().context("path of this program")?;
        let text = format!(
            "#!/bin/sh\nexec {} accept --dir {} --unit {} --attempt {attempt}\n",
            quoted(&program)?,
            quoted(self.dir.path())?,
            quoted(Path::new(&id))?
        );
        railgate_fsutil::write_whole(&script, text.as_bytes(), 0o700)?;
        self.log(Event::Submit { unit: id.clone(), attempt, nodes: nodes.clone() })?;
        if !missing.is_empty() {
            self.log(Event::Without { unit: id.clone(), attempt, nodes: missing })?;
        }
        let name = self.name(&id, attempt);
        let output = self.dir.path().join("logs").join(format!("{stem}.log"));
        let options = self.run.plan.sbatch.clone();
        let batch = Batch {
            name: &name,
            nodes: &nodes,
            limit_min: unit.limit_min,
            output: &output,
            options: &options,
            script: &script,
        };
        match self.client.submit(&batch) {
            Ok(job) => self.log(Event::Submitted { unit: id, attempt, job }).map(|()| true),
            // The job may exist: it is searched by its name.
            Err(why) if why.no_answer() => {
                self.is_silent(&why);
                Ok(false)
            }
            Err(why) => {
                let why = format!("sbatch: {why}");
                self.lose(&id, attempt, Loss { why: why.clone(), node_failed: Some(false) })?;
                if self
                    .run
                    .state
                    .units
                    .values()
                    .any(|of| of.attempts.iter().any(|attempt| attempt.job.is_some()))
                {
                    return Ok(true);
                }
                bail!("{why}")
            }
        }
    }

    /// An answer of Slurm; `None` if slurmctld is away, which is not the end of the run.
    fn answer<T>(&mut self, ask: impl FnOnce(&Client) -> Result<T, SlurmError>) -> anyhow::Result<Option<T>> {
        match ask(&self.client) {
            Ok(answer) => {
                if std::mem::take(&mut self.silent) {
                    complain!("accept: slurmctld answers again");
                }
                Ok(Some(answer))
            }
            // Restarting daemons refuse in many ways, and a run of days outlives that.
            Err(why @ SlurmError::NotStarted { .. }) => Err(why.into()),
            Err(why) => {
                self.is_silent(&why);
                Ok(None)
            }
        }
    }

    fn is_silent(&mut self, why: &SlurmError) {
        if !std::mem::replace(&mut self.silent, true) {
            complain!("accept: {why}; trying again every {} s", LONGEST.as_secs());
        }
    }

    /// Cancels the jobs of open units.
    fn cancel(&mut self) -> anyhow::Result<u8> {
        self.find_results()?;
        for (unit, attempt, _) in self.open() {
            self.client.cancel_named(&self.name(&unit, attempt))?;
            self.lose(
                &unit,
                attempt,
                Loss { why: "cancelled with --cancel".to_owned(), node_failed: Some(false) },
            )?;
        }
        self.log(Event::Stop { why: "--cancel".to_owned() })?;
        Ok(exit::OK)
    }
}

/// Nodes of a unit that are available, and the others with their states.
fn split(unit: &Unit, standing: &[NodeStanding]) -> (Vec<String>, Vec<String>) {
    let (mut usable, mut missing) = (Vec::new(), Vec::new());
    for node in &unit.nodes {
        match standing.iter().find(|standing| standing.node == *node) {
            Some(standing) if standing.is_available() => usable.push(node.clone()),
            Some(standing) => missing.push(format!("{node}: {}", standing.words())),
            None => missing.push(format!("{node}: Slurm does not know it")),
        }
    }
    (usable, missing)
}

/// A word of a shell script.
fn quoted(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{}: not UTF-8", path.display()))?;
    anyhow::ensure!(!text.contains(char::is_control), "{}: has a control character", path.display());
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}
