//! The file that the prolog left, `nccl.env` in the run's directory.
//!
//! ```text
//! railgate-nccl-env 1
//! default 2.30.7 - ib NCCL_IB_HCA==mlx5_0:1:0,mlx5_1:1:1
//! force 2.29.2 2.30.7 - NCCL_EXAMPLE=1
//! ```
//!
//! Mode, first release, first release that no longer gets it, network plugins with commas (a `-` in one of the
//! three last: no bound), and the value. `default` is for variables that the user has not set.

use std::ffi::CString;

const HEAD: &str = "railgate-nccl-env 1";
/// Larger files are not ours.
pub(crate) const MOST_BYTES: usize = 64 << 10;
const MOST_ENTRIES: usize = 64;
/// What records the value that railgate itself gave the task.
const RECORD: &str = "RAILGATE_SET_";

/// One value for some releases of NCCL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: CString,
    /// `RAILGATE_SET_` and the name.
    pub(crate) record: CString,
    pub(crate) value: CString,
    /// Also where the user has a value.
    pub(crate) force: bool,
    from: Option<[u8; 3]>,
    below: Option<[u8; 3]>,
    /// Empty: whichever moves the data.
    nets: Vec<String>,
}

impl Entry {
    /// Whether NCCL of this release gets it where `net` moves the data between nodes.
    pub(crate) fn fits(&self, release: [u8; 3], net: Option<&[u8]>) -> bool {
        self.from.is_none_or(|from| release >= from)
            && self.below.is_none_or(|below| release < below)
            && (self.nets.is_empty()
                || net.is_some_and(|net| self.nets.iter().any(|have| have.as_bytes() == net)))
    }
}

/// The entries, or nothing: of a file with a line that is not understood, no line is used.
pub(crate) fn parse(text: &str) -> Option<Vec<Entry>> {
    let mut lines = text.lines();
    if text.len() > MOST_BYTES || lines.next() != Some(HEAD) {
        return None;
    }
    let entries: Vec<Entry> = lines.map(entry).collect::<Option<_>>()?;
    (entries.len() <= MOST_ENTRIES).then_some(entries)
}

fn entry(line: &str) -> Option<Entry> {
    let mut words = line.splitn(5, ' ');
    let force = match words.next()? {
        "default" => false,
        "force" => true,
        _ => return None,
    };
    let (from, below) = (bound(words.next()?)?, bound(words.next()?)?);
    let nets = match words.next()? {
        "-" => Vec::new(),
        names => names.split(',').map(str::to_owned).collect(),
    };
    let (name, value) = words.next()?.split_once('=')?;
    let named = name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    if !named || !value.bytes().all(|b| b == b' ' || b.is_ascii_graphic()) {
        return None;
    }
    Some(Entry {
        name: CString::new(name).ok()?,
        record: CString::new(format!("{RECORD}{name}")).ok()?,
        value: CString::new(value).ok()?,
        force,
        from,
        below,
        nets,
    })
}

/// `-` is none; the outer `None` is no version at all.
fn bound(word: &str) -> Option<Option<[u8; 3]>> {
    if word == "-" {
        return Some(None);
    }
    let mut numbers = word.split('.').map(|number| number.parse::<u8>().ok());
    let version = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(Some(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "railgate-nccl-env 1\n\
        default 2.30.7 - ib,sharp NCCL_IB_HCA==mlx5_0:1:0,mlx5_1:1:1\n\
        force 2.29.2 2.30.7 - NCCL_X=a b\n";

    #[test]
    fn entries_fit_their_releases_and_plugins() {
        let entries = parse(TEXT).unwrap();
        let (hca, x) = (&entries[0], &entries[1]);
        assert_eq!(hca.value.as_bytes(), b"=mlx5_0:1:0,mlx5_1:1:1");
        assert_eq!(hca.record.as_bytes(), b"RAILGATE_SET_NCCL_IB_HCA");
        assert_eq!((x.value.as_bytes(), x.force, hca.force), (&b"a b"[..], true, false));
        assert!(hca.fits([2, 30, 7], Some(b"ib")) && hca.fits([3, 0, 0], Some(b"sharp")));
        assert!(!hca.fits([2, 30, 6], Some(b"ib")) && !hca.fits([2, 31, 0], Some(b"ofi")));
        assert!(!hca.fits([2, 31, 0], None));
        assert!(x.fits([2, 29, 2], None) && x.fits([2, 30, 6], Some(b"ofi")));
        assert!(!x.fits([2, 30, 7], None) && !x.fits([2, 28, 9], None));
    }

    #[test]
    fn one_odd_line_and_nothing_is_used() {
        for text in [
            "",
            "railgate-nccl-env 2\n",
            "railgate-nccl-env 1\nmaybe - - - A=1\n",
            "railgate-nccl-env 1\ndefault - - A=1\n",
            "railgate-nccl-env 1\ndefault 2.30 - - A=1\n",
            "railgate-nccl-env 1\ndefault 2.300.1 - - A=1\n",
            "railgate-nccl-env 1\ndefault 2.30.1.4 - - A=1\n",
            "railgate-nccl-env 1\ndefault - - - a=1\n",
            "railgate-nccl-env 1\ndefault - - - A\n",
            "railgate-nccl-env 1\ndefault - - - A=\u{7}\n",
            "railgate-nccl-env 1\n\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse("railgate-nccl-env 1\n"), Some(Vec::new()));
        let many = format!("railgate-nccl-env 1\n{}", "default - - - A=1\n".repeat(MOST_ENTRIES + 1));
        assert_eq!(parse(&many), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_odd(text in ".{0,200}", tail in "(default|force|x) [-0-9.]{0,9} [-0-9.]{0,9} [-a-z,]{0,9} [ -~]{0,40}") {
            let _ = parse(&text);
            let _ = parse(&format!("{HEAD}\n{tail}\n"));
            let _ = parse(&format!("{HEAD}\n{tail}\n{text}"));
        }
    }
}
