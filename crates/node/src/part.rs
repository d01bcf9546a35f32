use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::child::{self, Ended, Outcome};

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
        /// What it said.
        data: T,
        /// How long it took, milliseconds.
        took_ms: f64,
    },
    /// Nobody asked for it.
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

impl<T: DeserializeOwned> Part<T> {
    /// Asks a child that answers in JSON; returns within the deadline plus what it takes to end a child.
    pub(crate) fn asked(task: &str, input: &impl Serialize, deadline: Duration) -> Self {
        match serde_json::to_vec(input) {
            Ok(input) => Part::answered(child::run_one(task, input, deadline), deadline),
            Err(why) => Part::Failed { why: format!("input: {why}"), took_ms: 0.0 },
        }
    }

    /// What such a child said by the deadline.
    pub(crate) fn answered(ended: Ended, deadline: Duration) -> Self {
        let (took_ms, after_ms) = (millis(ended.took), millis(deadline));
        match ended.outcome {
            Outcome::Done(reply) => match serde_json::from_slice(&reply) {
                Ok(data) => Part::Read { data, took_ms },
                Err(why) => Part::Failed { why: format!("reply: {why}"), took_ms },
            },
            Outcome::Failed(why) => Part::Failed { why, took_ms },
            Outcome::Silent => Part::Silent { after_ms },
            Outcome::Stuck => Part::Stuck { after_ms },
        }
    }
}

pub(crate) fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

impl<T> Part<T> {
    /// What the part said, if it answered.
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
