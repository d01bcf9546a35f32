//! Mount points, each probed in a child of its own.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::statvfs::{FsFlags, statvfs};
use railgate_child::Task;
use railgate_fsutil::read;
use railgate_model::{Mount, MountProbe, Part, PartName};
use railgate_text::printable_bytes;
use serde::{Deserialize, Serialize};

use super::{Ask, Put};
use crate::calls::with_json;

const NAME: &str = "node-mount";

pub(super) const TASK: Task =
    Task::new(NAME, |input| with_json(input, |input: Input| Ok(mount_probe(&input.path, &input.proc))));

/// Even a node with thousands of bind mounts is far below this.
const MOUNTINFO_BYTES: u64 = 8 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
struct Input {
    path: PathBuf,
    proc: PathBuf,
}

pub(super) fn begin(paths: &[PathBuf], ask: &mut Ask<'_>) -> Option<Put> {
    if !ask.request.plan.parts.contains(&PartName::Host) {
        return None;
    }
    let mut call = |path: &PathBuf| {
        let input = Input { path: path.clone(), proc: ask.source.proc.clone() };
        (path.clone(), ask.calls.add(NAME, &input))
    };
    let places: Vec<_> = paths.iter().map(&mut call).collect();
    Some(Box::new(move |snapshot, answers| {
        if let Part::Read { data: host, .. } = &mut snapshot.host {
            let mount = |(path, place)| Mount { path, probe: probe(answers.part(Some(place))) };
            host.mounts = places.into_iter().map(mount).collect();
        }
    }))
}

fn probe(part: Part<MountProbe>) -> MountProbe {
    match part {
        Part::Read { data, .. } => data,
        Part::Skipped => MountProbe::Failed("not queried".to_owned()),
        Part::Failed { why, .. } => MountProbe::Failed(why),
        Part::Silent { after_ms } => MountProbe::Silent { stuck: false, after_ms },
        Part::Stuck { after_ms } => MountProbe::Silent { stuck: true, after_ms },
    }
}

/// Probes a mount point with `statvfs`. This can hang if its server does, so run it in a child.
fn mount_probe(path: &Path, proc_root: &Path) -> MountProbe {
    let begin = Instant::now();
    // `statvfs` comes first, because it also triggers an automounter.
    let answer = statvfs(path);
    let took_ms = begin.elapsed().as_secs_f64() * 1000.0;
    let table = match read::whole(&proc_root.join("self/mountinfo"), MOUNTINFO_BYTES) {
        Ok(table) => table,
        Err(error) => return MountProbe::Failed(error.to_string()),
    };
    let mounted = mounted_at(&table, path).or_else(|| {
        // Sites use links such as /data -> /lustre/data. If `statvfs` failed, the path is not resolved, since that
        // could fail as well.
        answer.ok().and_then(|_| path.canonicalize().ok()).and_then(|real| mounted_at(&table, &real))
    });
    match (mounted, answer) {
        (None, Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR)) => MountProbe::NotMounted,
        (None, Err(errno)) => MountProbe::Failed(errno.desc().to_owned()),
        (Some(_), Err(errno)) => MountProbe::Failed(errno.desc().to_owned()),
        (Some(found), Ok(_)) if found.fs_type == "autofs" => {
            MountProbe::Failed("the automounter mounted nothing".to_owned())
        }
        (Some(found), Ok(answer)) => MountProbe::Answered {
            writable: !found.read_only && !answer.flags().contains(FsFlags::ST_RDONLY),
            fs_type: found.fs_type,
            source: found.source,
            took_ms,
        },
    }
}

#[derive(Debug, PartialEq)]
struct Mounted {
    fs_type: String,
    source: String,
    read_only: bool,
}

/// The topmost mount at exactly this path: later lines of the table hide earlier ones.
fn mounted_at(mountinfo: &str, path: &Path) -> Option<Mounted> {
    // `components` drops a trailing slash and `.`.
    let want: PathBuf = path.components().collect();
    mountinfo.lines().rev().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(4);
        let (point, options) = (unescape(mount.next()?), mount.next()?);
        let mut file_system = file_system.split(' ');
        let (fs_type, source) = (file_system.next()?, file_system.next()?);
        let super_options = file_system.next().unwrap_or_default();
        (Path::new(&point) == want).then(|| Mounted {
            fs_type: fs_type.to_owned(),
            source: printable_bytes(unescape(source).as_encoded_bytes()),
            read_only: [options, super_options]
                .iter()
                .any(|list| list.split(',').any(|option| option == "ro")),
        })
    })
}

/// Decodes the kernel's escapes of space, tab, newline and backslash: three octal digits.
pub(crate) fn unescape(field: &str) -> OsString {
    let bytes = field.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 28 0:21 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
96 28 0:44 / /mnt/nfs\\040data rw,relatime shared:50 master:2 - nfs4 server:/export\\040a rw,vers=4.2
97 28 0:45 / /scratch rw - autofs systemd-1 rw,fd=51
98 97 0:46 / /scratch rw,relatime - lustre 10.0.0.1@o2ib:/scratch rw,flock
99 28 8:1 / /ro ro,relatime - ext4 /dev/sda1 rw
100 28 8:2 / /errors rw,relatime - ext4 /dev/sdb1 ro,errors=remount-ro
";

    #[test]
    fn the_topmost_mount_counts() {
        let found = mounted_at(TABLE, Path::new("/scratch/")).unwrap();
        assert_eq!((found.fs_type.as_str(), found.source.as_str()), ("lustre", "10.0.0.1@o2ib:/scratch"));
        assert_eq!(mounted_at(TABLE, Path::new("/scratch/me")), None);
        assert_eq!(mounted_at(TABLE, Path::new("/mnt/nfs data")).unwrap().source, "server:/export a");
    }

    #[test]
    fn read_only_counts_for_the_mount_and_for_the_file_system() {
        assert!(mounted_at(TABLE, Path::new("/ro")).unwrap().read_only);
        assert!(mounted_at(TABLE, Path::new("/errors")).unwrap().read_only);
        assert!(!mounted_at(TABLE, Path::new("/sys")).unwrap().read_only);
    }

    #[test]
    fn the_root_of_this_machine_is_probed() {
        let proc_root = Path::new("/proc");
        assert!(
            matches!(mount_probe(proc_root, proc_root), MountProbe::Answered { fs_type, .. } if fs_type == "proc")
        );
        assert_eq!(mount_probe(Path::new("/proc/self"), proc_root), MountProbe::NotMounted);
        assert_eq!(mount_probe(Path::new("/no/such"), proc_root), MountProbe::NotMounted);
        assert!(matches!(mount_probe(proc_root, Path::new("/no")), MountProbe::Failed(_)));
    }
}
