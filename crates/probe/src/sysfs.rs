//! Bounded reads of sysfs and procfs attributes below a root.
//!
//! Contents of these files fit in a page. If another process put a larger file or a FIFO there, reading it gives an
//! error and does not hang.

use std::path::Path;

use railgate_fsutil::ReadError;
use railgate_fsutil::read::whole;
use railgate_model::Reading;
use railgate_text::printable;

/// A sysfs attribute has at most one page.
const ATTRIBUTE_BYTES: u64 = 4096;

/// Reads one attribute, trimmed.
pub(crate) fn attribute(path: &Path) -> Result<String, ReadError> {
    Ok(printable(whole(path, ATTRIBUTE_BYTES)?.trim()).into_owned())
}

/// Reads one attribute. If it is absent or returns `EOPNOTSUPP`, the machine has no such value; all other errors,
/// including `EINVAL`, are failed readings.
pub(crate) fn text(path: &Path) -> Reading<String> {
    parsed(path, "text", |text| Some(text.to_owned()))
}

/// Reads one attribute and parses it with `parse`; text that it rejects is a failed reading.
pub(crate) fn parsed<T>(
    path: &Path,
    want: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Reading<T> {
    let outcome =
        attribute(path).and_then(|text| parse(&text).ok_or_else(|| ReadError::odd(path, &text, want)));
    match outcome {
        Ok(value) => Reading::Known(value),
        Err(error) => failure(&error),
    }
}

/// Reads a larger file (`interrupts`, `mountinfo`, `limits`) and parses it with `parse`; `None` from it means that the
/// machine has no such value.
pub(crate) fn large<T>(path: &Path, limit: u64, parse: impl FnOnce(&str) -> Option<T>) -> Reading<T> {
    match whole(path, limit) {
        Ok(text) => parse(&text).map_or(Reading::Unsupported, Reading::Known),
        Err(error) => failure(&error),
    }
}

/// The reading for an error of reading one attribute.
pub(crate) fn failure<T>(error: &ReadError) -> Reading<T> {
    if error.is_absent() || error.errno() == Some(libc::EOPNOTSUPP) {
        Reading::Unsupported
    } else {
        Reading::Failed(error.to_string())
    }
}

/// Parses `0x10de` or `10de`.
pub(crate) fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Reads `numa_node`; -1 means that the firmware does not report a node.
pub(crate) fn numa_node(path: &Path) -> Reading<u32> {
    match parsed(path, "a NUMA node", |text| text.parse::<i64>().ok()) {
        Reading::Known(-1) | Reading::Unsupported => Reading::Unsupported,
        Reading::Known(node) => match u32::try_from(node) {
            Ok(node) => Reading::Known(node),
            Err(_) => Reading::Failed(format!("{}: NUMA node {node}", path.display())),
        },
        Reading::Failed(why) => Reading::Failed(why),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_absent_attribute_is_unsupported_and_an_error_failed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(text(&dir.path().join("rate")), Reading::Unsupported);
        fs::write(dir.path().join("rate"), "fast\n").unwrap();
        assert_eq!(text(&dir.path().join("rate")), Reading::Known("fast".into()));
        let odd = parsed(&dir.path().join("rate"), "a number", |text| text.parse::<u32>().ok());
        assert!(matches!(odd, Reading::Failed(why) if why.ends_with("rate: 'fast' is not a number")));
        fs::write(dir.path().join("numa_node"), "-1\n").unwrap();
        assert_eq!(numa_node(&dir.path().join("numa_node")), Reading::Unsupported);
    }

    #[test]
    fn a_huge_attribute_and_a_fifo_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("big"), vec![b'7'; 5000]).unwrap();
        assert!(matches!(text(&dir.path().join("big")), Reading::Failed(why) if why.contains("4096 bytes")));
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        // A FIFO without a writer reads as empty at once rather than blocking.
        assert_eq!(attribute(&fifo).unwrap(), "");
    }
}
