//! The drain reason: `railgate: gpu-lost@3: 0000:9b:00.0 off bus, Xid 79; reboot [epilog job=48213]`.
//!
//! `sinfo -R` shows twenty characters, so check and part come first. The leader marks the drain as railgate's, and
//! the job ids tell the controller whose failure the node explains.

use std::fmt;

use railgate_model::{Finding, Phase};

/// Prefix of every reason by railgate.
pub const LEADER: &str = "railgate:";

/// Longest reason, characters.
pub const MAX_REASON: usize = 120;

/// A drain reason of railgate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// `gpu-lost@3`, or the check alone.
    pub subject: String,
    /// `0000:9b:00.0 off bus, Xid 79`.
    pub what: String,
    /// `reboot`.
    pub fix: String,
    /// Phase in which it was found.
    pub phase: Phase,
    /// Jobs affected, oldest first.
    pub jobs: Vec<u32>,
}

/// Whether railgate wrote a reason.
pub fn is_ours(text: &str) -> bool {
    text.starts_with(LEADER)
}

/// Checks whose findings make every job fail: a part of the node is gone.
const LOST: [&str; 2] = ["gpu-lost", "gpu-count"];

impl Reason {
    /// Whether a part of the node is gone, so that any job would fail. If slurmctld does not return how many nodes
    /// are drained, the cap counts as not reached for such a fault, and as reached for every other.
    pub fn lost(&self) -> bool {
        LOST.contains(&self.subject.split('@').next().unwrap_or_default())
    }

    /// The reason for a finding.
    pub fn new(finding: &Finding, phase: Phase, jobs: &[u32]) -> Self {
        let mut reason = Reason {
            subject: word(&finding.subject()),
            what: plain(&finding.what),
            fix: plain(&finding.fix),
            phase,
            jobs: Vec::new(),
        };
        for &job in jobs {
            reason.add_job(job);
        }
        reason
    }

    /// Adds an affected job; returns whether it was missing.
    pub fn add_job(&mut self, job: u32) -> bool {
        if self.jobs.contains(&job) {
            return false;
        }
        self.jobs.push(job);
        true
    }

    /// Parses a reason. `None` if railgate did not write it or its form was changed; by its leader such a drain is
    /// still railgate's ([`is_ours`]).
    ///
    /// # Example
    /// ```
    /// use railgate_slurm::Reason;
    ///
    /// let reason = Reason::parse("railgate: gpu-lost@3: off bus, Xid 79; reboot [epilog job=48213]");
    /// assert_eq!(reason.map(|reason| (reason.subject, reason.jobs)), Some(("gpu-lost@3".to_owned(), vec![48213])));
    /// ```
    pub fn parse(text: &str) -> Option<Reason> {
        let rest = text.strip_prefix(LEADER)?.trim_start();
        let (body, tail) = rest.strip_suffix(']')?.rsplit_once(" [")?;
        let (phase, jobs) = match tail.split_once(" job=") {
            Some((phase, ids)) => {
                (phase, ids.split(',').map(|id| id.parse().ok()).collect::<Option<Vec<u32>>>()?)
            }
            None => (tail, Vec::new()),
        };
        let phase =
            [Phase::Prolog, Phase::Epilog, Phase::Periodic].into_iter().find(|p| p.as_str() == phase)?;
        let (subject, body) = body.split_once(": ").unwrap_or((body, ""));
        let (what, fix) = body.rsplit_once("; ").unwrap_or((body, ""));
        let owned = str::to_owned;
        Some(Reason { subject: owned(subject), what: owned(what), fix: owned(fix), phase, jobs })
    }
}

/// The text for Slurm: at most [`MAX_REASON`] characters of plain ASCII. A longer text is cut: the observation first,
/// then the remedy; job ids only if they alone are too long, oldest first.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = cut(&word(&self.subject), 40);
        let head = format!("{LEADER} {subject}");
        let room = MAX_REASON - head.len();
        let mut jobs = self.jobs.as_slice();
        let tail = loop {
            let ids: Vec<String> = jobs.iter().map(u32::to_string).collect();
            let tail = match ids.is_empty() {
                true => format!(" [{}]", self.phase),
                false => format!(" [{} job={}]", self.phase, ids.join(",")),
            };
            match jobs.split_first() {
                Some((_, newer)) if tail.len() > room => jobs = newer,
                _ => break tail,
            }
        };
        // Room for `: what; fix`.
        let room = room - tail.len().min(room);
        let (what, fix) = (plain(&self.what), plain(&self.fix));
        let fix = cut(&fix, room.saturating_sub(4).min(40));
        let fix = if fix.is_empty() { String::new() } else { format!("; {fix}") };
        let what = cut(&what, room.saturating_sub(fix.len() + 2));
        f.write_str(&head)?;
        if room >= fix.len() + 2 && !(what.is_empty() && fix.is_empty()) {
            write!(f, ": {what}{fix}")?;
        }
        f.write_str(&tail)
    }
}

