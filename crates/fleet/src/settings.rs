//! Thresholds, with their origins.

use railgate_model::UnixMillis;

/// One minute.
pub(crate) const MINUTE: UnixMillis = 60_000;
/// One hour.
pub(crate) const HOUR: UnixMillis = 60 * MINUTE;
/// One day.
pub(crate) const DAY: UnixMillis = 24 * HOUR;

/// Thresholds of the judgement. `docs/accuracy.md`, "The fleet", has the origin of each default.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How far back faults count against a node.
    pub window: UnixMillis,
    /// Evidence up to this long before the end of a job belongs to that end.
    pub before_end: UnixMillis,
    /// The same after the end.
    pub after_end: UnixMillis,
    /// Observations on one node with at most this pause are one fault.
    pub burst: UnixMillis,
    /// Faults with at most this pause can have one cause.
    pub together: UnixMillis,
    /// An incident ends if no further node fails for this long.
    pub quiet: UnixMillis,
    /// Expected number of false incidents in the whole history.
    pub false_incidents: f64,
    /// Fewest nodes of an incident.
    pub fewest_nodes: usize,
    /// Fewest faults of a lemon.
    pub fewest_faults: usize,
    /// Share of false lemons among all that are named (false discovery rate, after Benjamini and Hochberg).
    pub false_lemons: f64,
    /// A lemon fails more often than this multiple of the fleet's rate, at the lower end of its interval.
    pub times: f64,
    /// Probability inside the interval of a node's rate.
    pub credible: f64,
    /// Nodes on which a job fails more often than this multiple of the fleet's rate fail because of the job.
    pub job_times: f64,
    /// Hours of service without a fault after which a repaired node is an ordinary one.
    pub probation_hours: f64,
    /// Longest time that a program may need before its first step if it does not report it, seconds.
    pub longest_start_up_s: f64,
    /// Largest share of a program's time that checkpoints may take if it does not report it.
    pub largest_checkpoint_share: f64,
    /// Fewest failures for advice about checkpoints.
    pub fewest_for_advice: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            window: 28 * DAY,
            before_end: 10 * MINUTE,
            after_end: 5 * MINUTE,
            burst: HOUR,
            together: 10 * MINUTE,
            quiet: HOUR,
            false_incidents: 0.01,
            fewest_nodes: 3,
            fewest_faults: 2,
            false_lemons: 0.1,
            times: 1.0,
            credible: 0.90,
            job_times: 5.0,
            probation_hours: 168.0,
            longest_start_up_s: 1800.0,
            largest_checkpoint_share: 0.1,
            fewest_for_advice: 5,
        }
    }
}

/// Milliseconds as hours.
pub(crate) fn hours(span: UnixMillis) -> f64 {
    seconds(span) / 3600.0
}

/// Milliseconds as seconds.
pub(crate) fn seconds(span: UnixMillis) -> f64 {
    span as f64 / 1000.0
}
