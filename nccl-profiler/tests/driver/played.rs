//! NCCL's part: its tables and descriptors by offset, as in its headers `profiler_v4.h` to `profiler_v7.h` on x86-64,
//! defined here independently, and the order of its calls. Descriptor bytes that NCCL does not write are filled with
//! `0xa5`, and each descriptor ends at an inaccessible page.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};

pub(crate) const COLL: i32 = 1 << 1;
pub(crate) const P2P: i32 = 1 << 2;
pub(crate) const KERNEL: i32 = 1 << 6;
const GROUP_API: i32 = 1 << 8;
const COLL_API: i32 = 1 << 9;
const P2P_API: i32 = 1 << 10;
pub(crate) const CE_COLL: i32 = 1 << 12;
const GROUP: i32 = 1;

pub(crate) const KERNEL_STOP: c_int = 22;
const GROUP_START_STOPPED: c_int = 23;

/// Offset of the union.
const UNION: usize = 24;
const PAGE: usize = 4096;

type Init4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;
type Init5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;

/// A table of the plugin: a name and five functions, of which only `init` differs between versions.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub(crate) name: *const c_char,
    init: *const c_void,
    pub(crate) start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int,
    pub(crate) stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub(crate) record: unsafe extern "C" fn(*mut c_void, c_int, *const u64) -> c_int,
    pub(crate) finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// One NCCL in this process.
pub(crate) struct Nccl {
    pub(crate) api: u8,
    pub(crate) table: Table,
    /// The activation mask, shared by all communicators.
    pub(crate) mask: &'static AtomicI32,
    pub(crate) log: *const c_void,
    pub(crate) library: *mut c_void,
}

// SAFETY: functions and addresses; their use from many threads is what is tested.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

/// Opens a library.
pub(crate) fn open(path: &Path) -> *mut c_void {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: neither of these libraries runs code when it is loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    // SAFETY: the text of the last error in this thread.
    assert!(!library.is_null(), "{:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
    library
}

/// A symbol; null if it is missing.
pub(crate) fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).unwrap();
    // SAFETY: a loaded library and a C string.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

impl Nccl {
    /// Loads the plugin like a given release: the newest table that both support.
    pub(crate) fn load(release: u64, plugin: &Path, nccl: &Path) -> Option<Self> {
        let newest: u8 = match release {
            ..22_300 => return None,
            22_300..22_400 => 1,
            22_400..22_600 => 2,
            22_600..22_700 => 3,
            22_700..22_800 => 4,
            22_800..22_900 => 5,
            22_900..23_100 => 6,
            _ => 7,
        };
        let library = open(plugin);
        let mut tables =
            (1..=newest).rev().map(|api| (api, symbol(library, &format!("ncclProfiler_v{api}"))));
        let (api, table) = tables.find(|(_, table)| !table.is_null())?;
        // SAFETY: a table of the plugin, with the same layout in all versions.
        let table = unsafe { *table.cast::<Table>() };
        let log = symbol(open(nccl), "playedLog");
        assert!(!log.is_null());
        Some(Nccl { api, table, mask: Box::leak(Box::default()), log, library })
    }

