use std::time::Duration;

use railgate_model::{Class, Evidence, Finding, Reading, Severity, UnixMillis};

/// Maximum length of texts in findings, in characters. Process names, mount errors and kernel lines come from outside.
const MAX_TEXT: usize = 240;

/// Collects the findings of one check.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    check: &'a str,
    findings: Vec<(Finding, Option<Passing>)>,
}

/// A `fail` that counts only if it is seen again within `window`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passing {
    pub(crate) window: Duration,
    /// The times of the driver's records, if each record counts as one sighting; empty if each check run does.
    pub(crate) written: Vec<UnixMillis>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(check: &'a str) -> Self {
        Report { check, findings: Vec::new() }
    }

    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.into_timed().map(|(finding, _)| finding).collect()
    }

    /// The findings, each with the window in which it must be seen again if it is transient.
    pub(crate) fn into_timed(self) -> impl Iterator<Item = (Finding, Option<Passing>)> {
        self.findings.into_iter()
    }

    /// Adds a finding under this check's id. Replaces characters that are not printable, and truncates long texts.
    pub(crate) fn add(&mut self, found: Found) {
        self.add_as(self.check, found);
    }

    /// Adds a finding under another id, since one row of the register stands for all site checks.
    pub(crate) fn add_as(&mut self, check: &str, found: Found) {
        let Found(mut finding, passing) = found;
        finding.check = printable(check);
        for text in [&mut finding.part, &mut finding.what, &mut finding.fix] {
            *text = printable(text);
        }
        for row in &mut finding.evidence {
            for text in [&mut row.what, &mut row.got, &mut row.want, &mut row.source] {
                *text = printable(text);
            }
        }
        self.findings.push((finding, passing));
    }

    /// Returns the value of a reading. A failed reading adds an `unknown` finding, so that no check can ignore it; an
    /// unsupported one returns `None` without a finding.
    pub(crate) fn value<'r, T>(
        &mut self,
        part: &str,
        what: &str,
        source: &str,
        reading: &'r Reading<T>,
    ) -> Option<&'r T> {
        match reading {
            Reading::Known(value) => Some(value),
            Reading::Unsupported => None,
            Reading::Failed(why) => {
                self.add(
                    Found::unknown(Class::Node, part, format!("{what} unreadable: {why}"))
                        .row(what, format!("unknown ({why})"), "a value", source)
                        .fix("check driver"),
                );
                None
            }
        }
    }
}

/// A finding under construction.
#[derive(Debug)]
pub(crate) struct Found(Finding, Option<Passing>);

impl Found {
    /// Creates a finding. `part` is a GPU index, a device, a path, or empty for the whole node.
    pub(crate) fn new(
        severity: Severity,
        class: Class,
        part: impl Into<String>,
        what: impl Into<String>,
    ) -> Found {
        let finding = Finding {
            check: String::new(),
            part: part.into(),
            severity,
            class,
            what: what.into(),
            fix: String::new(),
            evidence: Vec::new(),
        };
        Found(finding, None)
    }

    pub(crate) fn fail(class: Class, part: impl Into<String>, what: impl Into<String>) -> Found {
        Found::new(Severity::Fail, class, part, what)
    }

    pub(crate) fn warn(class: Class, part: impl Into<String>, what: impl Into<String>) -> Found {
        Found::new(Severity::Warn, class, part, what)
    }

    pub(crate) fn unknown(class: Class, part: impl Into<String>, what: impl Into<String>) -> Found {
        Found::new(Severity::Unknown, class, part, what)
    }

    pub(crate) fn note(class: Class, part: impl Into<String>, what: impl Into<String>) -> Found {
        Found::new(Severity::Note, class, part, what)
    }

    /// Sets what to do, in two or three words.
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Found {
        self.0.fix = fix.into();
        self
    }

    /// Marks the finding as transient, where not all findings of its check are: a `fail` must be seen again within
    /// `window`.
    pub(crate) fn may_pass(mut self, window: Duration) -> Found {
        self.1 = Some(Passing { window, written: Vec::new() });
        self
    }

    /// Marks the finding as resting on one source, records logged at these times: a `fail` must be logged again within
    /// `window`. A record that is read twice counts once.
    pub(crate) fn sign(mut self, window: Duration, written: Vec<UnixMillis>) -> Found {
        self.1 = Some(Passing { window, written });
        self
    }

    pub(crate) fn severity(&self) -> Severity {
        self.0.severity
    }

    /// Limits the severity to a warning and adds the reason.
    pub(crate) fn only_warn(mut self, why: &str) -> Found {
        self.0.severity = self.0.severity.min(Severity::Warn);
        self.0.what.push_str(", ");
        self.0.what.push_str(why);
        self
    }

    /// For a GPU that this job does not hold: a warning that does not stop this job.
    pub(crate) fn another_jobs(mut self) -> Found {
        self.0.severity = self.0.severity.min(Severity::Warn);
        self.0.what.push_str(" (not this job's)");
        self
    }

    /// For a part that may not be one of this job's.
    pub(crate) fn shared(mut self) -> Found {
        self.0.severity = self.0.severity.min(Severity::Warn);
        self.0.what.push_str(" (maybe not this job's)");
        self
    }

    /// For a finding that is not certain: the severity becomes `unknown`.
    pub(crate) fn only_unknown(mut self, why: &str) -> Found {
        self.0.severity = self.0.severity.min(Severity::Unknown);
        self.0.what.push_str(", ");
        self.0.what.push_str(why);
        self
    }

    /// Adds a row of evidence.
    pub(crate) fn row(
        mut self,
        what: impl Into<String>,
        got: impl Into<String>,
        want: impl Into<String>,
        source: impl Into<String>,
    ) -> Found {
        self.0.evidence.push(Evidence {
            what: what.into(),
            got: got.into(),
            want: want.into(),
            source: source.into(),
        });
        self
    }
}

fn printable(text: &str) -> String {
    railgate_text::clip(text, MAX_TEXT)
}
