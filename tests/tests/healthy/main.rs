//! No false drain: random healthy nodes of every machine type are never judged unfit, and an additional fault never leads to a
//! milder verdict.
//!
//! Healthy nodes vary in: noise within the datasheets, readings that the machine does not have or that failed, nodes shared by
//! several jobs, fresh boots, counters close to their wrap, restarts between two check runs. New checks are covered
//! automatically: every run uses the whole register, and any reading of the snapshot can be removed.
//!
//! `RAILGATE_CASES` is the number of nodes of each type (1,000; 10,000 in a release build), `RAILGATE_SEED` the first seed. A
//! failure names its case; `RAILGATE_SEED=CASE RAILGATE_CASES=1` repeats it. The long run:
//! `RAILGATE_CASES=100000 cargo test --release -p railgate-tests --test healthy`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed step is a failed test")]
#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "random numbers within known bounds"
)]

mod noise;
mod rng;
mod worse;

use railgate_gate::{GateConfig, Memory, Seen, judge};
use railgate_model::{Action, Fitness, Job, Phase, Profile, Snapshot, Verdict};

use rng::Rng;

/// Input of one check run on a node.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) phase: Phase,
    pub(crate) now: Snapshot,
    pub(crate) before: Option<Snapshot>,
    pub(crate) job: Option<Job>,
    pub(crate) memory: Memory,
    /// No reading is missing or ambiguous: the node must be `fit`, not merely not unfit.
    pub(crate) plain: bool,
}

impl Case {
    pub(crate) fn judge(&self, config: &GateConfig, profile: &Profile) -> Verdict {
        let seen = Seen {
            phase: self.phase,
            now: &self.now,
            before: self.before.as_ref(),
            job: self.job.as_ref(),
            profile: Some(profile),
            memory: &self.memory,
        };
        judge(config, &seen)
    }
}

/// In a debug build a check run takes two milliseconds.
fn cases() -> u64 {
    number("RAILGATE_CASES", if cfg!(debug_assertions) { 1_000 } else { 10_000 })
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

fn findings(verdict: &Verdict) -> String {
    let line = |finding: &railgate_model::Finding| {
        format!("\n  {} {}: {}", finding.severity, finding.subject(), finding.what)
    };
    format!(
        "{} {:?}{}",
        verdict.fitness,
        verdict.action,
        verdict.findings.iter().map(line).collect::<String>()
    )
}

fn no_healthy_node_is_unfit(id: &str) {
    let profile = railgate_profiles::load(id, &[]).unwrap();
    let config = GateConfig::default();
    let healthy = railgate_simulate::simulated(&profile, &[]);
    let (first, count) = (number("RAILGATE_SEED", 1), cases());
    // Removing readings goes through JSON and is slow, so each such machine is used for several cases.
    const LOOKS: u64 = 50;
    let mut lacking = None;
    for seed in first..first + count {
        let group = seed / LOOKS;
        if lacking.as_ref().is_none_or(|(known, _)| *known != group) {
            let mut rng = Rng::new(group);
            let machine = if rng.one_in(2) { noise::lacking(&healthy, &mut rng) } else { healthy.clone() };
            lacking = Some((group, machine));
        }
        let base = &lacking.as_ref().unwrap().1;
        let case = noise::case(base, &profile, *base == healthy, &mut Rng::new(seed));
        let verdict = case.judge(&config, &profile);
        let good = verdict.fitness != Fitness::Unfit && verdict.action < Action::Drain;
        assert!(good, "{id}, case {seed}, {}: {}", case.phase, findings(&verdict));
        let fit = !case.plain || verdict.fitness == Fitness::Fit;
        assert!(fit, "{id}, case {seed}, {}: {}", case.phase, findings(&verdict));
    }
}

macro_rules! profiles {
    ($($name:ident = $id:literal,)+) => {
        mod healthy {
            $(
                #[test]
                fn $name() {
                    super::no_healthy_node_is_unfit($id);
                }
            )+

            /// Every machine type has a test here.
            #[test]
            fn every_machine_type_is_tested() {
                assert_eq!(railgate_profiles::builtin_ids(), [$($id),+]);
            }
        }
    };
}

profiles! {
    h100_sxm = "h100-sxm",
    h200_sxm = "h200-sxm",
    h800_sxm = "h800-sxm",
    h20 = "h20",
    a100_sxm = "a100-sxm",
    a800_sxm = "a800-sxm",
    b200 = "b200",
    l40s = "l40s",
    l20 = "l20",
    rtx4090 = "rtx4090",
    rtx3090 = "rtx3090",
    a6000 = "a6000",
    generic = "generic",
    cpu = "cpu",
}
