//! Formats numbers and untrusted text for a report.

use std::time::Duration;

use railgate_model::{PortState, Reading, UnixMillis, rfc3339};
use railgate_text::shorten;

/// Whether a number is 0, as most start numbers are: such a field is left out of a report.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Untrusted text as one printable line.
pub fn plain(text: &str) -> String {
    shorten(text, 400)
}

/// Date and time, `2026-11-21 01:51:00 UTC`.
pub fn stamp(time: UnixMillis) -> String {
    match rfc3339(time) {
        Some(text) => format!("{} {} UTC", &text[..10], &text[11..19]),
        None => "unknown time".to_owned(),
    }
}

/// `01:51:00.123`, UTC.
pub fn clock(time: UnixMillis) -> String {
    rfc3339(time).map_or_else(|| "??:??:??".to_owned(), |text| text[11..23].to_owned())
}

/// Duration, `2 h 03 min`, `14 min 09 s`, `9.4 s`.
pub fn span(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "unknown".to_owned();
    }
    if seconds < 60.0 {
        return format!("{seconds:.1} s");
    }
    let whole = Duration::from_secs_f64(seconds.min(1e12)).as_secs();
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, whole % 60);
    if hours >= 48 {
        format!("{} d {:02} h", hours / 24, hours % 24)
    } else if hours > 0 {
        format!("{hours} h {minutes:02} min")
    } else {
        format!("{minutes} min {rest:02} s")
    }
}

/// Size in powers of ten, `1.50 GB`, as is usual for networks and storage.
pub fn bytes(count: f64) -> String {
    scaled(count, "B")
}

/// `12.1 GB/s`
pub fn byte_rate(per_second: f64) -> String {
    scaled(per_second, "B/s")
}

fn scaled(value: f64, unit: &str) -> String {
    let steps = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    for (size, prefix) in steps {
        if value >= size {
            return format!("{:.2} {prefix}{unit}", value / size);
        }
    }
    format!("{value:.0} {unit}")
}

/// Energy, `1.93 kWh`, `840 kJ`.
pub fn energy(joules: f64) -> String {
    if joules >= 3.6e6 { format!("{:.2} kWh", joules / 3.6e6) } else { format!("{:.1} kJ", joules / 1e3) }
}

/// A count as floating point number: exact up to 2^53, rounded beyond.
#[expect(clippy::cast_precision_loss, reason = "only shown, with three digits")]
pub fn float(count: u64) -> f64 {
    count as f64
}

/// The value, `-` if the machine does not have it, `?` if it is unknown.
pub fn cell<T>(reading: &Reading<T>, show: impl Fn(&T) -> String) -> String {
    match reading {
        Reading::Known(value) => show(value),
        Reading::Unsupported => "-".to_owned(),
        Reading::Failed(_) => "?".to_owned(),
    }
}

/// Breaks text at spaces; longer words are not split.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Port state in ibstat's spelling, `ACTIVE`.
pub fn port_state(state: &Reading<PortState>) -> String {
    match state {
        Reading::Known(PortState::Active) => "ACTIVE".to_owned(),
        Reading::Known(PortState::Down) => "DOWN".to_owned(),
        Reading::Known(PortState::Init) => "INIT".to_owned(),
        Reading::Known(PortState::Armed) => "ARMED".to_owned(),
        Reading::Known(PortState::Other(text)) => shorten(text, 16),
        Reading::Unsupported => "-".to_owned(),
        Reading::Failed(_) => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_control_a_terminal() {
        assert_eq!(plain("a\x1b[31m\r\nb\u{9b}c\u{202e}d\u{200b}e"), "a?[31m??b?c?d?e");
    }

    #[test]
    fn numbers_have_units() {
        assert_eq!(stamp(1_700_000_000_123), "2023-11-14 22:13:20 UTC");
        assert_eq!(clock(1_700_000_000_123), "22:13:20.123");
        assert_eq!(stamp(u64::MAX), "unknown time");
        assert_eq!(span(9.44), "9.4 s");
        assert_eq!(span(849.0), "14 min 09 s");
        assert_eq!(span(7380.0), "2 h 03 min");
        assert_eq!(span(200_000.0), "2 d 07 h");
        assert_eq!(span(f64::NAN), "unknown");
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(1.5e9), "1.50 GB");
        assert_eq!(byte_rate(48.21e9), "48.21 GB/s");
        assert_eq!(energy(840_000.0), "840.0 kJ");
        assert_eq!(energy(7.2e6), "2.00 kWh");
    }

    #[test]
    fn lines_are_broken_at_spaces() {
        assert_eq!(wrap("one two  three", 7), ["one two", "three"]);
        assert!(wrap("", 7).is_empty());
    }
}
