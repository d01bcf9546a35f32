//! The two queries that have neither a file nor a netlink message: the log pages of a drive, and the driver's
//! statistics of an interface. Both only read.
#![allow(unsafe_code, reason = "ioctl takes pointers; this file makes two of them and nothing else")]

use std::ffi::c_char;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

/// `NVME_IOCTL_ADMIN_CMD` of linux/nvme_ioctl.h: `_IOWR('N', 0x41, struct nvme_admin_cmd)`.
const NVME_ADMIN: libc::Ioctl = 0xc048_4e41;
const GET_LOG_PAGE: u8 = 2;
const ALL_NAMESPACES: u32 = u32::MAX;
/// Timeout of the command. At its end the kernel resets the drive, so it is not shorter than the driver's own timeout.
const NVME_TIMEOUT_MS: u32 = 30_000;

/// Log page of SMART data, by the NVMe specification.
pub(crate) const SMART_PAGE: u8 = 2;
pub(crate) type LogPage = [u8; 512];

/// `struct nvme_admin_cmd` of linux/nvme_ioctl.h.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_length: u32,
    data_length: u32,
    words_10_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

/// Reads a log page through a controller's character device.
pub(crate) fn nvme_log(controller: &File, page: u8) -> io::Result<LogPage> {
    let mut log: LogPage = [0; 512];
    // The length is given in units of four octets, minus one.
    let words = u32::try_from(log.len() / 4 - 1).unwrap_or_default();
    let mut command = AdminCommand {
        opcode: GET_LOG_PAGE,
        namespace: ALL_NAMESPACES,
        address: log.as_mut_ptr() as u64,
        data_length: u32::try_from(log.len()).unwrap_or_default(),
        words_10_15: [u32::from(page) | words << 16, 0, 0, 0, 0, 0],
        timeout_ms: NVME_TIMEOUT_MS,
        ..AdminCommand::default()
    };
    // SAFETY: the command is the structure that this request takes, and `log` has the length that it names; both
    // outlive the call.
    let answer = unsafe { libc::ioctl(controller.as_raw_fd(), NVME_ADMIN, &raw mut command) };
    match answer {
        0 => Ok(log),
        status if status > 0 => Err(io::Error::other(format!("NVMe status {status:#x}"))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `SIOCETHTOOL`, `ETHTOOL_*` and `ETH_SS_STATS` of linux/ethtool.h.
const ETHTOOL: libc::Ioctl = 0x8946;
const GET_STRINGS: u32 = 0x1b;
const GET_STATISTICS: u32 = 0x1d;
const GET_SET_SIZES: u32 = 0x37;
const STATISTICS: u32 = 1;
const NAME_BYTES: usize = 32;
/// Upper limit of the number of statistics; drivers have a few thousand. The kernel writes all that exist at that
/// moment, regardless of the requested number, so the buffer needs room in case the number has grown.
const MOST_STATISTICS: usize = 1 << 16;
const SLACK: usize = 1 << 14;

/// Opens a socket for queries about network interfaces.
pub(crate) fn statistics_socket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?)
}

/// Reads the statistics of an interface as `ethtool -S` shows them: the driver's names and values.
pub(crate) fn statistics(socket: &OwnedFd, interface: &str) -> io::Result<Vec<(String, u64)>> {
    // Layout: cmd, reserved, mask (64 bits), one size.
    let mut sizes = [GET_SET_SIZES, 0, 1 << STATISTICS, 0, 0, 0];
    ethtool(socket, interface, &mut sizes)?;
    let count = usize::try_from(sizes[4]).unwrap_or(usize::MAX);
    if sizes[2] != 1 << STATISTICS || count == 0 {
        return Ok(Vec::new());
    }
    if count > MOST_STATISTICS {
        return Err(io::Error::other(format!("{count} statistics")));
    }
    let room = count + SLACK;
    let asked = u32::try_from(count).unwrap_or_default();
    // Layout: cmd, set, count, then 32 octets each.
    let mut names = vec![0_u32; 3 + room * NAME_BYTES / 4];
    names[..3].copy_from_slice(&[GET_STRINGS, STATISTICS, asked]);
    ethtool(socket, interface, &mut names)?;
    // Layout: cmd, count, then 64 bits each.
    let mut values = vec![0_u32; 2 + room * 2];
    values[..2].copy_from_slice(&[GET_STATISTICS, asked]);
    ethtool(socket, interface, &mut values)?;
    if (names[2], values[1]) != (asked, asked) {
        return Err(io::Error::other("the statistics changed while they were read"));
    }
    let words = |from: &[u32]| from.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
    let (names, values) = (words(&names[3..3 + count * NAME_BYTES / 4]), words(&values[2..2 + count * 2]));
    let name = |bytes: &[u8]| {
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        railgate_text::printable_bytes(text.trim_ascii())
    };
    let value = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or_default();
    Ok(names.chunks(NAME_BYTES).map(name).zip(values.chunks(8).map(value)).collect())
}

/// Sends one request about an interface; the answer is written into `data`.
fn ethtool(socket: &OwnedFd, interface: &str, data: &mut [u32]) -> io::Result<()> {
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last octet stays zero, as the terminator.
    if interface.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    for (into, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *into = byte.cast_signed();
    }
    request.ifr_ifru.ifru_data = data.as_mut_ptr().cast::<c_char>();
    // SAFETY: the request names an interface, and points to a buffer that begins with the command and has room for more
    // than its answer: the callers above leave `SLACK`. Both outlive the call.
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL, &raw mut request) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_structure_has_the_size_of_the_kernels() {
        assert_eq!(mem::size_of::<AdminCommand>(), 72);
    }

    #[test]
    fn queries_to_this_kernel_return_values_or_errors() {
        let socket = statistics_socket().unwrap();
        let unknown = statistics(&socket, "no-such-nic").unwrap_err();
        assert_eq!(unknown.raw_os_error(), Some(libc::ENODEV));
        assert_eq!(
            statistics(&socket, "a-name-that-no-kernel-has").unwrap_err().raw_os_error(),
            Some(libc::ENODEV)
        );
        // A driver may have statistics or none, and a container may only have the interface `lo`.
        match statistics(&socket, "lo") {
            Ok(none) => assert_eq!(none, []),
            Err(why) => assert!(why.raw_os_error().is_some(), "{why}"),
        }
        let file = tempfile::tempfile().unwrap();
        assert!(nvme_log(&file, SMART_PAGE).is_err(), "a file is no drive");
    }
}
