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

/// `1 node`, `2 nodes`.
pub(crate) fn plural(number: usize, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// A number with about three digits.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
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
        @if all > shown { p.soft { "and " (all - shown) " more: " code { (command) } } }
    }
}
