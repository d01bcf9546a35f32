//! Parses the output of a site check: JSON, or exit code and text as Nagios plugins have them.

use railgate_model::{Class, Severity};
use railgate_model::{SiteFinding, SiteOutcome};
use railgate_text::clip;
use serde::Deserialize;

/// Maximum number of findings; a check with more is truncated.
const MAX_FINDINGS: usize = 32;
const PART_CHARS: usize = 40;
const WHAT_CHARS: usize = 200;
const FIX_CHARS: usize = 40;

/// One finding in JSON. Unknown fields are ignored.
#[derive(Deserialize)]
struct Json {
    status: Status,
    #[serde(default)]
    part: String,
    #[serde(default)]
    what: String,
    #[serde(default)]
    fix: String,
    class: Option<Class>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Note,
    Unknown,
    #[serde(alias = "warning")]
    Warn,
    #[serde(alias = "critical")]
    Fail,
}

/// Parses the output of a program that ended with this exit code.
pub(super) fn outcome_of(code: i32, out: &str, err: &str) -> SiteOutcome {
    let worst = match code {
        0 => None,
        1 => Some(Severity::Warn),
        2 => Some(Severity::Fail),
        _ => Some(Severity::Unknown),
    };
    let text = out.trim();
    let mut findings = match text.bytes().next() {
        Some(b'{') => match serde_json::from_str::<Json>(text) {
            Ok(one) => from_json(vec![one]),
            Err(why) => return broken(code, &why),
        },
        Some(b'[') => match serde_json::from_str::<Vec<Json>>(text) {
            Ok(all) => from_json(all),
            Err(why) => return broken(code, &why),
        },
        _ => {
            let plain = worst.map(|severity| SiteFinding {
                severity,
                class: None,
                part: String::new(),
                what: line(code, text, err),
                fix: String::new(),
                proof: format!("exit code {code}"),
            });
            return SiteOutcome::Said(plain.into_iter().collect());
        }
    };
    // A check may fail after printing its result, or contradict its exit code; the worse of the two counts.
    if let Some(severity) = worst
        && findings.iter().all(|finding| finding.severity < severity)
    {
        findings.push(SiteFinding {
            severity,
            class: None,
            part: String::new(),
            what: format!("exit code {code}, worse than its JSON status"),
            fix: String::new(),
            proof: format!("exit code {code}"),
        });
    }
    SiteOutcome::Said(findings)
}

fn broken(code: i32, why: &serde_json::Error) -> SiteOutcome {
    SiteOutcome::Failed(format!(
        "exit code {code}, output is not valid site check JSON: {}",
        clip(&why.to_string(), 120)
    ))
}

fn from_json(all: Vec<Json>) -> Vec<SiteFinding> {
    let findings = all.into_iter().filter_map(|json| {
        let severity = match json.status {
            Status::Ok => return None,
            Status::Note => Severity::Note,
            Status::Unknown => Severity::Unknown,
            Status::Warn => Severity::Warn,
            Status::Fail => Severity::Fail,
        };
        let what = clip(&json.what, WHAT_CHARS);
        Some(SiteFinding {
            severity,
            class: json.class.filter(|class| *class != Class::Internal),
            part: part(&json.part),
            what: if what.is_empty() { format!("reports {severity}") } else { what },
            fix: clip(&json.fix, FIX_CHARS),
            proof: format!("status {severity}"),
        })
    });
    findings.take(MAX_FINDINGS).collect()
}

/// The first line, without performance data after a bar and without a status that repeats the exit code.
fn line(code: i32, out: &str, err: &str) -> String {
    const STATUS: [&str; 4] = ["OK", "WARNING", "CRITICAL", "UNKNOWN"];
    let first = |text: &str| text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned);
    let Some(text) = first(out).or_else(|| first(err)) else { return format!("exit code {code}") };
    let text = text.split('|').next().unwrap_or_default().trim();
    let has_status = |head: &str| head.split([' ', ':']).any(|word| STATUS.contains(&word));
    let rest = text
        .split_once(" - ")
        .or_else(|| text.split_once(": "))
        .filter(|(head, rest)| has_status(head) && !rest.trim().is_empty())
        .map_or(text, |(_, rest)| rest);
    let text = clip(rest, WHAT_CHARS);
    if text.is_empty() { format!("exit code {code}") } else { text }
}

