//! Communication of the job's processes: NCCL collectives, as counted by the profiler plugin.
//!
//! The job's own processes write these figures, so they are shown but decide nothing. Sizes follow nccl-tests:
//! the bytes of AllGather and ReduceScatter are those of the whole buffer, over all ranks.

mod gather;
mod pauses;
mod reference;
mod share;

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

pub use gather::gather;
pub use pauses::{Pause, PauseSum, Pauses};
pub use reference::{Reference, refer};
pub use share::Share;

/// Counts of the profiler plugin in the processes of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Communication {
    /// Each process of the node that loaded the plugin.
    pub processes: Vec<NcclProcess>,
    /// Each communicator and local rank with its last operation, to locate hangs.
    pub communicators: Vec<Communicator>,
    /// Number of communicators omitted above a limit; their operations are included in the rows below.
    pub more_communicators: u64,
    /// Rows per communicator, operation, size, datatype, algorithm and protocol, summed over the node's ranks,
    /// sorted by bytes in descending order.
    pub collectives: Vec<Collective>,
    /// Number of rows omitted above a limit.
    pub more_collectives: u64,
    /// What the plugin cannot observe, one sentence each: it is missing above, not zero.
    pub blind_spots: Vec<String>,
    /// Files that could not be read, one line each.
    pub unread: Vec<String>,
    /// Pauses of the ranks, as the sampler saw them; `None` if there was none, or if they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pauses: Option<Pauses>,
}

/// A process that uses NCCL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NcclProcess {
    /// PID inside the process's own PID namespace, which may be that of a container.
    pub pid: u64,
    /// When NCCL created its first communicator.
    pub start: UnixMillis,
    /// Which start of the step inside the attempt it belongs to (`RAILGATE_START`).
    #[serde(skip_serializing_if = "crate::plain::is_zero")]
    pub start_number: u32,
    /// NCCL release, `2.28.9`; `None` if not known.
    pub nccl: Option<String>,
    /// Version of NCCL's profiler interface: 4 to 7.
    pub api: u64,
    /// Release of the plugin.
    pub plugin: String,
    /// Last mode: `count`, `sample`, `full`, `off`; `None` if unreadable.
    pub mode: Option<String>,
    /// Why that is less than the configured mode; empty if it is not.
    pub limit: String,
    /// In mode `sample`: the last interval; one in this many windows of operations was timed.
    pub duty: u64,
    /// Operations that did not fit into the file.
    pub lost: u64,
    /// Operations whose timing never completed.
    pub expired: u64,
    /// Operations captured into CUDA graphs, counted once each; replays may be invisible.
    pub captured: u64,
    /// Panics that the plugin caught.
    pub panics: u64,
}

/// One rank of a communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Communicator {
    /// NCCL's hash, 16 hexadecimal digits, equal on all ranks.
    pub hash: String,
    /// Name that the framework set; empty if none.
    pub name: String,
    /// Number of ranks.
    pub size: u32,
    /// Rank of this process in the communicator.
    pub rank: u32,
    /// Number of nodes.
    pub nodes: u64,
    /// [`NcclProcess::pid`].
    pub pid: u64,
    /// When it was created.
    pub start: UnixMillis,
    /// [`NcclProcess::start_number`].
    #[serde(skip_serializing_if = "crate::plain::is_zero")]
    pub start_number: u32,
    /// Destroyed or aborted.
    pub destroyed: bool,
    /// Operations submitted to the GPU. In a hang the other ranks wait for the rank with the fewest.
    pub ops: u64,
    /// Last operation; `None` if there was none.
    pub last: Option<LastOp>,
    /// Timed operations that began on the GPU.
    pub timed_begun: u64,
    /// Timed operations that finished. The difference to `timed_begun` was on the GPU when the process ended.
    pub timed_done: u64,
    /// Number of the last timed operation that finished, counted from 1 as `ops`; `None` if none was timed.
    pub done_op: Option<u64>,
    /// When it finished.
    pub done_time: Option<UnixMillis>,
}

/// Formats an operation with its number, `AllReduce number 649`. NCCL counts `seq` from 0; the text counts from 1, as NCCL's RAS and
/// PyTorch do.
pub fn numbered(op: &str, seq: u64) -> String {
    format!("{op} number {}", seq.saturating_add(1))
}

/// The last operation that a rank submitted to its GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastOp {
    /// `AllReduce`
    pub op: String,
    /// NCCL's sequence number among operations of the same name, counted from 0; `None` for point to point. Texts use [`numbered`].
    pub seq: Option<u64>,
    /// Size, bytes.
    pub bytes: u64,
    /// Submission time, with an error of a few milliseconds.
    pub time: UnixMillis,
    /// `time` is a lower bound: the operation is one of the first after a long loop and a pause.
    pub time_is_earliest: bool,
}

