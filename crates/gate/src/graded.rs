//! The table of a check whose one threshold is how bad its finding is.

use railgate_model::Severity;

use crate::settings::settings;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "severity of the finding";
}
