//! `tests/gpu/corpus.toml`: what a report must say about each kind, and the outcome of a comparison.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, bail};
use regex::Regex;
use serde::Deserialize;

use crate::recording::Said;

/// Part of a loss by which the report may differ from the program's own clock.
const CLOSE: f64 = 0.2;

/// The half of the kinds that a rule may be tuned on, and the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Half {
    Open,
    HeldOut,
}

/// The fields that matter to a comparison.
#[derive(Debug, Deserialize)]
pub(crate) struct Kind {
    pub(crate) half: Half,
    /// Number of the list: 0, the first one; 1, added to it; from 2 on, fixed before rules were changed again, and all held out.
    #[serde(default)]
    pub(crate) later: u8,
    #[serde(default = "completed")]
    ended: String,
    right: String,
    half_right: Option<String>,
    never: Option<String>,
    pub(crate) loss: Option<String>,
}

fn completed() -> String {
    "completed".to_owned()
}

/// Kinds by name.
pub(crate) type Kinds = BTreeMap<String, Kind>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// The first lines name the cause, and its size is within a fifth of the truth.
    Right,
    /// They name the cause, and its size is further away or missing.
    Size,
    /// They name the effect or the rank, or state that the cause of the loss cannot be told.
    Half,
    /// Nothing is said of what was planted.
    Silent,
    /// Another cause is named, or advice is given that does not help.
    Wrong,
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Outcome::Right => "right",
            Outcome::Size => "size",
            Outcome::Half => "half",
            Outcome::Silent => "silent",
            Outcome::Wrong => "WRONG",
        })
    }
}

fn matches(pattern: Option<&String>, text: &str) -> Result<bool> {
    Ok(pattern.map(|pattern| Regex::new(pattern)).transpose()?.is_some_and(|one| one.is_match(text)))
}

impl Kind {
    /// The regular expressions are valid.
    pub(crate) fn check(&self) -> Result<()> {
        for text in [Some(&self.right), self.half_right.as_ref(), self.never.as_ref()].into_iter().flatten() {
            Regex::new(text)?;
        }
        let ends = ["completed", "application", "cancelled", "timeout"];
        if !ends.contains(&self.ended.as_str()) {
            bail!("no kind of end: {}", self.ended);
        }
        Ok(())
    }

    /// Whether the report advises what cannot help.
    pub(crate) fn forbids(&self, said: &Said) -> Result<bool> {
        matches(self.never.as_ref(), &said.advice)
    }

    /// Compares what a report says with what it must say. `lost`: the truth, seconds.
    pub(crate) fn outcome(&self, said: &Said, lost: Option<f64>) -> Result<Outcome> {
        if said.ended != self.ended || self.forbids(said)? {
            return Ok(Outcome::Wrong);
        }
        if matches(Some(&self.right), &said.first)? {
            let close = |lost: f64| said.cost_s.is_some_and(|cost| (cost - lost).abs() <= CLOSE * lost);
            return Ok(if lost.is_none_or(close) { Outcome::Right } else { Outcome::Size });
        }
        if matches(self.half_right.as_ref(), &said.first)? {
            return Ok(Outcome::Half);
        }
        // It states the loss, and that its cause cannot be told from outside.
        if self.loss.is_some() && said.rules.first().is_some_and(|rule| rule == "host-bound") {
            return Ok(Outcome::Half);
        }
        Ok(if said.rules.is_empty() { Outcome::Silent } else { Outcome::Wrong })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(first: &str, do_: &str, rules: &[&str], cost_s: Option<f64>) -> Said {
        Said {
            ended: "completed".to_owned(),
            first: first.to_owned(),
            advice: format!("{first}; {do_}"),
            rules: rules.iter().map(|&rule| rule.to_owned()).collect(),
            cost_s,
        }
    }

    #[test]
    fn outcome_of_each_kind_of_answer() {
        let kind: Kind = toml::from_str(
            "half = 'open'\nright = 'input-bound'\nhalf_right = 'idle'\nnever = 'CUDA graphs'\nloss = 'input'",
        )
        .unwrap();
        kind.check().unwrap();
        let named = "GPUs wait (railgate explain input-bound)";
        let of = |said: Said| kind.outcome(&said, Some(10.0)).unwrap();
        assert_eq!(of(said(named, "more workers", &["input-bound"], Some(11.9))), Outcome::Right);
        assert_eq!(of(said(named, "more workers", &["input-bound"], Some(12.1))), Outcome::Size);
        assert_eq!(of(said(named, "more workers", &["input-bound"], None)), Outcome::Size);
        assert_eq!(of(said(named, "CUDA graphs", &["input-bound"], Some(10.0))), Outcome::Wrong);
        assert_eq!(of(said("GPUs are idle", "", &["idle"], None)), Outcome::Half);
        assert_eq!(of(said("no performance problem found", "", &[], None)), Outcome::Silent);
        assert_eq!(of(said("memory", "", &["memory-bound"], None)), Outcome::Wrong);
        assert_eq!(of(said("cannot tell which", "", &["host-bound"], None)), Outcome::Half);
        let died = Said { ended: "application".to_owned(), ..said(named, "", &["input-bound"], Some(10.0)) };
        assert_eq!(of(died), Outcome::Wrong);
    }
}
