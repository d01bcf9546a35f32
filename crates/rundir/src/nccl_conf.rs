use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Largest file that is read, bytes: typical ones have a few lines.
const MOST_BYTES: u64 = 64 << 10;
/// NCCL cuts names and values to this length, bytes.
const MOST_TEXT: usize = 1023;

/// One of NCCL's own configuration files: `$NCCL_CONF_FILE` or else `~/.nccl.conf`, or `/etc/nccl.conf`. NCCL sets
/// their values only for variables that are not in the environment, so a variable that railgate sets takes
/// precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NcclConf {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl NcclConf {
    /// Parses a file like NCCL: `NAME=VALUE` per line, nothing is trimmed, `#` in the first column begins a comment,
    /// and the first of two lines for one variable counts.
    pub fn parse(content: &[u8]) -> Self {
        let mut values = BTreeMap::new();
        for line in content.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(at) = line.iter().position(|&byte| byte == b'=').filter(|_| line[0] != b'#') else {
                continue;
            };
            let (name, value) = (&line[..at.min(MOST_TEXT)], &line[at + 1..]);
            let value = &value[..value.len().min(MOST_TEXT)];
            values.entry(name.to_vec()).or_insert_with(|| value.to_vec());
        }
        NcclConf { values }
    }

    /// Reads a file with the caller's rights: in a task, those of its user. Links are followed, as by NCCL, so root
    /// must not use it on files that users can write.
    ///
    /// # Errors
    /// Errors of the file system; `InvalidData` if it is not a regular file, or larger than 64 KiB.
    pub fn read(path: &Path) -> io::Result<Self> {
        let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY;
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a file"));
        }
        let mut content = Vec::new();
        if file.take(MOST_BYTES + 1).read_to_end(&mut content)? as u64 > MOST_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "larger than 64 KiB"));
        }
        Ok(NcclConf::parse(&content))
    }

    /// The variable's value.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.values.get(name.as_bytes()).map(Vec::as_slice)
    }

    /// All variables with their values, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.values.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_parsed_as_nccl_parses_it() {
        let conf = NcclConf::parse(
            b"# NCCL_DEBUG=INFO\nNCCL_IB_HCA==mlx5_0\r\n NCCL_SPACE=1\nNCCL_DEBUG=\"WARN\" \nno value\n\nNCCL_DEBUG=INFO\nE=",
        );
        assert_eq!(conf.get("NCCL_IB_HCA"), Some(&b"=mlx5_0"[..]));
        assert_eq!(conf.get("NCCL_DEBUG"), Some(&b"\"WARN\" "[..]));
        assert_eq!(conf.get("E"), Some(&b""[..]));
        assert_eq!((conf.get("NCCL_SPACE"), conf.get(" NCCL_SPACE")), (None, Some(&b"1"[..])));
        assert_eq!(conf.iter().count(), 4);
        let long = NcclConf::parse(format!("A={}", "x".repeat(5000)).as_bytes());
        assert_eq!(long.get("A").map(<[u8]>::len), Some(MOST_TEXT));
    }

    #[test]
    fn large_files_and_fifos_are_errors_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".nccl.conf");
        assert_eq!(NcclConf::read(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(NcclConf::read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(NcclConf::read(dir.path()).is_err());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "A=1\n".repeat(20_000)).unwrap();
        assert_eq!(NcclConf::read(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        std::fs::write(&path, "A=1\n").unwrap();
        assert_eq!(NcclConf::read(&path).unwrap().get("A"), Some(&b"1"[..]));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_content_does_not_panic(content: Vec<u8>) {
            let conf = NcclConf::parse(&content);
            proptest::prop_assert!(conf.iter().all(|(name, value)| name.len() <= MOST_TEXT && value.len() <= MOST_TEXT));
        }
    }
}
