//! A report that can be shown to others: what names somebody or something, and what tells how fast, is not in it.
//!
//! Nothing is struck out of a whole report, where something could be overlooked: what is shown is chosen.

use serde_json::{Map, Value, json};

use crate::exits::ending;
use crate::next_step::next_steps;
use crate::text::screen::{self, Line};
use crate::{Attempt, EndKind, Ended, JobReport};

/// The report in its own words: without reasons that admins and Slurm give, lines of the kernel, what a site's checks
/// say and how they are called. Such text can hold any name.
fn in_own_words(report: &JobReport) -> JobReport {
    let mut own = report.clone();
    own.log = None;
    if let Some(view) = &mut own.slurm {
        view.state.truncate(view.state.find(' ').unwrap_or(view.state.len()));
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        view.reason.truncate(view.reason.find(|c| !word(c)).unwrap_or(view.reason.len()));
        view.name = None;
        view.down.iter_mut().for_each(|down| down.reason.clear());
    }
    let reason = own.slurm.as_ref().map(|view| view.reason.clone()).filter(|word| !word.is_empty());
    for attempt in &mut own.attempts {
        let ended = &attempt.ended;
        let how = match (ended.kind, &reason) {
            (EndKind::Waiting, Some(reason)) => format!("{} ({reason})", ended.kind.title()),
            _ => ending(attempt),
        };
        let mut proof = ended.proof.clone();
        proof.iter_mut().for_each(|proof| proof.what = own_word(&proof.what));
        attempt.ended = Ended { kind: ended.kind, why: format!("{how}."), proof, doubts: Vec::new() };
        if let Some(decision) = &mut attempt.decision {
            decision.why.clear();
            decision.nodes.iter_mut().for_each(|node| node.reason.clear());
        }
        let looks = attempt.nodes.iter_mut().flat_map(|node| [&mut node.prolog, &mut node.epilog]).flatten();
        for found in looks.flat_map(|look| &mut look.verdict.findings) {
            if found.check.starts_with("site-") {
                (found.check, found.part) = ("site".to_owned(), String::new());
            }
        }
    }
    own.ended = own.attempts.last().map_or_else(Ended::nothing_known, |attempt| attempt.ended.clone());
    own.next_steps = next_steps(&own);
    own
}

/// `gpu-lost@3`, `Xid 79`: what begins the line of a proof, where that is a word of ours.
fn own_word(what: &str) -> String {
    if let Some(code) = what.strip_prefix("Xid ") {
        let digits = code.find(|c: char| !c.is_ascii_digit()).unwrap_or(code.len());
        return format!("Xid {}", &code[..digits]);
    }
    let lead = what.split([':', ' ']).next().unwrap_or_default();
    let check = lead.split('@').next().unwrap_or_default();
    let is_check = check.contains('-')
        && check.bytes().all(|b| b.is_ascii_lowercase() || b == b'-' || b.is_ascii_digit());
    match is_check {
        true if check.starts_with("site-") => "site".to_owned(),
        true => lead.to_owned(),
        false => "evidence".to_owned(),
    }
}

/// What is not shown, and what stands for it.
#[derive(Debug)]
pub(crate) struct Cover {
    /// Longer ones first, so that none is cut in two.
    names: Vec<(String, String)>,
}

impl Cover {
    pub(crate) fn of(report: &JobReport) -> Self {
        let mut nodes: Vec<&str> = report
            .attempts
            .iter()
            .flat_map(|attempt| {
                let told = attempt.nodes.iter().map(|node| node.node.as_str());
                let decided = attempt.decision.iter().flat_map(|decision| &decision.nodes);
                let proven = attempt.ended.proof.iter().map(|proof| proof.node.as_str());
                told.chain(attempt.silent_nodes.iter().map(String::as_str))
                    .chain(decided.map(|node| node.node.as_str()))
                    .chain(proven)
            })
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        let number = |(place, name): (usize, &str)| (name.to_owned(), format!("node{}", place + 1));
        let mut names: Vec<(String, String)> = nodes.into_iter().enumerate().map(number).collect();
        let mut leafs: Vec<&String> = report.leafs.values().flat_map(|ports| ports.values()).collect();
        leafs.sort_unstable();
        leafs.dedup();
        names.extend((1..).zip(leafs).map(|(place, name)| (name.clone(), format!("leaf{place}"))));
        let ids = report.components.iter().copied().chain([report.job]);
        names.extend(ids.map(|id| (id.to_string(), "JOB".to_owned())));
        names.extend(report.uid.map(|uid| (uid.to_string(), "UID".to_owned())));
        for (name, stands) in
            [(&report.user, "USER"), (&report.cluster, "CLUSTER"), (&report.partition, "PARTITION")]
        {
            names.push((name.clone(), stands.to_owned()));
        }
        names.extend(report.name.iter().map(|name| (name.clone(), "NAME".to_owned())));
        // A path may hold blanks.
        names.extend(report.log.iter().map(|path| (path.clone(), "LOG".to_owned())));
        names.retain(|(name, _)| !name.is_empty());
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        Cover { names }
    }

