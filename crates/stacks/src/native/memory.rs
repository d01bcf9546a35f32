//! The memory of another process.

use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// Maximum of one read, bytes: the unwind tables of the largest libraries are some 40 MB.
const MOST: u64 = 128 << 20;
/// A read stops before the first piece that is not mapped.
const PIECE: usize = 4096;

/// Reads a process; of its stack it may have a copy.
#[derive(Debug)]
pub(super) struct Memory {
    pid: Pid,
    /// First address and contents.
    copy: (u64, Vec<u8>),
}

impl Memory {
    pub(super) fn new(pid: Pid) -> Self {
        Memory { pid, copy: (0, Vec::new()) }
    }

    /// From now on, the mapped part of these addresses is read as it is at this moment.
    pub(super) fn keep(&mut self, first: u64, most: usize) {
        let mut bytes = vec![0; most];
        let mut from = Vec::new();
        let mut base = usize::try_from(first).unwrap_or(usize::MAX);
        let end = base.saturating_add(most);
        while base < end {
            let len = (PIECE - base % PIECE).min(end - base);
            from.push(RemoteIoVec { base, len });
            base += len;
        }
        let read = process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut bytes)], &from);
        bytes.truncate(read.unwrap_or(0));
        self.copy = (first, bytes);
    }

    /// A number of eight bytes.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let (first, copy) = &self.copy;
        let at = address.checked_sub(*first).and_then(|at| usize::try_from(at).ok());
        let bytes = match at.and_then(|at| copy.get(at..at.checked_add(8)?)) {
            Some(kept) => kept.to_vec(),
            None => self.bytes(address, 8)?,
        };
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }

    /// `None` if not all of it could be read.
    pub(super) fn bytes(&self, address: u64, length: u64) -> Option<Vec<u8>> {
        let len = usize::try_from(length).ok().filter(|_| length <= MOST)?;
        let mut bytes = vec![0; len];
        let from = [RemoteIoVec { base: usize::try_from(address).ok()?, len }];
        let read = process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut bytes)], &from).ok()?;
        (read == len).then_some(bytes)
    }
}
