use std::time::{Duration, UNIX_EPOCH};

use crate::UnixMillis;

/// Formats a time in UTC, for example `2026-01-05T08:00:00.250Z`. `None` beyond the year 9999.
pub fn rfc3339(time: UnixMillis) -> Option<String> {
    let time = Some(time).filter(|time| *time < 253_402_300_800_000)?;
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(time))?;
    Some(humantime::format_rfc3339_millis(time).to_string())
}

/// Parses a time in UTC, for example `2026-01-05T08:00:00Z`. `None` for other texts, and before 1970.
pub fn parse_rfc3339(text: &str) -> Option<UnixMillis> {
    let time = humantime::parse_rfc3339(text).ok()?.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(time.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_parsed_as_it_is_formatted() {
        for time in [0, 1_767_600_000_250, 253_402_300_799_999] {
            assert_eq!(rfc3339(time).as_deref().and_then(parse_rfc3339), Some(time));
        }
        for text in
            ["", "2026-01-05", "2026-01-05T08:00:00", "2026-01-05T08:00:00+08:00", "2026-13-05T08:00:00Z"]
        {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn times_end_with_the_year_9999() {
        for (time, want) in [
            (0, Some("1970-01-01T00:00:00.000Z")),
            (1_709_251_199_999, Some("2024-02-29T23:59:59.999Z")),
            (1_767_600_000_250, Some("2026-01-05T08:00:00.250Z")),
            (253_402_300_799_999, Some("9999-12-31T23:59:59.999Z")),
            (253_402_300_800_000, None),
            (u64::MAX, None),
        ] {
            assert_eq!(rfc3339(time).as_deref(), want);
        }
    }
}
