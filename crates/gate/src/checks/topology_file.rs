use railgate_model::{Class, Extra, PartName, Reading};

use crate::plan::Need;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// Limits the rows of evidence, since a file of another machine type is wrong in every line.
const MAX_ROWS: usize = 8;

/// The check.
pub(crate) struct TopologyFile;

settings! {
    action = Drain, "a warning never drains";
}

impl Check for TopologyFile {
    const ABOUT: &'static str = "NCCL's topology file is broken, or another machine's";
    const EXPLAIN: &'static str = "
Reads the topology file that `[rails] set.NCCL_TOPO_FILE` names, else the one that NCCL finds by itself
(`/var/run/nvidia-topologyd/virtualTopology.xml`), and compares it with NCCL's grammar and with this machine's GPUs, HCAs and
wiring. A file that railgate makes for the job is not checked.

Why: with a broken file NCCL fails at start. With an outdated file (bus ids change with the size of a virtual machine, the
slot or the firmware) NCCL silently uses the wrong HCAs or no GPUDirect.

Fix: `railgate rails --check FILE` shows the error and its line; make the file again on this machine
(`railgate rails --format xml`).

The site writes this file for all nodes, so it is a warning and never drains. A file that could not be read is `unknown`.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus, PartName::Pci];
    const NEEDS: &'static [Need<Settings>] = &[Need::extra(|_, _, _| Some(Extra::TopologyFile))];
    const SCOPE: Scope = Scope::Gpus;
    const COST: &'static str = "one small file, in a child process";
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, _: &Settings, out: &mut Report<'_>) {
        let Some(file) = &scene.now.extras.topology_file else { return };
        let path = file.path.display().to_string();
        if let Reading::Failed(why) = &file.text {
            let found = Found::unknown(Class::Site, "", format!("{path} unreadable: {why}"));
            out.add(found.fix("see log").row(&path, format!("unknown ({why})"), "a topology file", &path));
            return;
        }
        let Some(said @ [worst, ..]) = file.said.as_deref() else { return };
        let place = |at: &str| if at.is_empty() { path.clone() } else { format!("{path}:{at}") };
        let effect = if worst.refused { "NCCL refuses " } else { "" };
        let what = format!("{effect}{}: {}", place(&worst.place), worst.what);
        let mut found = Found::warn(Class::Site, "", what).fix("railgate rails --check");
        for remark in said.iter().take(MAX_ROWS) {
            let want = if remark.refused { "what NCCL accepts" } else { "this machine" };
            found = found.row(place(&remark.place), &remark.what, want, &path);
        }
        out.add(found);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use railgate_model::{Fitness, Severity, TopologyFile, TopologyRemark};

    use super::*;
    use crate::testing::{Case, case};

    fn file(text: Reading<String>, said: Option<Vec<TopologyRemark>>) -> Case {
        let path = PathBuf::from("/etc/nccl/topo.xml");
        case("h200-sxm").with(|case| case.now.extras.topology_file = Some(TopologyFile { path, text, said }))
    }

    fn remark(refused: bool, what: &str) -> TopologyRemark {
        TopologyRemark { refused, place: "3:5".to_owned(), what: what.to_owned() }
    }

    #[test]
    fn a_broken_file_is_a_site_problem_and_does_not_drain() {
        let text = || Reading::Known(String::new());
        assert_eq!(case("h200-sxm").summary(), "fit");
        assert_eq!(file(text(), Some(vec![])).summary(), "fit");
        assert_eq!(file(text(), None).summary(), "fit");
        let broken =
            file(text(), Some(vec![remark(true, "a tab"), remark(false, "GPU 0 is not in the file")]));
        assert_eq!(broken.fitness(), Fitness::Degraded);
        assert_eq!(
            broken.summary(),
            "degraded: warn topology-file: NCCL refuses /etc/nccl/topo.xml:3:5: a tab; railgate rails --check"
        );
        let many = (0..50).map(|k| remark(false, &format!("GPU {k} is not in the file"))).collect();
        assert_eq!(file(text(), Some(many)).of("topology-file"), [Severity::Warn]);
    }

    #[test]
    fn an_unreadable_file_is_unknown() {
        let silent = file(Reading::Failed("no answer in 5.0 s".to_owned()), None);
        assert_eq!(silent.of("topology-file"), [Severity::Unknown]);
        assert_eq!(file(Reading::Unsupported, Some(vec![])).summary(), "fit");
    }
}
