//! Jobs: their queue, their starts and their ends.

use railgate_fleet::{Attempt, Outcome, Source, What};

use super::*;
use crate::work::{self, Program};

impl World {
    pub(super) fn new_job(&mut self) -> usize {
        let sizes = [
            (1, 0.55),
            (2, 0.15),
            (4, 0.10),
            (8, 0.08),
            (16, 0.06),
            (32, 0.04),
            (64, 0.015),
            (self.p.nodes / 8, 0.005),
        ];
        let size = self.random.weighted(&sizes);
        let work_s =
            self.random.lognormal(3.0 * 3600.0 * (size as f64).powf(0.2), 1.2).clamp(300.0, 72.0 * 3600.0);
        let program = Program::draw(&mut self.random);
        let own_end = match self.random.unit() {
            failed if failed < 0.12 => Some(Outcome::Failed),
            cancelled if cancelled < 0.20 => Some(Outcome::Cancelled),
            limit if limit < 0.23 => Some(Outcome::Timeout),
            memory if memory < 0.24 => Some(Outcome::OutOfMemory),
            _ => None,
        };
        let own_end = own_end.map(|outcome| (self.random.unit(), outcome));
        let killer = size > 1 && self.random.chance(self.p.killers);
        let id = u32::try_from(self.jobs.len()).unwrap() + 1000;
        let (mut size, mut killer) = (size, killer);
        let mut uid = 1000 + u32::try_from(self.random.below(200)).unwrap();
        // A user submits a series of small jobs, each of which fails its node.
        if self.series.1 == 0 && self.random.chance(self.p.killers / 20.0) {
            self.series = (self.series.0 + 1, 12);
        }
        if self.series.1 > 0 && self.random.chance(0.3) {
            self.series.1 -= 1;
            (size, killer, uid) = (1, true, self.series.0);
        }
        self.jobs.push(Job {
            id,
            uid,
            size,
            program,
            left_s: work_s,
            attempts: 0,
            first_queued: self.now,
            queued: self.now,
            productive_s: 0.0,
            killer,
            own_end,
        });
        self.jobs.len() - 1
    }

    pub(super) fn start_jobs(&mut self) {
        let mut free: Vec<usize> = (0..self.machines.len())
            .filter(|node| !self.machines[*node].out && self.machines[*node].busy.is_none())
            .collect();
        loop {
            if self.waiting.is_empty() {
                let job = self.new_job();
                self.waiting.push(job);
            }
            let job = self.waiting[0];
            if self.jobs[job].size > free.len() {
                return;
            }
            self.waiting.remove(0);
            let mut nodes = Vec::new();
            let near = self.random.chance(0.5);
            let first = self.random.below(free.len());
            for _ in 0..self.jobs[job].size {
                let at = if near { first.min(free.len() - 1) } else { self.random.below(free.len()) };
                nodes.push(free.remove(at));
            }
            self.start_job(job, nodes);
        }
    }

    pub(super) fn start_job(&mut self, index: usize, nodes: Vec<usize>) {
        let start_s = |random: &mut Random| random.lognormal(240.0, 0.8);
        let starts_s = (start_s(&mut self.random), start_s(&mut self.random));
        let job = &mut self.jobs[index];
        let attempt = job.attempts;
        job.attempts += 1;
        let takes = starts_s.0 + job.program.takes_s(job.left_s) + 40.0;
        let (mut end, mut outcome) = (self.now + ms(takes), Outcome::Completed);
        if let Some((share, own)) = job.own_end {
            end = self.now + ms(takes * share).max(SECOND);
            outcome = own;
        }
        let killer = job.killer;
        let long = end - self.now > 2 * HOUR;
        let restart = (long && self.random.chance(0.03)).then(|| self.now + (end - self.now) / 2);
        for node in &nodes {
            self.machines[*node].busy = Some(self.running.len());
        }
        let why = Why::Ordinary;
        let start = self.now;
        self.running.push(Running {
            job: index,
            nodes,
            start,
            end,
            outcome,
            why,
            attempt,
            starts_s,
            restart,
            done: false,
        });
        let number = self.running.len() - 1;
        if self.random.chance(0.9) {
            let record = self.record(number, None);
            self.emit(start, Source::Root, What::JobStarted(record));
        }
        self.push(end, Todo::End(number));
        if killer {
            let at = start + ms(self.random.between(60.0, (takes - 60.0).max(61.0)));
            self.push(at.min(end.saturating_sub(SECOND)), Todo::Killer(number));
        }
    }

