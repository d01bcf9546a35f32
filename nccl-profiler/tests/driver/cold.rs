//! Cost of counting for the launching thread, and of timing for NCCL's proxy thread, when NCCL's own work has evicted
//! the plugin from the caches. Measured with pairs of all-reduces on two communicators, as NCCL 2.28 makes them for
//! one thread with two GPUs.

use std::arch::asm;
use std::arch::x86_64::{__rdtscp, _mm_lfence, _rdtsc};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::hint::spin_loop;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{
    AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst, fence,
};

use crate::played::{KERNEL_STOP, Nccl};

/// Approximate work of NCCL between two operations: its code, and the data that it reads and writes.
const CODE: usize = 160 << 10;
const DATA: usize = 512 << 10;
const LINE: usize = 64;
const PAIRS: usize = 20_000;
const CHANNELS: u64 = 16;

const COLL: u64 = 1 << 1;
const GROUP: u64 = 1;
const KERNEL: u64 = 1 << 6;
const GROUP_API: u64 = 1 << 8;
const COLL_API: u64 = 1 << 9;

const NAMES: [&CStr; 4] = [c"AllReduce", c"ncclFloat32", c"RING", c"LL"];

/// A descriptor of version 5, as in NCCL: in its own cache lines, recently written.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default)]
struct Descriptor([u64; 14]);

impl Descriptor {
    fn of(kind: u64) -> Self {
        let mut words = [0; 14];
        words[0] = kind;
        Descriptor(words)
    }

    fn coll_api() -> Self {
        let mut made = Descriptor::of(COLL_API);
        // Function, count, data type.
        for (word, value) in [(3, NAMES[0].as_ptr() as u64), (4, 256), (5, NAMES[1].as_ptr() as u64)] {
            made.0[word] = value;
        }
        made
    }

    fn coll(seq: u64) -> Self {
        let mut made = Descriptor::of(COLL);
        let names = NAMES.map(|name| name.as_ptr() as u64);
        // Sequence number, function, count, data type, channels and warps, algorithm, protocol.
        for (word, value) in [
            (3, seq),
            (4, names[0]),
            (7, 256),
            (9, names[1]),
            (10, 0x1000 | CHANNELS),
            (11, names[2]),
            (12, names[3]),
        ] {
            made.0[word] = value;
        }
        made
    }

    fn kernel(parent: *mut c_void, channel: u64, timer: u64) -> Self {
        let mut made = Descriptor::of(KERNEL);
        for (word, value) in [(1, parent as u64), (3, channel), (4, timer)] {
            made.0[word] = value;
        }
        made
    }
}

/// The functions of a plugin, and two communicators.
pub(crate) struct Plugin {
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const c_void) -> c_int,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    record: unsafe extern "C" fn(*mut c_void, c_int, *const u64) -> c_int,
    comms: [*mut c_void; 2],
}

// SAFETY: functions, and opaque contexts.
unsafe impl Sync for Plugin {}

unsafe extern "C" fn no_start(_: *mut c_void, handle: *mut *mut c_void, _: *const c_void) -> c_int {
    // SAFETY: `handle` is valid for writes.
    unsafe { *handle = ptr::null_mut() };
    0
}

unsafe extern "C" fn no_stop(_: *mut c_void) -> c_int {
    0
}

unsafe extern "C" fn no_record(_: *mut c_void, _: c_int, _: *const u64) -> c_int {
    0
}

impl Plugin {
    fn of(nccl: &Nccl) -> Self {
        let comms = [1, 2].map(|hash| nccl.communicator(hash, 2, 0).context);
        Plugin { start: nccl.table.start, stop: nccl.table.stop, record: nccl.table.record, comms }
    }

    /// A plugin that does nothing: measures the loop itself.
    fn none() -> Self {
        Plugin { start: no_start, stop: no_stop, record: no_record, comms: [ptr::null_mut(); 2] }
    }

    #[inline]
    fn start(&self, comm: usize, descriptor: &Descriptor) -> *mut c_void {
        let mut handle = ptr::null_mut();
        // SAFETY: as NCCL calls it.
        unsafe { (self.start)(self.comms[comm], &raw mut handle, (&raw const *descriptor).cast()) };
        handle
    }

    #[inline]
    fn stop(&self, handle: *mut c_void) {
        if !handle.is_null() {
            // SAFETY: a handle from the plugin.
            unsafe { (self.stop)(handle) };
        }
    }

    /// One pair, in NCCL's order, with planning between API calls and launches. Returns the handles of the
    /// operations.
    fn pair(&self, seq: u64, plan: &mut impl FnMut()) -> [*mut c_void; 2] {
        let api = self.start(0, &Descriptor::of(GROUP_API));
        for comm in 0..2 {
            self.stop(self.start(comm, &Descriptor::coll_api()));
        }
        plan();
        let handles = [0, 1].map(|comm| {
            let group = self.start(comm, &Descriptor::of(GROUP));
            let coll = self.start(comm, &Descriptor::coll(seq));
            self.stop(coll);
            self.stop(group);
            // Stands for NCCL's next lock, which waits for earlier stores.
            fence(SeqCst);
            coll
        });
        self.stop(api);
        handles
    }

