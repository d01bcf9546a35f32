use serde::{Deserialize, Serialize};

/// The parts of a snapshot. Each is read by a separate child process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PartName {
    /// NVML.
    Gpus,
    /// `/sys/class/infiniband`.
    Fabric,
    /// `/sys/bus/pci/devices`.
    Pci,
    /// `/dev/kmsg`.
    KernelLog,
    /// Host name, memory, processes and mounts.
    Host,
}

impl PartName {
    /// Returns the name used in JSON, drain reasons and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            PartName::Gpus => "gpus",
            PartName::Fabric => "fabric",
            PartName::Pci => "pci",
            PartName::KernelLog => "kernel-log",
            PartName::Host => "host",
        }
    }
}

/// The outcome of reading one part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part<T> {
    /// The part was read.
    Read {
        /// The data.
        data: T,
        /// Duration, milliseconds.
        took_ms: f64,
    },
    /// Not requested.
    Skipped,
    /// Reading failed, for example because of a missing library or an unreadable directory.
    Failed {
        /// The error.
        why: String,
        /// Duration, milliseconds.
        took_ms: f64,
    },
    /// No answer by the deadline; the child was killed and ended.
    Silent {
        /// The deadline, milliseconds.
        after_ms: f64,
    },
    /// No answer by the deadline, and the child outlived SIGKILL by two seconds: it hangs in the kernel.
    Stuck {
        /// The deadline, milliseconds.
        after_ms: f64,
    },
}

impl<T> Part<T> {
    /// Returns the data, if the part was read.
    pub fn data(&self) -> Option<&T> {
        match self {
            Part::Read { data, .. } => Some(data),
            _ => None,
        }
    }

    /// Returns the reason why there is no data; `None` if there is data.
    pub fn missing(&self) -> Option<String> {
        match self {
            Part::Read { .. } => None,
            Part::Skipped => Some("not read".to_owned()),
            Part::Failed { why, .. } => Some(why.clone()),
            Part::Silent { after_ms } => Some(format!("no answer in {:.1} s", after_ms / 1000.0)),
            Part::Stuck { after_ms } => {
                Some(format!("no answer in {:.1} s, stuck in the kernel", after_ms / 1000.0))
            }
        }
    }
}
