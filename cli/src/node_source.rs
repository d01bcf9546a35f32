use std::path::PathBuf;

use railgate_model::{Origin, PartName, Profile, Snapshot};
use railgate_probe::{Request, live};
use railgate_runner::{Config, profile_of};
use railgate_simulate::recorded;

use crate::Site;

/// Which node is looked at.
#[derive(Debug, clap::Args)]
pub(crate) struct NodeArgs {
    /// A recorded node instead of this one
    #[arg(long, value_name = "FILE", conflicts_with = "simulate")]
    pub(crate) snapshot: Option<PathBuf>,
    /// A simulated node instead of this one: a machine profile, with faults after a colon
    /// (`railgate simulate --list`)
    #[arg(long, value_name = "PROFILE[:FAULT,…]")]
    pub(crate) simulate: Option<String>,
}

/// A node and what it should have.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) snapshot: Snapshot,
    pub(crate) profile: Profile,
}

impl NodeArgs {
    /// A recorded or simulated node; `None` means this one.
    pub(crate) fn stand_in(&self, site: &Site, config: &Config) -> anyhow::Result<Option<Seen>> {
        if let Some(path) = &self.snapshot {
            let snapshot = recorded(path)?;
            let profile = profile_of(config, &site.places, &snapshot)?;
            return Ok(Some(Seen { snapshot, profile }));
        }
        let Some(text) = &self.simulate else { return Ok(None) };
        let (profile, faults) = railgate_simulate::parse(text, &site.places.profiles())?;
        let snapshot = railgate_simulate::simulated(&profile, &faults);
        Ok(Some(Seen { snapshot, profile }))
    }

    /// The node, looked at in whole and without judging.
    pub(crate) fn look(&self, site: &Site, config: &Config) -> anyhow::Result<Seen> {
        if let Some(seen) = self.stand_in(site, config)? {
            return Ok(seen);
        }
        let snapshot = live(&config.source, &Request::everything(&site.node, config.gate.deadline));
        let profile = profile_of(config, &site.places, &snapshot)?;
        Ok(Seen { snapshot, profile })
    }
}

/// Each part that was looked at: its name, `ok` or why there is nothing, and how long it took, ms.
pub(crate) fn parts(snapshot: &Snapshot) -> Vec<(PartName, Option<String>, f64)> {
    fn part<T>(name: PartName, part: &railgate_model::Part<T>) -> Option<(PartName, Option<String>, f64)> {
        use railgate_model::Part;
        let took = match part {
            Part::Skipped => return None,
            Part::Read { took_ms, .. } | Part::Failed { took_ms, .. } => *took_ms,
            Part::Silent { after_ms } | Part::Stuck { after_ms } => *after_ms,
        };
        Some((name, part.missing(), took))
    }
    [
        part(PartName::Gpus, &snapshot.gpus),
        part(PartName::Fabric, &snapshot.fabric),
        part(PartName::Pci, &snapshot.pci),
        part(PartName::KernelLog, &snapshot.kernel_log),
        part(PartName::Host, &snapshot.host),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// `live`, `recorded`, `simulated`.
pub(crate) fn origin(snapshot: &Snapshot) -> &'static str {
    match snapshot.origin {
        Origin::Live => "live",
        Origin::Recorded => "recorded",
        Origin::Simulated => "simulated",
    }
}