/// A part is a single word.
fn part(text: &str) -> String {
    let word: String = text
        .trim()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._:/-".contains(c) { c } else { '-' })
        .collect();
    clip(&word, PART_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: i32, out: &str, err: &str) -> Vec<(Severity, String)> {
        match outcome_of(code, out, err) {
            SiteOutcome::Said(findings) => {
                findings.into_iter().map(|found| (found.severity, found.what)).collect()
            }
            other => vec![(Severity::Unknown, format!("{other:?}"))],
        }
    }

    #[test]
    fn exit_code_and_first_line_make_a_finding() {
        let one = |severity, what: &str| vec![(severity, what.to_owned())];
        assert_eq!(said(0, "OK - all fine", ""), []);
        assert_eq!(
            said(2, "RAID CRITICAL - md0 degraded | disks=7", ""),
            one(Severity::Fail, "md0 degraded")
        );
        assert_eq!(said(1, "WARNING: fan 3 at 900 rpm\nmore", ""), one(Severity::Warn, "fan 3 at 900 rpm"));
        assert_eq!(said(1, "fan 3: slow", ""), one(Severity::Warn, "fan 3: slow"));
        assert_eq!(said(3, "", ""), one(Severity::Unknown, "exit code 3"));
        assert_eq!(
            said(127, "", "\nsh: ipmitool: not found"),
            one(Severity::Unknown, "sh: ipmitool: not found")
        );
        assert_eq!(said(2, "CRITICAL - ", ""), one(Severity::Fail, "CRITICAL -"));
        assert_eq!(said(2, "a\tb\x1b[31m", ""), one(Severity::Fail, "a?b?[31m"));
    }

    #[test]
    fn json_makes_one_finding_per_object() {
        let text = r#"[{"status": "critical", "part": "psu 1", "what": "no input", "fix": "replace PSU", "class": "site"},
                       {"status": "ok"}, {"status": "warn", "rpm": 900}]"#;
        let SiteOutcome::Said(findings) = outcome_of(0, text, "") else { panic!() };
        assert_eq!(findings.len(), 2);
        let first = &findings[0];
        assert_eq!((first.severity, first.class), (Severity::Fail, Some(Class::Site)));
        assert_eq!(
            (first.part.as_str(), first.what.as_str(), first.fix.as_str()),
            ("psu-1", "no input", "replace PSU")
        );
        assert_eq!((findings[1].severity, findings[1].what.as_str()), (Severity::Warn, "reports warn"));
    }

    #[test]
    fn the_worse_of_exit_code_and_json_counts() {
        assert_eq!(said(2, r#"{"status": "ok"}"#, "").first().map(|found| found.0), Some(Severity::Fail));
        assert_eq!(said(1, r#"{"status": "fail", "what": "x"}"#, ""), [(Severity::Fail, "x".to_owned())]);
        assert_eq!(said(9, r#"{"status": "note"}"#, "").len(), 2);
    }

    #[test]
    fn invalid_json_is_never_healthy() {
        for text in ["{", r#"{"status": "green"}"#, "[1]", r#"{"what": "no status"}"#] {
            assert!(matches!(outcome_of(0, text, ""), SiteOutcome::Failed(_)), "{text}");
        }
    }

    #[test]
    fn the_class_internal_is_ignored() {
        let SiteOutcome::Said(findings) = outcome_of(0, r#"{"status": "fail", "class": "internal"}"#, "")
        else {
            panic!()
        };
        assert_eq!(findings[0].class, None);
    }
}
