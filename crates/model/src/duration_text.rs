//! Durations in configuration files, for example `30s` or `5m`. Use with `#[serde(with = "…")]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Serialises a duration as text, for example `30s`.
///
/// # Errors
/// Returns the serializer's error.
pub fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&humantime::format_duration(*value))
}

/// Deserialises a duration from text, for example `30s`.
///
/// # Errors
/// Returns an error if the text is not a duration.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    humantime::parse_duration(&text)
        .map_err(|why| serde::de::Error::custom(format!("'{text}' is not a duration like 30s: {why}")))
}