    /// Without names, paths, addresses and rates.
    pub(crate) fn text(&self, text: &str) -> String {
        rateless(&self.nameless(text))
    }

    fn nameless(&self, text: &str) -> String {
        let part_of_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_');
        let mut out = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let begins = !part_of_word(out.chars().next_back());
            let hit = self.names.iter().find(|(name, _)| {
                begins
                    && rest.starts_with(name.as_str())
                    && !part_of_word(rest[name.len()..].chars().next())
                    && (!is_common(name) || CALL_A_JOB.iter().any(|word| out.ends_with(word)))
            });
            let taken = match hit {
                Some((name, stands)) => {
                    out.push_str(stands);
                    name.len()
                }
                None if begins && is_path(rest) => {
                    out.push_str("PATH");
                    rest.find(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | ')' | '\'' | '"'))
                        .unwrap_or(rest.len())
                }
                None => {
                    out.push(first);
                    first.len_utf8()
                }
            };
            rest = &rest[taken..];
        }
        out
    }

    /// The lines of the screen that can be shown.
    pub(crate) fn screen(&self, report: &JobReport) -> Vec<Line> {
        let report = &in_own_words(report);
        let lines = screen::whole(report).into_iter().filter_map(|(name, line)| {
            let line = match name {
                // Values that somebody has set, and what a network carries.
                "ENV" | "NCCL" | screen::TABLE => return None,
                "RAN" if report.ended.kind == EndKind::Waiting => return None,
                "RAN" => line.split_once(" attempt").map_or(String::new(), |(_, ran)| {
                    let attempts = match report.attempts.len() {
                        1 => "1 attempt".to_owned(),
                        count => format!("{count} attempts"),
                    };
                    format!("{attempts}, {}", ran.trim_start_matches(['s', ',', ' ']))
                }),
                "MODEL" => match (line.split_once(", "), line.rsplit_once(" [")) {
                    (Some((first, _)), Some((_, how))) => format!("{first} [{how}"),
                    _ => line,
                },
                _ => line,
            };
            Some((name, self.text(&line)))
        });
        lines.collect()
    }
}

/// What stands before the number of a job.
const CALL_A_JOB: [&str; 6] = ["job ", "-j ", "JobId=", "release ", "scancel ", "report "];

