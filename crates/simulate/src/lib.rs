//! Snapshots of nodes other than this machine. Simulated: a healthy machine of a profile, with named faults. Recorded:
//! a snapshot from a file ([`recorded()`]).
//!
//! The result has the same type as the reading of a live machine. A simulation is deterministic: it depends only on the
//! profile and the faults.

mod effect;
mod fabric_details;
mod fabric_faults;
mod faults;
mod gpu_details;
mod gpu_effect;
mod gpu_self_test;
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
pub use gpu_self_test::GpuSelfTestFault;
pub use host_faults::HostFault;
pub use recorded::{RecordedError, recorded};
pub use xid_text::xid_text;

/// Default name of a simulated node.
const NODE: &str = "simulated";

/// An invalid description of a simulated node.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// There is no such machine type, or the site's file is invalid.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// There is no such fault.
    #[error("no fault '{fault}'{meant} (`railgate simulate --list` shows all)")]
    UnknownFault {
        /// The requested fault.
        fault: String,
        /// `; did you mean 'gpu-lost'?`, or empty.
        meant: String,
    },
    /// The index is not a number, out of range, or the fault takes none.
    #[error("fault '{fault}': {why}")]
    Index {
        /// The requested fault.
        fault: String,
        /// The problem.
        why: String,
    },
}

/// Parses `PROFILE[:fault[@index],…]` and checks it against the machine's parts, for example `h100-sxm:gpu-lost@3`.
/// `dirs` are directories with profiles, as for [`railgate_profiles::load`].
///
/// # Errors
/// Returns an error for unknown profiles and faults, and for indexes that the machine does not have.
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

/// Returns the snapshot of a machine of this type with these faults. Values that the profile leaves open are plausible
/// ones: eight GPUs, no HCA.
pub fn simulated(profile: &Profile, faults: &[Fault]) -> Snapshot {
    simulated_node(profile, faults, NODE)
}

/// As [`simulated()`], with a node name. UUIDs, serial numbers, GUIDs and addresses are derived from it, so they differ
/// between nodes.
pub fn simulated_node(profile: &Profile, faults: &[Fault], node: &str) -> Snapshot {
    let mut snapshot = machine::healthy(profile, node);
    effect::apply(&mut snapshot, faults);
    snapshot
}

/// Applies a fault to an existing simulated machine. The index refers to the current snapshot.
pub fn inject(snapshot: &mut Snapshot, fault: &Fault) {
    effect::apply(snapshot, std::slice::from_ref(fault));
}

#[cfg(test)]
mod tests;
