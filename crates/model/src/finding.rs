use std::fmt;

use serde::{Deserialize, Serialize};

/// The severity of a finding, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth recording.
    Note,
    /// Could not be determined. Never counts as healthy and never drains.
    Unknown,
    /// Works, with a defect.
    Warn,
    /// Broken.
    Fail,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Note => "note",
            Severity::Unknown => "unknown",
            Severity::Warn => "warn",
            Severity::Fail => "fail",
        })
    }
}

/// Who is responsible; limits the action that a finding can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// This node's hardware or state: can drain.
    Node,
    /// The network: drains only if the fault is at this node's end of a link.
    Fabric,
    /// Something that a user left behind or filled up: the user is notified, the node never drained.
    User,
    /// A misconfiguration of the site: reported to the admin.
    Site,
    /// An error of railgate itself: no action.
    Internal,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Node => "node",
            Class::Fabric => "fabric",
            Class::User => "user",
            Class::Site => "site",
            Class::Internal => "internal",
        })
    }
}

/// One row of evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The quantity, for example `gpu 3 ecc volatile uncorrected`.
    pub what: String,
    /// The value that was read, with its unit.
    pub got: String,
    /// The value of a healthy machine.
    pub want: String,
    /// The source: `nvmlDeviceGetTotalEccErrors`, a sysfs path, `kmsg seq 4711`.
    pub source: String,
}

/// `check` of what a job's own preflight found of a node. The job's tasks wrote it and can forge it: it is never evidence of a hardware fault.
pub const PREFLIGHT_CHECK: &str = "preflight";

/// The result of one check for one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Check id, kebab-case.
    pub check: String,
    /// The part: `3` for a GPU index, `mlx5_2` for an HCA, a path for a mount; empty for the whole node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// The severity.
    pub severity: Severity,
    /// The class.
    pub class: Class,
    /// One line for a person, without check and part, for example `0000:9b:00.0 off bus, Xid 79`.
    pub what: String,
    /// What to do, in two or three words, for example `reboot`, `reset GPU` or `replace cable`.
    pub fix: String,
    /// The readings on which the finding rests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

impl Finding {
    /// Returns check and part, for example `gpu-lost@3`, or only `mounts` for a finding about the whole node.
    pub fn subject(&self) -> String {
        if self.part.is_empty() { self.check.clone() } else { format!("{}@{}", self.check, self.part) }
    }
}
