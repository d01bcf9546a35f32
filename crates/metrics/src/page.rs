use std::fmt::Write as _;

use railgate_model::Reading;

/// Metric type in Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Increases, or restarts from zero.
    Counter,
    /// Increases and decreases.
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

/// A metric family, read from a source `S`.
#[derive(Debug)]
pub struct Metric<S> {
    /// Name with the prefix `railgate_` and the unit: `railgate_gpu_power_watts`.
    pub name: &'static str,
    /// Metric type.
    pub kind: Kind,
    /// Label names, in the order of the values that `read` passes.
    pub labels: &'static [&'static str],
    /// One line of help, with the unit if the name has none.
    pub help: &'static str,
    /// Adds the samples of a source.
    pub read: fn(&S, &mut Series),
}

/// Samples of one metric family.
#[derive(Debug, Default)]
pub struct Series {
    samples: Vec<(Vec<String>, f64)>,
}

/// Limit of samples per family; more indicate an error and are dropped.
const MOST_SAMPLES: usize = 4096;

impl Series {
    /// Adds a sample. A value that is not finite counts as unknown and is dropped.
    pub fn put(&mut self, labels: &[&str], value: f64) {
        if value.is_finite() && self.samples.len() < MOST_SAMPLES {
            self.samples.push((labels.iter().map(|label| (*label).to_owned()).collect(), value));
        }
    }

    /// Adds a sample if the value is known.
    pub fn put_known<T: Copy>(&mut self, labels: &[&str], value: &Reading<T>, number: impl Fn(T) -> f64) {
        if let Some(value) = value.known() {
            self.put(labels, number(*value));
        }
    }

    /// Adds a sample if there is a value.
    pub fn put_some(&mut self, labels: &[&str], value: Option<f64>) {
        if let Some(value) = value {
            self.put(labels, value);
        }
    }
}

/// 1 for true, 0 for false, as is usual in Prometheus.
pub(super) fn flag(on: bool) -> f64 {
    f64::from(u8::from(on))
}

/// A count as floating point number, exact up to 2^53.
#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
pub(super) fn count(value: u64) -> f64 {
    value as f64
}

/// Text of all families of a table that have samples, each sample with the `common` labels first.
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
            // A duplicate series would make the collector reject the whole file.
            if seen.insert(line.clone()) {
                let _ = writeln!(text, "{line} {value}");
            }
        }
    }
    text
}

/// Escaped label value: shortened, without characters that break the line or control a terminal.
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

/// Rows of the table for the documentation page.
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
    fn label_value_cannot_break_its_line() {
        let said = text("a\"} 1\nrailgate_gate_verdict 1\\");
        assert_eq!(
            said,
            "# HELP railgate_test A test.\n# TYPE railgate_test gauge\n\
             railgate_test{job=\"7\",what=\"a\\\"} 1?railgate_gate_verdict 1\\\\\"} 1.5\n"
        );
    }

    #[test]
    fn unknown_values_and_duplicates_have_no_sample() {
        let said = text("x");
        assert_eq!(said.lines().filter(|line| !line.starts_with('#')).count(), 1, "{said}");
    }
}
