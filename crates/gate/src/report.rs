use std::time::Duration;

use railgate_model::{Class, Evidence, Finding, Reading, Severity, UnixMillis};

/// Names of processes, mount errors and kernel lines come from outside; none is longer than this.
const MAX_TEXT: usize = 240;

/// What one check writes down.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    check: &'a str,
    findings: Vec<(Finding, Option<Passing>)>,
}

/// A `fail` that counts only when it is seen again within `window`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passing {
    pub(crate) window: Duration,
    /// When the driver wrote it, where each record is a sight of its own; empty where each check run is.
    pub(crate) written: Vec<UnixMillis>,
}

impl<'a> Report<'a> {
    pub(crate) fn new(check: &'a str) -> Self {
        Report { check, findings: Vec::new() }
    }

    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.into_timed().map(|(finding, _)| finding).collect()
    }

    /// Each with the window in which it must be seen again, where one sight is not enough.
    pub(crate) fn into_timed(self) -> impl Iterator<Item = (Finding, Option<Passing>)> {
        self.findings.into_iter()
    }

    /// Adds a finding under this check's id, with characters that are not printable replaced and texts cut to size.
    pub(crate) fn add(&mut self, found: Found) {
        self.add_as(self.check, found);
    }

    /// The same under another id: one row of the register stands for all of the site's own checks.
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

    /// The value of a reading. A failed one becomes an `unknown` finding, so that no check can forget it;
    /// an unsupported one is `None` without a finding.
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

/// A finding on its way into a [`Report`].
#[derive(Debug)]
pub(crate) struct Found(Finding, Option<Passing>);

impl Found {
    /// `part` is a GPU index, a device, a path, or empty for the whole node.
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

    /// What to do, in two or three words.
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Found {
        self.0.fix = fix.into();
        self
    }

    /// It may pass by itself, though not all that its check finds may: a `fail` must be seen again within `window`.
    pub(crate) fn may_pass(mut self, window: Duration) -> Found {
        self.1 = Some(Passing { window, written: Vec::new() });
        self
    }

    /// It rests on one source, records written at these times: a `fail` must be written again within `window`. A record that is
    /// read twice counts once.
    pub(crate) fn sign(mut self, window: Duration, written: Vec<UnixMillis>) -> Found {
        self.1 = Some(Passing { window, written });
        self
    }

    pub(crate) fn severity(&self) -> Severity {
        self.0.severity
    }

    /// At most a warning, and why.
    pub(crate) fn only_warn(mut self, why: &str) -> Found {
        self.0.severity = self.0.severity.min(Severity::Warn);
        self.0.what.push_str(", ");
        self.0.what.push_str(why);
        self
    }

    /// The same for a GPU that this job does not hold: a warning, but no reason to stop this job.
    pub(crate) fn another_jobs(mut self) -> Found {
        self.0.severity = self.0.severity.min(Severity::Warn);
        self.0.what.push_str(" (not this job's)");
        self
    }

    /// The same if it is not known whether the part is this job's.
    pub(crate) fn shared(mut self) -> Found {
        self.0.severity = self.0.severity.min(Severity::Warn);
        self.0.what.push_str(" (maybe not this job's)");
        self
    }

    /// The same if the finding is not certain.
    pub(crate) fn only_unknown(mut self, why: &str) -> Found {
        self.0.severity = self.0.severity.min(Severity::Unknown);
        self.0.what.push_str(", ");
        self.0.what.push_str(why);
        self
    }

    /// A row of proof.
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
