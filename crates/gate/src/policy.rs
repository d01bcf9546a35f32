use railgate_model::{Action, Class, PartName, Severity};
use serde::{Deserialize, Serialize};

/// The actions that findings have in one phase (`[gate.prolog]`, `[gate.epilog]`, `[gate.periodic]`).
///
/// The action of a finding is the weakest of three: this table's entry for its severity, the limit of its class
/// ([`class_cap`]), and the `action` of its check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PhasePolicy {
    /// For `note`: `report` or `notify`.
    pub note: Action,
    /// For `unknown`: `report` or `notify`. An `unknown` finding never drains.
    pub unknown: Action,
    /// For `warn`.
    pub warn: Action,
    /// For `fail`.
    pub fail: Action,
    /// Parts of a snapshot without which the verdict is `unknown` rather than `fit`, if a check that runs needs them:
    /// `gpus`, `fabric`, `pci`, `kernel-log`, `host`.
    pub required: Vec<PartName>,
}

impl Default for PhasePolicy {
    fn default() -> Self {
        PhasePolicy {
            note: Action::Report,
            unknown: Action::Report,
            warn: Action::Report,
            fail: Action::Drain,
            required: vec![PartName::Gpus, PartName::Fabric, PartName::Host],
        }
    }
}

impl PhasePolicy {
    /// Returns the strongest action that the phase has for a severity: at least `report`, and never `drain` for a note
    /// or an `unknown`, regardless of the table.
    pub fn action(&self, severity: Severity) -> Action {
        match severity {
            Severity::Note => self.note.clamp(Action::Report, Action::Notify),
            Severity::Unknown => self.unknown.clamp(Action::Report, Action::Notify),
            Severity::Warn => self.warn.max(Action::Report),
            Severity::Fail => self.fail.max(Action::Report),
        }
    }

    pub(crate) fn problems(&self, table: &str) -> Vec<String> {
        let mut problems = Vec::new();
        for (key, action, strongest) in [
            ("note", self.note, Action::Notify),
            ("unknown", self.unknown, Action::Notify),
            ("warn", self.warn, Action::Drain),
            ("fail", self.fail, Action::Drain),
        ] {
            if action < Action::Report {
                let name = if action == Action::Off { "off" } else { "shadow" };
                problems.push(format!(
                    "{table}.{key}: '{name}' would hide findings (set it for a check instead)"
                ));
            } else if action > strongest {
                let why =
                    format!("a finding that is only {key} never drains").replace("only note", "only a note");
                problems.push(format!("{table}.{key}: 'drain' is not possible ({why})"));
            }
        }
        problems
    }
}

/// Returns the strongest action that a finding of this class can have. A site that wants to act on findings about users
/// or its own services sets `class` in the table of the check.
pub fn class_cap(class: Class) -> Action {
    match class {
        // A check gives `fail` in the class `fabric` only for this node's end of a link.
        Class::Node | Class::Fabric => Action::Drain,
        Class::User => Action::Notify,
        Class::Site | Class::Internal => Action::Report,
    }
}
