//! The plugin interface, as in NCCL's headers `profiler_v4.h` (2.27), `profiler_v5.h` (2.28), `profiler_v6.h`
//! (2.29.2) and `profiler_v7.h` (2.31). Only fields that are used have types here; version 7 adds fields after them.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::marker::PhantomData;
use std::ptr;

/// `ncclSuccess`.
pub(crate) const SUCCESS: c_int = 0;
/// `NCCL_LOG_INFO`.
pub(crate) const INFO: c_int = 3;
/// A subsystem of NCCL's log.
pub(crate) const NCCL_INIT: c_ulong = 0x1;

/// Bits of the activation mask, which are also the types of events. NCCL also sends other events as soon as one bit
/// is set.
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

/// `ncclDebugLogger_t`: level, subsystems, file, line, printf format and its arguments.
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

// SAFETY: the name is a static text that is never changed, the rest are functions.
unsafe impl<Init: Sync> Sync for Profiler<Init> {}

/// Offset of a descriptor's union, in every version.
const UNION: usize = 24;

/// Layout in the descriptor.
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

/// A name from NCCL: a C string of its own library, or null.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    start: *const c_char,
    lives: PhantomData<&'a CStr>,
}

impl<'a> Text<'a> {
    /// # Safety
    /// Null, or a C string that is valid for `'a`.
    unsafe fn of(start: *const c_char) -> Self {
        Text { start, lives: PhantomData }
    }

    fn place(self) -> u32 {
        place(self.start)
    }

    /// The bytes; empty for null.
    pub(crate) fn bytes(self) -> &'a [u8] {
        if self.start.is_null() {
            return b"";
        }
        // SAFETY: as required by `of`.
        unsafe { CStr::from_ptr(self.start) }.to_bytes()
    }
}

/// Identifies operations with equal properties within a communicator, by addresses instead of texts.
#[derive(Clone, Copy)]
pub(crate) struct Marks {
    pub(crate) count: u64,
    /// [`place`] of the names of function, data type, algorithm and protocol.
    pub(crate) names: [u32; 4],
}

/// The lower half of a name's address. While a communicator lives, so does its NCCL, and an address always has the
/// same name. A library is smaller than 4 GiB, so the lower halves are distinct. (The name for copy engines is the
/// plugin's own; it has no protocol, unlike all others.)
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

/// A collective operation.
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

/// A point-to-point message.
pub(crate) struct P2p<'a> {
    pub(crate) func: Text<'a>,
    pub(crate) datatype: Text<'a>,
    pub(crate) count: u64,
    pub(crate) peer: i64,
    pub(crate) channels: u64,
    /// Handle of its launch.
    pub(crate) group: u64,
}

impl P2p<'_> {
    pub(crate) fn marks(&self) -> Marks {
        Marks { count: self.count, names: [self.func.place(), self.datatype.place(), 0, 0] }
    }
}

/// A call of NCCL's API.
pub(crate) struct CollApi<'a> {
    pub(crate) func: Text<'a>,
    pub(crate) datatype: Text<'a>,
    pub(crate) count: u64,
}

/// An event's descriptor. For most events only the type is read.
#[derive(Clone, Copy)]
pub(crate) struct Descriptor<'a> {
    api: u8,
    at: *const u8,
    lives: PhantomData<&'a u8>,
}

impl<'a> Descriptor<'a> {
    /// The version 5 layout also applies to all later ones.
    ///
    /// # Safety
    /// `at` is a descriptor of that version of the interface, whose texts are valid for `'a`.
    pub(crate) unsafe fn of(api: u8, at: *const c_void) -> Self {
        Descriptor { api, at: at.cast(), lives: PhantomData }
    }

    /// The type, one of [`event`].
    #[inline]
    pub(crate) fn kind(self) -> u64 {
        // SAFETY: the type is the first field: one byte up to version 4, eight from version 5 on.
        unsafe { if self.api < 5 { u64::from(*self.at) } else { *self.at.cast::<u64>() } }
    }

    fn parent(self) -> u64 {
        // SAFETY: the second field.
        let parent = unsafe { *self.at.add(8).cast::<*mut c_void>() };
        parent as u64
    }

    /// # Safety
    /// The union has this layout for the descriptor's type and version.
    unsafe fn union<T: Copy>(self) -> T {
        // SAFETY: as required.
        unsafe { *self.at.add(UNION).cast::<T>() }
    }

    /// Borrows the fields that [`Self::coll`] reads.
    ///
    /// # Safety
    /// The type is [`event::COLL`].
    #[inline]
    pub(crate) unsafe fn raw_coll(self) -> &'a RawColl {
        // SAFETY: the union has this layout for this type, aligned, and NCCL does not write to it meanwhile.
        unsafe { &*self.at.add(UNION).cast::<RawColl>() }
    }

    /// A collective; `None` unless the type is [`event::COLL`].
    #[inline]
    pub(crate) fn coll(self) -> Option<Coll<'a>> {
        if self.kind() != event::COLL {
            return None;
        }
        // SAFETY: the union has this layout for this type; texts are valid or null.
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

    /// A collective on the copy engines; `None` unless the type is [`event::CE_COLL`], which exists from version 6
    /// on. A version 5 descriptor is large enough, too.
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

    /// A message; `None` unless the type is [`event::P2P`].
    pub(crate) fn p2p(self) -> Option<P2p<'a>> {
        if self.kind() != event::P2P {
            return None;
        }
        // SAFETY: as above; in version 4 `parentObj` has what a later field has in newer versions.
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

    /// Parent and GPU timestamp; `None` unless the type is [`event::KERNEL`].
    pub(crate) fn kernel(self) -> Option<(u64, u64)> {
        // SAFETY: as above.
        (self.kind() == event::KERNEL).then(|| (self.parent(), unsafe { self.union::<RawKernel>() }.timer))
    }

    /// A call of the API; `None` unless the type is [`event::COLL_API`].
    pub(crate) fn coll_api(self) -> Option<CollApi<'a>> {
        if self.kind() != event::COLL_API || self.api < 5 {
            return None;
        }
        // SAFETY: as above; texts are valid or null.
        unsafe {
            let raw = self.union::<RawCollApi>();
            Some(CollApi {
                func: Text::of(raw.func),
                datatype: Text::of(raw.datatype),
                count: raw.count as u64,
            })
        }
    }

    /// Whether an API call is captured into a CUDA graph; false for all other events.
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
