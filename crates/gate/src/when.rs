use railgate_model::{UnixMillis, rfc3339};

/// A time in the form `2026-01-05T08:00:00.250Z`.
pub(crate) fn iso(time: UnixMillis) -> String {
    rfc3339(time).unwrap_or_else(|| "unknown time".to_owned())
}
