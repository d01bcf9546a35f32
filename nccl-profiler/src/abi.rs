//! The interface, as NCCL's headers `profiler_v4.h` (2.27), `profiler_v5.h` (2.28), `profiler_v6.h` (2.29.2) and
//! `profiler_v7.h` (2.31) lay it out. Only what is read here has a type: what version 7 adds stands behind it.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::marker::PhantomData;
use std::ptr;

/// `ncclSuccess`.
pub(crate) const SUCCESS: c_int = 0;
/// `NCCL_LOG_INFO`.
pub(crate) const INFO: c_int = 3;
/// Of the log's subsystems.
pub(crate) const NCCL_INIT: c_ulong = 0x1;

/// Bits of the activation mask, and types of events. NCCL tells of others, too, once it tells of any.
pub(crate) mod event {
    pub(crate) const GROUP: u64 = 1;
    pub(crate) const COLL: u64 = 1 << 1;
    pub(crate) const P2P: u64 = 1 << 2;
    pub(crate) const KERNEL: u64 = 1 << 6;
    pub(crate) const GROUP_API: u64 = 1 << 8;
    pub(crate) const COLL_API: u64 = 1 << 9;
    pub(crate) const P2P_API: u64 = 1 << 10;
    pub(crate) const CE_COLL: u64 = 1 << 12;
}

/// `ncclProfilerKernelChStop`.
pub(crate) const KERNEL_STOP: c_int = 22;

/// `ncclDebugLogger_t`: level, subsystems, file, line, printf's format, and what it asks for.
pub(crate) type Logger = unsafe extern "C" fn(c_int, c_ulong, *const c_char, c_int, *const c_char, ...);
type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    Option<Logger>,
) -> c_int;
type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    Option<Logger>,
) -> c_int;
type Start = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int;
type Stop = unsafe extern "C" fn(*mut c_void) -> c_int;
type Record = unsafe extern "C" fn(*mut c_void, c_int, *const u64) -> c_int;
type Finalize = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `ncclProfiler_v4_t` and its successors, which differ in `init`.
#[repr(C)]
#[derive(Debug)]
pub struct Profiler<Init> {
    pub(crate) name: *const c_char,
    pub(crate) init: Init,
    pub(crate) start: Start,
    pub(crate) stop: Stop,
    pub(crate) record: Record,
    pub(crate) finalize: Finalize,
}

/// `ncclProfiler_v4_t`.
pub(crate) type ProfilerV4 = Profiler<InitV4>;
/// `ncclProfiler_v5_t`, `ncclProfiler_v6_t` and `ncclProfiler_v7_t`.
pub(crate) type ProfilerV5 = Profiler<InitV5>;

// SAFETY: the name is a static text that nobody changes, the rest are functions.
unsafe impl<Init: Sync> Sync for Profiler<Init> {}

/// The union of a descriptor begins here, in every version.
const UNION: usize = 24;

/// As it stands in a descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawColl {
    pub(crate) seq: u64,
    func: *const c_char,
    send: *const c_void,
    recv: *const c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
    pub(crate) channels: u8,
    warps: u8,
    algorithm: *const c_char,
    protocol: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawP2p {
    func: *const c_char,
    buffer: *const c_void,
    datatype: *const c_char,
    count: usize,
    peer: c_int,
    channels: u8,
}

/// Version 5 and later.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawP2pGrouped {
    p2p: RawP2p,
    group: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawKernel {
    channel: u8,
    timer: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawCollApi {
    func: *const c_char,
    count: usize,
    datatype: *const c_char,
    root: c_int,
    stream: *const c_void,
    captured: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawP2pApi {
    func: *const c_char,
    count: usize,
    datatype: *const c_char,
    stream: *const c_void,
    captured: u8,
}

/// Version 6 and later.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawCe {
    seq: u64,
    func: *const c_char,
    send: *const c_void,
    recv: *const c_void,
    count: usize,
    root: c_int,
    datatype: *const c_char,
}

/// A name as NCCL gives it: a C string of its own library, or null.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    start: *const c_char,
    lives: PhantomData<&'a CStr>,
}

