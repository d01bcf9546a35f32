//! The last line of a failed job's own output: whose fault it was, where this node knows.
//!
//! Written by a child that has become the job's owner, to a file that is there already and is a regular one: root opens
//! nothing of a user's. Each node speaks for itself alone, and only of what it has evidence of, so silence means nothing.

use std::time::Instant;

use railgate_node::Severity;
use railgate_runner::{Hook, acting, append_to_output};
use railgate_slurm::hostlist::expand;
use railgate_slurm::{Acting, Client};
use railgate_stats::application::AppEventKind;
use railgate_stats::{NodeReport, Whose, explain_xid};

/// Nobody's epilog waits longer for a word.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Says it, where there is something to say and railgate may act.
pub(crate) fn say(hook: &Hook, report: &NodeReport) {
    let first = expand(&hook.job.nodelist).is_ok_and(|nodes| nodes.first() == Some(&hook.node));
    let Some(text) = last_word(report, first) else { return };
    if !matches!(acting(&hook.config, &hook.places), Acting::Allowed) {
        return;
    }
    let client = Client::new(&hook.config.slurm, &hook.env).until(Instant::now() + PATIENCE);
    append_to_output(hook, &client, &text);
}

/// `first`: this is the job's first node, where its script ran; what every node may see alike is said there alone.
fn last_word(report: &NodeReport, first: bool) -> Option<String> {
    if report.exit?.status == 0 || report.refused() {
        return None;
    }
    let (node, more) = (&report.node, format!("railgate report {}", report.job.id));
    // The worst that the job's own devices met.
    let own = report.evidence.iter().filter(|item| item.own == Some(true));
    let worst = own.filter(|item| item.finding.severity == Severity::Fail).map(|item| &item.finding).next();
    if let Some(found) = worst {
        let what = format!("{}: {}", found.subject(), found.what);
        return Some(format!("railgate: hardware fault on {node}, not your program: {what} ({more})"));
    }
    if !first {
        return None;
    }
    if let Some(nan) = first_nan(report) {
        return Some(format!(
            "railgate: the program's own: the loss was NaN or infinite in step {nan} ({more})"
        ));
    }
    let own_gpus: Vec<_> = report.gpus.iter().filter(|gpu| gpu.own == Some(true)).collect();
    let is_own = |pci| own_gpus.iter().any(|gpu| gpu.pci.known().is_some_and(|own| own == pci));
    let xid = report.kernel.xids.iter().find(|xid| xid.gpu.as_ref().is_some_and(is_own))?;
    match explain_xid(xid.code) {
        (Whose::Application, what) => {
            Some(format!("railgate: points at the program: Xid {} on {node}: {what} ({more})", xid.code))
        }
        _ => None,
    }
}

fn first_nan(report: &NodeReport) -> Option<u64> {
    let events = report.application.iter().flat_map(|told| &told.ranks).flat_map(|rank| &rank.events);
    events.filter(|event| event.what == AppEventKind::Nan).map(|event| event.step).min()
}

#[cfg(test)]
mod tests {
    use railgate_node::{Class, Finding};
    use railgate_stats::application::{AppEvent, Application, RankApplication};
    use railgate_stats::{EvidenceItem, Exit};

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
    fn only_what_a_node_knows_of_the_jobs_own_is_said() {
        assert_eq!(last_word(&failed(), true), None);
        let mut hardware = failed();
        hardware.evidence = vec![lost(Some(true))];
        let said = last_word(&hardware, false).unwrap();
        assert_eq!(
            said,
            "railgate: hardware fault on n1, not your program: gpu-lost@3: 0000:9b:00.0 off bus, Xid 79 \
             (railgate report 7)"
        );
        // It ended well; the GPU was another job's, or nobody knows whose.
        hardware.exit = Some(Exit { status: 0, derived: None });
        assert_eq!(last_word(&hardware, true), None);
        for own in [Some(false), None] {
            let mut others = failed();
            others.evidence = vec![lost(own)];
            assert_eq!(last_word(&others, true), None, "{own:?}");
        }
    }

    #[test]
    fn a_nan_is_the_programs_and_hardware_comes_first() {
        let event = AppEvent { time: 5, step: 40, what: AppEventKind::Nan, loss: Some(0.25) };
        let rank = RankApplication { events: vec![event], ..RankApplication::default() };
        let mut report = failed();
        report.application = Some(Application { ranks: vec![rank], problems: vec![] });
        let said = last_word(&report, true).unwrap();
        assert!(
            said.starts_with("railgate: the program's own: the loss was NaN") && said.contains("step 40")
        );
        assert!(!said.contains("0.25"), "a loss value is the report's alone");
        assert_eq!(last_word(&report, false), None, "one node says it for all");
        report.evidence = vec![lost(Some(true))];
        assert!(last_word(&report, true).unwrap().contains("hardware fault"));
    }
}
