use railgate_text::shorten;

use crate::view::screen::telling;
use crate::{EndKind, JobReport};

/// One line for accounting: end, utilisation, and the costliest finding. `None` if it would add nothing to
/// Slurm's own record.
pub fn summary(report: &JobReport) -> Option<String> {
    let mut parts = vec![report.ended.kind.title().to_owned()];
    if let Some((_, analysis)) = telling(report) {
        let percent = |name: &str, fraction: f64| format!("{name} {:.1} %", 100.0 * fraction);
        parts.extend(analysis.model.known().map(|model| percent("MFU", model.fraction)));
        let hardware = analysis.hardware.known().and_then(|hardware| hardware.tensor_fraction.known());
        parts.extend(hardware.map(|fraction| percent("HFU", *fraction)));
        parts.extend(analysis.goodput.known().map(|good| percent("goodput", good.fraction)));
        parts.extend(analysis.diagnoses.first().map(|first| {
            let costs = first.costs.filter(|costs| *costs >= 0.005);
            let costs = costs.map(|costs| format!(" {:.1} %", 100.0 * costs)).unwrap_or_default();
            let part =
                if first.part.is_empty() { String::new() } else { format!(" {}", shorten(&first.part, 60)) };
            format!("{}{part}{costs}", first.rule)
        }));
    }
    if report.attempts.len() > 1 {
        parts.push(format!("{} attempts", report.attempts.len()));
    }
    // For a fault the node's name is included.
    if let (EndKind::Hardware | EndKind::Hung | EndKind::NodeDied, Some(proof)) =
        (report.ended.kind, report.ended.proof.first())
    {
        parts.push(format!("{}: {}", shorten(&proof.node, 40), shorten(&proof.what, 120)));
    }
    (parts.len() > 1).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use railgate_node_report::testing::{job, part};

    use super::*;
    use crate::testing::{merged, story};

    #[test]
    fn line_adds_to_slurms_record_or_is_absent() {
        let line = summary(&story()).unwrap();
        assert!(line.starts_with("completed, ") && line.contains("3 attempts"), "{line}");
        let mut bare = part("n1", &job(0..8), "", vec![], 0);
        (bare.usage, bare.application, bare.communication) = (None, None, None);
        assert_eq!(summary(&merged(vec![bare], vec![], None)), None);
    }
}
