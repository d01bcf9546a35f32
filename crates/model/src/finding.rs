use std::fmt;

use serde::{Deserialize, Serialize};

/// How bad a finding is. The order is the order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth writing down.
    Note,
    /// Not known. Never healthy, never a drain.
    Unknown,
    /// Works, but not as it should.
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

/// Whose it is; decides what may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// This node's hardware or its own state: drains.
    Node,
    /// The network: drains only when the fault is this node's own end.
    Fabric,
    /// Something that a user left or filled: notify the user, never drain.
    User,
    /// Something that the site configured wrongly: report it to the admin.
    Site,
    /// An error of railgate: changes nothing.
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

/// One row of proof.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// What was read: `gpu 3 ecc volatile uncorrected`.
    pub what: String,
    /// The value that was read, with its unit.
    pub got: String,
    /// The value of a healthy machine.
    pub want: String,
    /// Where it was read: `nvmlDeviceGetTotalEccErrors`, a sysfs path, `kmsg seq 4711`.
    pub source: String,
}

/// The result of one check for one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Check id, kebab-case.
    pub check: String,
    /// Which part: `3` for a GPU index, `mlx5_2` for an HCA, a path for a mount; empty for the whole node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub part: String,
    /// How bad.
    pub severity: Severity,
    /// Whose.
    pub class: Class,
    /// One line for a person, without check and part: `0000:9b:00.0 off bus, Xid 79`.
    pub what: String,
    /// What to do, in two or three words: `reboot`, `reset GPU`, `replace cable`.
    pub fix: String,
    /// Why we believe it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<Evidence>,
}

impl Finding {
    /// `gpu-lost@3`, or `mounts` where the finding is about the whole node.
    pub fn subject(&self) -> String {
        if self.part.is_empty() { self.check.clone() } else { format!("{}@{}", self.check, self.part) }
    }
}
