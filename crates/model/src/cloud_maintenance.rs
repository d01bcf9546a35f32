use std::fmt;
use std::net::SocketAddrV4;

use serde::{Deserialize, Serialize};

use crate::{Reading, UnixMillis};

/// A provider of virtual machines with a metadata service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CloudProvider {
    /// Microsoft Azure: Scheduled Events.
    Azure,
    /// Amazon EC2: scheduled events, by IMDSv2.
    Aws,
    /// Google Compute Engine: upcoming maintenance.
    Gcp,
}

impl CloudProvider {
    /// Returns the name, which is also the value in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            CloudProvider::Azure => "azure",
            CloudProvider::Aws => "aws",
            CloudProvider::Gcp => "gcp",
        }
    }
}

impl fmt::Display for CloudProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The metadata service to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudService {
    /// How it is asked.
    pub provider: CloudProvider,
    /// Where it answers, by plain HTTP.
    pub address: SocketAddrV4,
}

/// What the provider announces for this virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudEvent {
    /// The provider's name of what happens, for example `Reboot`, `system-reboot` or `SCHEDULED`.
    pub kind: String,
    /// It has begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub started: bool,
    /// The earliest start; unsupported if the provider gives none.
    pub start: Reading<UnixMillis>,
    /// The end of the planned window, if the provider gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<UnixMillis>,
    /// The provider's description; empty if it gives none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}
