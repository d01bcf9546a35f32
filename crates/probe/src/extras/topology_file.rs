//! NCCL's topology file.

use std::path::{Path, PathBuf};

use railgate_child::Task;
use railgate_fsutil::{ReadError, read};
use railgate_model::{Reading, TopologyFile};

use super::{Ask, Put};
use crate::calls::with_json;
use crate::sysfs;

const NAME: &str = "node-topology-file";

pub(super) const TASK: Task =
    Task::new(NAME, |input| with_json(input, |path: PathBuf| Ok(topology_text(&path))));

/// NCCL accepts 256 elements of a file, of about 300 bytes each.
const FILE_BYTES: u64 = 256 * 1024;

pub(super) fn begin(ask: &mut Ask<'_>) -> Put {
    let path = ask.request.topology_file.clone();
    let place = ask.calls.add(NAME, &path);
    Box::new(move |snapshot, answers| {
        let text = answers.reading(place);
        snapshot.extras.topology_file = Some(TopologyFile { path, text, said: None });
    })
}

/// Reads a topology file, or a candidate for one: a regular file of at most 256 KiB.
///
/// # Errors
/// Returns an error if it cannot be read, is not a regular file, or is too large.
pub fn read_topology_file(path: &Path) -> Result<Vec<u8>, ReadError> {
    read::whole_bytes(path, FILE_BYTES)
}

/// The same as a reading, for the answer of a child. Bytes that are not UTF-8 stay visible as characters that NCCL
/// rejects.
fn topology_text(path: &Path) -> Reading<String> {
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
