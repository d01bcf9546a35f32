use serde::{Deserialize, Serialize};

/// The parts of a snapshot, each read by a child process of its own.
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
    /// The name as it stands in JSON, reasons and logs.
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

/// How the reading of one part went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part<T> {
    /// The part answered.
    Read {
        /// Its answer.
        data: T,
        /// How long it took, milliseconds.
        took_ms: f64,
    },
    /// Not requested.
    Skipped,
    /// The part answered with an error (a missing library, an unreadable directory).
    Failed {
        /// The error.
        why: String,
        /// How long it took, milliseconds.
        took_ms: f64,
    },
    /// No answer by the deadline; the child was killed and went away.
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
    /// The part's answer, if there is one.
    pub fn data(&self) -> Option<&T> {
        match self {
            Part::Read { data, .. } => Some(data),
            _ => None,
        }
    }

    /// Why there is no data; `None` where there is some.
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