    pub(super) fn record(&self, number: usize, end: Option<(u64, Outcome)>) -> Attempt {
        let running = &self.running[number];
        let job = &self.jobs[running.job];
        Attempt {
            job: job.id,
            attempt: running.attempt,
            uid: job.uid,
            partition: if job.size >= 8 { "train" } else { "batch" }.to_owned(),
            nodes: running.nodes.iter().map(|node| &self.machines[*node].name).collect(),
            gpus: u32::try_from(running.nodes.len() * CARDS).unwrap(),
            queued: job.queued,
            start: running.start,
            end,
        }
    }

    /// Ends an attempt earlier than planned.
    pub(super) fn cut(&mut self, number: usize, end: u64, outcome: Outcome, why: Why) {
        let running = &mut self.running[number];
        if running.done || running.end <= end || running.why != Why::Ordinary {
            return;
        }
        running.end = end.max(running.start + SECOND);
        running.outcome = outcome;
        running.why = why;
        let end = running.end;
        self.push(end, Todo::End(number));
    }

    pub(super) fn job_end(&mut self, number: usize) {
        let running = &self.running[number];
        if running.done || running.end != self.now {
            return;
        }
        self.running[number].done = true;
        let running = &self.running[number];
        let (index, end, outcome, why) = (running.job, running.end, running.outcome, running.why.clone());
        let (start, attempt, starts_s, nodes) =
            (running.start, running.attempt, running.starts_s, running.nodes.clone());
        let restart = running.restart.filter(|at| *at < end);
        for node in nodes {
            self.machines[node].busy = None;
        }
        let id = self.jobs[index].id;
        let record = self.record(number, Some((end, outcome)));
        self.emit(end, Source::Root, What::JobEnded(record));
        if let Some(at) = restart {
            self.emit(at, Source::User, What::Restarted { job: id, attempt });
        }
        let done = work::attempt(
            &self.jobs[index].program,
            (id, attempt),
            (start, end),
            starts_s,
            restart,
            outcome == Outcome::Completed,
            &mut self.random,
        );
        self.report(index, done.progress, end);
        let job = &mut self.jobs[index];
        job.productive_s += done.kept_s;
        job.left_s = (job.left_s - done.kept_s).max(60.0);
        self.truth.ends.insert((id, attempt), why.clone());
        let again = match why {
            Why::Ordinary => false,
            Why::Itself => job.attempts < 3 && self.random.chance(0.5),
            _ => job.attempts < 10,
        };
        if again {
            self.jobs[index].queued = end;
            self.waiting.insert(0, index);
        } else {
            let job = &self.jobs[index];
            let wall = (end - job.first_queued) as f64 / 3.6e6;
            self.truth.productive.insert(id, (job.productive_s / 3600.0, wall));
        }
        self.push(self.now, Todo::Start);
    }

    pub(super) fn report(&mut self, index: usize, mut progress: railgate_fleet::Progress, end: u64) {
        if !self.jobs[index].program.reports || self.random.chance(0.05) {
            return;
        }
        // Nonsense, and boasting.
        if self.random.chance(0.01) {
            progress.last_step += 400 * DAY;
        }
        if self.random.chance(0.01) {
            progress.start_up_s = 0.0;
            progress.checkpoint_s = 0.0;
            progress.saved = Some(end);
        }
        self.emit(end, Source::User, What::Progress(progress));
    }
}
