//! A reliable connection with the peer, for RDMA writes and reads. The crate `ibverbs` 0.9.2 has neither, and keeps the pointers
//! that they need private; this file uses the functions of libibverbs themselves.
//!
//! No function here is unsafe to call: the memory of work requests belongs to the same struct as the queue pair and outlives it,
//! and the processor reads and writes it atomically, because the devices of both ends may do so at any time.
#![allow(unsafe_code, reason = "the functions of libibverbs take and return pointers")]

use std::ffi::{CStr, c_int};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

use ibverbs_sys as ffi;

use crate::message::{Place, Region};
use crate::pattern::{BLOCK, BLOCKS};

/// The only port of the devices that NCCL uses on such nodes, and the one that the loopback tests.
const PORT: u8 = 1;
/// Maximum number of work requests in flight.
pub(crate) const DEPTH: usize = 8;
/// Maximum number of RDMA reads in flight that is asked for.
const READS: c_int = 16;
/// Time until a packet is sent again, 4.096 µs · 2^14 = 67 ms, and the number of times: without an answer a request fails after
/// half a second to four seconds, depending on the device.
const TIMEOUT: u8 = if cfg!(feature = "small") { 19 } else { 14 };
const RETRIES: u8 = 7;
/// `IBV_GID_TYPE_SYSFS_ROCE_V2`.
const ROCE_V2: u32 = 2;

/// A pointer from libibverbs, with the function that frees it.
struct Owned<T> {
    pointer: NonNull<T>,
    free: unsafe extern "C" fn(*mut T) -> c_int,
}

impl<T> Owned<T> {
    fn new(pointer: *mut T, free: unsafe extern "C" fn(*mut T) -> c_int, what: &str) -> Result<Self, String> {
        let why = std::io::Error::last_os_error();
        NonNull::new(pointer).map(|pointer| Owned { pointer, free }).ok_or_else(|| format!("{what}: {why}"))
    }

    fn get(&self) -> *mut T {
        self.pointer.as_ptr()
    }
}

impl<T> fmt::Debug for Owned<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pointer.fmt(out)
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer came from the function that `free` belongs to and is freed once, here; what was made from it is
        // freed before it by the order of the fields of `End`. A failure leaves the resource to the end of the process.
        unsafe { (self.free)(self.get()) };
    }
}

/// Registered memory of 8-byte words.
#[derive(Debug)]
struct Memory {
    // Before the words, so that they are deregistered first.
    region: Owned<ffi::ibv_mr>,
    words: Box<[AtomicU64]>,
}

impl Memory {
    fn new(domain: &Owned<ffi::ibv_pd>, words: usize, access: ffi::ibv_access_flags) -> Result<Self, String> {
        let words: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let access = c_int::try_from(access.0).map_err(|why| why.to_string())?;
        // SAFETY: the domain is valid; the words stay where they are until the region is dropped, before them.
        let region = unsafe {
            let start = words.as_ptr().cast_mut().cast();
            ffi::ibv_reg_mr(domain.get(), start, size_of_val(&*words), access)
        };
        let what = format!("register {} bytes (limit: ulimit -l)", size_of_val(&*words));
        Ok(Memory { region: Owned::new(region, ffi::ibv_dereg_mr, &what)?, words })
    }

    fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    fn region(&self) -> Region {
        // SAFETY: the region is valid until it is dropped.
        let key = unsafe { (*self.region.get()).rkey };
        Region { address: self.address(), key, length: size_of_val(&*self.words) as u64 }
    }

    fn local_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.region.get()).lkey }
    }
}

/// What the port of a device has.
#[derive(Debug, Clone, Copy)]
struct Port {
    lid: u16,
    mtu: u32,
    reads: u8,
    /// Index in the GID table and the GID, on Ethernet.
    gid: Option<(u8, [u8; 16])>,
}

/// Kind of a work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Write,
    Read,
}

/// One end of the connection. The fields are dropped in their order: no request is in flight when the memory is deregistered.
#[derive(Debug)]
pub(crate) struct End {
    pair: Owned<ffi::ibv_qp>,
    queue: Owned<ffi::ibv_cq>,
    source: Memory,
    sink: Memory,
    mailbox: Memory,
    _domain: Owned<ffi::ibv_pd>,
    _context: Owned<ffi::ibv_context>,
    device: String,
    port: Port,
    psn: u32,
    /// Address of the peer, from [`End::connect`] on.
    peer: Option<Place>,
    in_flight: usize,
}

