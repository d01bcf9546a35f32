//! A report that can be shown to others: without identities, foreign text, and rates.
//!
//! Identities are replaced in a copy of the report before any sentence is built. Sentences of a redacted report
//! are therefore complete, and names that a sentence shortens or quotes do not leak. Rates and times of day are
//! separate spans in the rows of [`crate::view`], or fields of the analysis.

use std::collections::{BTreeMap, BTreeSet};

use railgate_diagnosis::{Analysis, DEGRADED_RAIL, RAIL_IMBALANCE};
use railgate_model::{Finding, PartName, PciAddress, Reading};
use railgate_node_report::{HangActKind, NodeReport};
use serde_json::{Map, Value, json};

use crate::exits::ending;
use crate::job_report::analysis;
use crate::next_step::next_steps;
use crate::view::{DiagnosisRow, diagnoses, screen};
use crate::why::{Source, known_reason, source};
use crate::{Attempt, EndKind, Ended, JobReport, Proof};

/// Placeholder of the job id.
const JOB: &str = "JOB";

/// Contents of a redacted report, in every format.
#[derive(Debug)]
pub(crate) struct Redacted {
    /// How the job ended, as a kind.
    pub(crate) kind: EndKind,
    /// How the job ended, as a sentence.
    pub(crate) why: String,
    /// First screen without its private spans: name and text.
    pub(crate) screen: Vec<(&'static str, String)>,
    /// Findings of the diagnosis rules.
    pub(crate) diagnoses: Vec<DiagnosisRow>,
    attempts: Vec<Attempt>,
}

/// Redacts a report.
pub(crate) fn redact(report: &JobReport) -> Redacted {
    let covered = covered(report);
    let rows = screen::whole(&covered).into_iter().map(|row| (row.name, row.open()));
    Redacted {
        kind: covered.ended.kind,
        why: covered.ended.why.clone(),
        screen: rows.filter(|(_, text)| !text.is_empty()).collect(),
        diagnoses: diagnoses(&covered),
        attempts: covered.attempts,
    }
}

/// A copy with pseudonyms for nodes, leaf switches and the job, without foreign text: reasons by admins and
/// Slurm, kernel lines, texts of site checks, names set by programs. Everything derived from them is computed
/// again.
fn covered(report: &JobReport) -> JobReport {
    let names = Pseudonyms::of(report);
    let mut own = report.clone();
    for text in [&mut own.user, &mut own.partition, &mut own.cluster] {
        text.clear();
    }
    (own.name, own.log, own.uid, own.first_error) = (None, None, None, None);
    own.components.clear();
    own.leafs = names.leafs(report);
    let reason = report.slurm.as_ref().and_then(|view| known_reason(&view.reason));
    if let Some(view) = &mut own.slurm {
        view.name = None;
        view.required.iter_mut().for_each(|node| names.cover(node));
        view.down.clear();
    }
    let mut reached = None;
    for (attempt, whole) in own.attempts.iter_mut().zip(&report.attempts) {
        names.cover_attempt(attempt, whole);
        let ended = &whole.ended;
        let how = match (ended.kind, reason) {
            (EndKind::Waiting, Some(reason)) => format!("{} ({reason})", ended.kind.title()),
            _ => ending(attempt),
        };
        let proof = ended.proof.iter().map(|proof| Proof {
            time: proof.time,
            node: names.node(&proof.node),
            what: open_source(whole, proof),
        });
        attempt.ended =
            Ended { kind: ended.kind, why: format!("{how}."), proof: proof.collect(), doubts: Vec::new() };
        let again = analysis(attempt, &mut reached, &report.rules);
        attempt.analysis = whole.analysis.as_ref().and(again).map(open_analysis);
    }
    own.ended = own.attempts.last().map_or_else(Ended::nothing_known, |attempt| attempt.ended.clone());
    own.next_steps = next_steps(&own, &JOB);
    own
}

/// Names and their pseudonyms.
struct Pseudonyms<'r> {
    nodes: BTreeMap<&'r str, String>,
    leafs: BTreeMap<&'r str, String>,
}