/// Launch time of the newest operation; `None` if there is none, or if only a lower bound is known.
pub fn newest_launch<'a>(comms: impl Iterator<Item = &'a Communicator>) -> Option<UnixMillis> {
    let last = comms.filter_map(|one| one.last.as_ref());
    let newest = last.max_by_key(|op| (op.time, !op.time_is_earliest))?;
    (!newest.time_is_earliest).then_some(newest.time)
}

/// All calls of one collective signature on one communicator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Collective {
    /// [`Communicator::hash`].
    pub communicator: String,
    /// Ranks of the communicator.
    pub size: u32,
    /// Nodes of the communicator.
    pub nodes: u64,
    /// NCCL's name. `Send` and `Recv` count messages, `P2pGroup` the messages of one launch.
    pub op: String,
    /// Lower bound of the message size, bytes, a power of two; the upper bound is twice that.
    pub from_bytes: u64,
    /// NCCL's name without `nccl` (`Float32`); `other` for types without one.
    pub datatype: String,
    /// `RING`, `TREE`, `NVLS`, …; `other` if not reported.
    pub algorithm: String,
    /// `LL`, `LL128`, `SIMPLE`; `other` if not reported.
    pub protocol: String,
    /// Number of the node's ranks in this row.
    pub ranks: u32,
    /// Number of calls, summed over those ranks.
    pub calls: u64,
    /// Bytes, summed likewise.
    pub bytes: u64,
    /// Calls whose duration on the GPU is known.
    pub timed: u64,
    /// Bytes of the timed calls.
    pub timed_bytes: u64,
    /// GPU time of the timed calls, seconds, from the first channel's begin to the last channel's end,
    /// including waits for other ranks.
    pub gpu_s: f64,
    /// Shortest, seconds; `None` if none was timed.
    pub min_s: Option<f64>,
    /// Longest, seconds.
    pub max_s: Option<f64>,
    /// Timed calls whose successor on the communicator began at once: within 50 µs of their end, 100 µs for
    /// messages.
    pub back_to_back: u64,
    /// Bytes of the back-to-back calls.
    pub back_to_back_bytes: u64,
    /// Time from their begin to the begin of their successor, seconds.
    pub back_to_back_s: f64,
    /// Bus bandwidth while kernels ran: `timed_bytes` per rank over `gpu_s` per rank, times nccl-tests' factor,
    /// GB/s (1e9).
    pub busbw_gb_s: Option<f64>,
    /// Bus bandwidth of a loop of calls, including gaps between kernels, as nccl-tests measures it:
    /// `back_to_back_bytes` over `back_to_back_s`, times the factor, GB/s. `None` if no calls were back to
    /// back, or if few were timed and the GPU waited for the launching thread, which timing delays.
    pub busbw_back_to_back_gb_s: Option<f64>,
    /// The site's reference for this operation and size, GB/s; `None` without one.
    pub reference_gb_s: Option<f64>,
    /// [`Collective::comparable_gb_s`] as a percentage of the reference.
    pub of_reference_percent: Option<f64>,
    /// Standard error of the mean GPU time due to sampling, percent; `None` if fewer than two calls were timed.
    pub error_percent: Option<f64>,
    /// The same for `busbw_back_to_back_gb_s`, plus the uncertainty of the overhead of timing.
    pub back_to_back_error_percent: Option<f64>,
    /// Each rank's mean GPU time. The smallest is close to the transfer time; the excess of another rank is its
    /// wait.
    pub by_rank: Vec<RankTime>,
}

/// Calls of one rank in a [`Collective`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankTime {
    /// Rank in the communicator.
    pub rank: u32,
    /// Number of calls.
    pub calls: u64,
    /// Number of timed calls.
    pub timed: u64,
    /// GPU time of the timed calls, seconds.
    pub gpu_s: f64,
}

impl RankTime {
    /// Mean GPU time of a timed call, seconds; `None` if none was timed.
    pub fn mean_s(&self) -> Option<f64> {
        #[allow(clippy::cast_precision_loss, reason = "a count of calls")]
        (self.timed > 0).then(|| self.gpu_s / self.timed as f64)
    }
}

/// Factor from algorithm bandwidth to bus bandwidth, as in nccl-tests: 2(n-1)/n for AllReduce, (n-1)/n for
/// AllGather, ReduceScatter and AlltoAll, else 1. `None` for an operation without bytes.
pub fn busbw_factor(op: &str, ranks: u32) -> Option<f64> {
    let n = f64::from(ranks.max(1));
    match op {
        "AllReduce" => Some(2.0 * (n - 1.0) / n),
        "AllGather" | "ReduceScatter" | "AlltoAll" | "Gather" | "Scatter" => Some((n - 1.0) / n),
        "Broadcast" | "Reduce" | "Send" | "Recv" | "SendRecv" | "P2pGroup" => Some(1.0),
        _ => None,
    }
}