/// Words of the mailbox: received from the peer, sent to it, and the result of a read. Each has its own cache line.
const MAILBOX: usize = 32;
const RECEIVED: usize = 0;
const SENT: usize = 8;
const FLUSHED: usize = 16;

impl End {
    /// Opens a device and prepares memory and a queue pair.
    pub(crate) fn open(device: &str, gid_index: Option<u32>) -> Result<End, String> {
        use ffi::ibv_access_flags as access;
        let context = context(device)?;
        let port = port(&context, gid_index)?;
        // SAFETY: the context is valid.
        let domain = unsafe { ffi::ibv_alloc_pd(context.get()) };
        let domain = Owned::new(domain, ffi::ibv_dealloc_pd, "protection domain")?;
        let entries = c_int::try_from(2 * DEPTH).map_err(|why| why.to_string())?;
        // SAFETY: the context is valid; no event channel is used.
        let queue =
            unsafe { ffi::ibv_create_cq(context.get(), entries, ptr::null_mut(), ptr::null_mut(), 0) };
        let queue = Owned::new(queue, ffi::ibv_destroy_cq, "completion queue")?;
        let write = access::IBV_ACCESS_LOCAL_WRITE | access::IBV_ACCESS_REMOTE_WRITE;
        let source = Memory::new(&domain, BLOCKS * BLOCK, access::IBV_ACCESS_REMOTE_READ)?;
        let sink = Memory::new(&domain, BLOCKS * BLOCK, write)?;
        let mailbox = Memory::new(&domain, MAILBOX, write)?;
        let pair = queue_pair(&domain, &queue)?;
        let psn = (railgate_pair::random_number()? & 0xff_ffff) as u32;
        Ok(End {
            pair,
            queue,
            source,
            sink,
            mailbox,
            _domain: domain,
            _context: context,
            device: device.to_owned(),
            port,
            psn,
            peer: None,
            in_flight: 0,
        })
    }

    /// What the peer needs to reach this end.
    pub(crate) fn place(&self) -> Place {
        // SAFETY: the queue pair is valid.
        let number = unsafe { (*self.pair.get()).qp_num };
        Place {
            device: self.device.clone(),
            number,
            psn: self.psn,
            lid: self.port.lid,
            gid: self.port.gid.map(|(_, gid)| railgate_pair::to_hex(&gid)),
            mtu: self.port.mtu,
            reads: self.port.reads,
            source: self.source.region(),
            sink: self.sink.region(),
            mailbox: self.mailbox.region(),
        }
    }

