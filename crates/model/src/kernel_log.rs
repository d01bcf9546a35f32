use serde::{Deserialize, Serialize};

use crate::{PciAddress, UnixMillis};

/// A position in the kernel log. Sequence numbers start again at each boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelMark {
    /// The boot to which it belongs.
    pub boot_id: String,
    /// The last sequence number that was read.
    pub seq: u64,
}

/// Records of `/dev/kmsg` after a mark. Only records that the kernel itself logged (facility 0) are kept, and only
/// those that a check or a report reads ([`kernel_lines`](crate::kernel_lines)). Records that start with a process
/// name, which a user can choose, are dropped; if the kernel's text after the name is known, only that text is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelLog {
    /// Where reading started; `None` for the oldest record in the buffer.
    pub since: Option<KernelMark>,
    /// Sequence number of the last record, relevant or not; `None` for an empty log.
    pub last_seq: Option<u64>,
    /// Records were overwritten before they were read, so some may be missing.
    pub overrun: bool,
    /// The relevant records, in order.
    pub lines: Vec<KernelLine>,
    /// Records that start like a driver's because a process has such a name: the newest 32, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forged: Vec<ForgedLine>,
}

/// One record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelLine {
    /// Sequence number.
    pub seq: u64,
    /// Wall-clock time: the record's monotonic time plus the boot time.
    pub time: UnixMillis,
    /// Syslog level, 0 (emerg) to 7 (debug).
    pub level: u8,
    /// The text, with control characters replaced.
    pub text: String,
}

/// A record that starts like a driver's because a process has such a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForgedLine {
    /// Sequence number.
    pub seq: u64,
    /// Wall-clock time.
    pub time: UnixMillis,
    /// Process id, if the record has it.
    pub pid: Option<u32>,
    /// User id, if the kernel's audit record of the same crash has it.
    pub uid: Option<u32>,
    /// The text, with control characters replaced.
    pub text: String,
}

/// A record of the NVIDIA driver that reports an Xid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct XidEvent {
    /// Xid code. "GPU has fallen off the bus" without a code counts as 79.
    pub code: u32,
    /// PCI address of the GPU in the record, with function 0.
    pub gpu: Option<PciAddress>,
    /// The value of `pid=`, if the line has it.
    pub pid: Option<u32>,
    /// Time of the record.
    pub time: UnixMillis,
    /// The record's sequence number.
    pub seq: u64,
    /// The whole line.
    pub text: String,
}
