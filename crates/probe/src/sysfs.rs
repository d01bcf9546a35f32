//! Small bounded reads below a root: sysfs and procfs attributes.
//!
//! What these files hold fits a page; whoever can put something bigger or a FIFO there gets an error
//! and no hang.

use std::path::Path;

use railgate_fsutil::ReadError;
use railgate_fsutil::read::whole;
use railgate_model::Reading;
use railgate_text::printable;

/// Attributes of sysfs are one page at most.
const ATTRIBUTE_BYTES: u64 = 4096;

/// One attribute, trimmed.
pub(crate) fn attribute(path: &Path) -> Result<String, ReadError> {
    Ok(printable(whole(path, ATTRIBUTE_BYTES)?.trim()).into_owned())
}

/// One attribute as a reading. Absent and `EOPNOTSUPP` mean that the machine has no such value;
/// everything else, `EINVAL` included, is a failed read.
pub(crate) fn text(path: &Path) -> Reading<String> {
    parsed(path, "text", |text| Some(text.to_owned()))
}

/// One attribute, understood by `parse`; what it does not understand is a failed read.
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

/// A larger file (`interrupts`, `mountinfo`, `limits`), understood by `parse`; where that finds nothing the machine has
/// no such value.
pub(crate) fn large<T>(path: &Path, limit: u64, parse: impl FnOnce(&str) -> Option<T>) -> Reading<T> {
    match whole(path, limit) {
        Ok(text) => parse(&text).map_or(Reading::Unsupported, Reading::Known),
        Err(error) => failure(&error),
    }
}

/// What a failed read of one attribute means.
pub(crate) fn failure<T>(error: &ReadError) -> Reading<T> {
    if error.is_absent() || error.errno() == Some(libc::EOPNOTSUPP) {
        Reading::Unsupported
    } else {
        Reading::Failed(error.to_string())
    }
}

/// `0x10de` or `10de`.
pub(crate) fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// `numa_node`; -1 means that the firmware says nothing.
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
    fn absent_is_not_failed() {
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
        // A FIFO without a writer gives an empty answer at once instead of a hang.
        assert_eq!(attribute(&fifo).unwrap(), "");
    }
}