impl<'a> Text<'a> {
    /// # Safety
    /// Null, or a C string that lives for `'a`.
    unsafe fn of(start: *const c_char) -> Self {
        Text { start, lives: PhantomData }
    }

    fn place(self) -> u32 {
        place(self.start)
    }

    /// Empty where it is null.
    pub(crate) fn bytes(self) -> &'a [u8] {
        if self.start.is_null() {
            return b"";
        }
        // SAFETY: as `of` demands.
        unsafe { CStr::from_ptr(self.start) }.to_bytes()
    }
}

/// By what a communicator knows a kind of operation again.
#[derive(Clone, Copy)]
pub(crate) struct Marks {
    pub(crate) count: u64,
    /// [`place`] of its function's, datatype's, algorithm's and protocol's names.
    pub(crate) names: [u32; 4],
}

/// Where a name stands: while a communicator lives, so does its NCCL, and the same place holds the same name. A library has less
/// than 4 GiB, so the lower half of the address tells its names apart. (That of copy engines is ours, and goes without a
/// protocol, which all others have.)
#[inline]
fn place(name: *const c_char) -> u32 {
    (name as u64 & 0xffff_ffff) as u32
}

impl RawColl {
    #[inline]
    pub(crate) fn marks(&self) -> Marks {
        let names = [self.func, self.datatype, self.algorithm, self.protocol];
        Marks { count: self.count as u64, names: names.map(place) }
    }
}

/// A collective as NCCL describes it.
pub(crate) struct Coll<'a> {
    pub(crate) seq: u64,
    pub(crate) func: Text<'a>,
    pub(crate) datatype: Text<'a>,
    pub(crate) algorithm: Text<'a>,
    pub(crate) protocol: Text<'a>,
    pub(crate) count: u64,
    pub(crate) channels: u64,
}

impl Coll<'_> {
    pub(crate) fn marks(&self) -> Marks {
        let names = [self.func, self.datatype, self.algorithm, self.protocol];
        Marks { count: self.count, names: names.map(Text::place) }
    }
}

/// A message, as NCCL describes it.
pub(crate) struct P2p<'a> {
    pub(crate) func: Text<'a>,
    pub(crate) datatype: Text<'a>,
    pub(crate) count: u64,
    pub(crate) peer: i64,
    pub(crate) channels: u64,
    /// Its launch's handle.
    pub(crate) group: u64,
}

impl P2p<'_> {
    pub(crate) fn marks(&self) -> Marks {
        Marks { count: self.count, names: [self.func.place(), self.datatype.place(), 0, 0] }
    }
}

/// A call at NCCL's interface.
pub(crate) struct CollApi<'a> {
    pub(crate) func: Text<'a>,
    pub(crate) datatype: Text<'a>,
    pub(crate) count: u64,
}

/// What NCCL tells of. Most events are told apart by their kind alone, and nothing else of them is read.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor<'a> {
    api: u8,
    at: *const u8,
    lives: PhantomData<&'a u8>,
}

impl<'a> Descriptor<'a> {
    /// Version 5 stands for all later ones, too.
    ///
    /// # Safety
    /// A descriptor of that version of the interface, whose texts live for `'a`.
    pub(crate) unsafe fn of(api: u8, at: *const c_void) -> Self {
        Descriptor { api, at: at.cast(), lives: PhantomData }
    }

    /// One of [`event`].
    #[inline]
    pub(crate) fn kind(self) -> u64 {
        // SAFETY: the type is the first field, one byte up to version 4, eight from then on.
        unsafe { if self.api < 5 { u64::from(*self.at) } else { *self.at.cast::<u64>() } }
    }

    fn parent(self) -> u64 {
        // SAFETY: second field.
        let parent = unsafe { *self.at.add(8).cast::<*mut c_void>() };
        parent as u64
    }

    /// # Safety
    /// The union holds this for the descriptor's type and version.
    unsafe fn union<T: Copy>(self) -> T {
        // SAFETY: as demanded.
        unsafe { *self.at.add(UNION).cast::<T>() }
    }