impl<'r> Pseudonyms<'r> {
    fn of(report: &'r JobReport) -> Self {
        let mut nodes: BTreeSet<&str> = BTreeSet::new();
        for attempt in &report.attempts {
            nodes.extend(attempt.nodes.iter().map(|node| node.node.as_str()));
            nodes.extend(attempt.silent_nodes.iter().map(String::as_str));
            let decided = attempt.decision.iter().flat_map(|decision| &decision.nodes);
            nodes.extend(decided.map(|node| node.node.as_str()));
            nodes.extend(attempt.ended.proof.iter().map(|proof| proof.node.as_str()));
            nodes.extend(attempt.down.iter().map(|down| down.node.as_str()));
        }
        nodes.extend(report.slurm.iter().flat_map(|view| &view.required).map(String::as_str));
        let leafs: BTreeSet<&str> =
            report.leafs.values().flat_map(BTreeMap::values).map(String::as_str).collect();
        let numbered = |names: BTreeSet<&'r str>, stands: &str| {
            let names = names.into_iter().filter(|name| !name.is_empty());
            (1..).zip(names).map(|(place, name)| (name, format!("{stands}{place}"))).collect()
        };
        Pseudonyms { nodes: numbered(nodes, "node"), leafs: numbered(leafs, "leaf") }
    }

    fn node(&self, name: &str) -> String {
        self.nodes.get(name).cloned().unwrap_or_else(|| "node".to_owned())
    }

    fn cover(&self, name: &mut String) {
        *name = self.node(name);
    }

    fn leafs(&self, report: &JobReport) -> BTreeMap<String, BTreeMap<String, String>> {
        let leaf = |name: &String| self.leafs.get(name.as_str()).cloned().unwrap_or_default();
        let of_node = report.leafs.iter().map(|(node, ports)| {
            (self.node(node), ports.iter().map(|(port, name)| (port.clone(), leaf(name))).collect())
        });
        of_node.collect()
    }

    fn cover_attempt(&self, attempt: &mut Attempt, whole: &Attempt) {
        attempt.nodelist.clear();
        attempt.first_error = None;
        attempt.stacks.clear();
        attempt.recorded.clear();
        attempt.ras.clear();
        attempt.hang_gpus.clear();
        attempt.down.clear();
        attempt.silent_nodes.iter_mut().chain(&mut attempt.spares).for_each(|node| self.cover(node));
        if let Some(decision) = &mut attempt.decision {
            decision.why.clear();
            decision.discounted.clear();
            for node in &mut decision.nodes {
                self.cover(&mut node.node);
                node.reason.clear();
            }
        }
        for (node, whole) in attempt.nodes.iter_mut().zip(&whole.nodes) {
            self.cover(&mut node.node);
            node.launched = None;
            let alone = whole.job.nodelist == whole.node;
            node.job.nodelist = if alone { node.node.clone() } else { String::new() };
            node.job.user.clear();
            node.job.partition.clear();
            node.acts.iter_mut().for_each(|act| act.detail.clear());
            let looks = [&mut node.prolog, &mut node.epilog].into_iter().flatten();
            for found in looks.flat_map(|look| &mut look.verdict.findings) {
                (found.check, found.part) = open_names(whole, found);
                (found.what, found.fix) = (String::new(), String::new());
                found.evidence.clear();
            }
            let told = node.application.iter_mut().flat_map(|told| &mut told.ranks);
            for model in told.filter_map(|rank| rank.model.as_mut()).filter(|model| !is_type(&model.dtype)) {
                "another type".clone_into(&mut model.dtype);
            }
            for hang in node.hangs.iter_mut().flat_map(|hangs| &mut hangs.list) {
                hang.signs.clear();
                hang.ports_down.clear();
                // It may quote Slurm's comment of a node.
                if let Some(act) = hang.act.as_mut().filter(|act| act.what == HangActKind::NotEnded) {
                    "a limit of the cluster, or Slurm did not answer".clone_into(&mut act.why);
                }
                hang.culprits.iter_mut().for_each(|one| one.kernel = None);
                let culprits = hang.culprits.iter_mut().filter_map(|one| one.node.as_mut());
                hang.gpu_errors.iter_mut().for_each(|error| error.time = 0);
                let errors = hang.gpu_errors.iter_mut().filter_map(|error| error.node.as_mut());
                culprits.chain(errors).for_each(|node| self.cover(node));
                hang.operation = hang.operation.take().filter(|operation| is_operation(&operation.op));
            }
            let comms = node.communication.iter_mut().flat_map(|comm| &mut comm.communicators);
            for last in comms.filter_map(|one| one.last.as_mut()).filter(|last| !is_operation(&last.op)) {
                "another operation".clone_into(&mut last.op);
            }
        }
    }
}

/// Whether a name is that of a data type. Any other name is text of the program.
fn is_type(name: &str) -> bool {
    ["", "bf16", "fp16", "tf32", "fp8", "fp4", "fp32", "fp64", "int8"].contains(&name)
}

/// Whether a name is that of an NCCL operation.
fn is_operation(name: &str) -> bool {
    railgate_rankfile::OPERATIONS.contains(&name)
}

/// Check and part of a finding, made anonymous. Sites choose the names of their checks, and a part may be a
/// path.
fn open_names(node: &NodeReport, found: &Finding) -> (String, String) {
    if found.check.starts_with("site-") {
        return ("site".to_owned(), String::new());
    }
    let is_port = |part: &str| {
        let mut ports = node.ports.iter().map(|port| (port.hca.as_str(), port.port));
        ports.any(|(hca, port)| part == hca || part == format!("{hca}:{port}"))
    };
    let is_part = |part: &str| serde_json::from_value::<PartName>(Value::from(part)).is_ok();
    let part = Some(found.part.as_str()).filter(|part| {
        part.parse::<u32>().is_ok() || part.parse::<PciAddress>().is_ok() || is_port(part) || is_part(part)
    });
    (found.check.clone(), part.unwrap_or_default().to_owned())
}

