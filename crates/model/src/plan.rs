use crate::{Extra, PartName};

/// What to read of a node. Which checks need it, and when, is the caller's business.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The parts to read; the others come out as [`crate::Part::Skipped`]. GPUs bring the PCI tree along, since
    /// a lost GPU's address is found there.
    pub parts: Vec<PartName>,
    /// Readings that no part includes by itself.
    pub extras: Vec<Extra>,
}

impl Plan {
    /// Every part, with the counters of NVLinks and the logs of drives. No mounts, files or programs: those
    /// come from a configuration.
    pub fn everything() -> Self {
        Plan {
            parts: vec![PartName::Gpus, PartName::Fabric, PartName::Pci, PartName::KernelLog, PartName::Host],
            extras: vec![Extra::NvLinkErrors, Extra::DriveLogs],
        }
    }
}
