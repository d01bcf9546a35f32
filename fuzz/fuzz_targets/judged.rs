//! Assertions about a verdict, shared by all targets.

use railgate_gate::{GateConfig, Memory, Seen, devices_are_well, judge};
use railgate_model::{Class, Phase, Profile, Severity, Snapshot};

/// Judges a node in each phase. No finding may be an internal fault of a check, contain a line break, or have
/// unbounded length.
pub fn judged(snapshot: &Snapshot, before: Option<&Snapshot>, profile: &Profile) {
    let config = GateConfig::default();
    let mut memory = Memory::default();
    for phase in [Phase::Prolog, Phase::Periodic, Phase::Epilog] {
        let seen = Seen { phase, now: snapshot, before, job: None, profile: Some(profile), memory: &memory };
        let verdict = judge(&config, &seen);
        for finding in verdict.findings.iter().chain(&verdict.shadow) {
            assert!(
                finding.class != Class::Internal || !finding.what.starts_with("the check itself failed"),
                "{finding:?}"
            );
            let texts = [&finding.part, &finding.what, &finding.fix].into_iter();
            for text in texts.chain(finding.evidence.iter().flat_map(|row| [&row.got, &row.want])) {
                assert!(!text.chars().any(char::is_control) && text.len() < 2000, "{text:?}");
            }
            assert!(finding.severity >= Severity::Note);
        }
        memory = memory.after(snapshot, devices_are_well(&verdict));
        memory.strike(snapshot, &verdict);
    }
    let text = serde_json::to_string(&memory).expect("plain data");
    assert_eq!(serde_json::from_str::<Memory>(&text).ok().as_ref(), Some(&memory));
}
