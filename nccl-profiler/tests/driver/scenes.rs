//! The scenes, each run in its own process.

use std::ffi::c_void;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

#[cfg(target_arch = "x86_64")]
use crate::cold;
use crate::played::{
    ALL_REDUCE, CE_COLL, COLL, Call, Comm, KERNEL, KERNEL_STOP, Launched, Nccl, P2P, open, symbol,
};
use crate::ring;

/// Enough for two threads to coincide occasionally.
pub(crate) const MEETINGS: usize = 100_000;

fn libraries() -> (PathBuf, PathBuf) {
    let places = std::env::var_os("RAILGATE_TEST_LIBRARIES").unwrap();
    let mut places = std::env::split_paths(&places);
    (places.next().unwrap(), places.next().unwrap())
}

fn load() -> Option<Nccl> {
    let (plugin, nccl) = libraries();
    let release: u64 = std::env::var("RAILGATE_TEST_NCCL").unwrap().parse().unwrap();
    // An unknown release is a current one here.
    Nccl::load(if release == 0 { 22_809 } else { release }, &plugin, &nccl)
}

pub(crate) fn play(name: &str) {
    if name == "nothing-to-load" {
        assert!(load().is_none());
        return;
    }
    let nccl = load().unwrap();
    match name {
        "ten" => ten(&nccl).finalize(),
        "no-finalize" => drop(ten(&nccl)),
        "refused" => refused(&nccl),
        "untimed" => untimed(&nccl),
        "killed" => killed(&nccl),
        "fork" => fork(&nccl),
        "communicators" => communicators(&nccl),
        "threads" => threads(&nccl),
        "busy" => busy(&nccl),
        "killed-busy" => killed_busy(&nccl),
        "rest" => rest(&nccl),
        "abandoned" => abandoned(&nccl),
        "nonsense" => nonsense(&nccl),
        "late" => late(&nccl),
        "rested" => rested(&nccl),
        "kinds" => kinds(&nccl),
        "allocations" => allocations(&nccl),
        "switched" => switched(&nccl),
        "sample" => sample(&nccl),
        "soon" => soon(&nccl),
        "idle" => idle(&nccl),
        "messages" => messages(&nccl),
        "meeting" => meeting(&nccl),
        "off-meanwhile" => off_meanwhile(&nccl),
        "astray" => astray(&nccl),
        "hidden" => hidden(&nccl),
        "two" => two(&nccl),
        "closed" => closed(&nccl),
        "all-to-all" => ring::all_to_all(&nccl),
        "graphs" => ring::graphs(&nccl, 4),
        "graphs-in-a-window" => ring::graphs(&nccl, 12),
        "off-then-full" => ring::off_then_full(&nccl),
        "neighbours" => ring::neighbours(&nccl),
        "two-threads" => ring::two_threads(&nccl),
        #[cfg(target_arch = "x86_64")]
        "cold" => cold::cold(&nccl, &libraries()),
        #[cfg(target_arch = "x86_64")]
        "traced" => cold::traced(&nccl),
        _ => panic!("{name}"),
    }
}

/// Launches operations of 10 µs, one every 12 µs.
fn run(comm: &Comm<'_>, count: u64) {
    for number in 0..count {
        let begin = 1_000_000 + number * 12_000;
        comm.gpu(comm.launch(ALL_REDUCE), begin, begin + 10_000);
    }
}

fn ten(nccl: &Nccl) -> Comm<'_> {
    let comm = nccl.communicator(0xabc, 4, 1);
    let mask = nccl.mask.load(Relaxed);
    assert_eq!(mask & (COLL | P2P), COLL | P2P);
    assert_eq!(mask & CE_COLL != 0, nccl.api >= 6);
    run(&comm, 10);
    comm
}

fn refused(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    assert!(comm.context.is_null() && nccl.mask.load(Relaxed) == 0);
    // NCCL continues with a null context.
    for kind in [1, COLL, P2P, KERNEL] {
        assert!(nccl.odd(comm.context, kind, ptr::null_mut()).is_null());
    }
    comm.finalize();
}

fn untimed(nccl: &Nccl) {
    ten(nccl).finalize();
    assert_eq!(nccl.mask.load(Relaxed) & KERNEL, 0);
}

