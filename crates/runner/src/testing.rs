//! Helpers for tests.

use railgate_gate::{GateConfig, Memory, Seen, judge};
use railgate_model::Phase;

use crate::CheckRun;

/// A periodic check run of a simulated node (`h100-sxm:gpu-lost@3`) at the time `at`, Unix seconds, without earlier
/// state.
pub(crate) fn simulated_check_run(node: &str, gate: &GateConfig, at: u64) -> CheckRun {
    let (profile, faults) = railgate_simulate::parse(node, &[]).unwrap();
    let mut snapshot = railgate_simulate::simulated(&profile, &faults);
    snapshot.taken = at * 1000;
    let seen = Seen {
        phase: Phase::Periodic,
        now: &snapshot,
        before: None,
        job: None,
        profile: Some(&profile),
        memory: &Memory::default(),
    };
    let verdict = judge(gate, &seen);
    CheckRun {
        verdict,
        snapshot,
        profile,
        profile_problem: None,
        known_gpus: railgate_model::GpuInventory::default(),
        took_ms: 1.0,
    }
}
