//! The program and the libraries of a process: finds the file that contains an address, and its unwind tables.

use std::io;
use std::path::PathBuf;

use gimli::{BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, NativeEndian};
use nix::unistd::Pid;
use object::Endianness;
use object::elf::{FileHeader64, PF_X, PT_GNU_EH_FRAME, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use proc_maps::{MapRange, get_process_maps};

use super::memory::Memory;

/// The file's header and its program headers, bytes.
const HEADERS: u64 = 1024;
/// Mask of the offset within a page of 4 KiB.
const PAGE: u64 = 4095;

type Slice<'a> = EndianSlice<'a, NativeEndian>;

/// What a process has mapped.
#[derive(Debug)]
pub(super) struct Objects {
    maps: Vec<MapRange>,
    known: Vec<Object>,
}

/// An ELF file that a process has mapped.
#[derive(Debug)]
pub(super) struct Object {
    /// The path that the kernel shows; `[vdso]` for the kernel's own.
    pub(super) path: PathBuf,
    /// Where its beginning is mapped.
    start: u64,
    /// Subtracted from an address in the process, it gives the address in the file.
    bias: u64,
    /// The beginning of the file, as it is in memory.
    pub(super) headers: Vec<u8>,
    tables: Option<Tables>,
}

/// Contents of `.eh_frame_hdr`, and of `.eh_frame` with what follows it in memory.
#[derive(Debug)]
struct Tables {
    bases: BaseAddresses,
    search: Vec<u8>,
    frames: Vec<u8>,
}

/// The unwind tables of an object, parsed.
pub(super) struct Unwind<'a> {
    pub(super) bases: &'a BaseAddresses,
    pub(super) search: gimli::ParsedEhFrameHdr<Slice<'a>>,
    pub(super) frames: EhFrame<Slice<'a>>,
}

impl Objects {
    pub(super) fn new(pid: Pid) -> io::Result<Self> {
        Ok(Objects { maps: get_process_maps(pid.as_raw())?, known: Vec::new() })
    }

    /// Returns the index, for [`Objects::get`], of the object whose code contains this address.
    pub(super) fn at(&mut self, address: u64, memory: &Memory) -> Option<usize> {
        let place = self.maps.iter().position(|map| {
            map.is_exec() && (start(map)..start(map) + map.size() as u64).contains(&address)
        })?;
        let code = self.maps.get(place)?;
        let path = code.filename()?.to_owned();
        let mut before = self.maps.get(..=place)?.iter().rev();
        let first = before.find(|map| map.offset == 0 && map.filename() == Some(&path))?;
        let start = start(first);
        if let Some(known) = self.known.iter().position(|one| one.start == start) {
            return Some(known);
        }
        let object = Object::new(path, start, (code.start() as u64, code.offset as u64), memory)?;
        self.known.push(object);
        Some(self.known.len() - 1)
    }

    pub(super) fn get(&self, index: usize) -> Option<&Object> {
        self.known.get(index)
    }
}

fn start(map: &MapRange) -> u64 {
    map.start() as u64
}

impl Object {
    /// `start`: where the beginning of the file is mapped. `code`: where some of its code is, and its offset in the file.
    fn new(path: PathBuf, start: u64, code: (u64, u64), memory: &Memory) -> Option<Self> {
        let headers = memory.bytes(start, HEADERS)?;
        let elf = FileHeader64::<Endianness>::parse(headers.as_slice()).ok()?;
        let endian = elf.endian().ok()?;
        let segments = elf.program_headers(endian, headers.as_slice()).ok()?;
        let range =
            |one: &object::elf::ProgramHeader64<Endianness>| (one.p_vaddr(endian), one.p_memsz(endian));
        let loads = segments.iter().filter(|one| one.p_type(endian) == PT_LOAD);
        // The kernel maps whole pages, so the first one may begin before the segment.
        let (code_start, code_offset) = code;
        let segment = loads.clone().find(|one| {
            let end = one.p_offset(endian).saturating_add(one.p_filesz(endian));
            one.p_flags(endian).0 & PF_X.0 != 0
                && one.p_offset(endian) & !PAGE <= code_offset
                && code_offset < end
        })?;
        let in_file =
            segment.p_vaddr(endian).wrapping_add(code_offset).wrapping_sub(segment.p_offset(endian));
        let bias = code_start.wrapping_sub(in_file);
        let search = segments.iter().find(|one| one.p_type(endian) == PT_GNU_EH_FRAME).map(range);
        let tables = search.and_then(|(address, length)| {
            let around =
                loads.map(range).find(|(at, size)| (*at..at.saturating_add(*size)).contains(&address))?;
            let end = around.0.saturating_add(around.1).wrapping_add(bias);
            Tables::new(address.wrapping_add(bias), length, end, memory)
        });
        Some(Object { path, start, bias, headers, tables })
    }

    /// Parses the unwind tables. Returns `None` if there are none, or if they are damaged.
    pub(super) fn unwind(&self) -> Option<Unwind<'_>> {
        let Tables { bases, search, frames } = self.tables.as_ref()?;
        let search = EhFrameHdr::new(search, NativeEndian).parse(bases, 8).ok()?;
        let mut frames = EhFrame::new(frames, NativeEndian);
        frames.set_address_size(8);
        if cfg!(target_arch = "aarch64") {
            // Reads the rules for signed return addresses.
            frames.set_vendor(gimli::Vendor::AArch64);
        }
        Some(Unwind { bases, search, frames })
    }

    /// Converts an address in the process to the address in the file.
    pub(super) fn in_file(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }
}

impl Tables {
    fn new(search_at: u64, length: u64, end: u64, memory: &Memory) -> Option<Self> {
        let search = memory.bytes(search_at, length)?;
        let bases = BaseAddresses::default().set_eh_frame_hdr(search_at);
        let parsed = EhFrameHdr::new(&search, NativeEndian).parse(&bases, 8).ok()?;
        let frames_at = match parsed.eh_frame_ptr() {
            gimli::Pointer::Direct(address) => address,
            gimli::Pointer::Indirect(_) => return None,
        };
        // The segment may continue after the tables, for example with hundreds of megabytes of GPU code.
        let frames = memory.beginning(frames_at, end.checked_sub(frames_at)?);
        Some(Tables { bases: bases.set_eh_frame(frames_at), search, frames })
    }
}
