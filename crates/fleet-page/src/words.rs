//! Numbers and times as text, with their units.

use maud::{Markup, html};
use railgate_fleet::Bounds;
use railgate_model::{UnixMillis, rfc3339};

/// Text of a value that is not known.
pub(crate) const UNKNOWN: &str = "could not tell";

/// `2026-11-27 08:15`.
pub(crate) fn time(at: UnixMillis) -> String {
    let text = rfc3339(at).and_then(|text| Some(text.get(..16)?.replace('T', " ")));
    text.unwrap_or_else(|| UNKNOWN.to_owned())
}

/// `4,096`.
pub(crate) fn whole(number: usize) -> String {
    grouped(&number.to_string())
}

/// Digits in groups of three: `45086706` is read wrong.
fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 node`, `2 nodes`.
pub(crate) fn plural(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{} {what}s", whole(number)) }
}

/// A number, not negative, with at least three digits.
pub(crate) fn short(value: f64) -> String {
    match value {
        size if size >= 100.0 => grouped(&format!("{value:.0}")),
        size if size >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// `12.5 to 40.0`.
pub(crate) fn between(bounds: Bounds) -> String {
    format!("{} to {}", short(bounds.low), short(bounds.high))
}

/// A share of a whole, `62.1 to 88.0 %`; `None` without a whole.
pub(crate) fn percent(part: Bounds, whole: f64) -> Option<String> {
    let percent = |value: f64| 100.0 * (value / whole).clamp(0.0, 1.0);
    (whole > 0.0).then(|| format!("{:.1} to {:.1} %", percent(part.low), percent(part.high)))
}

/// Seconds as `45 s`, `12 min`, `3.4 h`.
pub(crate) fn span(seconds: f64) -> String {
    match seconds {
        long if long >= 7200.0 => format!("{:.1} h", long / 3600.0),
        long if long >= 120.0 => format!("{:.0} min", long / 60.0),
        short => format!("{short:.0} s"),
    }
}

/// How many rows are left out, and which command shows them.
pub(crate) fn more(all: usize, shown: usize, command: &str) -> Markup {
    html! {
        @if all > shown { p.soft { "and " (whole(all - shown)) " more: " code { (command) } } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_have_groups_of_three_digits() {
        for (number, text) in [(0, "0"), (999, "999"), (4096, "4,096"), (45_086_706, "45,086,706")] {
            assert_eq!(whole(number), text);
        }
        assert_eq!(
            (short(1920.4), short(99.94), short(0.0)),
            ("1,920".to_owned(), "99.9".to_owned(), "0".to_owned())
        );
        assert_eq!(
            (plural(1, "node"), plural(65_244, "node")),
            ("1 node".to_owned(), "65,244 nodes".to_owned())
        );
    }
}