fn killed(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    run(&comm, 3);
    let launched = comm.launch(ALL_REDUCE);
    nccl.kernel_begins(comm.context, launched.handle, 0, 9_000_000);
    // SAFETY: only ends the scene itself.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

fn fork(nccl: &Nccl) {
    let comm = ten(nccl);
    // SAFETY: one thread of the harness waits; the child calls only what the parent may call, and exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        run(&comm, 100);
        let own = nccl.communicator(0xdef, 4, 1);
        let nothing = own.context.is_null();
        run(&own, 100);
        comm.finalize();
        // SAFETY: the child must not run code of the parent at exit.
        unsafe { libc::_exit(if nothing { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    run(&comm, 10);
}

fn communicators(nccl: &Nccl) {
    let comms: Vec<_> = (0..200).map(|hash| nccl.communicator(hash, 4, 1)).collect();
    assert_eq!(comms.iter().filter(|comm| comm.context.is_null()).count(), 72);
    for comm in &comms {
        run(comm, 2);
        comm.finalize();
    }
}

/// Eight threads launch, each for its communicator; another thread sends the GPU events of all.
fn threads(nccl: &Nccl) {
    let comms: Vec<_> = (0..8).map(|hash| nccl.communicator(hash, 8, 0)).collect();
    let (send, receive) = mpsc::channel::<(usize, Launched)>();
    thread::scope(|scope| {
        for (at, comm) in comms.iter().enumerate() {
            let send = send.clone();
            scope.spawn(move || (0..5000).for_each(|_| send.send((at, comm.launch(ALL_REDUCE))).unwrap()));
        }
        drop(send);
        let comms = &comms;
        scope.spawn(move || {
            let mut begin = 0;
            for (at, launched) in receive {
                begin += 12_000;
                comms[at].gpu(launched, begin, begin + 10_000);
            }
        });
    });
}

/// Eight threads, each with its own communicator, with four kinds of collectives in turn and occasional messages.
fn busy(nccl: &Nccl) {
    let comms: Vec<_> = (0..8).map(|hash| nccl.communicator(hash, 2, 0)).collect();
    thread::scope(|scope| {
        for comm in &comms {
            scope.spawn(move || {
                for turn in 0..3000 {
                    for count in [8, 1 << 12, 1 << 20] {
                        comm.launch(Call { count, ..ALL_REDUCE });
                    }
                    if turn % 100 == 0 {
                        let group = comm.group(ptr::null_mut());
                        comm.message(group, c"Send", 16, 1, 1);
                        nccl.stop(group);
                    }
                    comm.launch(Call { func: c"AllGather", count: 300, ..ALL_REDUCE });
                }
            });
        }
    });
}

/// Four threads launch until the process is killed.
fn killed_busy(nccl: &Nccl) {
    let comms: Vec<_> = (0..4).map(|hash| nccl.communicator(hash, 2, 0)).collect();
    let (send, receive) = mpsc::channel();
    thread::scope(|scope| {
        for comm in &comms {
            let send = send.clone();
            scope.spawn(move || {
                for number in 0.. {
                    comm.launch(ALL_REDUCE);
                    if number == 2000 {
                        send.send(()).unwrap();
                    }
                }
            });
        }
        (0..4).for_each(|_| receive.recv().unwrap());
        // SAFETY: only ends the scene itself.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    });
}

/// Two communicators, of which one repeats its operation after a pause.
fn rest(nccl: &Nccl) {
    let comms = [1, 2, 3, 4, 5].map(|hash| nccl.communicator(hash, 4, 1));
    for (comm, operations) in comms.iter().zip([10, 10, 100_000, 100_000, 100_000]) {
        run(comm, operations);
    }
    thread::sleep(Duration::from_millis(350));
    run(&comms[1], 1);
    run(&comms[3], 8);
    run(&comms[4], 1);
}

fn abandoned(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    comm.message(comm.group(ptr::null_mut()), c"Send", 1024, 2, 1);
    let group = comm.group(ptr::null_mut());
    comm.message(group, c"Send", 1024, 2, 1);
    nccl.stop(group);
}

fn nonsense(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    let foreign: *mut std::ffi::c_void = ptr::without_provenance_mut(0x7fff_dead_beef);
    let null = ptr::null_mut();
    // No parent, one of another process (as a proxy of another rank passes), and types that were not requested.
    for parent in [null, foreign] {
        for kind in
            [1 << 3, 1 << 4, 1 << 5, KERNEL, 1 << 7, 1 << 8, 1 << 11, 1 << 13, 1 << 14, 1 << 15, 1 << 30, 0]
        {
            assert!(nccl.odd(comm.context, kind, parent).is_null(), "{kind}");
            for context in [foreign, null] {
                assert!(nccl.odd(context, kind, parent).is_null(), "{kind}");
            }
        }
        nccl.kernel(comm.context, parent, 0, 5, 6);
    }
    // Without a place for the handle, and without a descriptor.
    // SAFETY: the plugin must check for null.
    unsafe {
        assert_eq!((nccl.table.start)(comm.context, ptr::null_mut(), ptr::null()), 0);
        let mut handle = foreign;
        assert_eq!((nccl.table.start)(comm.context, &raw mut handle, ptr::null()), 0);
        assert!(handle.is_null());
        assert_eq!((nccl.table.finalize)(foreign), 0);
        assert_eq!((nccl.table.finalize)(null), 0);
    }
    // Ends of events that never started, in any state, with and without arguments.
    for handle in [null, foreign, comm.context] {
        nccl.stop(handle);
        for state in [-1, 0, KERNEL_STOP, 23, 31, 1 << 20] {
            nccl.record(handle, state, None);
            nccl.record(handle, state, Some(u64::MAX));
        }
    }
    run(&comm, 1);
    // Channels out of order, one of them twice, and everything again after the end.
    let group = comm.group(null);
    let api = comm.coll_api(null, ALL_REDUCE, false);
    let handle = comm.coll(group, api, Call { channels: 3, ..ALL_REDUCE });
    let begun: Vec<_> = [2, 0].map(|channel| nccl.kernel_begins(comm.context, handle, channel, 1000)).into();
    nccl.kernel_ends(begun[1], 9000);
    nccl.stop(group);
    let last = nccl.kernel_begins(comm.context, handle, 1, 1000);
    for end in [last, begun[0], begun[0], begun[1], last] {
        nccl.kernel_ends(end, 11_000);
    }
    for again in [handle, group, handle, group] {
        nccl.stop(again);
    }
    nccl.kernel(comm.context, handle, 0, 1, 2);
}

fn late(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    run(&comm, 1);
    let mut begun = Vec::new();
    for _ in 0..9000 {
        let launched = comm.launch(Call { channels: 1, ..ALL_REDUCE });
        begun.push(nccl.kernel_begins(comm.context, launched.handle, 0, 1000));
    }
    for late in [begun[0], begun[8999]] {
        nccl.kernel_ends(late, 5000);
    }
    // More launches that start and never end than are kept.
    for _ in 0..1000 {
        comm.group(ptr::null_mut());
    }
}

/// One communicator continues after another has launched nearly as many unfinished operations as have room.
fn rested(nccl: &Nccl) {
    let [rests, works] = [1, 2].map(|hash| nccl.communicator(hash, 4, 1));
    let launch = |comm: &Comm<'_>, count: usize| -> Vec<*mut c_void> {
        (0..count).map(|_| comm.launch(Call { channels: 1, ..ALL_REDUCE }).handle).collect()
    };
    // The number of slots, and the distance between slots taken in succession.
    const SLOTS: u64 = 4096;
    const APART: u64 = 2531;
    let slot = |handle: &*mut c_void| *handle as u64 % SLOTS;
    launch(&works, 1);
    let first = launch(&rests, 200);
    // They take the fast path, with slots reserved in advance, regardless of other launches in between.
    let mut in_turn = Vec::new();
    for _ in 0..200 {
        in_turn.extend(launch(&rests, 1));
        launch(&works, 1);
    }
    let after_one_another = |handles: &[*mut c_void]| {
        handles.windows(2).filter(|pair| slot(&pair[1]) == (slot(&pair[0]) + APART) % SLOTS).count()
    };
    assert!(after_one_another(&first) > 100 && after_one_another(&in_turn) > 100);
    let mut gpu = 0;
    let mut end = |comm: &Comm<'_>, handles: Vec<*mut c_void>| {
        for handle in handles {
            gpu += 12_000;
            nccl.kernel(comm.context, handle, 0, gpu, gpu + 5_000);
        }
    };
    end(&works, launch(&works, 2000));
    let under_way = launch(&works, 4000);
    let again = launch(&rests, 9);
    end(&works, under_way);
    end(&rests, again);
}

fn kinds(nccl: &Nccl) {
    for hash in 0..60 {
        let comm = nccl.communicator(hash, 4, 1);
        for class in 0..40 {
            comm.launch(Call { count: 1 << class, ..ALL_REDUCE });
        }
    }
}

/// Launches here, GPU events on another thread: neither allocates, over several checks of the mode file.
fn allocations(nccl: &Nccl) {
    let nccl_library = open(&libraries().1);
    let (watch, count) = (symbol(nccl_library, "playedWatch"), symbol(nccl_library, "playedAllocations"));
    assert!(!watch.is_null() && !count.is_null());
    // SAFETY: functions of the stand-in, with these types.
    let watch: unsafe extern "C" fn(i32) = unsafe { std::mem::transmute(watch) };
    // SAFETY: as above.
    let count: unsafe extern "C" fn() -> std::ffi::c_long = unsafe { std::mem::transmute(count) };
    let comm = &nccl.communicator(0xabc, 4, 1);
    // SAFETY: they access a thread-local variable.
    unsafe {
        watch(1);
        drop(std::hint::black_box(Box::new(7)));
        assert_eq!(count(), 1, "the watch sees what is allocated");
        watch(0);
    }
    let (send, receive) = mpsc::channel::<Launched>();
    let ends = thread::spawn({
        let (context, nccl) = (comm.context as usize, nccl as *const Nccl as usize);
        move || {
            // SAFETY: both are valid until the thread is joined.
            let nccl = unsafe { &*(nccl as *const Nccl) };
            let mut begin = 0;
            let mut allocated = 0;
            for launched in receive {
                begin += 12_000;
                // SAFETY: as above.
                unsafe { watch(1) };
                for channel in 0..launched.channels {
                    nccl.kernel(context as *mut _, launched.handle, channel, begin, begin + 10_000);
                }
                // SAFETY: as above.
                unsafe { watch(0) };
                // SAFETY: as above.
                allocated = unsafe { count() };
            }
            allocated
        }
    });
    let end = Instant::now() + Duration::from_millis(700);
    let mut turns = 0;
    while Instant::now() < end || turns < 250 {
        turns += 1;
        for size in 0..4 {
            // SAFETY: as above.
            unsafe { watch(1) };
            let launched = comm.launch(Call { count: 1 << size, ..ALL_REDUCE });
            let group = comm.group(ptr::null_mut());
            comm.message(group, c"Send", 8, 2, 1);
            nccl.stop(group);
            // SAFETY: as above.
            unsafe { watch(0) };
            send.send(launched).unwrap();
        }
    }
    drop(send);
    // SAFETY: as above.
    assert_eq!(unsafe { count() }, 1);
    assert_eq!(ends.join().unwrap(), 0);
}

/// The file with which the mode can be changed.
pub(crate) fn mode_file() -> PathBuf {
    PathBuf::from(std::env::var_os("RAILGATE_JOB_DIR").unwrap()).join("user/ranks/mode")
}

fn switched(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    run(&comm, 10);
    let mode = mode_file();
    let wish = |mode_wished: &str, timed: bool| {
        std::fs::write(&mode, mode_wished).unwrap();
        let late = Instant::now() + Duration::from_secs(60);
        loop {
            run(&comm, 1);
            if (nccl.mask.load(Relaxed) & KERNEL != 0) == timed {
                break;
            }
            assert!(Instant::now() < late, "{mode_wished}");
            thread::sleep(Duration::from_millis(20));
        }
        run(&comm, 10);
    };
    assert_eq!(nccl.mask.load(Relaxed) & KERNEL, 0);
    if nccl.api < 5 {
        std::fs::write(&mode, "full").unwrap();
        for _ in 0..50 {
            run(&comm, 1);
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(nccl.mask.load(Relaxed) & KERNEL, 0);
        return;
    }
    wish("full\n", true);
    wish("count", false);
    wish("full", true);
}

/// Two communicators in turn, three sizes each.
fn sample(nccl: &Nccl) {
    let comms = [nccl.communicator(1, 4, 1), nccl.communicator(2, 4, 1)];
    let mut number = 0;
    for _ in 0..8000 {
        for count in [1 << 10, 1 << 14, 1 << 18] {
            number += 1;
            for comm in &comms {
                let begin = number * 12_000;
                comm.gpu(comm.launch(Call { count, ..ALL_REDUCE }), begin, begin + 10_000);
            }
        }
    }
}

/// As in a benchmark: one size after the other, two hundred calls of each.
fn soon(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    let mut number = 0;
    for class in 3..28 {
        for _ in 0..207 {
            number += 1;
            let begin = number * 12_000;
            comm.gpu(comm.launch(Call { count: 1 << class, ..ALL_REDUCE }), begin, begin + 10_000);
        }
    }
}

/// One communicator is idle in the middle of a window while another continues. They share NCCL's mask.
fn idle(nccl: &Nccl) {
    let (rests, goes_on) = (nccl.communicator(1, 4, 1), nccl.communicator(2, 4, 1));
    run(&goes_on, 40);
    run(&rests, 10);
    assert_ne!(nccl.mask.load(Relaxed) & KERNEL, 0);
    run(&goes_on, 50_000);
}

fn messages(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    run(&comm, 1);
    let group = comm.group(ptr::null_mut());
    let mut handles = Vec::new();
    for peer in 0..4 {
        for func in [c"Send", c"Recv"] {
            handles.push(comm.message(group, func, 1024, peer, 1));
        }
    }
    for handle in handles.iter().filter(|handle| !handle.is_null()) {
        nccl.kernel(comm.context, *handle, 0, 1000, 9000);
        nccl.stop(*handle);
    }
    // Twice, as NCCL does for some of its handles.
    nccl.stop(group);
    nccl.stop(group);
    run(&comm, 10);
}

/// Messages to others and collectives, in turn. While the launching thread comes to a launch's end, the thread that
/// reports kernels ends the last of its messages, or the collective before it.
fn meeting(nccl: &Nccl) {
    let comm = &nccl.communicator(0xabc, 4, 1);
    run(comm, 1);
    let mut gpu = 2_000_000;
    // The handle whose end the other thread reports, and its time; 0: none.
    let (handle, at) = (AtomicPtr::<c_void>::default(), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                match at.load(Acquire) {
                    0 => thread::yield_now(),
                    u64::MAX => break,
                    end => {
                        nccl.kernel_ends(handle.load(Relaxed), end);
                        at.store(0, Release);
                    }
                }
            }
        });
        for round in 0..MEETINGS {
            gpu += 40_000;
            let launched = comm.launch(Call { channels: 1, ..ALL_REDUCE });
            let reduces = nccl.kernel_begins(comm.context, launched.handle, 0, gpu);
            let group = comm.group(ptr::null_mut());
            let [receives, sends] = [(c"Recv", 0), (c"Send", 2)].map(|(func, peer)| {
                let message = comm.message(group, func, 1024, peer, 1);
                nccl.kernel_begins(comm.context, message, 0, gpu + 20_000)
            });
            nccl.kernel_ends(receives, gpu + 30_000);
            let mut both = [(sends, gpu + 30_000), (reduces, gpu + 10_000)];
            both.rotate_left(round % 2);
            let [(first, its_end), (last, end)] = both;
            nccl.kernel_ends(first, its_end);
            handle.store(last, Relaxed);
            at.store(end, Release);
            nccl.stop(group);
            while at.load(Acquire) != 0 {
                thread::yield_now();
            }
        }
        at.store(u64::MAX, Release);
    });
}

/// The mode is set to `off`, and only then the events of operations in flight arrive.
fn off_meanwhile(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    run(&comm, 1);
    let under_way: Vec<_> = (0..10).map(|_| comm.launch(Call { channels: 1, ..ALL_REDUCE })).collect();
    std::fs::write(mode_file(), "off").unwrap();
    let late = Instant::now() + Duration::from_secs(60);
    while comm.launch(Call { func: c"Broadcast", ..ALL_REDUCE }).timed {
        assert!(Instant::now() < late);
        thread::sleep(Duration::from_millis(20));
    }
    for (launched, number) in under_way.into_iter().zip(1..) {
        comm.gpu(launched, 1_000_000 + number * 12_000, 1_010_000 + number * 12_000);
    }
}

fn astray(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    run(&comm, 1);
    let later = 3_600_000_000_000;
    let times = [(0, 10), (12, 22), (0, 34), (36, 46), (48, 58), (later / 1000, 2 * later / 1000)];
    for (begin, end) in times.map(|(begin, end)| (1_000_000 + begin * 1000, 1_000_000 + end * 1000)) {
        comm.gpu(comm.launch(Call { channels: 1, ..ALL_REDUCE }), begin, end);
    }
}

fn hidden(nccl: &Nccl) {
    let comm = nccl.communicator(0xabc, 4, 1);
    for captured in [false, true] {
        comm.coll_api(ptr::null_mut(), Call { func: c"Broadcast", ..ALL_REDUCE }, captured);
    }
    assert!(comm.copy_engines(300).is_null());
}

/// A second NCCL, which some frameworks include: its own mask, the same plugin.
fn two(nccl: &Nccl) {
    let second = Nccl { mask: Box::leak(Box::new(AtomicI32::new(0))), ..load().unwrap() };
    for nccl in [nccl, &second] {
        run(&nccl.communicator(0xabc, 4, 1), 10);
    }
    for nccl in [nccl, &second] {
        assert_eq!(nccl.mask.load(Relaxed) & (COLL | KERNEL), COLL | KERNEL);
    }
}

fn closed(nccl: &Nccl) {
    let comm = ten(nccl);
    let launched = comm.launch(ALL_REDUCE);
    comm.finalize();
    // SAFETY: as NCCL does with the last communicator, while its threads may still send events.
    assert_eq!(unsafe { libc::dlclose(nccl.library) }, 0);
    comm.gpu(launched, 5, 6);
    run(&comm, 3);
}