    /// Connects with a peer whose place has been checked.
    pub(crate) fn connect(&mut self, peer: Place) -> Result<(), String> {
        use ffi::ibv_access_flags as access;
        use ffi::ibv_qp_attr_mask as mask;
        let remote = access::IBV_ACCESS_REMOTE_WRITE | access::IBV_ACCESS_REMOTE_READ;
        let initialised = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_INIT,
            port_num: PORT,
            qp_access_flags: (access::IBV_ACCESS_LOCAL_WRITE | remote).0,
            ..Default::default()
        };
        let given = mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(initialised, given, "initialise")?;
        let reads = self.port.reads.min(peer.reads);
        let receiving = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTR,
            path_mtu: self.port.mtu.min(peer.mtu),
            dest_qp_num: peer.number,
            rq_psn: peer.psn,
            max_dest_rd_atomic: reads,
            min_rnr_timer: 12,
            ah_attr: self.route(&peer)?,
            ..Default::default()
        };
        let given = mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(receiving, given, "connect")?;
        let sending = ffi::ibv_qp_attr {
            qp_state: ffi::ibv_qp_state::IBV_QPS_RTS,
            sq_psn: self.psn,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            max_rd_atomic: reads,
            ..Default::default()
        };
        let given = mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(sending, given, "connect")?;
        self.peer = Some(peer);
        Ok(())
    }

    fn route(&self, peer: &Place) -> Result<ffi::ibv_ah_attr, String> {
        let mut route = ffi::ibv_ah_attr { dlid: peer.lid, port_num: PORT, ..Default::default() };
        match (self.port.gid, &peer.gid) {
            (None, None) => Ok(route),
            (Some((index, _)), Some(gid)) => {
                let raw = railgate_pair::from_hex(gid).ok_or("the peer sent no GID")?;
                route.is_global = 1;
                route.grh.dgid = ffi::ibv_gid { raw };
                route.grh.sgid_index = index;
                route.grh.hop_limit = 0xff;
                Ok(route)
            }
            _ => Err("one end is on InfiniBand and the other on Ethernet".to_owned()),
        }
    }

    fn modify(
        &self,
        mut attributes: ffi::ibv_qp_attr,
        given: ffi::ibv_qp_attr_mask,
        what: &str,
    ) -> Result<(), String> {
        let given = (given | ffi::ibv_qp_attr_mask::IBV_QP_STATE).0;
        let given = c_int::try_from(given).map_err(|why| why.to_string())?;
        // SAFETY: the queue pair is valid; the attributes live through the call.
        succeeded(unsafe { ffi::ibv_modify_qp(self.pair.get(), &raw mut attributes, given) }, what)
    }

    /// Memory that this end sends from.
    pub(crate) fn source(&self) -> &[AtomicU64] {
        &self.source.words
    }

    /// Memory that data arrives in: written by the peer, or read from it.
    pub(crate) fn sink(&self) -> &[AtomicU64] {
        &self.sink.words
    }

    /// The last word that the peer sent.
    pub(crate) fn received(&self) -> &AtomicU64 {
        &self.mailbox.words[RECEIVED]
    }

    /// Starts the transfer of one block: from the source into the peer's sink, or from the peer's source into the sink.
    pub(crate) fn transfer(&mut self, operation: Operation, block: usize) -> Result<(), String> {
        let peer = self.peer.as_ref().ok_or("not connected")?;
        let (memory, remote) = match operation {
            Operation::Write => (&self.source, peer.sink),
            Operation::Read => (&self.sink, peer.source),
        };
        let place = block % BLOCKS * BLOCK;
        let request = request(operation, (memory, place, BLOCK), remote, place)?;
        self.post(request)
    }

    /// Starts the write of one word into the peer's mailbox.
    pub(crate) fn word(&mut self, word: u64) -> Result<(), String> {
        let peer = self.peer.as_ref().ok_or("not connected")?;
        self.mailbox.words[SENT].store(word, std::sync::atomic::Ordering::Release);
        let request = request(Operation::Write, (&self.mailbox, SENT, 1), peer.mailbox, RECEIVED)?;
        self.post(request)
    }

    /// Starts the read of one word. The peer's device answers after the writes before it are in the peer's memory, while the
    /// completion of a write only means that the device has received it.
    pub(crate) fn flush(&mut self) -> Result<(), String> {
        let peer = self.peer.as_ref().ok_or("not connected")?;
        let request = request(Operation::Read, (&self.mailbox, FLUSHED, 1), peer.source, 0)?;
        self.post(request)
    }

    fn post(&mut self, (mut request, mut piece): (ffi::ibv_send_wr, ffi::ibv_sge)) -> Result<(), String> {
        if self.in_flight >= DEPTH {
            return Err("too many requests in flight".to_owned());
        }
        request.sg_list = &raw mut piece;
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair and its context are valid, and the request and its one piece live through the call. The
        // memory of the piece belongs to `self` and outlives the queue pair.
        let code = unsafe {
            let post = (*(*self.pair.get()).context).ops.post_send.ok_or("the device cannot send")?;
            post(self.pair.get(), &raw mut request, &raw mut bad)
        };
        succeeded(code, "post")?;
        self.in_flight += 1;
        Ok(())
    }

    /// Number of requests that are not complete.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Number of requests that have completed since the last call. A request that failed is an error.
    pub(crate) fn poll(&mut self) -> Result<usize, String> {
        let mut done = [ffi::ibv_wc::default(); DEPTH];
        let room = c_int::try_from(done.len()).map_err(|why| why.to_string())?;
        // SAFETY: the queue and its context are valid; the array has room for as many completions as `room`.
        let number = unsafe {
            let poll = (*(*self.queue.get()).context).ops.poll_cq.ok_or("the device has no completions")?;
            poll(self.queue.get(), room, done.as_mut_ptr())
        };
        let number = usize::try_from(number).map_err(|_| "completion queue failed".to_owned())?;
        for one in done.iter().take(number) {
            if let Some((status, vendor)) = one.error() {
                return Err(format!("{} (status {status}, vendor {vendor})", meaning(status)));
            }
        }
        self.in_flight = self.in_flight.saturating_sub(number);
        Ok(number)
    }
}

