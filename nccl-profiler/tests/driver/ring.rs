//! Model of the ring through which kernel times reach NCCL: 64 entries per channel, by number (`src/device/common.h`,
//! `src/proxy.cc` and `src/transport/profiler.cc` of 2.27 to 2.30). The GPU counts every kernel and writes the timed
//! ones. NCCL counts its launches, and for a timed one waits until the entry of its number, modulo 64, has at least
//! that number; a wait that never ends blocks the destruction of the communicator.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::played::{ALL_REDUCE, COLL, Comm, KERNEL, Nccl};
use crate::scenes::mode_file;

const ENTRIES: usize = 64;

/// One channel of a communicator.
struct Ring {
    host: u64,
    gpu: u64,
    /// The latest numbers written by the GPU, by entry.
    written: [u64; ENTRIES],
    waiting: Vec<u64>,
}

impl Ring {
    fn new() -> Self {
        Ring { host: 0, gpu: 0, written: [0; ENTRIES], waiting: Vec::new() }
    }

    fn place(number: u64) -> usize {
        usize::try_from(number).unwrap() % ENTRIES
    }

    /// One kernel, with the timing flag of the send and of the receive in it; `None`: NCCL does not count it.
    fn work(&mut self, gpu_timed: bool, host_timed: Option<bool>) {
        self.gpu += 1;
        if gpu_timed {
            self.written[Ring::place(self.gpu)] = self.gpu;
        }
        if let Some(timed) = host_timed {
            self.host += 1;
            if timed {
                self.waiting.push(self.host);
            }
        }
    }

    fn ends(&self) -> bool {
        self.waiting.iter().all(|number| self.written[Ring::place(*number)] >= *number)
    }
}

/// A communicator of four ranks; one of its channels is modelled.
struct Watched<'n> {
    comm: Comm<'n>,
    ring: Ring,
}

impl Watched<'_> {
    fn timed(&self) -> bool {
        self.comm.mask() & KERNEL != 0
    }

    fn all_reduce(&mut self, captured: bool) {
        let comm = &self.comm;
        let mut timed = false;
        comm.group_api(|group_api| {
            timed = comm.mask() & KERNEL != 0;
            let api = comm.coll_api(group_api, ALL_REDUCE, captured);
            let group = comm.group(api);
            comm.coll(group, api, ALL_REDUCE);
            comm.nccl.stop(group);
        });
        self.ring.work(timed, Some(timed));
    }

    /// Exchanges messages with these peers; each send and receive are one kernel.
    fn exchange(&mut self, peers: &[i32]) {
        let comm = &self.comm;
        let mut works = Vec::new();
        comm.group_api(|group_api| {
            let timed = |_| comm.mask() & KERNEL != 0;
            works.extend(peers.iter().map(|peer| (*peer, timed(c"Recv"), timed(c"Send"))));
            let group = comm.group(group_api);
            for peer in peers {
                comm.message(group, c"Recv", 256, *peer, 1);
                comm.message(group, c"Send", 256, *peer, 1);
            }
            comm.nccl.stop(group);
        });
        for (peer, receive, send) in works {
            self.ring.work(receive, (peer != comm.rank).then_some(receive || send));
        }
    }
}

fn watched(nccl: &Nccl) -> Watched<'_> {
    Watched { comm: nccl.communicator(0xabc, 4, 1), ring: Ring::new() }
}

/// A typical training: all-reduce of gradients, then an all-to-all of experts, in which each rank also sends to
/// itself.
pub(crate) fn all_to_all(nccl: &Nccl) {
    let mut watched = watched(nccl);
    for _ in 0..300 {
        (0..5).for_each(|_| watched.all_reduce(false));
        watched.exchange(&[1, 0, 2, 3]);
    }
    assert!(watched.ring.ends(), "it never ends");
}

/// Messages to itself in mode `off`, and then a request for `full`, which comes too late.
pub(crate) fn off_then_full(nccl: &Nccl) {
    let mut watched = watched(nccl);
    watched.exchange(&[1, 0, 2, 3]);
    std::fs::write(mode_file(), "full").unwrap();
    for _ in 0..50 {
        watched.all_reduce(false);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(watched.ring.ends(), "it never ends");
}

/// A captured graph, which is replayed: NCCL sends no events for its untimed operations.
pub(crate) fn graphs(nccl: &Nccl, before: u32) {
    let mut watched = watched(nccl);
    (0..before).for_each(|_| watched.all_reduce(false));
    let mut plan = Vec::new();
    for _ in 0..10 {
        plan.push(watched.timed());
        watched.all_reduce(true);
    }
    for _ in 0..300 {
        for timed in &plan {
            watched.ring.work(*timed, timed.then_some(true));
        }
        watched.all_reduce(false);
    }
    assert!(watched.ring.ends(), "it never ends");
}

/// Only messages to neighbours: both counts stay equal.
pub(crate) fn neighbours(nccl: &Nccl) {
    let mut watched = watched(nccl);
    for _ in 0..300 {
        watched.exchange(&[0, 2]);
        watched.all_reduce(false);
    }
    assert!(watched.ring.ends() && !watched.ring.waiting.is_empty(), "{:?}", watched.ring.waiting);
    watched.comm.finalize();
    assert_eq!(nccl.mask.load(Relaxed) & COLL, COLL);
}

/// One thread is inside a group while launches of another open and close windows.
pub(crate) fn two_threads(nccl: &Nccl) {
    let other = nccl.communicator(0xdef, 4, 1);
    let comm = &nccl.communicator(0xabc, 4, 1);
    let mut changed = 0;
    for round in 0..200 {
        comm.group_api(|group_api| {
            let first = comm.mask() & KERNEL;
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..7 {
                        other.launch(ALL_REDUCE);
                    }
                });
            });
            changed += usize::from(comm.mask() & KERNEL != first);
            let group = comm.group(group_api);
            comm.message(group, c"Recv", 256, 0, 1);
            comm.message(group, c"Send", 256, 2, 1);
            comm.nccl.stop(group);
        });
        // Only a process that has had messages checks this.
        if round == 0 {
            changed = 0;
        }
    }
    assert_eq!(changed, 0, "a send and a receive that are launched as one are not timed alike");
}
