use railgate_model::{Action, Class, PartName, Severity};
use serde::{Deserialize, Serialize};

/// What follows from a finding in one phase (`[gate.prolog]`, `[gate.epilog]`, `[gate.periodic]`).
///
/// The action of a finding is the weakest of three: this table's entry for its severity, what its class
/// allows ([`class_cap`]), and its check's own `action`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PhasePolicy {
    /// For `note`: `report` or `notify`.
    pub note: Action,
    /// For `unknown`: `report` or `notify`. An unknown value never drains.
    pub unknown: Action,
    /// For `warn`.
    pub warn: Action,
    /// For `fail`.
    pub fail: Action,
    /// Parts of a snapshot without which the verdict is `unknown` rather than `fit`, where something in
    /// them is to be judged at all: `gpus`, `fabric`, `pci`, `kernel-log`, `host`.
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
    /// The strongest action that the phase has for a severity. A note or an unknown never drains, and
    /// nothing that was found is left out, whatever the table says.
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

/// The strongest action that a class of finding may have. A check whose findings a site wants to act on
/// although they are a user's or the site's own says so by its own `class` setting.
pub fn class_cap(class: Class) -> Action {
    match class {
        // A check gives `fail` in the class fabric only for this node's own end of a link.
        Class::Node | Class::Fabric => Action::Drain,
        Class::User => Action::Notify,
        Class::Site | Class::Internal => Action::Report,
    }
}
