use std::collections::BTreeSet;

use railgate_node::{Class, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::register::ActionOnly as Settings;

/// The check.
pub(crate) struct IbCount;

impl Check for IbCount {
    const ABOUT: &'static str = "fewer RDMA devices than the machine type has";
    const EXPLAIN: &'static str = "
Reads `/sys/class/infiniband` and counts the compute ports: those of the profile's `fabric.link_layer` whose device is
not in `fabric.exclude`. Compared with `fabric.hcas`; the devices of the last clean look tell which one is missing.

Why: NCCL pairs devices by position in a list; a node that lacks one has its rails crossed or its job hangs.

Fix: look for the device in `lspci`; reload its driver, reboot, reseat or replace the card.

On a shared node a missing device fails the look only where it is the one nearest to a GPU of the job; else it is a
warning.

```toml
[gate.checks.ib-count]
action = \"drain\"   # off, report, notify, drain
```";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, _: &Settings, out: &mut Report<'_>) {
        let Some(profile) = scene.profile().map(|profile| &profile.fabric) else { return };
        let (Some(want), Some(fabric)) = (profile.hcas, scene.now.fabric.data()) else { return };
        let count = scene.compute_ports().len();
        if count >= want as usize {
            return;
        }
        let here: BTreeSet<&str> = fabric.hcas.iter().map(|hca| hca.name.as_str()).collect();
        let gone: Vec<&str> = scene
            .seen
            .memory
            .hcas
            .iter()
            .map(|known| known.name.as_str())
            .filter(|name| !here.contains(name) && !scene.excluded(name))
            .collect();
        let which = if gone.is_empty() { String::new() } else { format!(", {} missing", gone.join(",")) };
        let what = format!("{count} of {want} RDMA ports{which}");
        let mut found = Found::fail(Class::Node, gone.first().copied().unwrap_or_default(), what);
        // A device that is gone has no place in the tree: only wiring in the profile says whose it was.
        let wired_to_job =
            scene.nearest_hcas(fabric).is_some_and(|near| gone.iter().any(|name| near.contains(*name)));
        if !scene.whole() && !wired_to_job {
            found = found.shared();
        }
        out.add(found.fix("check HCA").row(
            "compute ports",
            count.to_string(),
            want.to_string(),
            "/sys/class/infiniband",
        ));
    }
}
