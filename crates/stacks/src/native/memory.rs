//! The memory of another process.

use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// Maximum of one read, bytes: the unwind tables of the largest libraries are some 40 MB.
const MOST: u64 = 64 << 20;
/// A read stops before the first piece that is not mapped.
const PIECE: usize = 4096;
/// The kernel takes 1,024 pieces at a time.
const PIECES: usize = 1024;

/// Reads the memory of a process. Can hold a copy of its stack.
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

    /// Copies the mapped part of these addresses. Later reads use the copy.
    pub(super) fn keep(&mut self, first: u64, most: u64) {
        self.copy = (first, self.beginning(first, most));
    }

    /// Returns the bytes from this address up to the first page that is not mapped, at most 64 MiB.
    pub(super) fn beginning(&self, first: u64, most: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(most.min(MOST)).unwrap_or(0)];
        let mut read = 0;
        for part in bytes.chunks_mut(PIECES * PIECE) {
            let Some(base) = usize::try_from(first).ok().and_then(|first| first.checked_add(read)) else {
                break;
            };
            let pieces = (0..part.len()).step_by(PIECE).filter_map(|at| {
                Some(RemoteIoVec { base: base.checked_add(at)?, len: PIECE.min(part.len() - at) })
            });
            let pieces: Vec<RemoteIoVec> = pieces.collect();
            let wanted = part.len();
            let got = process_vm_readv(self.pid, &mut [IoSliceMut::new(part)], &pieces).unwrap_or(0);
            read += got;
            if got < wanted {
                break;
            }
        }
        bytes.truncate(read);
        bytes
    }

    /// Reads a number of eight bytes.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let (first, copy) = &self.copy;
        let at = address.checked_sub(*first).and_then(|at| usize::try_from(at).ok());
        let number = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
        match at.and_then(|at| copy.get(at..at.checked_add(8)?)) {
            Some(kept) => number(kept),
            None => number(&self.bytes(address, 8)?),
        }
    }

    /// Reads exactly `length` bytes. Returns `None` if a part cannot be read.
    pub(super) fn bytes(&self, address: u64, length: u64) -> Option<Vec<u8>> {
        let len = usize::try_from(length).ok().filter(|_| length <= MOST)?;
        let mut bytes = vec![0; len];
        let from = [RemoteIoVec { base: usize::try_from(address).ok()?, len }];
        let read = process_vm_readv(self.pid, &mut [IoSliceMut::new(&mut bytes)], &from).ok()?;
        (read == len).then_some(bytes)
    }
}
