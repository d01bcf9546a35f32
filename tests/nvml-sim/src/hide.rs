use std::path::Path;
use std::{fs, io};

/// Why a symbol could not be hidden. The library is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum HideError {
    /// The file could not be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is not a 64-bit little-endian ELF file with dynamic symbols.
    #[error("not a shared library")]
    NotElf,
    /// The library exports no symbol of this name.
    #[error("no dynamic symbol '{0}'")]
    NoSymbol(String),
}

/// Renames a dynamic symbol in a **copy** of a shared library, so that the loader no longer finds it. This simulates an old
/// driver.
///
/// # Errors
/// See [`HideError`].
pub fn hide_symbol(library: &Path, name: &str) -> Result<(), HideError> {
    let mut bytes = fs::read(library)?;
    let (start, size) = dynamic_strings(&bytes).ok_or(HideError::NotElf)?;
    let strings = bytes.get_mut(start..start + size).ok_or(HideError::NotElf)?;
    let wanted: Vec<u8> = [b"\0", name.as_bytes(), b"\0"].concat();
    let place = strings
        .windows(wanted.len())
        .position(|window| window == wanted.as_slice())
        .ok_or_else(|| HideError::NoSymbol(name.to_owned()))?;
    // The entry in the hash table stays that of the old name, so the loader finds neither name.
    if let Some(first) = strings.get_mut(place + 1) {
        *first = b'_';
    }
    // Written to a new file, since a running process may have mapped the old one.
    let next = library.with_extension("next");
    fs::write(&next, bytes)?;
    fs::set_permissions(&next, fs::metadata(library)?.permissions())?;
    Ok(fs::rename(&next, library)?)
}

/// Offset and size of `.dynstr`: the string table that the section of type DYNSYM links to.
fn dynamic_strings(bytes: &[u8]) -> Option<(usize, usize)> {
    const DYNSYM: u64 = 11;
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let number = |at: usize, width: usize| -> Option<u64> {
        let field = bytes.get(at..at + width)?;
        Some(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    let index = |value: u64| usize::try_from(value).ok();
    let (headers, entry, count) = (index(number(40, 8)?)?, index(number(58, 2)?)?, number(60, 2)?);
    let header = |section: u64| Some(headers + entry * index(section)?);
    for section in 0..count {
        let at = header(section)?;
        if number(at + 4, 4)? == DYNSYM {
            let strings = header(number(at + 40, 4)?)?;
            return Some((index(number(strings + 24, 8)?)?, index(number(strings + 32, 8)?)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_library_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.so");
        fs::write(&file, b"\x7fELF\x02\x01 and no more").unwrap();
        assert!(matches!(hide_symbol(&file, "f"), Err(HideError::NotElf)));
        assert!(matches!(hide_symbol(&dir.path().join("none"), "f"), Err(HideError::Io(_))));
    }
}