    /// What [`Self::coll`] reads, left where it is.
    ///
    /// # Safety
    /// A descriptor of [`event::COLL`].
    #[inline]
    pub(crate) unsafe fn raw_coll(self) -> &'a RawColl {
        // SAFETY: the union holds this for this type, aligned, and NCCL does not write to it meanwhile.
        unsafe { &*self.at.add(UNION).cast::<RawColl>() }
    }

    /// Of a descriptor of [`event::COLL`].
    #[inline]
    pub(crate) fn coll(self) -> Option<Coll<'a>> {
        if self.kind() != event::COLL {
            return None;
        }
        // SAFETY: the union holds this for this type; texts or null.
        unsafe {
            let raw = self.union::<RawColl>();
            Some(Coll {
                seq: raw.seq,
                func: Text::of(raw.func),
                datatype: Text::of(raw.datatype),
                algorithm: Text::of(raw.algorithm),
                protocol: Text::of(raw.protocol),
                count: raw.count as u64,
                channels: u64::from(raw.channels),
            })
        }
    }

    /// Of a descriptor of [`event::CE_COLL`], which NCCL has from version 6 on; one of version 5 would have the room, too.
    pub(crate) fn copy_engines(self) -> Option<Coll<'a>> {
        if self.kind() != event::CE_COLL || self.api < 5 {
            return None;
        }
        // SAFETY: as above.
        unsafe {
            let raw = self.union::<RawCe>();
            Some(Coll {
                seq: raw.seq,
                func: Text::of(raw.func),
                datatype: Text::of(raw.datatype),
                algorithm: Text::of(c"CE".as_ptr()),
                protocol: Text::of(ptr::null()),
                count: raw.count as u64,
                channels: 0,
            })
        }
    }

    /// Of a descriptor of [`event::P2P`].
    pub(crate) fn p2p(self) -> Option<P2p<'a>> {
        if self.kind() != event::P2P {
            return None;
        }
        // SAFETY: as above; version 4 says in `parentObj` what later ones say behind.
        unsafe {
            let (raw, group) = if self.api < 5 {
                (self.union::<RawP2p>(), self.parent())
            } else {
                let raw = self.union::<RawP2pGrouped>();
                (raw.p2p, raw.group as u64)
            };
            Some(P2p {
                func: Text::of(raw.func),
                datatype: Text::of(raw.datatype),
                count: raw.count as u64,
                peer: i64::from(raw.peer),
                channels: u64::from(raw.channels),
                group,
            })
        }
    }

    /// Parent and the GPU's clock, of a descriptor of [`event::KERNEL`].
    pub(crate) fn kernel(self) -> Option<(u64, u64)> {
        // SAFETY: as above.
        (self.kind() == event::KERNEL).then(|| (self.parent(), unsafe { self.union::<RawKernel>() }.timer))
    }

    /// Of a descriptor of [`event::COLL_API`].
    pub(crate) fn coll_api(self) -> Option<CollApi<'a>> {
        if self.kind() != event::COLL_API || self.api < 5 {
            return None;
        }
        // SAFETY: as above; texts or null.
        unsafe {
            let raw = self.union::<RawCollApi>();
            Some(CollApi {
                func: Text::of(raw.func),
                datatype: Text::of(raw.datatype),
                count: raw.count as u64,
            })
        }
    }

    /// Whether a call at NCCL's interface is captured into a graph; not so of any other event.
    pub(crate) fn captured(self) -> bool {
        match self.kind() {
            // SAFETY: as above.
            event::COLL_API if self.api >= 5 => unsafe { self.union::<RawCollApi>() }.captured != 0,
            // SAFETY: as above.
            event::P2P_API if self.api >= 5 => unsafe { self.union::<RawP2pApi>() }.captured != 0,
            _ => false,
        }
    }
}

const _: () = {
    assert!(size_of::<RawColl>() == 80 && size_of::<RawP2pGrouped>() == 48 && size_of::<RawP2p>() == 40);
    assert!(size_of::<RawKernel>() == 16 && size_of::<RawCe>() == 56 && UNION + size_of::<RawCe>() <= 112);
};
