//! Refuses file systems on which SQLite's locks and its shared memory do not work.

use std::path::Path;

use nix::sys::statfs::statfs;

use crate::StoreError;

/// Types of local file systems, `f_type` of statfs(2). An unknown one is refused: a file on it may lose what was committed.
const LOCAL: &[(u64, &str)] = &[
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0xf2f5_2010, "f2fs"),
    (0xca45_1a4e, "bcachefs"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlayfs"),
];

/// Types that an admin should recognise in the message.
const REMOTE: &[(u64, &str)] = &[
    (0x6969, "NFS"),
    (0x517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x00c3_6400, "CephFS"),
    (0x6573_5546, "FUSE"),
    (0x0102_1997, "9P"),
    (0x5346_414f, "AFS"),
    (0x7461_636f, "OCFS2"),
    (0x0116_1970, "GFS2"),
];

/// Checks that a directory is on a local file system.
pub(crate) fn check_local(dir: &Path) -> Result<(), StoreError> {
    let told = statfs(dir).map_err(|why| StoreError::io(dir, why.into()))?;
    // Signed, and 32 or 64 bits wide, depending on the machine.
    match judge(u64::from_ne_bytes(told.filesystem_type().0.to_ne_bytes()) & 0xffff_ffff) {
        Ok(_) => Ok(()),
        Err(kind) => Err(StoreError::NotLocal { path: dir.to_owned(), kind }),
    }
}

fn judge(kind: u64) -> Result<&'static str, String> {
    let name =
        |of: &[(u64, &'static str)]| of.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name);
    name(LOCAL).ok_or_else(|| {
        name(REMOTE).map_or_else(|| format!("a file system of unknown type {kind:#x}"), str::to_owned)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_and_unknown_ones_are_refused() {
        assert_eq!(judge(0xef53), Ok("ext4"));
        assert_eq!(judge(0x6969), Err("NFS".to_owned()));
        assert_eq!(judge(0x6573_5546), Err("FUSE".to_owned()));
        assert_eq!(judge(0x1234), Err("a file system of unknown type 0x1234".to_owned()));
        let sum = LOCAL.len() + REMOTE.len();
        let all: std::collections::BTreeSet<u64> =
            LOCAL.iter().chain(REMOTE).map(|(kind, _)| *kind).collect();
        assert_eq!(all.len(), sum);
    }

    #[test]
    fn the_type_is_that_of_the_directory() {
        // procfs is local, and no place for a file.
        let refused = check_local(Path::new("/proc")).unwrap_err().to_string();
        assert_eq!(
            refused,
            "/proc: SQLite needs a local disk, and this is a file system of unknown type 0x9fa0"
        );
        check_local(&std::env::temp_dir()).unwrap();
        assert!(matches!(check_local(Path::new("/no/such")), Err(StoreError::Io { .. })));
    }
}
