//! What the job's processes said to one another: NCCL's collectives as its profiler plugin counted them.
//!
//! Written by the job's own processes: it is shown, and decides about nothing. Sizes follow nccl-tests: the bytes of
//! an AllGather and a ReduceScatter are those of the whole buffer, all ranks' parts together.

mod gather;
mod reference;
mod share;

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

pub use gather::gather;
pub(crate) use reference::kinds;
pub use reference::{Reference, refer};
pub use share::Share;

/// What the profiler plugin of one node's processes counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Communication {
    /// Each process of the node in which NCCL loaded the plugin.
    pub processes: Vec<NcclProcess>,
    /// Each communicator and local rank, for hangs: who handed over what last.
    pub communicators: Vec<Communicator>,
    /// Communicators that are left out here, as there are too many; their operations are counted below.
    pub more_communicators: u64,
    /// Per communicator, operation, size, datatype, algorithm and protocol, summed over the node's ranks; those that
    /// moved most come first.
    pub collectives: Vec<Collective>,
    /// Rows that are left out, as there are too many.
    pub more_collectives: u64,
    /// What cannot be seen, one sentence each: it is missing above, not zero.
    pub blind_spots: Vec<String>,
    /// Files that could not be read, one line each.
    pub unread: Vec<String>,
}

/// A process with NCCL in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NcclProcess {
    /// Process, as it sees itself: a container may number its own.
    pub pid: u64,
    /// When NCCL made its first communicator.
    pub start: UnixMillis,
    /// NCCL's release, `2.28.9`; `None`: could not be found out.
    pub nccl: Option<String>,
    /// Version of NCCL's profiler interface: 4 to 7.
    pub api: u64,
    /// Version of the plugin.
    pub plugin: String,
    /// `count`, `sample`, `full`, `off`, as it was last; `None`: unreadable.
    pub mode: Option<String>,
    /// Why that is less than was wished for; empty: it is not.
    pub limit: String,
    /// `sample`: one window of operations in so many was timed last.
    pub duty: u64,
    /// Operations that found no room in the file.
    pub lost: u64,
    /// Operations whose timing never came to an end.
    pub expired: u64,
    /// Operations captured into CUDA graphs, once each; their replays may be invisible.
    pub captured: u64,
    /// Panics of the plugin that were caught.
    pub panics: u64,
}

/// One rank of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Communicator {
    /// NCCL's hash, 16 hexadecimal digits, the same on all ranks.
    pub hash: String,
    /// The framework's name for it, where it gave one.
    pub name: String,
    /// Ranks in it.
    pub size: u32,
    /// This rank, in it.
    pub rank: u32,
    /// Nodes in it.
    pub nodes: u64,
    /// [`NcclProcess::pid`].
    pub pid: u64,
    /// When it was made.
    pub start: UnixMillis,
    /// It was destroyed, in good order or given up.
    pub destroyed: bool,
    /// Operations handed to the GPU. Of a hang, the rank with fewest is the one that the others wait for.
    pub ops: u64,
    /// The last one; `None`: there was none.
    pub last: Option<LastOp>,
    /// Operations that the GPU was seen to begin, of those that were timed.
    pub timed_begun: u64,
    /// And to finish; fewer than begun: this many were on the GPU when it ended.
    pub timed_done: u64,
    /// The last that was seen to finish, of `ops`, from 1; `None`: none was timed.
    pub done_op: Option<u64>,
    /// When that was seen.
    pub done_time: Option<UnixMillis>,
}

/// The last operation that a rank handed to its GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastOp {
    /// `AllReduce`
    pub op: String,
    /// NCCL's number of it among those of its kind; `None` for point to point.
    pub seq: Option<u64>,
    /// Its bytes.
    pub bytes: u64,
    /// When, a few milliseconds coarse.
    pub time: UnixMillis,
    /// Then, or later: it is one of the first after a loop of very many and a rest.
    pub time_is_earliest: bool,
}

/// When the newest operation was launched; `None` where it may have been later, or there is none.
pub(crate) fn newest_launch<'a>(comms: impl Iterator<Item = &'a Communicator>) -> Option<UnixMillis> {
    let last = comms.filter_map(|one| one.last.as_ref());
    let newest = last.max_by_key(|op| (op.time, !op.time_is_earliest))?;
    (!newest.time_is_earliest).then_some(newest.time)
}

