//! Evaluates a topology file that railgate did not write for the gate's check `topology-file`: that of the site, or the
//! one that a hypervisor's daemon leaves at NCCL's default path.

use railgate_model::{Profile, RailMap, Reading, Snapshot, TopologyRemark};
use railgate_rails::{RailsConfig, rail_map, topology, topology_wanted};

use crate::{Effect, TopologyProblem, check_topology};

/// Adds the problems of the topology file to the snapshot. Values that could not be read from the machine do not count
/// against the file.
pub fn judge_topology_file(config: &RailsConfig, profile: Option<&Profile>, snapshot: &mut Snapshot) {
    let Some(file) = &snapshot.extras.topology_file else { return };
    let by_site = config.site_topology_file() == Some(&file.path);
    let said = match &file.text {
        Reading::Failed(_) => None,
        Reading::Unsupported if by_site => Some(vec![TopologyRemark {
            refused: false,
            place: String::new(),
            what: "missing: NCCL continues without it".to_owned(),
        }]),
        Reading::Unsupported => Some(Vec::new()),
        Reading::Known(text) => {
            let map = rail_map(snapshot, profile);
            let ours =
                !by_site && topology_wanted(config, &map, snapshot) && topology(&map, snapshot).is_ok();
            Some(if ours { Vec::new() } else { remarks(text, snapshot, &map) })
        }
    };
    if let Some(file) = &mut snapshot.extras.topology_file {
        file.said = said;
    }
}

fn remarks(text: &str, snapshot: &Snapshot, map: &RailMap) -> Vec<TopologyRemark> {
    let mut check = check_topology(text.as_bytes(), None, Some((snapshot, map)));
    if !check.unknown.is_empty() {
        check.problems.retain(|problem| problem.effect == Effect::Refused);
    }
    let mut problems = check.problems;
    problems.retain(|problem| problem.effect != Effect::Note);
    problems.sort_by_key(|problem| problem.effect);
    let remark = |problem: &TopologyProblem| {
        let some = if problem.nccl.is_empty() {
            String::new()
        } else {
            format!(" (NCCL {})", problem.nccl.join(", "))
        };
        // A file that only some releases reject is not called broken.
        let refused = problem.effect == Effect::Refused && problem.nccl.is_empty();
        TopologyRemark { refused, place: problem.place(), what: format!("{}{some}", problem.what) }
    };
    problems.iter().map(remark).collect()
}

#[cfg(test)]
mod tests {
    use railgate_model::{Part, TopologyFile};

    use super::*;
    use railgate_rails::testing::{flat_machine, wired_profile};

    fn config(path: &str) -> RailsConfig {
        RailsConfig {
            set: [("NCCL_TOPO_FILE".to_owned(), path.to_owned())].into_iter().collect(),
            ..RailsConfig::default()
        }
    }

    fn good() -> String {
        let flat = flat_machine();
        topology(&rail_map(&flat, &wired_profile()), &flat).unwrap()
    }

    fn said(
        config: &RailsConfig,
        text: Reading<String>,
        change: fn(&mut Snapshot),
    ) -> Option<Vec<TopologyRemark>> {
        let mut snapshot = flat_machine();
        change(&mut snapshot);
        snapshot.extras.topology_file =
            Some(TopologyFile { path: config.topology_file_of_others(), text, said: None });
        judge_topology_file(config, Some(&wired_profile()), &mut snapshot);
        snapshot.extras.topology_file.unwrap().said
    }

    #[test]
    fn a_good_file_has_no_problem_and_a_broken_one_its_position() {
        let own = config("/etc/nccl/topo.xml");
        assert_eq!(said(&own, Reading::Known(good()), |_| {}), Some(vec![]));
        let tab = said(&own, Reading::Known(good().replacen("  <cpu", "\t<cpu", 1)), |_| {}).unwrap();
        assert_eq!((tab.len(), tab[0].refused, tab[0].place.as_str()), (1, true, "2:1"));
        let quotes =
            said(&own, Reading::Known(good().replacen("version=\"1\"", "version='1'", 1)), |_| {}).unwrap();
        assert!(quotes.iter().all(|remark| !remark.refused && remark.what.contains("(NCCL ")));
        let gone = said(&own, Reading::Unsupported, |_| {}).unwrap();
        assert_eq!(gone[0].what, "missing: NCCL continues without it");
        assert_eq!(said(&own, Reading::Failed("I/O error".to_owned()), |_| {}), None);
    }

    #[test]
    fn a_file_of_another_machine_is_reported() {
        let own = config("/etc/nccl/topo.xml");
        let stale = said(&own, Reading::Known(good().replace("busid=\"000", "busid=\"0a0")), |_| {}).unwrap();
        assert_eq!(stale[0].what, "GPU 0 (0001:00:00.0) is not in the file: NCCL places it by itself");
        // If the GPUs could not be read, this cannot be determined.
        let silent = |snapshot: &mut Snapshot| snapshot.gpus = Part::Silent { after_ms: 1.0 };
        let stale = said(&own, Reading::Known(good().replace("busid=\"000", "busid=\"0a0")), silent);
        assert_eq!(stale, Some(vec![]));
    }

    #[test]
    fn a_file_that_nccl_does_not_use_is_not_judged() {
        // railgate writes a file for the tasks here, so NCCL does not use any other.
        let by_itself = RailsConfig::default();
        assert_eq!(said(&by_itself, Reading::Known("\t".to_owned()), |_| {}), Some(vec![]));
        assert_eq!(said(&by_itself, Reading::Unsupported, |_| {}), Some(vec![]));
        let never =
            RailsConfig { topology_file: railgate_rails::TopologyFile::Never, ..RailsConfig::default() };
        assert_eq!(said(&never, Reading::Known("\t".to_owned()), |_| {}).unwrap().len(), 1);
    }
}
