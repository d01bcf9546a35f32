//! Durations in configuration, as people write them: `30s`, `5m`. For `#[serde(with = "…")]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Writes `30s`.
///
/// # Errors
/// The serializer's own.
pub fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_duration(*value))
}

/// Reads `30s`.
///
/// # Errors
/// The text is no duration.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text)
        .map_err(|why| serde::de::Error::custom(format!("'{text}' is not a duration like 30s: {why}")))
}
