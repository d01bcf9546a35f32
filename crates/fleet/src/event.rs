//! What happened, as plain data.

use std::fmt;

use railgate_model::{Class, Severity, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::NodeNames;

/// One event. Events arrive late, twice and out of order: [`crate::History`] is the same for any order of the same events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Identifies the event in all its copies. The intake makes it from what the event is about, never from when it was read.
    pub id: String,
    /// When it happened.
    pub time: UnixMillis,
    /// Who could have written it.
    pub source: Source,
    /// What happened.
    pub what: What,
}

impl Event {
    /// Returns whether this event counts rather than another one with the same id: the same answer in any order of arrival.
    pub fn supersedes(&self, other: &Event) -> bool {
        let key = |event: &Event| (event.time, event.source, format!("{:?}", event.what));
        key(self) > key(other)
    }
}

/// Who could have written an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Root of a node, or SlurmUser: only these count for or against a node.
    Root,
    /// A file that a user owns or can replace. Feeds the productive time of that user's jobs, nothing else: the intake checks that the
    /// owner of the file is the owner of the job that it names.
    User,
}

/// How much an observation proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// A user can cause it, or another node claims it.
    Hearsay,
    /// One source that no program can forge.
    Sign,
    /// Two independent sources agree, or the part is gone.
    Proof,
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A GPU or its memory.
    Gpu,
    /// NVLink or an NVSwitch.
    Nvlink,
    /// A network card, its cable or its port.
    Network,
    /// Supply of power.
    Power,
    /// Temperature.
    Thermal,
    /// A file system or its server.
    Storage,
    /// CPU, memory or main board.
    Host,
    /// A driver, a library or the operating system.
    Software,
    /// The node does not answer.
    Down,
    /// None of these.
    Other,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Gpu => "GPU",
            Cause::Nvlink => "NVLink",
            Cause::Network => "network",
            Cause::Power => "power",
            Cause::Thermal => "temperature",
            Cause::Storage => "storage",
            Cause::Host => "host",
            Cause::Software => "software",
            Cause::Down => "no answer",
            Cause::Other => "other",
        })
    }
}

/// Kinds of what several nodes share. Earlier kinds are preferred where two explain the same faults equally well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedKind {
    /// A leaf switch of the compute network.
    Leaf,
    /// All leaf switches of one rail.
    Rail,
    /// A power distribution unit.
    Pdu,
    /// A rack.
    Rack,
    /// A cooling row or loop.
    Cooling,
    /// A file server or file system.
    FileServer,
    /// A version of the GPU driver.
    Driver,
    /// An image of the operating system.
    Image,
}

impl SharedKind {
    /// Returns whether a failure of it can show on a node as this cause.
    pub(crate) fn explains(self, cause: Cause) -> bool {
        use Cause::{Down, Gpu, Host, Network, Nvlink, Other, Power, Software, Storage, Thermal};
        match self {
            SharedKind::Leaf | SharedKind::Rail => matches!(cause, Network | Down),
            SharedKind::Pdu => matches!(cause, Power | Down | Other),
            SharedKind::Rack => matches!(cause, Power | Thermal | Network | Down | Other),
            SharedKind::Cooling => matches!(cause, Thermal | Down),
            SharedKind::FileServer => matches!(cause, Storage | Down),
            SharedKind::Driver => matches!(cause, Gpu | Nvlink | Software | Down),
            SharedKind::Image => matches!(cause, Gpu | Network | Storage | Host | Software | Down | Other),
        }
    }
}

impl fmt::Display for SharedKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SharedKind::Leaf => "leaf switch",
            SharedKind::Rail => "rail",
            SharedKind::Pdu => "PDU",
            SharedKind::Rack => "rack",
            SharedKind::Cooling => "cooling row",
            SharedKind::FileServer => "file server",
            SharedKind::Driver => "driver version",
            SharedKind::Image => "image",
        })
    }
}

/// Something that several nodes share, for example the leaf switch `leaf-07`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Shared {
    /// Its kind.
    pub kind: SharedKind,
    /// Its name, unique within the kind.
    pub name: String,
}

/// A card of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Card {
    /// UUID of a GPU, GUID of a network card.
    pub uuid: String,
    /// Serial number; empty if it could not be read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
}

/// A finding about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFinding {
    /// Slurm's name of the node.
    pub node: String,
    /// Check id, for example `gpu-lost`.
    pub check: String,
    /// Severity. Only [`Severity::Fail`] counts as a fault.
    pub severity: Severity,
    /// Class. Only `node` and `fabric` count as faults.
    pub class: Class,
    /// What failed.
    pub cause: Cause,
    /// How much it proves.
    pub grade: Grade,
    /// UUID or GUID of the card; `None` if it is about no card, or the card is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<String>,
    /// The leaf switch at the other end of the port; `None` if it is about no port, or the leaf is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaf: Option<String>,
    /// The node that makes the accusation, if it is not this node. A network error names the peer, not the culprit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuser: Option<String>,
}

