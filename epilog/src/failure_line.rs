//! The last line in a failed job's own output: whether the hardware or the program caused the failure, if this node
//! knows.
//!
//! A child that has become the job's owner writes it, to an existing regular file: root opens no file of a user. Each
//! node reports only its own evidence, so a missing line has no meaning.

use std::thread::sleep;
use std::time::{Duration, Instant};

use railgate_model::{Finding, PREFLIGHT_CHECK, Severity};
use railgate_node_report::NodeReport;
use railgate_node_report::application::AppEventKind;
use railgate_runner::{Hook, acting, append_to_output};
use railgate_slurm::hostlist::expand;
use railgate_slurm::{Acting, Client};
use railgate_store::{Asked, NodeWord, load_words, programs_xid as programs_xid_on};

/// Deadline of all Slurm commands for this line.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for the reports of the nodes before this one, whose epilogs start at the same time.
const COMPANY: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(250);
/// With more nodes before this one no line is written, since each node with evidence would read the reports of all.
const MOST_BEFORE: usize = 256;

/// Writes the line, if there is evidence and railgate may act.
pub(crate) fn say(hook: &Hook, report: &NodeReport) {
    if !matches!(acting(&hook.config, &hook.places), Acting::Allowed) {
        return;
    }
    let Some(text) = failure_line(report, || nobody_before(hook, report)) else { return };
    let client = Client::new(&hook.config.slurm, &hook.env).until(Instant::now() + PATIENCE);
    append_to_output(hook, &client, &text);
}

/// `alone`: whether no earlier node in the job's list writes a line. Evidence that every node may have is reported
/// once.
fn failure_line(report: &NodeReport, alone: impl FnOnce() -> bool) -> Option<String> {
    if report.exit?.status == 0 || report.refused() {
        return None;
    }
    let (node, more) = (&report.node, format!("railgate report {}", report.job.id));
    // The most severe findings on the job's own devices.
    let own = report.evidence.iter().filter(|item| item.own == Some(true));
    let mut worst = own.map(|item| &item.finding).filter(|found| found.severity == Severity::Fail);
    // The job's tasks wrote the result of its preflight, so it proves nothing.
    let of_preflight = |found: &&Finding| found.check == PREFLIGHT_CHECK;
    if let Some(found) = worst.clone().find(|found| !of_preflight(found)) {
        let what = format!("{}: {}", found.subject(), found.what);
        return Some(format!("railgate: hardware fault on {node}, not your program: {what} ({more})"));
    }
    let text = match (first_nan(report), programs_xid(report)) {
        (Some(nan), _) => {
            format!("railgate: program error: the loss was NaN or infinite in step {nan} ({more})")
        }
        (None, Some((code, what))) => {
            format!("railgate: likely a program error: Xid {code} on {node}: {what} ({more})")
        }
        (None, None) => {
            return worst.find(of_preflight).map(|found| {
                format!(
                    "railgate: the job's own preflight names {node} (not confirmed by root): {} ({more})",
                    found.what
                )
            });
        }
    };
    alone().then_some(text)
}

/// Whether all nodes before this one have ended and write no line. False if unknown: a job of many nodes must not get
/// a line from each.
fn nobody_before(hook: &Hook, report: &NodeReport) -> bool {
    let Ok(nodes) = expand(&hook.job.nodelist) else { return false };
    let Some(before) = nodes.iter().position(|name| *name == hook.node).and_then(|own| nodes.get(..own))
    else {
        return false;
    };
    let config = &hook.config.report;
    if before.is_empty() || config.dir.is_none() {
        return before.is_empty();
    }
    if before.len() > MOST_BEFORE {
        return false;
    }
    let jobs = [report.job.id];
    let until = Instant::now() + COMPANY;
    let read = |nodes: &[String]| {
        let asked = Asked {
            cluster: &report.cluster,
            jobs: &jobs,
            uid: report.job.uid,
            attempt: report.attempt,
            nodes,
        };
        let left = until.saturating_duration_since(Instant::now());
        let words = load_words(config, &asked, left).inspect_err(|why| tracing::info!("last line: {why}"));
        words.map(|words| words.nodes).unwrap_or_default()
    };
    all_silent(before, read, until)
}

