use serde::{Deserialize, Serialize};

use crate::{PciAddress, UnixMillis};

/// A place in the kernel's log: sequence numbers start again at each boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelMark {
    /// The boot it belongs to.
    pub boot_id: String,
    /// The last sequence number that was seen.
    pub seq: u64,
}

/// Records of `/dev/kmsg` after a mark: those that the kernel itself wrote (facility 0), and of those only the ones that a
/// check or a report reads ([`kernel_lines`](crate::kernel_lines)). Records that a process worded through its name are not among
/// them; where the kernel's own words behind the name are known, only these are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelLog {
    /// Where the reading began; `None` means from the oldest record that is left.
    pub since: Option<KernelMark>,
    /// The last record's sequence number, relevant or not; `None` in an empty log.
    pub last_seq: Option<u64>,
    /// Records were overwritten before they were read, so something may be missing.
    pub overrun: bool,
    /// The relevant records, in order.
    pub lines: Vec<KernelLine>,
    /// Records that a process worded so that they begin like a driver's: the newest 32, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forged: Vec<ForgedLine>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelLine {
    /// Sequence number.
    pub seq: u64,
    /// Wall-clock time: the record's monotonic time on top of the boot time.
    pub time: UnixMillis,
    /// syslog level, 0 (emerg) to 7 (debug).
    pub level: u8,
    /// The text, control characters replaced.
    pub text: String,
}

/// A record that begins like a driver's because a process has such a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForgedLine {
    /// Sequence number.
    pub seq: u64,
    /// Wall-clock time.
    pub time: UnixMillis,
    /// The process, where the record has its number.
    pub pid: Option<u32>,
    /// The user, if the kernel's audit record of the same crash has it.
    pub uid: Option<u32>,
    /// The text, control characters replaced.
    pub text: String,
}

/// A line of the NVIDIA driver that reports an Xid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct XidEvent {
    /// Xid code. "GPU has fallen off the bus" without a code counts as 79.
    pub code: u32,
    /// The GPU it names; function 0.
    pub gpu: Option<PciAddress>,
    /// `pid=` where the line has one.
    pub pid: Option<u32>,
    /// When.
    pub time: UnixMillis,
    /// The record's sequence number.
    pub seq: u64,
    /// The whole line.
    pub text: String,
}