/// How an attempt of a job ended, in Slurm's accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Exit code 0.
    Completed,
    /// Another exit code or a signal.
    Failed,
    /// Slurm lost a node.
    NodeFail,
    /// Ended by its time limit.
    Timeout,
    /// Ended by a user or an admin.
    Cancelled,
    /// Made room for another job.
    Preempted,
    /// Exceeded its memory.
    OutOfMemory,
}

/// One attempt of a job, from Slurm's records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Job id. All attempts of a requeued job have the same.
    pub job: u32,
    /// How often Slurm had started the job before.
    pub attempt: u32,
    /// The owner.
    pub uid: u32,
    /// The partition.
    pub partition: String,
    /// The nodes.
    pub nodes: NodeNames,
    /// GPUs of all nodes together.
    pub gpus: u32,
    /// When this attempt could have started: submission, or the end of the attempt before.
    pub queued: UnixMillis,
    /// When it started.
    pub start: UnixMillis,
    /// When and how it ended; `None` while it runs or if its end is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<(UnixMillis, Outcome)>,
}

/// What the program of one attempt reports about its progress. The user can write anything here.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Job id.
    pub job: u32,
    /// As [`Attempt::attempt`].
    pub attempt: u32,
    /// From each start of the program to its first step, summed over its starts within the attempt, seconds.
    pub start_up_s: f64,
    /// End of the last step.
    pub last_step: UnixMillis,
    /// Seconds in checkpoints during which no step ran.
    pub checkpoint_s: f64,
    /// Seconds of steps that were repeated within the attempt.
    pub redone_s: f64,
    /// End of the last checkpoint; `None` if none was reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<UnixMillis>,
}

/// Who drained a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Drainer {
    /// railgate.
    Railgate,
    /// Slurm itself.
    Slurm,
    /// An admin.
    Admin,
}

/// Whether a text can be the name of a node. Others are no nodes, and would only fill lists.
pub fn is_node_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty() && name.len() <= 64 && name.bytes().all(plain)
}

/// Kinds of [`Event`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A row of the site table, or what a node reports of its driver and image: valid from the time of the event.
    Placed {
        /// The node.
        node: String,
        /// What it shares. Kinds that are not named keep what was known.
        shares: Vec<Shared>,
    },
    /// The cards that a node has.
    Cards {
        /// The node.
        node: String,
        /// All of them.
        cards: Vec<Card>,
    },
    /// A finding.
    Finding(NodeFinding),
    /// Slurm has no answer from the node.
    Down {
        /// The node.
        node: String,
    },
    /// The node takes no more jobs.
    Drained {
        /// The node.
        node: String,
        /// By whom.
        by: Drainer,
        /// Slurm's reason.
        reason: String,
    },
    /// The node takes jobs again.
    Resumed {
        /// The node.
        node: String,
    },
    /// The node takes jobs again after it was drained as a lemon. It is on probation, as after a repair.
    LemonResumed {
        /// The node.
        node: String,
    },
    /// The node started.
    Rebooted {
        /// The node.
        node: String,
        /// Whether railgate, Slurm or an admin asked for it; `None` if that is not known, which counts as expected.
        expected: Option<bool>,
    },
    /// An attempt started. Carries all that is known, since its other events can be lost.
    JobStarted(Attempt),
    /// An attempt ended.
    JobEnded(Attempt),
    /// The program was started again inside its allocation.
    Restarted {
        /// Job id.
        job: u32,
        /// As [`Attempt::attempt`].
        attempt: u32,
    },
    /// An admin worked on a node: `railgate fleet repaired` and `railgate fleet maintained`.
    Maintained {
        /// The node.
        node: String,
        /// Whether the fault should be gone. Other work, for example a firmware update, is no repair.
        repair: bool,
        /// UUID of the card that was repaired or replaced; `None` for the node as a whole.
        card: Option<String>,
        /// The admin; empty if not known.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        by: String,
        /// What was done; empty if not known.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        why: String,
    },
    /// A figure of a self-test by root, or of an acceptance.
    SelfTested {
        /// The node.
        node: String,
        /// For example `gemm-tflops@3`.
        figure: String,
        /// The value; `None` if the test gave none.
        value: Option<f64>,
        /// Its unit; empty if it has none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        unit: String,
        /// Whether it passed; `None` if it could not be judged.
        passed: Option<bool>,
    },
    /// What a program reports.
    Progress(Progress),
}

impl What {
    /// Returns whether an event of this kind counts only if root or SlurmUser wrote it.
    pub(crate) fn needs_root(&self) -> bool {
        !matches!(self, What::Progress(_) | What::Restarted { .. })
    }
}