/// `read` returns the reports of the nodes in a list.
fn all_silent(before: &[String], mut read: impl FnMut(&[String]) -> Vec<NodeWord>, until: Instant) -> bool {
    // In nearly all cases the first node's report decides, and no further reports are read.
    let mut of = before.get(..1).unwrap_or_default();
    loop {
        let mut words = read(of);
        words.retain(|word| word.ended);
        if words.iter().any(|word| word.speaks) {
            return false;
        }
        if words.len() == before.len() {
            return true;
        }
        if of.len() < before.len() && !words.is_empty() {
            of = before;
            continue;
        }
        if Instant::now() >= until {
            return false;
        }
        sleep(AGAIN);
    }
}

/// The first Xid on the job's own GPUs for which the driver blames the program.
fn programs_xid(report: &NodeReport) -> Option<(u32, &'static str)> {
    let own = report.gpus.iter().filter(|gpu| gpu.own == Some(true)).filter_map(|gpu| gpu.pci.known());
    programs_xid_on(own, report.kernel.xids.iter().map(|xid| (xid.code, xid.gpu)))
}

fn first_nan(report: &NodeReport) -> Option<u64> {
    let events = report.application.iter().flat_map(|told| &told.ranks).flat_map(|rank| &rank.events);
    events.filter(|event| event.what == AppEventKind::Nan).map(|event| event.step).min()
}

#[cfg(test)]
mod tests {
    use railgate_model::Class;
    use railgate_node_report::application::{AppEvent, Application, RankApplication};
    use railgate_node_report::{EvidenceItem, Exit};

    use super::*;