    /// Creates a communicator on one node.
    pub(crate) fn communicator(&self, hash: u64, nranks: i32, rank: i32) -> Comm<'_> {
        self.communicator_of(c"tensor parallel", hash, 1, nranks, rank)
    }

    /// Creates a communicator. The place for the context contains garbage before the call.
    pub(crate) fn communicator_of(
        &self,
        name: &CStr,
        hash: u64,
        nodes: i32,
        nranks: i32,
        rank: i32,
    ) -> Comm<'_> {
        let mut context: *mut c_void = ptr::without_provenance_mut(0xdead);
        let (name, mask) = (name.as_ptr(), self.mask.as_ptr());
        // SAFETY: as NCCL calls it.
        let code = unsafe {
            if self.api == 4 {
                let init: Init4 = std::mem::transmute(self.table.init);
                init(&raw mut context, mask, name, hash, nodes, nranks, rank, self.log)
            } else {
                let init: Init5 = std::mem::transmute(self.table.init);
                init(&raw mut context, hash, mask, name, nodes, nranks, rank, self.log)
            }
        };
        assert_eq!(code, 0);
        Comm { nccl: self, context, rank, seq: AtomicU64::new(0) }
    }

    fn descriptor(&self, kind: i32, parent: *mut c_void, rank: i32) -> Descriptor {
        let size = match self.api {
            4 => 104,
            5 | 6 => 112,
            _ => 136,
        };
        let spare = SPARE.with(|spare| spare.iter().map(Cell::take).find(|page| !page.is_null()));
        let page = spare.unwrap_or_else(guarded_page);
        let made = Descriptor { page, size };
        // SAFETY: the end of the first page.
        unsafe { ptr::write_bytes(page.add(PAGE - size), 0xa5, size) };
        if self.api == 4 {
            made.at(0, u8::try_from(kind).unwrap_or(0xff));
        } else {
            made.at(0, u64::from(kind.unsigned_abs()));
        }
        made.at(8, parent);
        made.at(16, rank);
        made
    }

    /// Sends the GPU's timestamps, as NCCL's proxy thread does.
    pub(crate) fn kernel(
        &self,
        context: *mut c_void,
        parent: *mut c_void,
        channel: u8,
        begin: u64,
        end: u64,
    ) {
        let handle = self.kernel_begins(context, parent, channel, begin);
        self.kernel_ends(handle, end);
    }

    pub(crate) fn kernel_begins(
        &self,
        context: *mut c_void,
        parent: *mut c_void,
        channel: u8,
        begin: u64,
    ) -> *mut c_void {
        let descriptor = self.descriptor(KERNEL, parent, 0);
        descriptor.union(0, channel);
        descriptor.union(8, begin);
        self.start(context, &descriptor)
    }

    pub(crate) fn kernel_ends(&self, handle: *mut c_void, end: u64) {
        if !handle.is_null() {
            self.record(handle, KERNEL_STOP, Some(end));
            self.stop(handle);
        }
    }

    pub(crate) fn record(&self, handle: *mut c_void, state: c_int, timer: Option<u64>) {
        let at = timer.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: as NCCL calls it: a handle from the plugin, and arguments or null.
        assert_eq!(unsafe { (self.table.record)(handle, state, at) }, 0);
    }

    pub(crate) fn stop(&self, handle: *mut c_void) {
        // SAFETY: as NCCL calls it.
        assert_eq!(unsafe { (self.table.stop)(handle) }, 0);
    }

    /// Starts an event; the place for the handle contains a stale one before the call.
    fn start(&self, context: *mut c_void, descriptor: &Descriptor) -> *mut c_void {
        let stale: *mut c_void = ptr::without_provenance_mut(0x5a10_0000_0000_0abc);
        let mut handle = stale;
        // SAFETY: as NCCL calls it.
        let code = unsafe { (self.table.start)(context, &raw mut handle, descriptor.start()) };
        assert!(code == 0 && handle != stale, "{code} {handle:?}");
        handle
    }

    /// Sends an event of any type with an uninitialized union.
    pub(crate) fn odd(&self, context: *mut c_void, kind: i32, parent: *mut c_void) -> *mut c_void {
        self.start(context, &self.descriptor(kind, parent, 0))
    }
}

pub(crate) struct Descriptor {
    page: *mut u8,
    size: usize,
}

impl Descriptor {
    fn start(&self) -> *const c_void {
        self.page.wrapping_add(PAGE - self.size).cast()
    }

    fn at<T>(&self, offset: usize, value: T) {
        assert!(offset + size_of::<T>() <= self.size);
        // SAFETY: within the first page.
        unsafe { self.page.add(PAGE - self.size + offset).cast::<T>().write(value) };
    }

