//! Checks whether root can rely on a file: only root can change or replace it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use railgate_text::Printable;

/// Maximum number of symbolic links on one path, as in the kernel.
const MAX_LINKS: usize = 40;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Why a path is not trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what}", Printable(path.display()))]
pub struct Untrusted {
    /// The offending component: the file itself, a directory above it, or a link on the path.
    pub path: PathBuf,
    /// Owner and mode, with the fix.
    pub what: String,
    absent: bool,
}

impl Untrusted {
    /// Returns whether the path does not exist and only root could create it.
    pub fn is_absent(&self) -> bool {
        self.absent
    }

    fn new(path: &Path, what: impl Into<String>) -> Self {
        Untrusted { path: path.to_owned(), what: what.into(), absent: false }
    }

    fn io(path: &Path, why: &io::Error) -> Self {
        let absent = why.kind() == io::ErrorKind::NotFound;
        Untrusted { path: path.to_owned(), what: why.to_string(), absent }
    }
}

/// Resolves a path component by component from `/`, and returns it without links. A relative path starts in the current
/// directory.
///
/// Every directory, link and file on the path must belong to root and be writable only by root. Files of the calling
/// user count as root's, which matters for SlurmUser and for tests. A sticky directory of root (`/tmp`) may contain
/// files of others: paths through a directory of root in it are trusted, because no other user can rename that
/// directory; a file directly in it is not.
///
/// Since no other user can change such a path, it can be opened by name afterwards.
///
/// # Errors
/// Returns the first component that does not exist, cannot be examined, or can be changed by others.
pub fn trusted(path: &Path) -> Result<PathBuf, Untrusted> {
    let whole = std::path::absolute(path).map_err(|why| Untrusted::io(path, &why))?;
    trusted_below(Path::new("/"), &whole)
}

/// As [`trusted`], with another directory in place of `/`.
fn trusted_below(root: &Path, path: &Path) -> Result<PathBuf, Untrusted> {
    if !path.is_absolute() {
        return Err(Untrusted::new(path, "is not an absolute path"));
    }
    let mut rest = parts(path);
    let found = fs::symlink_metadata(root).map_err(|why| Untrusted::io(root, &why))?;
    // The directories so far, and whether other users can create files in them.
    let mut above = vec![(root.to_owned(), open_to_all(root, &found, !rest.is_empty())?)];
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        if part == ".." {
            above.truncate(above.len().saturating_sub(1).max(1));
            continue;
        }
        let Some((parent, parent_is_open)) = above.last() else { break };
        let place = parent.join(&part);
        let found = fs::symlink_metadata(&place).map_err(|why| Untrusted::io(&place, &why))?;
        if found.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(Untrusted::new(path, "too many symbolic links"));
            }
            owner(&place, &found)?;
            let target = fs::read_link(&place).map_err(|why| Untrusted::io(&place, &why))?;
            if target.is_absolute() {
                above.truncate(1);
            }
            for part in parts(&target).into_iter().rev() {
                rest.push_front(part);
            }
            continue;
        }
        if !rest.is_empty() && !found.is_dir() {
            return Err(Untrusted::new(&place, "is not a directory"));
        }
        // Another user could have put a hard link to any file of root there.
        if *parent_is_open && !found.is_dir() {
            return Err(Untrusted::new(parent, "other users may create files in it"));
        }
        let open = open_to_all(&place, &found, !rest.is_empty())?;
        above.push((place, open));
    }
    above.pop().map(|(real, _)| real).ok_or_else(|| Untrusted::new(path, "is not a path"))
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let part = |part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(part).collect()
}

fn owner(place: &Path, found: &Metadata) -> Result<(), Untrusted> {
    let uid = found.uid();
    if uid == 0 || uid == nix::unistd::geteuid().as_raw() {
        return Ok(());
    }
    Err(Untrusted::new(place, format!("belongs to uid {uid}, not root (chown root)")))
}