    /// The events of a timed pair that NCCL's proxy thread sends.
    fn kernels(&self, handles: [*mut c_void; 2], begin: u64) {
        let end = begin + 5_000;
        for (comm, parent) in handles.into_iter().enumerate().filter(|(_, parent)| !parent.is_null()) {
            for channel in 0..CHANNELS {
                let kernel = self.start(comm, &Descriptor::kernel(parent, channel, begin));
                if !kernel.is_null() {
                    // SAFETY: a handle from the plugin, and the time of the end.
                    unsafe { (self.record)(kernel, KERNEL_STOP, &raw const end) };
                    self.stop(kernel);
                }
            }
        }
    }
}

/// Passes a pair from the launching thread to a stand-in for NCCL's proxy thread on another core, so that each core
/// must fetch what the other one has written.
#[derive(Default)]
struct Proxy {
    /// 0: empty; [`END`]: no more will follow.
    full: AtomicU64,
    plugin: AtomicPtr<Plugin>,
    handles: [AtomicPtr<c_void>; 2],
    /// Cycles for the events of the last pair.
    took: AtomicU64,
}

const END: u64 = 2;

impl Proxy {
    /// Sends a pair and waits until it is handled, since there is time between two launches. Returns the cycles.
    fn tell(&self, plugin: &Plugin, handles: [*mut c_void; 2]) -> u64 {
        self.plugin.store(ptr::from_ref(plugin).cast_mut(), Relaxed);
        for (place, handle) in self.handles.iter().zip(handles) {
            place.store(handle, Relaxed);
        }
        self.full.store(1, Release);
        while self.full.load(Acquire) != 0 {
            spin_loop();
        }
        self.took.load(Relaxed)
    }

    fn run(&self) {
        let mut begin = 1_000_000;
        loop {
            match self.full.load(Acquire) {
                0 => spin_loop(),
                END => return,
                _ => {
                    begin += 10_000;
                    // SAFETY: the sender waits, so the plugin is valid.
                    let plugin = unsafe { &*self.plugin.load(Relaxed) };
                    let handles = [0, 1].map(|at| self.handles[at].load(Relaxed));
                    let from = begun();
                    plugin.kernels(handles, begin);
                    self.took.store(ended() - from, Relaxed);
                    self.full.store(0, Release);
                }
            }
        }
    }
}

/// Other code and data, which evict the plugin from the caches.
struct Others {
    code: *const u8,
    data: Vec<u64>,
}

impl Others {
    fn new() -> Self {
        // SAFETY: a new mapping; written below, then only executed.
        let code = unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            libc::mmap(ptr::null_mut(), CODE, access, kind, -1, 0).cast::<u8>()
        };
        assert_ne!(code.cast(), libc::MAP_FAILED);
        for line in 0..CODE / LINE {
            // A jump over the rest of the line; a return at the end.
            let bytes: &[u8] = if line + 1 < CODE / LINE { &[0xeb, 62] } else { &[0xc3] };
            // SAFETY: within the mapping.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), code.add(line * LINE), bytes.len()) };
        }
        Others { code, data: vec![1; DATA / 8] }
    }

    fn run(&mut self) {
        for word in self.data.iter_mut().step_by(LINE / 8) {
            *word = word.wrapping_add(1);
        }
        // SAFETY: jumps and a return, without other effects.
        unsafe { asm!("call {}", in(reg) self.code, clobber_abi("C")) };
    }
}

fn begun() -> u64 {
    // SAFETY: they read a counter.
    unsafe {
        _mm_lfence();
        _rdtsc()
    }
}

fn ended() -> u64 {
    // SAFETY: as above.
    unsafe {
        let now = __rdtscp(&mut 0);
        _mm_lfence();
        now
    }
}

/// Cycles of the time-stamp counter for one pair, without the planning in it, and those of the proxy thread.
fn cycles(plugin: &Plugin, proxy: &Proxy, seq: u64, mut plan: impl FnMut()) -> [u64; 2] {
    let (mut took, mut from) = (0, begun());
    let handles = plugin.pair(seq, &mut || {
        took += ended() - from;
        plan();
        from = begun();
    });
    took += ended() - from;
    [took, proxy.tell(plugin, handles)]
}