    fn union<T>(&self, offset: usize, value: T) {
        self.at(UNION + offset, value);
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the first page. The plugin must not use it after the call.
        unsafe { ptr::write_bytes(self.page, 0xa5, PAGE) };
        let kept = SPARE.with(|spare| {
            let place = spare.iter().find(|place| place.get().is_null());
            place.map(|place| place.set(self.page)).is_some()
        });
        if !kept {
            // SAFETY: mapped below, and not shared.
            unsafe { libc::munmap(self.page.cast(), 2 * PAGE) };
        }
    }
}

thread_local! {
    /// Spare pages for later descriptors, of which only a few exist at a time.
    static SPARE: [Cell<*mut u8>; 4] = const { [const { Cell::new(ptr::null_mut()) }; 4] };
}

/// Maps two pages, of which the second is inaccessible.
fn guarded_page() -> *mut u8 {
    // SAFETY: new pages at no given place.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        assert!(page != libc::MAP_FAILED);
        assert_eq!(libc::mprotect(page.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
        page.cast::<u8>()
    }
}

/// A communicator of one rank.
pub(crate) struct Comm<'n> {
    pub(crate) nccl: &'n Nccl,
    pub(crate) context: *mut c_void,
    pub(crate) rank: i32,
    seq: AtomicU64,
}

// SAFETY: the context is only a number here.
unsafe impl Send for Comm<'_> {}
// SAFETY: as above.
unsafe impl Sync for Comm<'_> {}

/// A launched operation, for the events of the proxy thread.
#[derive(Clone, Copy)]
pub(crate) struct Launched {
    pub(crate) handle: *mut c_void,
    pub(crate) channels: u8,
    /// Whether NCCL was to time it.
    pub(crate) timed: bool,
}

// SAFETY: numbers.
unsafe impl Send for Launched {}

/// Names and size of a collective, as in NCCL's descriptor.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) func: &'static CStr,
    pub(crate) datatype: &'static CStr,
    pub(crate) algorithm: &'static CStr,
    pub(crate) count: usize,
    pub(crate) channels: u8,
}

pub(crate) const ALL_REDUCE: Call =
    Call { func: c"AllReduce", datatype: c"ncclFloat32", algorithm: c"RING", count: 256, channels: 2 };

