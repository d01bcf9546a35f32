//! The part of generic netlink that two ethtool queries need: the id of the family, and a page of a module.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use railgate_model::{Module, Reading};

use super::{Page, decode};

/// GENL_ID_CTRL and CTRL_* of linux/genetlink.h.
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// ETHTOOL_MSG_MODULE_EEPROM_GET and ETHTOOL_A_* of linux/ethtool_netlink.h.
const GET_MODULE: u8 = 31;
const HEADER: u16 = 1;
const HEADER_DEVICE: u16 = 2;
const OFFSET: u16 = 2;
const LENGTH: u16 = 3;
const PAGE: u16 = 4;
const BANK: u16 = 5;
const I2C_ADDRESS: u16 = 6;
const DATA: u16 = 7;

const NESTED: u16 = 0x8000;
const REQUEST: u16 = 1;
const ERROR: u16 = 2;

/// A socket of the ethtool family.
#[derive(Debug)]
pub(super) struct Ethtool {
    socket: OwnedFd,
    family: u16,
}

impl Ethtool {
    /// Returns `None` if this kernel has no such family.
    pub(super) fn open() -> Result<Option<Ethtool>, String> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkGeneric)
            .map_err(|why| format!("netlink: {why}"))?;
        // A receive timeout, in case the deadline of the parent process fails.
        let patience = TimeVal::new(10, 0);
        setsockopt(&socket, sockopt::ReceiveTimeout, &patience).map_err(|why| format!("netlink: {why}"))?;
        let mut open = Ethtool { socket, family: CONTROLLER };
        let reply = match open.ask(GET_FAMILY, &attribute(FAMILY_NAME, b"ethtool\0")) {
            Ok(reply) => reply,
            Err(Errno::ENOENT) => return Ok(None),
            Err(why) => return Err(format!("netlink: ethtool: {why}")),
        };
        let id = find(&reply, FAMILY_ID).and_then(|id| id.try_into().ok()).map(u16::from_ne_bytes);
        open.family = id.ok_or("netlink: ethtool: an answer without a number")?;
        Ok(Some(open))
    }

    /// Reads the module in the port of this interface.
    pub(super) fn module(&self, interface: &str) -> Reading<Module> {
        module(interface, &mut |page, offset| self.page(interface, page, offset))
    }

    fn page(&self, interface: &str, page: u8, offset: u32) -> Result<Page, Errno> {
        let mut name = interface.as_bytes().to_vec();
        name.push(0);
        let mut body = attribute(HEADER | NESTED, &attribute(HEADER_DEVICE, &name));
        body.extend(attribute(OFFSET, &offset.to_ne_bytes()));
        body.extend(attribute(LENGTH, &128_u32.to_ne_bytes()));
        body.extend(attribute(PAGE, &[page]));
        body.extend(attribute(BANK, &[0]));
        body.extend(attribute(I2C_ADDRESS, &[0x50]));
        let reply = self.ask(GET_MODULE, &body)?;
        whole_page(&reply)
    }

    /// Sends a query and returns the attributes of its answer.
    fn ask(&self, command: u8, attributes: &[u8]) -> Result<Vec<u8>, Errno> {
        let length = u32::try_from(20 + attributes.len()).map_err(|_| Errno::EMSGSIZE)?;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(self.family.to_ne_bytes());
        message.extend(REQUEST.to_ne_bytes());
        message.extend([0; 8]);
        message.extend([command, 1, 0, 0]);
        message.extend_from_slice(attributes);
        send(self.socket.as_raw_fd(), &message, MsgFlags::empty())?;
        let mut answer = vec![0; 16 * 1024];
        let count = recv(self.socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        answer.truncate(count);
        answered(&answer)
    }
}

/// The page with CMIS lane flags; SFF-8636 has them in the lower page.
const LANES: u8 = 0x11;

/// Reads a module. A flag is latched until it is read, so the first read may return one from the time when the link was
/// plugged in. Only a flag that is set again at once is current, so pages with flags are read twice.
fn module(interface: &str, read: &mut dyn FnMut(u8, u32) -> Result<Page, Errno>) -> Reading<Module> {
    let lower = match read(0, 0).and_then(|_| read(0, 0)) {
        Ok(lower) => lower,
        // Either there is no access to the module, or no module.
        Err(Errno::EOPNOTSUPP | Errno::ENODEV | Errno::ENXIO) => return Reading::Unsupported,
        Err(why) => return Reading::Failed(format!("{interface}: module: {why}")),
    };
    let mut upper = |page: u8| {
        let times = if page == LANES { 2 } else { 1 };
        let mut answer = Err(Errno::EIO);
        for _ in 0..times {
            answer = read(page, 128);
        }
        answer.map_err(|why| format!("{interface}: module, page {page:#x}: {why}"))
    };
    Reading::from_result(decode(&lower, &mut upper))
}

