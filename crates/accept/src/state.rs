//! Where a run stands, from its journal.

use std::collections::BTreeMap;

use crate::journal::{BadJournal, Entry, Event};
use crate::stages::Unit;

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its job may be in the queue or run.
    Open,
    /// It has a result.
    Done {
        /// Name of the file.
        file: String,
        /// Its SHA-256.
        digest: String,
    },
    /// It ended without a result.
    Lost {
        /// The reason.
        why: String,
        /// Whether a node of the job failed; `None`: not known.
        node_failed: Option<bool>,
    },
}

/// One submission of a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Number, from 1.
    pub number: u32,
    /// When it was submitted, milliseconds since 1970.
    pub at: u64,
    /// Its nodes.
    pub nodes: Vec<String>,
    /// Nodes of the unit that it had to leave out, each with the reason.
    pub without: Vec<String>,
    /// Id of its job; `None` if the answer of sbatch is not known.
    pub job: Option<u32>,
    /// How it ended.
    pub fate: Fate,
}

/// All attempts of a unit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    /// In the order of submission.
    pub attempts: Vec<Attempt>,
    /// Attempts since a driver was last started: each start allows all of them again.
    pub tried: u32,
    /// Why the unit is not submitted any more.
    pub given_up: Option<String>,
}

impl UnitState {
    /// Returns the attempt that has a result.
    pub fn done(&self) -> Option<&Attempt> {
        self.attempts.iter().find(|attempt| matches!(attempt.fate, Fate::Done { .. }))
    }

    /// Returns the attempt whose job may be in the queue.
    pub fn open(&self) -> Option<&Attempt> {
        self.attempts.last().filter(|attempt| attempt.fate == Fate::Open)
    }

    /// Returns whether the unit needs nothing any more: it has a result, was given up, or was lost `most` times.
    pub fn is_settled(&self, most: u32) -> bool {
        self.done().is_some() || self.given_up.is_some() || (self.tried >= most && self.open().is_none())
    }
}

/// Where a run stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Id of the run.
    pub run: String,
    /// SHA-256 of the plan.
    pub plan: String,
    /// When it began, milliseconds since 1970.
    pub began: u64,
    /// Units that were submitted or given up.
    pub units: BTreeMap<String, UnitState>,
}

impl State {
    /// Follows the journal.
    ///
    /// # Errors
    /// Returns the line that does not fit the lines before it.
    pub fn follow(entries: &[Entry]) -> Result<State, BadJournal> {
        let mut state = State::default();
        for (number, entry) in entries.iter().enumerate() {
            state.step(entry).map_err(|why| BadJournal { line: number + 1, why })?;
        }
        Ok(state)
    }

    /// Follows one more line.
    ///
    /// # Errors
    /// Returns why it does not fit the lines before it.
    pub fn step(&mut self, entry: &Entry) -> Result<(), String> {
        match &entry.event {
            Event::Begin { run, plan } => {
                (self.run, self.plan, self.began) = (run.clone(), plan.clone(), entry.at);
            }
            Event::Submit { unit, attempt, nodes } => {
                let of = self.units.entry(unit.clone()).or_default();
                let next = of.attempts.len() + 1;
                if usize::try_from(*attempt) != Ok(next) {
                    return Err(format!("attempt {attempt} of {unit} follows attempt {}", next - 1));
                }
                if of.open().is_some() || of.done().is_some() {
                    return Err(format!("{unit} is submitted although attempt {} is open or done", next - 1));
                }
                of.given_up = None;
                of.tried += 1;
                of.attempts.push(Attempt {
                    number: *attempt,
                    at: entry.at,
                    nodes: nodes.clone(),
                    without: Vec::new(),
                    job: None,
                    fate: Fate::Open,
                });
            }
            Event::Submitted { unit, attempt, job } => self.attempt(unit, *attempt)?.job = Some(*job),
            Event::Result { unit, attempt, file, digest } => {
                let fate = Fate::Done { file: file.clone(), digest: digest.clone() };
                self.attempt(unit, *attempt)?.fate = fate;
            }
            Event::LateResult { unit, attempt, file, digest } => {
                let of = self.units.get_mut(unit).filter(|of| of.open().is_none() && of.done().is_none());
                let lost = of.and_then(|of| of.attempts.iter_mut().find(|one| one.number == *attempt));
                let lost = lost.ok_or_else(|| format!("attempt {attempt} of {unit} is not lost"))?;
                lost.fate = Fate::Done { file: file.clone(), digest: digest.clone() };
            }
            Event::Lost { unit, attempt, why, node_failed } => {
                let fate = Fate::Lost { why: why.clone(), node_failed: *node_failed };
                self.attempt(unit, *attempt)?.fate = fate;
            }
            Event::Without { unit, attempt, nodes } => {
                self.attempt(unit, *attempt)?.without.clone_from(nodes);
            }
            Event::GivenUp { unit, why } => {
                self.units.entry(unit.clone()).or_default().given_up = Some(why.clone());
            }
            Event::Continue {} => {
                for of in self.units.values_mut().filter(|of| of.done().is_none()) {
                    (of.tried, of.given_up) = (u32::from(of.open().is_some()), None);
                }
            }
            Event::Stop { .. } | Event::Torn { .. } | Event::Waive { .. } => {}
        }
        Ok(())
    }

    fn attempt(&mut self, unit: &str, number: u32) -> Result<&mut Attempt, String> {
        let of = self.units.get_mut(unit).and_then(|of| of.attempts.last_mut());
        of.filter(|attempt| attempt.number == number && attempt.fate == Fate::Open)
            .ok_or_else(|| format!("attempt {number} of {unit} is not open"))
    }

    /// Returns whether a job of this attempt may still do its work: no later line replaced it.
    pub fn is_open(&self, unit: &str, attempt: u32) -> bool {
        self.units.get(unit).and_then(UnitState::open).is_some_and(|open| open.number == attempt)
    }

    /// Returns the state of a unit.
    pub fn of(&self, unit: &Unit) -> Option<&UnitState> {
        self.units.get(&unit.id)
    }
}