/// A number that anything can have: that of a young cluster's job.
fn is_common(name: &str) -> bool {
    name.len() < 4 && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// `/home/ann/x`, not the line between two numbers or words.
fn is_path(text: &str) -> bool {
    let mut after = text.chars().skip(1);
    text.starts_with('/') && after.next().is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_'))
}

/// Without what a network or a memory carries, and what a program does, in a second.
fn rateless(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let rate = |place: usize| {
        words.get(place).is_some_and(|word| {
            let word = word.trim_end_matches([';', ',', '.', ')', ':']);
            word.ends_with("B/s")
                || word.ends_with("tok/s")
                || word.ends_with("samples/s")
                || word.ends_with("FLOP/s")
        })
    };
    let kept = words.iter().enumerate().filter(|(place, _)| !rate(*place) && !rate(place + 1));
    kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ")
}

/// Why it ended, as it may be shown.
pub(crate) fn why(cover: &Cover, report: &JobReport) -> String {
    cover.text(&in_own_words(report).ended.why)
}

/// The report as JSON without names and rates; field names are those of the whole one (docs/report.md).
pub fn redacted_json(report: &JobReport) -> String {
    let cover = Cover::of(report);
    let own = in_own_words(report);
    let attempts: Vec<Value> = own.attempts.iter().map(|attempt| attempt_of(&cover, attempt)).collect();
    let screen: Vec<Value> =
        cover.screen(report).into_iter().map(|(name, line)| json!({"line": name, "text": line})).collect();
    let value = json!({
        "schema": report.schema,
        "railgate": report.railgate,
        "redacted": true,
        "ended": {"kind": report.ended.kind, "why": cover.text(&own.ended.why)},
        "attempts": attempts,
        "screen": screen,
    });
    // Its keys are strings.
    railgate_text::json_text(&value).unwrap_or_default() + "\n"
}

fn attempt_of(cover: &Cover, attempt: &Attempt) -> Value {
    let seconds = attempt.start.zip(attempt.end).map(|(start, end)| end.saturating_sub(start) / 1000);
    let analysis = attempt.analysis.as_ref().and_then(|analysis| serde_json::to_value(analysis).ok());
    json!({
        "attempt": attempt.attempt,
        "node_count": attempt.node_count,
        "seconds": seconds,
        "ended": {"kind": attempt.ended.kind, "why": cover.text(&attempt.ended.why)},
        "analysis": analysis.map(|analysis| covered(cover, analysis)),
    })
}

/// What the numbers mean holds texts, and a few rates and times.
fn covered(cover: &Cover, value: Value) -> Value {
    const RATES: [&str; 4] = ["units_per_s", "step_s", "flops_per_unit", "since"];
    match value {
        Value::String(text) => Value::String(cover.text(&text)),
        Value::Array(all) => Value::Array(all.into_iter().map(|one| covered(cover, one)).collect()),
        Value::Object(all) => {
            let kept = all.into_iter().filter(|(name, _)| !RATES.contains(&name.as_str()));
            Value::Object(kept.map(|(name, value)| (name, covered(cover, value))).collect::<Map<_, _>>())
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::large;
    use crate::{html, json, redacted, redacted_html, text};

    #[test]
    fn no_name_and_no_rate_is_left_in_any_form() {
        let mut report = large(4);
        report.user = "adalovelace".to_owned();
        report.cluster = "babbage".to_owned();
        report.partition = "difference".to_owned();
        report.name = Some("bernoulli".to_owned());
        report.uid = Some(20_341);
        report.job = 4_821_377;
        report.ended.why =
            "adalovelace on babbage: gn0002 lost /home/adalovelace/run/out.log at 338.0 GB/s, job 4821377"
                .to_owned();
        for node in report.attempts.iter_mut().flat_map(|attempt| &mut attempt.nodes) {
            node.job.user.clone_from(&report.user);
            node.faults.push("/scratch/secret/model.pt".to_owned());
        }
        if let Some(first) = report.attempts[1].analysis.as_mut() {
            first.diagnoses[0].what += " in /home/adalovelace/train.py (338 GB/s)";
        }
        let secrets = [
            "adalovelace",
            "babbage",
            "difference",
            "bernoulli",
            "20341",
            "4821377",
            "gn0002",
            "/home",
            "/scratch",
            "out.log",
            "train.py",
            "338",
            "GB/s",
            "tok/s",
            "units_per_s",
            "GPU-1-0",
        ];
        let mut whole = Vec::new();
        json(&report, &mut whole).unwrap();
        let whole = text(&report, true).to_string() + &String::from_utf8(whole).unwrap() + &html(&report);
        for secret in secrets {
            assert!(whole.contains(secret), "{secret} is not even in the whole one");
        }
        for (form, page) in [
            ("text", redacted(&report).into()),
            ("json", redacted_json(&report)),
            ("html", redacted_html(&report)),
        ] {
            for secret in secrets {
                assert!(!page.contains(secret), "{secret} in {form}:\n{page}");
            }
            assert!(
                page.contains("MFU") && page.contains("node4 GPU"),
                "{form}: nothing is left of it\n{page}"
            );
        }
        assert!(serde_json::from_str::<Value>(&redacted_json(&report)).is_ok());
    }

    /// Text of others at every place that has any, in a job without numbers.
    #[test]
    fn words_of_others_are_in_no_form_and_yet_it_is_whole() {
        use crate::testing::{decision, finding, job, lost_gpu, merged, part, slurm};
        use crate::{DecisionKind, DownNode, SlurmView};
        use railgate_model::{Class, JobRequest, Severity};
        let secret = "ask-bob about falcon9 on hydra77";
        let mut node = part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256);
        let site = finding("site-falcon", "hydra77", Severity::Fail, Class::Node, secret);
        node.epilog.as_mut().unwrap().verdict.findings.push(site);
        (node.usage, node.application, node.communication) = (None, None, None);
        let mut left = decision(0, DecisionKind::Left, 256);
        left.why = secret.to_owned();
        left.nodes[0].reason = secret.to_owned();
        let view = SlurmView {
            reason: format!("ReqNodeNotAvail,_UnavailableNodes:hydra77 {secret}"),
            name: Some("falcon9".to_owned()),
            request: JobRequest { log: Some("/home/bob/falcon9.log".to_owned()), ..JobRequest::default() },
            down: vec![DownNode { node: "hydra77".to_owned(), since: 1, reason: secret.to_owned() }],
            ..slurm("FAILED").unwrap()
        };
        let mut report = merged(vec![node], vec![left], Some(view));
        for attempt in &mut report.attempts {
            attempt.analysis = None;
            attempt.ended.proof.iter_mut().for_each(|proof| proof.what = format!("gpu-lost@3: {secret}"));
            attempt.ended.doubts.push(secret.to_owned());
            attempt.ended.why = secret.to_owned();
        }
        report.ended = report.attempts[0].ended.clone();
        for (form, page) in [
            ("text", redacted(&report).into()),
            ("json", redacted_json(&report)),
            ("html", redacted_html(&report)),
        ] {
            for word in ["bob", "falcon", "hydra77", "/home", "48213", "n1"] {
                assert!(!page.contains(word), "{word} in {form}:\n{page}");
            }
            for word in
                ["hardware fault during the run, exit code 1", "gpu-lost@3", "node1", "left as it was"]
            {
                assert!(page.contains(word), "no '{word}' in {form}:\n{page}");
            }
        }
    }

    #[test]
    fn only_whole_words_are_names() {
        let mut report = large(2);
        (report.user, report.partition) = ("n".to_owned(), String::new());
        let cover = Cover::of(&report);
        report.job = 2;
        let young = Cover::of(&report);
        assert_eq!(young.text("#2 of 2: scancel 2, sacct -j 2"), "#2 of 2: scancel JOB, sacct -j JOB");
        assert_eq!(cover.text("gn0001 gn00011 mean n and/or 3/4"), "node1 gn00011 mean USER and/or 3/4");
    }
}