/// Source of a proof, `gpu-lost@3` or `Xid 79`, if its name is one of railgate's.
fn open_source(attempt: &Attempt, proof: &Proof) -> String {
    match source(attempt, proof) {
        Some((node, Source::Finding(found))) => {
            let (check, part) = open_names(node, found);
            if part.is_empty() { check } else { format!("{check}@{part}") }
        }
        Some((_, Source::Xid(code))) => format!("Xid {code}"),
        Some((_, Source::OutOfMemory)) => "oom-kill".to_owned(),
        None => "evidence".to_owned(),
    }
}

/// The analysis without rates and times of day, and without the text of driver errors.
fn open_analysis(mut analysis: Analysis) -> Analysis {
    for one in &mut analysis.diagnoses {
        let open = match one.rule.as_str() {
            RAIL_IMBALANCE => "carries far less than the node's other rails",
            DEGRADED_RAIL => "carried nothing for a time, while the node's other rails carried traffic",
            _ => continue,
        };
        one.what = format!("{} {open}", one.part);
    }
    let whole = match &mut analysis.hardware {
        Reading::Known(hardware) => Some(hardware),
        Reading::Unsupported | Reading::Failed(_) => None,
    };
    for hardware in whole.into_iter().chain(&mut analysis.training) {
        for reading in [
            &mut hardware.tensor_fraction,
            &mut hardware.busy_percent,
            &mut hardware.sm_percent,
            &mut hardware.dram_percent,
            &mut hardware.sm_clock_mhz,
            &mut hardware.power_w,
        ] {
            if let Reading::Failed(why) = reading {
                "it could not be read".clone_into(why);
            }
        }
    }
    analysis
}

/// The report as JSON without names and rates; field names are those of the complete report (docs/report.md).
pub fn redacted_json(report: &JobReport) -> String {
    let shown = redact(report);
    let attempts: Vec<Value> = shown.attempts.iter().map(attempt_of).collect();
    let screen: Vec<Value> =
        shown.screen.iter().map(|(name, line)| json!({"line": name, "text": line})).collect();
    let value = json!({
        "schema": report.schema,
        "railgate": report.railgate,
        "redacted": true,
        "ended": {"kind": shown.kind, "why": shown.why},
        "attempts": attempts,
        "screen": screen,
    });
    // All keys are strings, so this cannot fail.
    railgate_text::json_text(&value).unwrap_or_default() + "\n"
}

fn attempt_of(attempt: &Attempt) -> Value {
    let seconds = attempt.start.zip(attempt.end).map(|(start, end)| end.saturating_sub(start) / 1000);
    let analysis = attempt.analysis.as_ref().and_then(|analysis| serde_json::to_value(analysis).ok());
    json!({
        "attempt": attempt.attempt,
        "node_count": attempt.node_count,
        "seconds": seconds,
        "ended": {"kind": attempt.ended.kind, "why": attempt.ended.why},
        "analysis": analysis.map(without_rates),
    })
}

/// Removes fields that are rates or times of day.
fn without_rates(value: Value) -> Value {
    const RATES: [&str; 4] = ["units_per_s", "step_s", "flops_per_unit", "since"];
    match value {
        Value::Array(all) => Value::Array(all.into_iter().map(without_rates).collect()),
        Value::Object(all) => {
            let kept = all.into_iter().filter(|(name, _)| !RATES.contains(&name.as_str()));
            Value::Object(kept.map(|(name, value)| (name, without_rates(value))).collect::<Map<_, _>>())
        }
        value => value,
    }
}

#[cfg(test)]
mod tests {
    use railgate_node_report::{Culprit, GpuError, Hang, HangKind, Hangs};

    use super::*;
    use crate::testing::large;
    use crate::{html, json, redacted, redacted_html, text};

    #[test]
    fn no_name_or_rate_remains_in_any_format() {
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
        let elsewhere = Some("gn0002".to_owned());
        let error =
            GpuError { node: elsewhere.clone(), ..GpuError::new(3, 79, "", 1_700_000_000_000).unwrap() };
        let hang = Hang {
            kind: HangKind::GpuError,
            culprits: vec![Culprit { node: elsewhere, ..Culprit::default() }],
            gpu_errors: vec![error],
            ..railgate_node_report::testing::hang(1_700_000_000_000)
        };
        report.attempts[1].nodes[0].hangs = Some(Hangs { list: vec![hang], more: 0 });
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
            "22:13:20",
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
            assert!(form == "json" || page.contains("GPU 3 on node2 reported Xid 79"), "{form}:\n{page}");
            assert!(
                page.contains("MFU") && page.contains("node4 GPU"),
                "{form}: nothing is left of it\n{page}"
            );
        }
        assert!(serde_json::from_str::<Value>(&redacted_json(&report)).is_ok());
    }

    /// Foreign text in every place that accepts any, in a job without figures.
    #[test]
    fn foreign_text_is_removed_and_the_report_stays_complete() {
        use railgate_node_report::testing::{decision, finding, job, lost_gpu, part};
        use railgate_node_report::{DecisionKind, DownNode, SlurmView};

        use crate::testing::{merged, slurm};
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
            for word in ["hardware fault during the run, exit code 1", "gpu-lost@3", "node1", "not requeued"]
            {
                assert!(page.contains(word), "no '{word}' in {form}:\n{page}");
            }
        }
    }
}
