//! Watches whether the node of the job's batch script is down: with `sbatch --no-kill` Slurm then keeps the job running without a
//! script. Two nodes of a job watch, and ask Slurm only while the job has no step here.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use railgate_probe::JobHere;
use railgate_runner::{BatchScript, ScriptNode};

use crate::run::Mine;

/// Interval of looks for steps on a node that watches: Slurm ends the steps when it sets the script's node down.
const LOOK: Duration = Duration::from_secs(20);
/// Slurm is asked at each look this many times after the last step has ended.
const OFTEN: u32 = 6;
/// After that it is asked at this interval: a spare node has no step for the whole job.
const RARELY: Duration = Duration::from_secs(60);

/// When Slurm is asked.
#[derive(Debug)]
struct Pace {
    /// How often since the last step was seen.
    asked: u32,
    next: Instant,
}

impl Pace {
    /// Before the first step nothing has ended.
    fn new(now: Instant) -> Self {
        Pace { asked: OFTEN, next: now + RARELY }
    }

    /// Whether to ask at this look.
    fn is_due(&mut self, here: JobHere, now: Instant) -> bool {
        // Without `PrologFlags=Contain` there is no extern step.
        if here == JobHere::Steps {
            *self = Pace { asked: 0, next: now };
            return false;
        }
        let due = now >= self.next;
        if due {
            self.asked = self.asked.saturating_add(1);
            self.next = if self.asked < OFTEN { now } else { now + RARELY };
        }
        due
    }
}

/// The batch script, seen from another node.
#[derive(Debug)]
pub(crate) struct Watch {
    /// `None`: this node does not watch it, or its loss has been handled.
    script: Option<BatchScript>,
    /// The job's output has the line about the loss.
    told: bool,
    pace: Pace,
    answer: Option<JoinHandle<Result<ScriptNode, String>>>,
}

impl Watch {
    pub(crate) fn new(mine: &Mine) -> Self {
        let script = BatchScript::watched(&mine.report);
        Watch { script, told: false, pace: Pace::new(Instant::now()), answer: None }
    }

    /// How often to look for steps of the job; `usual` if this node does not watch.
    pub(crate) fn every(&self, usual: Duration) -> Duration {
        if self.script.is_some() { LOOK } else { usual }
    }

    /// Takes what the job has on this node.
    pub(crate) fn step(&mut self, mine: &Mine, here: JobHere) {
        if self.answer.as_ref().is_some_and(|answer| !answer.is_finished()) {
            return;
        }
        if let Some(answer) = self.answer.take() {
            match answer.join().unwrap_or_else(|_| Err("a thread failed".to_owned())) {
                Ok(ScriptNode::NotLost) => {}
                Ok(ScriptNode::Handled) => self.script = None,
                Ok(ScriptNode::Refused) => self.told = true,
                Err(why) => {
                    tracing::info!(job = mine.job, "whether the batch script is lost is not known: {why}");
                }
            }
        }
        let Some(script) = self.script.clone().filter(|_| self.pace.is_due(here, Instant::now())) else {
            return;
        };
        let told = self.told;
        let ask = move || script.requeue_if_lost(told);
        match std::thread::Builder::new().stack_size(256 << 10).spawn(ask) {
            Ok(answer) => self.answer = Some(answer),
            Err(why) => tracing::info!(job = mine.job, "sampler: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_is_asked_often_after_the_last_step_and_rarely_before_the_first() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut asked = |here, from: u64, looks: u64| {
            let at = |look| start + LOOK * u32::try_from(from + look).unwrap();
            (0..looks).filter(|look| pace.is_due(here, at(*look))).count()
        };
        assert_eq!(asked(JobHere::OnlyExtern, 0, 30), 9, "once a minute, in ten minutes");
        assert_eq!(asked(JobHere::Steps, 30, 30), 0);
        assert_eq!(asked(JobHere::OnlyExtern, 60, 6), 6);
        assert_eq!(asked(JobHere::Gone, 66, 30), 10, "a minute apart");
    }
}