/// Printable ASCII with single blanks, without brackets, which would imitate the tail.
fn plain(text: &str) -> String {
    let clean: String = text
        .chars()
        .map(|c| match c {
            '[' => '(',
            ']' => ')',
            c if c.is_whitespace() => ' ',
            c => railgate_text::ascii(c),
        })
        .collect();
    clean.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

/// As [`plain`], without characters that end the subject.
fn word(text: &str) -> String {
    plain(text).replace(' ', "-").trim_end_matches(':').to_owned()
}

fn cut(text: &str, room: usize) -> String {
    // Plain ASCII, so bytes are characters.
    text.get(..room.min(text.len())).unwrap_or_default().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use railgate_model::{Class, Severity};

    use super::*;

    fn lost() -> Finding {
        Finding {
            check: "gpu-lost".to_owned(),
            part: "3".to_owned(),
            severity: Severity::Fail,
            class: Class::Node,
            what: "0000:9b:00.0 off bus, Xid 79".to_owned(),
            fix: "reboot".to_owned(),
            evidence: Vec::new(),
        }
    }

    #[test]
    fn a_reason_has_the_documented_form() {
        let mut reason = Reason::new(&lost(), Phase::Epilog, &[48213]);
        let text = "railgate: gpu-lost@3: 0000:9b:00.0 off bus, Xid 79; reboot [epilog job=48213]";
        assert_eq!(reason.to_string(), text);
        assert_eq!(Reason::parse(text).as_ref(), Some(&reason));
        assert!(reason.add_job(48214));
        assert!(!reason.add_job(48213));
        assert!(reason.to_string().ends_with("[epilog job=48213,48214]"));
        assert_eq!(
            Reason::new(&lost(), Phase::Periodic, &[]).to_string(),
            "railgate: gpu-lost@3: 0000:9b:00.0 off bus, Xid 79; reboot [periodic]"
        );
    }

    #[test]
    fn text_is_cut_before_job_ids() {
        let jobs: Vec<u32> = (4_000_000_000..4_000_000_006).collect();
        let text = Reason::new(&lost(), Phase::Epilog, &jobs).to_string();
        assert!(text.len() <= MAX_REASON, "{text}");
        assert_eq!(Reason::parse(&text).unwrap().jobs, jobs);
        let many: Vec<u32> = (4_000_000_000..4_000_000_020).collect();
        let text = Reason::new(&lost(), Phase::Epilog, &many).to_string();
        assert!(text.len() <= MAX_REASON, "{text}");
        assert!(text.starts_with("railgate: gpu-lost@3"), "{text}");
        assert_eq!(Reason::parse(&text).unwrap().jobs.last(), many.last());
    }

    #[test]
    fn reasons_of_others_and_of_broken_form_are_not_parsed() {
        for text in ["", "Prolog error", "railgate", "bad dimm railgate: x [epilog]"] {
            assert!(!is_ours(text), "{text}");
            assert_eq!(Reason::parse(text), None, "{text}");
        }
        for text in ["railgate: held by hand", "railgate: x [lunch]", "railgate: x [epilog job=1,]"] {
            assert!(is_ours(text), "{text}");
            assert_eq!(Reason::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_finding_gives_a_reason_with_all_job_ids(
            check in ".{0,60}", part in ".{0,30}", what in ".{0,200}", fix in ".{0,60}",
            jobs in prop::collection::btree_set(1u32..99_999_999, 0..6),
        ) {
            let finding = Finding { check, part, what, fix, ..lost() };
            let jobs: Vec<u32> = jobs.into_iter().collect();
            let text = Reason::new(&finding, Phase::Prolog, &jobs).to_string();
            prop_assert!(text.len() <= MAX_REASON);
            prop_assert!(text.bytes().all(|b| b == b' ' || b.is_ascii_graphic()));
            prop_assert!(is_ours(&text));
            let back = Reason::parse(&text).unwrap();
            prop_assert_eq!(&back.jobs, &jobs);
            prop_assert!(back.to_string().len() <= MAX_REASON);
        }
    }
}
