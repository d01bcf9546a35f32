//! The table of a check whose one threshold is how bad its finding is.

use railgate_model::{Action, Severity};
use serde::{Deserialize, Serialize};

use crate::register::Table;

/// `action` and `severity`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Graded {
    /// The strongest thing that may follow: `off`, `shadow`, `report`, `notify`, `drain`.
    pub action: Action,
    /// How bad it is.
    pub severity: Severity,
}

impl Default for Graded {
    fn default() -> Self {
        Graded { action: Action::Drain, severity: Severity::Warn }
    }
}

impl Table for Graded {
    fn action(&self) -> Action {
        self.action
    }
}