impl Comm<'_> {
    pub(crate) fn mask(&self) -> i32 {
        self.nccl.mask.load(Relaxed)
    }

    /// The group call: with any of these bits in the mask NCCL also sends group events of its API.
    pub(crate) fn group_api(&self, work: impl FnOnce(*mut c_void)) {
        if self.nccl.api < 5 || self.mask() & (GROUP_API | COLL_API | P2P_API | COLL | P2P | KERNEL) == 0 {
            return work(ptr::null_mut());
        }
        let descriptor = self.nccl.descriptor(GROUP_API, ptr::null_mut(), 0);
        descriptor.union(0, false);
        descriptor.union(4, 1_i32);
        let handle = self.nccl.start(self.context, &descriptor);
        // NCCL passes no arguments here, and would continue without a handle.
        self.nccl.record(handle, GROUP_START_STOPPED, None);
        work(handle);
        if !handle.is_null() {
            self.nccl.stop(handle);
        }
    }

    /// The call itself, at NCCL's API.
    pub(crate) fn coll_api(&self, group: *mut c_void, call: Call, captured: bool) -> *mut c_void {
        if self.nccl.api < 5 {
            return group;
        }
        let descriptor = self.nccl.descriptor(COLL_API, group, 0);
        descriptor.union(0, call.func.as_ptr());
        descriptor.union(8, call.count);
        descriptor.union(16, call.datatype.as_ptr());
        descriptor.union(24, 0_i32);
        descriptor.union(32, ptr::null::<c_void>());
        descriptor.union(40, captured);
        if self.nccl.api >= 7 {
            descriptor.union(48, u64::MAX);
        }
        let handle = self.nccl.start(self.context, &descriptor);
        if !handle.is_null() {
            self.nccl.stop(handle);
        }
        handle
    }

    /// A collective, up to its launch.
    pub(crate) fn launch(&self, call: Call) -> Launched {
        let mut launched = Launched { handle: ptr::null_mut(), channels: call.channels, timed: false };
        self.group_api(|group_api| {
            let mask = self.mask();
            let api = self.coll_api(group_api, call, false);
            let group = self.group(api);
            // 2.27 sends operations only if their launch has a handle.
            let told = mask & COLL != 0 && (self.nccl.api > 4 || !group.is_null());
            let handle = if told { self.coll(group, api, call) } else { ptr::null_mut() };
            launched = Launched { handle, timed: mask & KERNEL != 0, ..launched };
            // The GPU and the proxy thread may have finished before this.
            if !handle.is_null() {
                self.nccl.stop(handle);
            }
            if !group.is_null() {
                self.nccl.stop(group);
            }
        });
        launched
    }

    pub(crate) fn group(&self, parent: *mut c_void) -> *mut c_void {
        self.nccl.start(self.context, &self.nccl.descriptor(GROUP, parent, 0))
    }

    pub(crate) fn coll(&self, group: *mut c_void, api: *mut c_void, call: Call) -> *mut c_void {
        let parent = if self.nccl.api < 5 { group } else { api };
        let descriptor = self.nccl.descriptor(COLL, parent, self.rank);
        descriptor.union(0, self.seq.fetch_add(1, Relaxed));
        descriptor.union(8, call.func.as_ptr());
        descriptor.union(32, call.count);
        descriptor.union(40, 0_i32);
        descriptor.union(48, call.datatype.as_ptr());
        descriptor.union(56, call.channels);
        descriptor.union(57, 16_u8);
        descriptor.union(64, call.algorithm.as_ptr());
        descriptor.union(72, c"SIMPLE".as_ptr());
        if self.nccl.api >= 5 {
            descriptor.union(80, group);
        }
        if self.nccl.api >= 7 {
            descriptor.union(88, c"symmetric".as_ptr());
            descriptor.union(96, true);
            descriptor.union(104, u64::MAX);
        }
        self.nccl.start(self.context, &descriptor)
    }

    /// Sends one message of a group.
    pub(crate) fn message(
        &self,
        group: *mut c_void,
        func: &'static CStr,
        count: usize,
        peer: i32,
        channels: u8,
    ) -> *mut c_void {
        let parent = if self.nccl.api < 5 { group } else { ptr::null_mut() };
        let descriptor = self.nccl.descriptor(P2P, parent, self.rank);
        descriptor.union(0, func.as_ptr());
        descriptor.union(16, c"ncclFloat32".as_ptr());
        descriptor.union(24, count);
        descriptor.union(32, peer);
        descriptor.union(36, channels);
        if self.nccl.api >= 5 {
            descriptor.union(40, group);
        }
        self.nccl.start(self.context, &descriptor)
    }

    /// Sends a collective on the copy engines.
    pub(crate) fn copy_engines(&self, count: usize) -> *mut c_void {
        let descriptor = self.nccl.descriptor(CE_COLL, ptr::null_mut(), self.rank);
        descriptor.union(0, 0_u64);
        descriptor.union(8, c"AllGather".as_ptr());
        descriptor.union(32, count);
        descriptor.union(48, c"ncclInt8".as_ptr());
        self.nccl.start(self.context, &descriptor)
    }

    /// Sends the proxy thread's events of a launched operation: each channel started and ended at these times of the
    /// GPU's clock.
    pub(crate) fn gpu(&self, launched: Launched, begin: u64, end: u64) {
        if launched.timed {
            for channel in 0..launched.channels {
                self.nccl.kernel(self.context, launched.handle, channel, begin + u64::from(channel), end);
            }
        }
    }

    pub(crate) fn finalize(&self) {
        // SAFETY: as NCCL calls it.
        assert_eq!(unsafe { (self.nccl.table.finalize)(self.context) }, 0);
    }
}
