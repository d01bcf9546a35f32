//! Library versions that an ELF file requires.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{Endianness, elf};

pub(super) const GLIBC: &str = "GLIBC_";

/// The newest version of a library that the file's symbols require, for example `(2, 17)`; `(0, 0)` if none do.
pub(super) fn newest(file: &Path, library: &str) -> Result<(u32, u32)> {
    let data = fs::read(file).with_context(|| file.display().to_string())?;
    needed(&data, library).with_context(|| file.display().to_string())
}

fn needed(data: &[u8], library: &str) -> Result<(u32, u32)> {
    let header = elf::FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let mut newest = (0, 0);
    for section in sections.iter() {
        let Some((mut needs, link)) = section.gnu_verneed(endian, data)? else { continue };
        let names = sections.strings(endian, data, link)?;
        while let Some((_, mut versions)) = needs.next()? {
            while let Some(wanted) = versions.next()? {
                let name = wanted.name(endian, names).context("a version without a name")?;
                let number = std::str::from_utf8(name)?.strip_prefix(library).and_then(version);
                newest = newest.max(number.unwrap_or_default());
            }
        }
    }
    Ok(newest)
}

/// Parses `2.17` or `2.2.5`.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_glibc_version_of_this_program_is_found() {
        let found = newest(Path::new("/proc/self/exe"), GLIBC).unwrap();
        assert!(found.0 == 2 && found.1 > 0, "{found:?}");
        assert_eq!(version("2.2.5"), Some((2, 2)));
        assert_eq!(version("PRIVATE"), None);
    }
}