/// The page in an answer. For a long time mlx5 reported success with the bytes that it had read before an error,
/// possibly none; newer drivers return EIO in that case, and so does this function.
fn whole_page(attributes: &[u8]) -> Result<Page, Errno> {
    let data = find(attributes, DATA).ok_or(Errno::EBADMSG)?;
    data.try_into().map_err(|_| if data.len() < 128 { Errno::EIO } else { Errno::EBADMSG })
}

/// Encodes one attribute: length, type, value, padded to four bytes.
fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// The attributes after both headers, or the error that the kernel returned.
fn answered(message: &[u8]) -> Result<Vec<u8>, Errno> {
    let half = |at: usize| Some(u16::from_ne_bytes(message.get(at..at + 2)?.try_into().ok()?));
    let whole = |at: usize| Some(i32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
    if half(4) == Some(ERROR) {
        return Err(whole(16).map_or(Errno::EBADMSG, |code| Errno::from_raw(code.saturating_neg())));
    }
    let length = whole(0).and_then(|length| usize::try_from(length).ok()).ok_or(Errno::EBADMSG)?;
    message.get(20..length).map(<[u8]>::to_vec).ok_or(Errno::EBADMSG)
}

/// The value of an attribute, if it is present.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let length = usize::from(u16::from_ne_bytes(attributes.get(0..2)?.try_into().ok()?));
        let found = u16::from_ne_bytes(attributes.get(2..4)?.try_into().ok()?) & 0x3fff;
        let value = attributes.get(4..length)?;
        if found == kind {
            return Some(value);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_query_about_a_missing_interface_is_answered() {
        // A container may lack the family; a query about a missing interface has a defined answer.
        if let Ok(Some(ethtool)) = Ethtool::open() {
            assert!(ethtool.family > CONTROLLER);
            assert_eq!(ethtool.module("no-such-nic"), Reading::Unsupported);
        }
    }

    #[test]
    fn a_latched_flag_is_cleared_by_the_second_read() {
        let alarms = |reads_until_clear: usize| {
            let mut reads = 0;
            let mut read = |page: u8, offset: u32| {
                let mut bytes: Page = [0; 128];
                if (page, offset) == (0, 0) {
                    // A QSFP28 module without further pages; light lost in lane 2.
                    bytes[0] = 0x11;
                    bytes[2] = 4;
                    bytes[3] = if reads < reads_until_clear { 2 } else { 0 };
                    reads += 1;
                }
                Ok(bytes)
            };
            module("ib0", &mut read).known().unwrap().alarms.clone()
        };
        assert_eq!(alarms(1), Vec::<String>::new());
        assert_eq!(alarms(usize::MAX), ["no light received (lane 2)"]);
        let mut lanes = 0;
        let mut read = |page: u8, _: u32| {
            let mut bytes: Page = [0; 128];
            bytes[0] = 0x19;
            lanes += usize::from(page == LANES);
            Ok(bytes)
        };
        assert!(module("ib0", &mut read).known().is_some());
        assert_eq!(lanes, 2);
    }

    #[test]
    fn attributes_survive_a_round_trip() {
        let mut bytes = attribute(PAGE, &[3]);
        bytes.extend(attribute(DATA, &[7; 128]));
        assert_eq!(find(&bytes, PAGE), Some(&[3][..]));
        assert_eq!(find(&bytes, DATA).map(<[u8]>::len), Some(128));
        assert_eq!(find(&bytes, BANK), None);
    }

    #[test]
    fn a_short_page_is_an_error() {
        let page = |length: usize| whole_page(&attribute(DATA, &vec![7; length]));
        assert_eq!(page(128), Ok([7; 128]));
        for short in [0, 1, 48, 127] {
            assert_eq!(page(short), Err(Errno::EIO), "{short}");
        }
        assert_eq!(page(129), Err(Errno::EBADMSG));
        assert_eq!(whole_page(&[]), Err(Errno::EBADMSG));
    }

    proptest! {
        #[test]
        fn no_answer_causes_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in any::<u16>()) {
            let _ = answered(&bytes).map(|attributes| find(&attributes, kind).map(<[u8]>::len));
            let _ = find(&bytes, kind);
        }
    }
}