    fn failed() -> NodeReport {
        let job = r#"{"id":7,"uid":1000,"gid":1000,"user":"ann","het_leader":null,"partition":"gpu","nodelist":"n[1-2]",
            "restarts":0,"allocation":"no-gpus"}"#;
        let mut report = NodeReport::new("alpha", "n1", serde_json::from_str(job).unwrap(), 0, 1);
        report.exit = Some(Exit { status: 256, derived: None });
        report
    }

    fn lost(own: Option<bool>) -> EvidenceItem {
        let finding = Finding {
            check: "gpu-lost".to_owned(),
            part: "3".to_owned(),
            severity: Severity::Fail,
            class: Class::Node,
            what: "0000:9b:00.0 off bus, Xid 79".to_owned(),
            fix: "reboot".to_owned(),
            evidence: vec![],
        };
        EvidenceItem { finding, time: None, device: String::new(), own }
    }

    #[test]
    fn only_evidence_on_the_jobs_own_devices_is_reported() {
        assert_eq!(failure_line(&failed(), || true), None);
        let mut hardware = failed();
        hardware.evidence = vec![lost(Some(true))];
        let said = failure_line(&hardware, || false).unwrap();
        assert_eq!(
            said,
            "railgate: hardware fault on n1, not your program: gpu-lost@3: 0000:9b:00.0 off bus, Xid 79 \
             (railgate report 7)"
        );
        // It succeeded; the GPU was another job's, or its owner is unknown.
        hardware.exit = Some(Exit { status: 0, derived: None });
        assert_eq!(failure_line(&hardware, || true), None);
        for own in [Some(false), None] {
            let mut others = failed();
            others.evidence = vec![lost(own)];
            assert_eq!(failure_line(&others, || true), None, "{own:?}");
        }
    }

    fn named() -> EvidenceItem {
        let mut item = lost(Some(true));
        (item.finding.check, item.finding.part) = (PREFLIGHT_CHECK.to_owned(), String::new());
        item.finding.what = "rail 3 of n1: 96 Gb/s".to_owned();
        item
    }

    #[test]
    fn a_result_of_the_jobs_own_preflight_is_not_reported_as_a_hardware_fault() {
        let mut report = failed();
        report.evidence = vec![named()];
        assert_eq!(
            failure_line(&report, || false).unwrap(),
            "railgate: the job's own preflight names n1 (not confirmed by root): rail 3 of n1: 96 Gb/s \
             (railgate report 7)"
        );
        let event = AppEvent { time: 5, step: 40, what: AppEventKind::Nan, loss: None };
        let rank = RankApplication { events: vec![event], ..RankApplication::default() };
        report.application = Some(Application { ranks: vec![rank], problems: vec![] });
        assert!(failure_line(&report, || true).unwrap().contains("program error"));
        report.evidence = vec![named(), lost(Some(true))];
        assert!(
            failure_line(&report, || true)
                .unwrap()
                .contains("hardware fault on n1, not your program: gpu-lost@3")
        );
    }

    #[test]
    fn a_nan_is_attributed_to_the_program_unless_hardware_failed() {
        let event = AppEvent { time: 5, step: 40, what: AppEventKind::Nan, loss: Some(0.25) };
        let rank = RankApplication { events: vec![event], ..RankApplication::default() };
        let mut report = failed();
        report.application = Some(Application { ranks: vec![rank], problems: vec![] });
        let said = failure_line(&report, || true).unwrap();
        assert!(said.starts_with("railgate: program error: the loss was NaN") && said.contains("step 40"));
        assert!(!said.contains("0.25"), "a loss value is the report's alone");
        assert_eq!(failure_line(&report, || false), None, "one node says it for all");
        report.evidence = vec![lost(Some(true))];
        assert!(failure_line(&report, || true).unwrap().contains("hardware fault"));
    }

    #[test]
    fn a_later_node_reports_if_all_before_it_ended_without_evidence() {
        let word = |node: &str, speaks: bool| NodeWord {
            job: 7,
            node: node.to_owned(),
            ended: true,
            refused: false,
            cause: None,
            evidence: Vec::new(),
            speaks,
            restarts: railgate_store::Restarts::default(),
        };
        let runs = NodeWord { ended: false, ..word("n2", false) };
        let before = ["n1".to_owned(), "n2".to_owned()];
        let alone = |words: &[NodeWord]| {
            let read =
                |only: &[String]| words.iter().filter(|word| only.contains(&word.node)).cloned().collect();
            all_silent(&before, read, Instant::now())
        };
        assert!(alone(&[word("n1", false), word("n2", false)]));
        assert!(
            alone(&[word("n1", false), word("n2", false), word("n3", true)]),
            "those behind it wait for it"
        );
        for (said, why) in [
            (vec![word("n1", true)], "the first has said it"),
            (vec![word("n1", false), word("n2", true)], "another one has"),
            (vec![word("n1", false)], "the other's part is not there"),
            (vec![word("n1", false), runs], "it has not ended"),
            (vec![], "nothing is known"),
        ] {
            assert!(!alone(&said), "{why}");
        }
    }

    #[test]
    fn a_program_xid_is_reported_for_the_jobs_own_gpu_only() {
        let mut report = failed();
        let xid = r#"{"code":31,"gpu":"0000:1b:00.0","pid":null,"time":5,"seq":0,"text":"Xid 31"}"#;
        report.kernel.xids = vec![serde_json::from_str(xid).unwrap()];
        assert_eq!(failure_line(&report, || true), None, "the GPU's job is unknown");
        let (profile, faults) = railgate_simulate::parse("h100-sxm", &[]).unwrap();
        let now = railgate_simulate::simulated_node(&profile, &faults, "n1");
        let gpus = railgate_model::Allocation::Gpus((0..8).map(railgate_model::GpuId::Index).collect());
        let held = railgate_node_report::RunGpus::resolve(
            &gpus,
            None,
            &now,
            &railgate_model::GpuInventory::default(),
        );
        report.gpus = railgate_node_report::gpu_uses(None, &now, &held);
        let own = report.gpus[2].pci.known().copied();
        report.kernel.xids[0].gpu = own;
        let said = failure_line(&report, || true).unwrap();
        assert!(said.starts_with("railgate: likely a program error: Xid 31 on n1: "), "{said}");
        assert_eq!(failure_line(&report, || false), None);
        report.kernel.xids[0].code = 79;
        assert_eq!(failure_line(&report, || true), None, "only the gate reports that");
    }
}
