//! Settings of checks that have a severity and no other threshold.

use railgate_model::Severity;

use crate::settings::settings;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "severity of the finding";
}
