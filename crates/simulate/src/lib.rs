//! Nodes that are not this machine. Simulated: a healthy machine of a profile, with named faults in it. Recorded: a snapshot
//! in a file ([`recorded()`]).
//!
//! The result is the same plain data that reading a live machine gives. A simulation gives the same every time: it depends on
//! the profile and the faults alone.

mod effect;
mod fabric_details;
mod fabric_faults;
mod faults;
mod gpu_details;
mod gpu_effect;
mod host;
mod host_faults;
mod machine;
mod optics;
mod recorded;
mod xid_text;

use std::path::PathBuf;

use railgate_model::{Profile, ProfileError, Snapshot};

pub use fabric_faults::FabricFault;
pub use faults::{FAULTS, Fault, FaultInfo, FaultKind, FaultPart};
pub use host_faults::HostFault;
pub use recorded::{RecordedError, recorded};
pub use xid_text::xid_text;

/// The default name of a simulated node.
const NODE: &str = "simulated";

/// What cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// No such machine type, or a broken file of the site.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// No such fault; the text lists the known ones.
    #[error("no fault '{fault}' (known: {known})")]
    UnknownFault {
        /// What was asked for.
        fault: String,
        /// What there is.
        known: String,
    },
    /// A fault whose index is no number, or that takes none.
    #[error("fault '{fault}': {why}")]
    Index {
        /// What was asked for.
        fault: String,
        /// What is wrong.
        why: String,
    },
}

/// `PROFILE[:fault[@index],…]`, checked against what the machine has; `dirs` as for [`railgate_profiles::load`].
///
/// # Errors
/// Unknown profiles and faults, and indexes that the machine does not have.
pub fn parse(text: &str, dirs: &[PathBuf]) -> Result<(Profile, Vec<Fault>), SimulateError> {
    let (id, list) = text.split_once(':').unwrap_or((text, ""));
    let profile = railgate_profiles::load(id, dirs)?;
    let mut faults = Vec::new();
    for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let fault: Fault = word.parse()?;
        let there_are = machine::how_many(&profile, fault.kind.part());
        if let Some(there_are) = there_are
            && fault.index >= there_are
        {
            let why = match there_are {
                0 => format!("a simulated {id} has none"),
                _ => format!("a simulated {id} has 0 to {}", there_are - 1),
            };
            return Err(SimulateError::Index { fault: word.to_owned(), why });
        }
        faults.push(fault);
    }
    Ok((profile, faults))
}

/// A machine of this type with these faults. Where the profile leaves something open, the machine is a
/// plausible one: eight GPUs, no HCA.
pub fn simulated(profile: &Profile, faults: &[Fault]) -> Snapshot {
    simulated_node(profile, faults, NODE)
}

/// The same with a name; UUIDs, serials, GUIDs and addresses follow from it, so that no two nodes share
/// one.
pub fn simulated_node(profile: &Profile, faults: &[Fault], node: &str) -> Snapshot {
    let mut snapshot = machine::healthy(profile, node);
    effect::apply(&mut snapshot, faults);
    snapshot
}

/// Lets a fault happen on a simulated machine that runs already. Indexes are those of the snapshot as it
/// stands.
pub fn inject(snapshot: &mut Snapshot, fault: &Fault) {
    effect::apply(snapshot, std::slice::from_ref(fault));
}

#[cfg(test)]
mod tests;