/// What the status of a failed request means for a pair.
fn meaning(status: ffi::ibv_wc_status::Type) -> &'static str {
    use ffi::ibv_wc_status as known;
    match status {
        known::IBV_WC_RETRY_EXC_ERR => "the peer's device does not answer",
        known::IBV_WC_REM_ACCESS_ERR => "the peer's device refuses access to its memory",
        known::IBV_WC_REM_INV_REQ_ERR | known::IBV_WC_REM_OP_ERR => "the peer's device refuses the request",
        known::IBV_WC_LOC_PROT_ERR => "the device refuses access to its own memory",
        known::IBV_WC_WR_FLUSH_ERR => "the connection failed before",
        _ => "a request failed",
    }
}

/// A work request for `length` words at `place` of a memory, and the peer's words from `remote_place` on.
fn request(
    operation: Operation,
    (memory, place, length): (&Memory, usize, usize),
    remote: Region,
    remote_place: usize,
) -> Result<(ffi::ibv_send_wr, ffi::ibv_sge), String> {
    let inside = place + length <= memory.words.len();
    let remote_end = (remote_place + length) as u64 * 8;
    if !inside || remote_end > remote.length {
        return Err("a transfer outside of the memory".to_owned());
    }
    let piece = ffi::ibv_sge {
        addr: memory.address() + place as u64 * 8,
        length: u32::try_from(length * 8).map_err(|why| why.to_string())?,
        lkey: memory.local_key(),
    };
    let mut request = ffi::ibv_send_wr {
        num_sge: 1,
        opcode: match operation {
            Operation::Write => ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Operation::Read => ffi::ibv_wr_opcode::IBV_WR_RDMA_READ,
        },
        send_flags: ffi::ibv_send_flags::IBV_SEND_SIGNALED.0,
        ..Default::default()
    };
    request.wr.rdma = ffi::ibv_send_wr__bindgen_ty_2__bindgen_ty_1 {
        remote_addr: remote.address + remote_place as u64 * 8,
        rkey: remote.key,
    };
    Ok((request, piece))
}

/// Functions of libibverbs return 0 or an error number.
fn succeeded(code: c_int, what: &str) -> Result<(), String> {
    if code == 0 {
        return Ok(());
    }
    Err(format!("{what}: {}", std::io::Error::from_raw_os_error(code.abs())))
}

/// Opens the device with this name.
fn context(name: &str) -> Result<Owned<ffi::ibv_context>, String> {
    let mut number = 0;
    // SAFETY: `number` lives through the call.
    let list = unsafe { ffi::ibv_get_device_list(&raw mut number) };
    if list.is_null() {
        return Err(format!("list of devices: {}", std::io::Error::last_os_error()));
    }
    let mut found = Err("no such device".to_owned());
    for place in 0..usize::try_from(number).unwrap_or(0) {
        // SAFETY: the list has `number` valid devices; their names are C strings and live as long as the list. An opened
        // device stays valid without the list.
        let context = unsafe {
            let device = *list.add(place);
            let known = ffi::ibv_get_device_name(device);
            if known.is_null() || CStr::from_ptr(known).to_bytes() != name.as_bytes() {
                continue;
            }
            ffi::ibv_open_device(device)
        };
        found = Owned::new(context, ffi::ibv_close_device, "open");
        break;
    }
    // SAFETY: the list came from `ibv_get_device_list` and is freed once.
    unsafe { ffi::ibv_free_device_list(list) };
    found
}

