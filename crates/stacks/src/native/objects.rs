//! The program and the libraries of a process: whose code an address is, its unwind tables, and the name of its function.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cpp_demangle::DemangleOptions;
use gimli::{BaseAddresses, EhFrame, EhFrameHdr, EndianSlice, NativeEndian};
use nix::fcntl::OFlag;
use nix::unistd::Pid;
use object::elf::{FileHeader64, PT_GNU_EH_FRAME, PT_LOAD};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSymbol as _, ReadCache, ReadRef as _, SymbolKind};
use proc_maps::{MapRange, get_process_maps};

use super::memory::Memory;

/// The file's header and its program headers, bytes.
const HEADERS: u64 = 1024;

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
    /// An address in the process less this is the address in the file.
    bias: u64,
    headers: Vec<u8>,
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

    /// The object whose code contains this address, as its index in [`Objects::get`].
    pub(super) fn at(&mut self, address: u64, memory: &Memory) -> Option<usize> {
        let place = self.maps.iter().position(|map| {
            map.is_exec() && (start(map)..start(map) + map.size() as u64).contains(&address)
        })?;
        let path = self.maps.get(place)?.filename()?.to_owned();
        let mut before = self.maps.get(..=place)?.iter().rev();
        let first = before.find(|map| map.offset == 0 && map.filename() == Some(&path))?;
        let start = start(first);
        if let Some(known) = self.known.iter().position(|one| one.start == start) {
            return Some(known);
        }
        self.known.push(Object::new(path, start, memory)?);
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
    fn new(path: PathBuf, start: u64, memory: &Memory) -> Option<Self> {
        let headers = memory.bytes(start, HEADERS)?;
        let elf = FileHeader64::<Endianness>::parse(headers.as_slice()).ok()?;
        let endian = elf.endian().ok()?;
        let segments = elf.program_headers(endian, headers.as_slice()).ok()?;
        let range =
            |one: &object::elf::ProgramHeader64<Endianness>| (one.p_vaddr(endian), one.p_memsz(endian));
        let loads = segments.iter().filter(|one| one.p_type(endian) == PT_LOAD);
        let first = loads.clone().find(|one| one.p_offset(endian) == 0)?;
        let bias = start.wrapping_sub(first.p_vaddr(endian));
        let search = segments.iter().find(|one| one.p_type(endian) == PT_GNU_EH_FRAME).map(range);
        let tables = search.and_then(|(address, length)| {
            let around =
                loads.map(range).find(|(at, size)| (*at..at.saturating_add(*size)).contains(&address))?;
            let end = around.0.saturating_add(around.1).wrapping_add(bias);
            Tables::new(address.wrapping_add(bias), length, end, memory)
        });
        Some(Object { path, start, bias, headers, tables })
    }

    /// `None` if it has no tables, or none that can be used.
    pub(super) fn unwind(&self) -> Option<Unwind<'_>> {
        let Tables { bases, search, frames } = self.tables.as_ref()?;
        let search = EhFrameHdr::new(search, NativeEndian).parse(bases, 8).ok()?;
        let mut frames = EhFrame::new(frames, NativeEndian);
        frames.set_address_size(8);
        Some(Unwind { bases, search, frames })
    }

    /// An address of the process as one of the file.
    pub(super) fn in_file(&self, address: u64) -> u64 {
        address.wrapping_sub(self.bias)
    }

    /// The names of the functions that contain these addresses of the file.
    pub(super) fn names(&self, pid: Pid, addresses: &[u64]) -> Vec<Option<String>> {
        self.read_names(pid, addresses).unwrap_or_else(|| vec![None; addresses.len()])
    }

    /// From the file on the disk, if it begins as the one in memory.
    fn read_names(&self, pid: Pid, addresses: &[u64]) -> Option<Vec<Option<String>>> {
        // As the process sees it: it may be in a container.
        let inner = self.path.strip_prefix("/").ok()?;
        let file = open(&Path::new("/proc").join(pid.to_string()).join("root").join(inner)).ok()?;
        let cache = ReadCache::new(file);
        if (&cache).read_bytes_at(0, self.headers.len() as u64).ok()? != self.headers {
            return None;
        }
        let elf = object::File::parse(&cache).ok()?;
        let mut best = vec![None; addresses.len()];
        for symbol in elf.symbols().chain(elf.dynamic_symbols()).filter(|one| one.kind() == SymbolKind::Text)
        {
            let (from, size) = (symbol.address(), symbol.size());
            for (best, address) in best.iter_mut().zip(addresses) {
                let contains = (from..from.saturating_add(size)).contains(address);
                if contains && best.as_ref().is_none_or(|(known, _)| *known < from) {
                    *best = Some((from, symbol.name().ok().map(plain)));
                }
            }
        }
        Some(best.into_iter().map(|found| found?.1).collect())
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
        let frames = memory.bytes(frames_at, end.checked_sub(frames_at)?)?;
        Some(Tables { bases: bases.set_eh_frame(frames_at), search, frames })
    }
}

/// A path of the job's own: it may be a FIFO or a link by now.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags.bits()).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
}

/// As the program's source writes it, without parameters.
fn plain(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    let options = DemangleOptions::new().no_params().no_return_type();
    let cpp =
        cpp_demangle::Symbol::new(name).ok().and_then(|symbol| symbol.demangle_with_options(&options).ok());
    cpp.unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        for (name, source) in [
            ("ncclGroupEnd", "ncclGroupEnd"),
            (
                "_ZN4c10d16ProcessGroupNCCL8WorkNCCL4waitENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE",
                "c10d::ProcessGroupNCCL::WorkNCCL::wait",
            ),
            ("_ZN3std6thread5sleep17h0123456789abcdefE", "std::thread::sleep"),
            ("_Zx", "_Zx"),
        ] {
            assert_eq!(plain(name), source);
        }
    }
}
