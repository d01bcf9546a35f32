use std::path::PathBuf;

use railgate_model::{Origin, PartName, Profile, Snapshot};
use railgate_probe::{Request, live};
use railgate_runner::{Config, profile_of};
use railgate_simulate::recorded;

use crate::Site;

/// Selects the node: this one, a recorded or a simulated one.
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

/// A node's snapshot and its machine profile.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) snapshot: Snapshot,
    pub(crate) profile: Profile,
}

impl NodeArgs {
    /// The recorded or simulated node; `None` for this one.
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

    /// Reads all parts of the node, without judging.
    pub(crate) fn read(&self, site: &Site, config: &Config) -> anyhow::Result<Seen> {
        if let Some(seen) = self.stand_in(site, config)? {
            return Ok(seen);
        }
        let snapshot = live(&config.source, &Request::everything(&site.node, config.gate.deadline));
        let profile = profile_of(config, &site.places, &snapshot)?;
        Ok(Seen { snapshot, profile })
    }
}

/// Each part that was read: its name, `None` if it could be read or the reason why not, and its duration, ms.
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

/// Origin of a snapshot: `live`, `recorded` or `simulated`.
pub(crate) fn origin(snapshot: &Snapshot) -> &'static str {
    match snapshot.origin {
        Origin::Live => "live",
        Origin::Recorded => "recorded",
        Origin::Simulated => "simulated",
    }
}