/// One kind of operation on one communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Collective {
    /// [`Communicator::hash`].
    pub communicator: String,
    /// Ranks of it.
    pub size: u32,
    /// Nodes of it.
    pub nodes: u64,
    /// NCCL's name. `Send` and `Recv` count messages, `P2pGroup` what went out with one launch of them.
    pub op: String,
    /// Messages of this many bytes, up to twice that: a power of two.
    pub from_bytes: u64,
    /// NCCL's name without `nccl`; `other`: it has none there (`Uint8`).
    pub datatype: String,
    /// `RING`, `TREE`, `NVLS`, …; `other`: not said.
    pub algorithm: String,
    /// `LL`, `LL128`, `SIMPLE`; `other`: not said.
    pub protocol: String,
    /// The node's ranks in this row.
    pub ranks: u32,
    /// Calls, summed over those ranks.
    pub calls: u64,
    /// Bytes, likewise.
    pub bytes: u64,
    /// Calls of which the GPU's own time is known, likewise.
    pub timed: u64,
    /// Their bytes.
    pub timed_bytes: u64,
    /// Their GPU time, seconds: first channel's begin to last channel's end, waiting for others included.
    pub gpu_s: f64,
    /// The shortest, seconds; `None`: none was timed.
    pub min_s: Option<f64>,
    /// The longest, seconds.
    pub max_s: Option<f64>,
    /// Of those, calls whose successor on the communicator began at once (within 50 µs of their end, 100 for messages).
    pub back_to_back: u64,
    /// Their bytes.
    pub back_to_back_bytes: u64,
    /// From their begin to their successor's, seconds.
    pub back_to_back_s: f64,
    /// `timed_bytes` per rank over `gpu_s` per rank, times nccl-tests' factor, GB/s (1e9): what the wires carried
    /// while the kernels ran.
    pub busbw_gb_s: Option<f64>,
    /// `back_to_back_bytes` over `back_to_back_s`, likewise: what a loop of them gets, with what lies between two
    /// kernels. That is nccl-tests' figure. `None`: none followed another at once, or few were timed and the GPU waited
    /// for the launching thread, which timing holds up.
    pub busbw_back_to_back_gb_s: Option<f64>,
    /// The site's reference for this operation and size, GB/s; `None` if there is none, so that no share can be computed.
    pub reference_gb_s: Option<f64>,
    /// [`Collective::comparable_gb_s`] of that, percent.
    pub of_reference_percent: Option<f64>,
    /// One standard error of the mean GPU time, percent of it: what sampling leaves open. `None`: fewer than two timed.
    pub error_percent: Option<f64>,
    /// The same of `busbw_back_to_back_gb_s`, and besides how well it is known what timing adds to a call.
    pub back_to_back_error_percent: Option<f64>,
    /// Each rank's mean GPU time. The smallest of all ranks is about the transfer; what a rank has above it, it
    /// spent waiting for others.
    pub by_rank: Vec<RankTime>,
}

/// One rank's part of a [`Collective`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankTime {
    /// Rank in the communicator.
    pub rank: u32,
    /// Calls.
    pub calls: u64,
    /// Of which timed.
    pub timed: u64,
    /// GPU time of those, seconds.
    pub gpu_s: f64,
}

impl RankTime {
    /// Mean GPU time of a call, seconds.
    pub fn mean_s(&self) -> Option<f64> {
        #[allow(clippy::cast_precision_loss, reason = "a count of calls")]
        (self.timed > 0).then(|| self.gpu_s / self.timed as f64)
    }
}

/// What algorithm bandwidth is multiplied with to say what the wires carried, as nccl-tests does: 2(n-1)/n for
/// AllReduce, (n-1)/n for AllGather, ReduceScatter and AlltoAll, else 1. `None` for an operation without bytes.
pub fn busbw_factor(op: &str, ranks: u32) -> Option<f64> {
    let n = f64::from(ranks.max(1));
    match op {
        "AllReduce" => Some(2.0 * (n - 1.0) / n),
        "AllGather" | "ReduceScatter" | "AlltoAll" | "Gather" | "Scatter" => Some((n - 1.0) / n),
        "Broadcast" | "Reduce" | "Send" | "Recv" | "SendRecv" | "P2pGroup" => Some(1.0),
        _ => None,
    }
}
