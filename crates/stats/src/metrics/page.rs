use std::fmt::Write as _;

use railgate_model::Reading;

/// What Prometheus does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up, or begins anew.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }
}

/// One metric family of a source `S`.
#[derive(Debug)]
pub struct Metric<S> {
    /// With `railgate_` and its unit: `railgate_gpu_power_watts`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Names of its own labels, in the order of the values that `read` puts.
    pub labels: &'static [&'static str],
    /// One line for a person, with the unit where the name has none.
    pub help: &'static str,
    /// Puts its samples.
    pub read: fn(&S, &mut Series),
}

/// The samples of one family.
#[derive(Debug, Default)]
pub struct Series {
    samples: Vec<(Vec<String>, f64)>,
}

/// A family with more samples than this is a mistake: the rest is left out.
const MOST_SAMPLES: usize = 4096;

impl Series {
    /// One sample. What is no number is not known, and has none.
    pub fn put(&mut self, labels: &[&str], value: f64) {
        if value.is_finite() && self.samples.len() < MOST_SAMPLES {
            self.samples.push((labels.iter().map(|label| (*label).to_owned()).collect(), value));
        }
    }

    /// One sample, where it is known.
    pub fn put_known<T: Copy>(&mut self, labels: &[&str], value: &Reading<T>, number: impl Fn(T) -> f64) {
        if let Some(value) = value.known() {
            self.put(labels, number(*value));
        }
    }

    /// One sample, where there is one.
    pub fn put_some(&mut self, labels: &[&str], value: Option<f64>) {
        if let Some(value) = value {
            self.put(labels, value);
        }
    }
}

/// 1 for true, as Prometheus has it.
pub(super) fn flag(on: bool) -> f64 {
    f64::from(u8::from(on))
}

/// A count. Prometheus knows floating point only: exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
pub(super) fn count(value: u64) -> f64 {
    value as f64
}

/// The text of all families of a table that have samples. `common` labels come first in each.
pub(super) fn page<S>(table: &[Metric<S>], source: &S, common: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for metric in table {
        let mut series = Series::default();
        (metric.read)(source, &mut series);
        if series.samples.is_empty() {
            continue;
        }
        let Metric { name, kind, help, labels, .. } = metric;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
        let mut seen = std::collections::BTreeSet::new();
        for (values, value) in series.samples {
            let mut line = String::from(*name);
            let own = labels.iter().copied().zip(values.iter().map(String::as_str));
            for (index, (label, content)) in common.iter().copied().chain(own).enumerate() {
                line.push(if index == 0 { '{' } else { ',' });
                let _ = write!(line, "{label}=\"{}\"", escaped(content));
            }
            if line.len() > name.len() {
                line.push('}');
            }
            // The same series twice would cost the whole file.
            if seen.insert(line.clone()) {
                let _ = writeln!(text, "{line} {value}");
            }
        }
    }
    text
}

/// A label's value: what would break the line or a reader's terminal is removed, and it is short.
fn escaped(value: &str) -> String {
    const MOST: usize = 128;
    let mut text = String::new();
    for c in value.chars().take(MOST) {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            c => text.push(railgate_text::shown(c)),
        }
    }
    text
}

/// The table's rows for the page of documentation.
pub(super) fn rows<S>(table: &[Metric<S>]) -> String {
    let mut text = String::new();
    for Metric { name, kind, labels, help, .. } in table {
        let labels = labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(" ");
        let _ = writeln!(text, "| `{name}` | {} | {labels} | {help} |", kind.name());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> String {
        const TABLE: &[Metric<String>] = &[Metric {
            name: "railgate_test",
            kind: Kind::Gauge,
            labels: &["what"],
            help: "A test.",
            read: |value, series| {
                series.put(&[value], 1.5);
                series.put(&[value], 2.0);
                series.put(&["nothing"], f64::NAN);
                series.put_known(&["failed"], &Reading::Failed::<f64>("no".to_owned()), |value| value);
            },
        }];
        page(TABLE, &value.to_owned(), &[("job", "7")])
    }

    #[test]
    fn a_label_cannot_leave_its_line() {
        let said = text("a\"} 1\nrailgate_gate_verdict 1\\");
        assert_eq!(
            said,
            "# HELP railgate_test A test.\n# TYPE railgate_test gauge\n\
             railgate_test{job=\"7\",what=\"a\\\"} 1?railgate_gate_verdict 1\\\\\"} 1.5\n"
        );
    }

    #[test]
    fn what_is_not_known_has_no_sample_and_none_stands_twice() {
        let said = text("x");
        assert_eq!(said.lines().filter(|line| !line.starts_with('#')).count(), 1, "{said}");
    }
}
