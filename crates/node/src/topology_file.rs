use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Reading;
use crate::sysfs::{self, ReadError};

/// NCCL holds 256 elements of a file, of some 300 bytes each.
const FILE_BYTES: u64 = 256 * 1024;

/// A topology file for NCCL that is not ours: the site's own, or the one that a hypervisor's daemon leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it says; unsupported where there is none.
    pub text: Reading<String>,
    /// What is wrong with it, the worst first. Filled in by who can read such a file; `None` where nobody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<Vec<TopologyRemark>>,
}

/// One thing that is wrong with a topology file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyRemark {
    /// NCCL stops at it. Else it goes on, with something that is not so.
    pub refused: bool,
    /// `3:17`, line and column from 1; empty where it is about the whole file.
    pub place: String,
    /// What is wrong.
    pub what: String,
}

/// Reads a topology file, or one that is to be one: a regular file of at most 256 KiB.
///
/// # Errors
/// It cannot be read, is no regular file, or is too large.
pub fn read_topology_file(path: &Path) -> Result<Vec<u8>, ReadError> {
    sysfs::whole_bytes(path, FILE_BYTES)
}

/// The same as a reading, for a child to answer. What is no UTF-8 stays visible as something that NCCL stumbles at.
pub(crate) fn topology_text(path: &Path) -> Reading<String> {
    match read_topology_file(path) {
        Ok(bytes) => Reading::Known(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) => sysfs::failure(&error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_a_small_regular_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("topo.xml");
        assert_eq!(topology_text(&path), Reading::Unsupported);
        assert!(read_topology_file(&path).is_err());
        fs::write(&path, "<system version=\"1\"/>\n").unwrap();
        assert_eq!(topology_text(&path), Reading::Known("<system version=\"1\"/>\n".to_owned()));
        fs::write(&path, vec![b' '; 300_000]).unwrap();
        assert!(matches!(topology_text(&path), Reading::Failed(why) if why.contains("262144 bytes")));
        assert!(matches!(topology_text(dir.path()), Reading::Failed(_)));
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert!(matches!(topology_text(&fifo), Reading::Failed(why) if why.contains("regular file")));
    }
}
