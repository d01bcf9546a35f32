//! Names of functions, from the symbol tables of the files that a process has mapped.

use std::fmt::{self, Write};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use cpp_demangle::DemangleOptions;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use object::{Object as _, ObjectSymbol as _, ReadCache, ReadRef as _, SymbolKind};

use super::objects::Object;

/// Maximum length of a name, bytes: template parameters can repeat without limit.
const MOST_NAME: usize = 512;

/// The file system of a process, which may be that of a container.
#[derive(Debug)]
pub(super) struct Files {
    root: Option<OwnedFd>,
}

impl Files {
    pub(super) fn new(pid: Pid) -> Self {
        let root =
            open(Path::new(&format!("/proc/{pid}/root")), OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty());
        Files { root: root.ok() }
    }

    /// Returns the names of the functions at these addresses of the object's file.
    pub(super) fn names(&self, object: &Object, addresses: &[u64]) -> Vec<Option<String>> {
        self.read(object, addresses).unwrap_or_else(|| vec![None; addresses.len()])
    }

    fn read(&self, object: &Object, addresses: &[u64]) -> Option<Vec<Option<String>>> {
        let cache = ReadCache::new(self.open(object.path.strip_prefix("/").ok()?)?);
        // The file was replaced after it was mapped.
        if (&cache).read_bytes_at(0, object.headers.len() as u64).ok()? != object.headers {
            return None;
        }
        let elf = object::File::parse(&cache).ok()?;
        let mut best: Vec<Option<(u64, &str)>> = vec![None; addresses.len()];
        for symbol in elf.symbols().chain(elf.dynamic_symbols()).filter(|one| one.kind() == SymbolKind::Text)
        {
            let (from, size) = (symbol.address(), symbol.size());
            for (best, address) in best.iter_mut().zip(addresses) {
                if (from..from.saturating_add(size)).contains(address)
                    && let Ok(name) = symbol.name()
                    && best.is_none_or(|known| rank((from, name)) > rank(known))
                {
                    *best = Some((from, name));
                }
            }
        }
        Some(best.into_iter().map(|found| found.map(|(_, name)| plain(name))).collect())
    }

    /// Opens a regular file inside the root. The job may have replaced it by a FIFO or a link.
    fn open(&self, path: &Path) -> Option<File> {
        let root = self.root.as_ref()?.as_fd();
        let flags =
            OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let inside = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
        let opened = match openat2(root, path, OpenHow::new().flags(flags).resolve(inside)) {
            // Before Linux 5.6.
            Err(Errno::ENOSYS) => openat(root, path, flags, Mode::empty()),
            other => other,
        };
        let file = File::from(opened.ok()?);
        file.metadata().is_ok_and(|meta| meta.is_file()).then_some(file)
    }
}

/// Order of symbols that contain an address: the innermost one is preferred, and among its names the public one, `poll` over `__poll`.
fn rank((from, name): (u64, &str)) -> (u64, std::cmp::Reverse<usize>) {
    (from, std::cmp::Reverse(name.len() - name.trim_start_matches('_').len()))
}

/// Keeps the first [`MOST_NAME`] bytes of a text.
#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MOST_NAME - self.0.len();
        self.0.push_str(text.get(..text.floor_char_boundary(left)).unwrap_or_default());
        if text.len() > left { Err(fmt::Error) } else { Ok(()) }
    }
}

/// Demangles a name and omits its parameters.
fn plain(name: &str) -> String {
    let mut out = Bounded::default();
    // The writer returns an error when the name is cut.
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        let _ = write!(out, "{rust:#}");
    } else if let Ok(cpp) = cpp_demangle::Symbol::new(name) {
        let _ = cpp.structured_demangle(&mut out, &DemangleOptions::new().no_params().no_return_type());
    }
    if out.0.is_empty() {
        let _ = out.write_str(name);
    }
    out.0
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

    #[test]
    fn long_names_are_cut() {
        let name = plain(&format!("_Z1fI{}Evv", "1a".repeat(1000)));
        assert!(name.starts_with("f<a, a, ") && name.len() == MOST_NAME, "{name}");
        assert_eq!(plain(&"x".repeat(5000)).len(), MOST_NAME);
    }

    #[test]
    fn of_several_symbols_the_innermost_one_without_underscores_counts() {
        assert!(rank((16, "poll")) > rank((16, "__poll")));
        assert!(rank((32, "__inner")) > rank((16, "outer")));
    }
}