fn queue_pair(domain: &Owned<ffi::ibv_pd>, queue: &Owned<ffi::ibv_cq>) -> Result<Owned<ffi::ibv_qp>, String> {
    let depth = u32::try_from(DEPTH).map_err(|why| why.to_string())?;
    let mut wanted = ffi::ibv_qp_init_attr {
        send_cq: queue.get(),
        recv_cq: queue.get(),
        qp_type: ffi::ibv_qp_type::IBV_QPT_RC,
        cap: ffi::ibv_qp_cap {
            max_send_wr: depth,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        ..Default::default()
    };
    // SAFETY: domain and queue are valid; the attributes live through the call.
    let pair = unsafe { ffi::ibv_create_qp(domain.get(), &raw mut wanted) };
    Owned::new(pair, ffi::ibv_destroy_qp, "queue pair")
}

fn port(context: &Owned<ffi::ibv_context>, gid_index: Option<u32>) -> Result<Port, String> {
    let mut device = ffi::ibv_device_attr::default();
    // SAFETY: the context is valid; the attributes live through the call.
    succeeded(unsafe { ffi::ibv_query_device(context.get(), &raw mut device) }, "device")?;
    let mut port = ffi::ibv_port_attr::default();
    // SAFETY: as above; the older struct that the function fills is the beginning of the newer one.
    succeeded(unsafe { ffi::ibv_query_port(context.get(), PORT, (&raw mut port).cast()) }, "port")?;
    if port.state != ffi::ibv_port_state::IBV_PORT_ACTIVE {
        return Err("the port is not active".to_owned());
    }
    let reads = device.max_qp_rd_atom.min(device.max_qp_init_rd_atom).clamp(1, READS);
    let ethernet = u32::from(port.link_layer) == ffi::IBV_LINK_LAYER_ETHERNET;
    let gid = if ethernet { Some(gid(context, port.gid_tbl_len, gid_index)?) } else { None };
    Ok(Port { lid: port.lid, mtu: port.active_mtu, reads: u8::try_from(reads).unwrap_or(1), gid })
}

/// The entry of the GID table with this index, or the first of RoCE v2 in the order of [`rank`].
fn gid(
    context: &Owned<ffi::ibv_context>,
    length: c_int,
    wanted: Option<u32>,
) -> Result<(u8, [u8; 16]), String> {
    let mut table = vec![ffi::ibv_gid_entry::default(); usize::try_from(length).unwrap_or(0)];
    // SAFETY: the context is valid; the table has room for as many entries of this size as its length.
    let number = unsafe {
        let size = size_of::<ffi::ibv_gid_entry>();
        ffi::_ibv_query_gid_table(context.get(), table.as_mut_ptr(), table.len(), 0, size)
    };
    table.truncate(usize::try_from(number).map_err(|_| "the GID table cannot be read".to_owned())?);
    let entries = table.iter().filter(|entry| entry.port_num == u32::from(PORT)).map(|entry| {
        // SAFETY: every bit pattern is a GID of 16 bytes.
        (entry.gid_index, entry.gid_type, unsafe { entry.gid.raw })
    });
    let found = match wanted {
        Some(wanted) => entries.into_iter().find(|(index, ..)| *index == wanted),
        None => {
            entries.filter(|(_, kind, _)| *kind == ROCE_V2).min_by_key(|(index, _, raw)| (rank(raw), *index))
        }
    };
    let (index, _, raw) = found.ok_or_else(|| match wanted {
        Some(wanted) => format!("no GID with index {wanted}"),
        None => "no GID of RoCE v2: the interface has no address".to_owned(),
    })?;
    Ok((u8::try_from(index).map_err(|why| why.to_string())?, raw))
}

/// NCCL prefers IPv4 addresses, too. Link-local addresses come last, because no router forwards them.
fn rank(gid: &[u8; 16]) -> u8 {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..] => 0,
        [0xfe, second, ..] if second & 0xc0 == 0x80 => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_comes_first_and_link_local_last() {
        let mut ipv4 = [0; 16];
        ipv4[10..].copy_from_slice(&[0xff, 0xff, 10, 77, 0, 1]);
        let [mut global, mut local] = [[0; 16]; 2];
        global[..2].copy_from_slice(&[0x20, 0x01]);
        local[..2].copy_from_slice(&[0xfe, 0x80]);
        assert_eq!([rank(&ipv4), rank(&global), rank(&local)], [0, 1, 2]);
    }
}