/// Whether it is a sticky directory to which others can write. That is only accepted above other directories.
fn open_to_all(place: &Path, found: &Metadata, is_above: bool) -> Result<bool, Untrusted> {
    owner(place, found)?;
    let mode = found.mode() & 0o7777;
    if mode & OTHERS_WRITE == 0 {
        return Ok(false);
    }
    if is_above && found.is_dir() && mode & STICKY != 0 && found.uid() == 0 {
        return Ok(true);
    }
    Err(Untrusted::new(place, format!("mode {mode:04o}: others may write it (chmod go-w)")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// A directory tree with `/etc/railgate/file`.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            let tree = Tree(tempfile::tempdir().unwrap());
            fs::create_dir_all(tree.at("etc/railgate")).unwrap();
            fs::write(tree.at("etc/railgate/file"), "").unwrap();
            for (place, mode) in [("etc", 0o755), ("etc/railgate", 0o755), ("etc/railgate/file", 0o644)] {
                tree.mode(place, mode);
            }
            tree
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn mode(&self, path: &str, mode: u32) {
            fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode)).unwrap();
        }

        /// The problem: the offending component's path in the tree, and the text.
        fn wrong(&self, path: &str) -> Option<(String, String)> {
            let why = trusted_below(self.0.path(), Path::new(path)).err()?;
            let place = why.path.strip_prefix(self.0.path()).unwrap_or(&why.path).display().to_string();
            Some((place, why.what))
        }

        fn real(&self, path: &str) -> PathBuf {
            let real = trusted_below(self.0.path(), Path::new(path)).unwrap();
            real.strip_prefix(self.0.path()).unwrap().to_owned()
        }
    }

    const FILE: &str = "/etc/railgate/file";

    #[test]
    fn every_component_is_checked() {
        for place in ["etc", "etc/railgate", "etc/railgate/file"] {
            for mode in [0o777, 0o757, 0o775] {
                let tree = Tree::new();
                assert_eq!(tree.wrong(FILE), None);
                tree.mode(place, mode);
                let (at, what) = tree.wrong(FILE).unwrap();
                assert_eq!(at, place);
                assert_eq!(what, format!("mode {mode:04o}: others may write it (chmod go-w)"));
            }
            let tree = Tree::new();
            if chown(tree.at(place), Some(65_534), None).is_ok() {
                let (at, what) = tree.wrong(FILE).unwrap();
                assert_eq!((at.as_str(), what.contains("uid 65534")), (place, true), "{what}");
            }
        }
    }

    #[test]
    fn links_are_resolved_by_component_and_checked_themselves() {
        let tree = Tree::new();
        fs::create_dir(tree.at("other")).unwrap();
        tree.mode("other", 0o755);
        symlink("/other/../etc/railgate", tree.at("other/link")).unwrap();
        symlink("link/file", tree.at("other/second")).unwrap();
        assert_eq!(tree.real("/other/second"), Path::new("etc/railgate/file"));
        assert_eq!(tree.real("/other/link/../../etc/./railgate/file"), Path::new("etc/railgate/file"));
        assert_eq!(tree.real("/../../etc/railgate"), Path::new("etc/railgate"));
        tree.mode("other", 0o777);
        assert_eq!(tree.wrong("/other/second").unwrap().0, "other");
        tree.mode("other", 0o755);
        tree.mode("etc", 0o777);
        assert_eq!(tree.wrong("/other/second").unwrap().0, "etc");
        tree.mode("etc", 0o755);
        symlink("loop", tree.at("other/loop")).unwrap();
        assert!(tree.wrong("/other/loop").unwrap().1.contains("links"));
        symlink("/etc/absent", tree.at("other/dangling")).unwrap();
        assert!(trusted_below(tree.0.path(), Path::new("/other/dangling")).unwrap_err().is_absent());
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::lchown(tree.at("other/link"), Some(65_534), None).unwrap();
            assert_eq!(tree.wrong("/other/second").unwrap().0, "other/link");
        }
    }

    #[test]
    fn a_sticky_directory_is_accepted_only_above_other_directories() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let tree = Tree::new();
        fs::create_dir_all(tree.at("tmp/ours")).unwrap();
        for file in ["tmp/ours/file", "tmp/file"] {
            fs::write(tree.at(file), "").unwrap();
            tree.mode(file, 0o644);
        }
        tree.mode("tmp/ours", 0o755);
        tree.mode("tmp", 0o1777);
        assert_eq!(tree.wrong("/tmp/ours/file"), None);
        assert_eq!(tree.wrong("/tmp/file").unwrap().0, "tmp");
        assert_eq!(tree.wrong("/tmp").unwrap().0, "tmp");
        tree.mode("tmp", 0o777);
        assert_eq!(tree.wrong("/tmp/ours/file").unwrap().0, "tmp");
    }

    #[test]
    fn an_absent_path_below_an_untrusted_directory_is_refused() {
        let tree = Tree::new();
        let absent = |tree: &Tree| {
            trusted_below(tree.0.path(), Path::new("/etc/railgate/absent")).unwrap_err().is_absent()
        };
        assert!(absent(&tree));
        tree.mode("etc/railgate", 0o777);
        assert!(!absent(&tree));
        assert!(trusted(Path::new("etc/railgate")).is_err());
    }
}
