//! Which C library a file needs.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{Endianness, elf};

/// The newest glibc that a file's versioned symbols name: `(2, 17)`; `(0, 0)` where it names none.
pub(super) fn newest_glibc(file: &Path) -> Result<(u32, u32)> {
    let data = fs::read(file).with_context(|| file.display().to_string())?;
    needed(&data).with_context(|| file.display().to_string())
}

fn needed(data: &[u8]) -> Result<(u32, u32)> {
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
                let number = std::str::from_utf8(name)?.strip_prefix("GLIBC_").and_then(version);
                newest = newest.max(number.unwrap_or_default());
            }
        }
    }
    Ok(newest)
}

/// `2.17`, `2.2.5`.
pub(super) fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_program_needs_is_found() {
        let newest = newest_glibc(Path::new("/proc/self/exe")).unwrap();
        assert!(newest.0 == 2 && newest.1 > 0, "{newest:?}");
        assert_eq!(version("2.2.5"), Some((2, 2)));
        assert_eq!(version("PRIVATE"), None);
    }
}