fn median(times: &mut [u64]) -> u64 {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Plugins to compare with, from the environment.
pub(crate) fn others() -> Vec<PathBuf> {
    let others = std::env::var_os("RAILGATE_COLD_OTHERS").unwrap_or_default();
    std::env::split_paths(&others).filter(|path| path.is_file()).collect()
}

/// Measures this plugin and the others in turn.
pub(crate) fn cold(nccl: &Nccl, paths: &(PathBuf, PathBuf)) {
    let mut plugins = vec![("nothing".to_owned(), Plugin::none()), ("this".to_owned(), Plugin::of(nccl))];
    for path in &others() {
        let other = Nccl::load(22_809, path, &paths.1).unwrap();
        plugins.push((path.display().to_string(), Plugin::of(&other)));
    }
    let proxy = Proxy::default();
    std::thread::scope(|scope| {
        scope.spawn(|| proxy.run());
        by_turns(&plugins, &proxy);
        proxy.full.store(END, Release);
    });
}

fn by_turns(plugins: &[(String, Plugin)], proxy: &Proxy) {
    let mut pushed = Others::new();
    for (how, between) in [("now and then", 0), ("in a loop", 64)] {
        let mut times = vec![[const { Vec::new() }; 3]; plugins.len()];
        for seq in 0..PAIRS as u64 {
            for at in 0..plugins.len() {
                let at = (at + usize::try_from(seq).unwrap()) % plugins.len();
                let plugin = &plugins[at].1;
                for _ in 0..between {
                    proxy.tell(plugin, plugin.pair(seq, &mut || ()));
                }
                pushed.run();
                let [cold, _] = cycles(plugin, proxy, seq, || pushed.run());
                let [hot, proxys] = cycles(plugin, proxy, seq, || ());
                for (times, took) in times[at].iter_mut().zip([cold, hot, proxys]) {
                    times.push(took);
                }
            }
        }
        let mut own = None;
        for ((name, _), times) in plugins.iter().zip(&mut times) {
            let now = [0, 1, 2].map(|at| median(&mut times[at]));
            // Cycles of the first, which does nothing.
            let own = own.get_or_insert(now);
            let [cold, hot, proxys] = [0, 1, 2].map(|at| now[at].saturating_sub(own[at]));
            let all = now.map(|cycles| cycles.to_string()).join(", ");
            println!(
                "cycles a pair, {how}: {cold} cold, {hot} at once again, {proxys} of the proxy thread ({all} in all): {name}"
            );
        }
    }
}

static MARK: AtomicU64 = AtomicU64::new(0);

/// Runs pairs, each between two stores to a place whose address it prints, together with the address ranges that do
/// not belong to the plugin: this program and its stacks.
pub(crate) fn traced(nccl: &Nccl) {
    let plugin = Plugin::of(nccl);
    let own = std::env::current_exe().unwrap();
    println!("mark {:x}", MARK.as_ptr() as usize);
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let stack = (&raw const plugin) as usize;
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [from, to] = [from, to].map(|end| usize::from_str_radix(end, 16).unwrap());
        if line.ends_with(own.to_str().unwrap()) || (from..to).contains(&stack) {
            println!("own {from:x} {to:x}");
        }
    }
    for seq in 0..300 {
        plugin.pair(seq, &mut || ());
    }
    for seq in 300..400 {
        MARK.store(seq, Relaxed);
        plugin.pair(seq, &mut || ());
    }
    MARK.store(400, Relaxed);
}

/// Evaluates valgrind's trace of [`traced`]: instructions, and cache lines of code and of data, of the cheapest pair.
/// Under valgrind most pairs contain the work that is due once per two milliseconds.
pub(crate) fn touched(said: &str, trace: &Path) -> (usize, usize, usize) {
    let hex = |text: &str| usize::from_str_radix(text, 16).unwrap();
    let mark = said.lines().find_map(|line| line.strip_prefix("mark ")).map(hex).unwrap();
    let own = said.lines().filter_map(|line| line.strip_prefix("own ")?.split_once(' '));
    let own: Vec<_> = own.map(|(from, to)| hex(from)..hex(to)).collect();
    let mut pairs = Vec::new();
    let (mut instructions, mut code, mut data) = (0, BTreeSet::new(), BTreeSet::new());
    for line in BufReader::new(File::open(trace).unwrap()).lines().map_while(Result::ok) {
        let Some((kind @ ("I" | "L" | "S" | "M"), place)) = line.trim_start().split_once(' ') else {
            continue;
        };
        let (at, size) = place.trim_start().split_once(',').unwrap();
        let (at, size): (usize, usize) = (hex(at), size.parse().unwrap());
        let lines = at / LINE..=(at + size - 1) / LINE;
        if kind != "I" && at == mark {
            pairs.push((instructions, code.len(), data.len()));
            (instructions, code, data) = (0, BTreeSet::new(), BTreeSet::new());
        } else if own.iter().any(|range| range.contains(&at)) {
        } else if kind == "I" {
            instructions += 1;
            code.extend(lines);
        } else {
            data.extend(lines);
        }
    }
    // The part before the first pair is the start of the process.
    pairs.into_iter().skip(1).min().unwrap()
}
