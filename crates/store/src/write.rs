use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::stat::{Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, Group, Uid, UnlinkatFlags, User, fchown, geteuid, getgrouplist, unlinkat};
use railgate_child::become_user;
use railgate_fsutil::{Put, put_at};
use railgate_node_report::NodeReport;
use serde::{Deserialize, Serialize};

use super::dirs::{all_names, below, made_below, mode_of, open_to_all, top};
use super::placed::{Wanted, is_accounts, place};
use super::{DECISION, NOBODY};

/// Request to write one file; the content follows after a line feed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WriteOrder {
    /// The shared directory or the local one.
    pub(super) dir: PathBuf,
    pub(super) cluster: String,
    pub(super) job: u32,
    pub(super) attempt: u32,
    pub(super) file: String,
    /// The job's uid and gid, in the shared directory. `None`: written as the current user, with access for
    /// that user only.
    pub(super) owner: Option<(u32, u32)>,
    /// SlurmUser's group.
    pub(super) group: Option<String>,
    /// The job's own group may read, instead of SlurmUser's.
    pub(super) account: bool,
    /// Write only to an existing directory, create none.
    pub(super) only_existing: bool,
    /// Replace an existing file, which is older.
    pub(super) replace: bool,
    /// Only the owner may read it, also where the directories allow more.
    pub(super) private: bool,
}

impl WriteOrder {
    pub(super) fn encode(&self, content: &[u8]) -> Vec<u8> {
        // All strings are valid, so this cannot fail; the task refuses an empty order.
        let mut order = serde_json::to_vec(self).unwrap_or_default();
        order.push(b'\n');
        order.extend_from_slice(content);
        order
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir
            .join(&self.cluster)
            .join(self.job.to_string())
            .join(self.attempt.to_string())
            .join(&self.file)
    }
}

/// Removes a field from a report.
type Cut = fn(&mut NodeReport);

/// JSON of the report, filtered for the job's owner and shortened if it exceeds `max` bytes.
pub(super) fn shortened(report: &NodeReport, max: u64) -> Result<Vec<u8>, String> {
    let report = &report.for_reader();
    let fits = |content: &Vec<u8>| u64::try_from(content.len()).is_ok_and(|size| size <= max);
    let write = |report: &NodeReport| serde_json::to_vec(report).map_err(|why| format!("report: {why}"));
    let whole = write(report)?;
    if fits(&whole) {
        return Ok(whole);
    }
    let mut short = report.clone();
    short.kernel.more += short.kernel.lines.len();
    short.kernel.lines.clear();
    short.kernel.xids.truncate(200);
    short.steps.truncate(8);
    for look in [&mut short.prolog, &mut short.epilog].into_iter().flatten() {
        // The deciding finding is an index, so the findings before it must be kept.
        let keep = look.verdict.deciding.map_or(100, |index| (index + 1).max(100));
        look.verdict.findings.truncate(keep);
    }
    short.evidence.truncate(100);
    short.faults.truncate(50);
    short.faults.push(format!("the report was shortened: {} bytes are more than {max}", whole.len()));
    // A job can make these fields arbitrarily large; the node's own observations must not be lost because of
    // that.
    let steps: [(&str, Cut); 4] = [
        ("", |_| {}),
        ("what the program reported and NCCL counted is cut", |report| {
            for rank in report.application.iter_mut().flat_map(|told| &mut told.ranks) {
                (rank.course, rank.events) = (None, Vec::new());
            }
            if let Some(nccl) = &mut report.communication {
                let rows = nccl.collectives.len().saturating_sub(64);
                nccl.collectives.truncate(64);
                nccl.more_collectives += rows as u64;
            }
        }),
        ("what the program reported and NCCL counted is left out", |report| {
            (report.application, report.communication) = (None, None);
        }),
        ("what the processes had in their environment is left out", |report| {
            (report.tasks, report.steps, report.applied) = (None, Vec::new(), Vec::new());
        }),
    ];
    for (what, cut) in steps {
        cut(&mut short);
        if !what.is_empty() {
            short.faults.push(what.to_owned());
        }
        let content = write(&short)?;
        if fits(&content) {
            return Ok(content);
        }
    }
    Err(format!("report: {} bytes are more than {max}", whole.len()))
}

/// In the child: assumes the job's identity, then writes.
pub(super) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let end = input.iter().position(|byte| *byte == b'\n').ok_or("no order")?;
    let (order, content) = input.split_at(end);
    let order: WriteOrder = serde_json::from_slice(order).map_err(|why| format!("order: {why}"))?;
    write(&order, content.get(1..).unwrap_or_default())?;
    Ok(Vec::new())
}

fn text(why: Errno) -> String {
    io::Error::from(why).to_string()
}

/// Writes as the job's owner if the caller is root; the identity stays changed.
pub(super) fn write(order: &WriteOrder, content: &[u8]) -> Result<(), String> {
    let reader = reader_group(order);
    let mut early = None;
    if order.owner.is_none() {
        std::fs::DirBuilder::new()
            .recursive(true)
            .create(&order.dir)
            .map_err(|why| format!("{}: {why}", order.dir.display()))?;
    }
    if let Some((uid, gid)) = order.owner
        && geteuid().is_root()
    {
        // Root creates directories first, since users cannot remove them. If root is squashed they belong to
        // nobody.
        early = top(&order.dir).ok();
        if let Some(dir) = &early
            && !order.only_existing
        {
            let group = reader.unwrap_or(Gid::from_raw(gid));
            match fstat(dir.as_fd()) {
                Ok(stat) if uid != 0 && is_accounts(&stat) => placed(dir.as_fd(), order, uid, group, reader),
                _ => made_as_root(dir.as_fd(), order, (uid, group)),
            }
        }
        if uid != 0 {
            drop_root(uid, gid, reader)?;
        }
    }
    let dir = match top(&order.dir) {
        Ok(dir) => dir,
        // The path may be accessible to root but not to the user.
        Err(why) => early.ok_or_else(|| format!("{}: {}", order.dir.display(), text(why)))?,
    };
    checked(&dir, &order.dir)?;
    let cluster = if order.only_existing {
        below(dir.as_fd(), &order.cluster)
    } else {
        made_below(dir.as_fd(), &order.cluster, cluster_mode(order))
    };
    let cluster = cluster.map_err(|why| format!("{}: {}", order.cluster, text(why)))?;
    checked(&cluster, Path::new(&order.cluster))?;
    not_a_users(&dir, &cluster, order)?;
    let job = own_dir(cluster.as_fd(), &order.job.to_string(), order, reader)?;
    let attempt = own_dir(job.as_fd(), &order.attempt.to_string(), order, reader)?;
    let how = Put { mode: file_mode(order), sync: true, replace: order.replace };
    put_at(attempt.as_fd(), &order.file, content, how)
        .map_err(|why| why.to_string())
        .map_err(|why| format!("{}: {why}", order.file))
}

/// Creates directories as the account that owns the report directory. Failures are retried as the job's owner.
fn placed(dir: BorrowedFd<'_>, order: &WriteOrder, uid: u32, group: Gid, reader: Option<Gid>) {
    let (job, attempt) = (order.job.to_string(), order.attempt.to_string());
    let wanted = Wanted {
        cluster: &order.cluster,
        job: &job,
        attempt: &attempt,
        uid,
        group,
        movers: reader.filter(|_| !order.account),
    };
    let _ = place(dir, wanted);
}

/// Creates the directories of cluster and job as root, unless root is squashed, so that no other user can
/// create them first. Only with squashed root is the cluster's directory world-writable. Failures are retried
/// as the job's owner.
fn made_as_root(dir: BorrowedFd<'_>, order: &WriteOrder, (uid, group): (u32, Gid)) {
    let is_roots = |dir: &OwnedFd| fstat(dir.as_fd()).is_ok_and(|stat| stat.st_uid == 0);
    let made = mkdirat(dir, order.cluster.as_str(), Mode::from_bits_truncate(0o755)).is_ok();
    let Ok(cluster) = below(dir, &order.cluster) else { return };
    if made && !is_roots(&cluster) {
        let _ = fchmod(cluster.as_fd(), Mode::from_bits_truncate(0o1777));
    }
    let job = order.job.to_string();
    if uid == 0 || !is_roots(&cluster) {
        return;
    }
    let fresh = match mkdirat(&cluster, job.as_str(), Mode::S_IRWXU) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(_) => return,
    };
    // The prolog may exit between mkdir and chown. An empty directory of root is such a leftover: change its
    // owner now.
    let is_ours =
        |made: &OwnedFd| is_roots(made) && (fresh || all_names(made, 3).is_ok_and(|all| all.is_empty()));
    let given = below(cluster.as_fd(), &job).and_then(|made| match is_ours(&made) {
        true => fchown(&made, Some(Uid::from_raw(uid)), Some(group)),
        false => Err(Errno::EPERM),
    });
    if given.is_err() && fresh {
        let _ = unlinkat(&cluster, job.as_str(), UnlinkatFlags::RemoveDir);
    }
}

fn cluster_mode(order: &WriteOrder) -> Mode {
    Mode::from_bits_truncate(if order.owner.is_some() { 0o1777 } else { 0o700 })
}

fn file_mode(order: &WriteOrder) -> Mode {
    // The directories restrict access; the file itself must be readable by owner and controller.
    Mode::from_bits_truncate(if order.owner.is_some() && !order.private { 0o644 } else { 0o600 })
}

/// Group with access besides the owner: SlurmUser's, or the job's own.
fn reader_group(order: &WriteOrder) -> Option<Gid> {
    let (_, gid) = order.owner?;
    if order.account {
        return Some(Gid::from_raw(gid));
    }
    Group::from_name(order.group.as_deref()?).ok().flatten().map(|group| group.gid)
}

/// Keeps the user's supplementary groups; the reader group becomes the primary one, so that new files belong to
/// it even on a server that resolves supplementary groups itself.
fn drop_root(uid: u32, gid: u32, reader: Option<Gid>) -> Result<(), String> {
    let own = Gid::from_raw(gid);
    let name =
        User::from_uid(Uid::from_raw(uid)).ok().flatten().and_then(|user| CString::new(user.name).ok());
    let mut groups = name.and_then(|name| getgrouplist(&name, own).ok()).unwrap_or_default();
    if !groups.contains(&own) {
        groups.push(own);
    }
    let groups: Vec<u32> = groups.into_iter().map(Gid::as_raw).collect();
    become_user(uid, reader.unwrap_or(own).as_raw(), &groups).map_err(|why| why.to_string())
}

/// Refuses a directory shared by several users in which one can replace entries of another.
fn checked(dir: &OwnedFd, name: &Path) -> Result<(), String> {
    let stat = fstat(dir.as_fd()).map_err(|why| format!("{}: {}", name.display(), text(why)))?;
    if open_to_all(&stat) {
        return Err(format!(
            "{}: refused: everybody may write there and the sticky bit is not set (mode {:o}, want 1777)",
            name.display(),
            mode_of(&stat).bits()
        ));
    }
    Ok(())
}

/// The owner of the cluster's directory can replace job directories regardless of their mode. It must therefore
/// be root, the owner of the parent directory, or nobody, which is root on a file server that squashes it.
fn not_a_users(above: &OwnedFd, cluster: &OwnedFd, order: &WriteOrder) -> Result<(), String> {
    let uid = |dir: &OwnedFd| fstat(dir.as_fd()).map(|stat| stat.st_uid).map_err(text);
    let owner = uid(cluster)?;
    if owner == 0 || owner == NOBODY || owner == uid(above)? || order.owner.is_none() {
        return Ok(());
    }
    Err(format!(
        "{0}: refused: uid {owner} owns it and could replace anybody's reports; make it as root \
         (rmdir {1}/{0}; install -d -m 1777 {1}/{0})",
        order.cluster,
        order.dir.display()
    ))
}

/// Opens or creates a directory of the job.
fn own_dir(
    parent: BorrowedFd<'_>,
    name: &str,
    order: &WriteOrder,
    reader: Option<Gid>,
) -> Result<OwnedFd, String> {
    let fail = |why: Errno| format!("{name}: {}", text(why));
    let dir = match order.only_existing {
        true if order.file == DECISION => comes(|| below(parent, name)),
        true => below(parent, name),
        false => made_below(parent, name, Mode::S_IRWXU),
    };
    let dir = dir.map_err(fail)?;
    let stat = fstat(dir.as_fd()).map_err(fail)?;
    let us = geteuid().as_raw();
    let owner = order.owner.map_or(us, |(uid, _)| uid);
    if stat.st_uid != owner && stat.st_uid != 0 {
        return Err(format!("{name}: refused: it belongs to uid {}, not to {owner}", stat.st_uid));
    }
    if stat.st_uid == us {
        // A setgid bit of the parent may have set another group, which must not get read access.
        let shared = reader.is_some_and(|reader| reader.as_raw() == stat.st_gid);
        let want = match (shared, order.account) {
            (true, false) => Mode::S_IRWXU | Mode::S_IRWXG,
            (true, true) => Mode::S_IRWXU | Mode::S_IRGRP | Mode::S_IXGRP,
            (false, _) => Mode::S_IRWXU,
        };
        if mode_of(&stat) & !(Mode::S_ISGID | Mode::S_ISVTX | Mode::S_ISUID) != want {
            fchmod(dir.as_fd(), want).map_err(fail)?;
        }
    }
    Ok(dir)
}

/// For a very short job the controller may be ahead of the first node that creates the directory. Between its creation and the
/// change of its owner and its mode, SlurmUser is denied.
fn comes(mut find: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    const AGAIN: Duration = Duration::from_millis(100);
    const TIMES: u32 = 20;
    for _ in 0..TIMES {
        match find() {
            Err(Errno::ENOENT | Errno::EACCES) => std::thread::sleep(AGAIN),
            found => return found,
        }
    }
    find()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use railgate_node_report::application::RankApplication;
    use railgate_node_report::testing::{job, lost_gpu, part};

    use super::*;

    #[test]
    fn oversized_data_of_a_job_does_not_displace_the_node_report() {
        let mut report = part("n1", &job(0..8), "gpu-lost@3", vec![lost_gpu()], 256);
        let evidence = report.evidence.clone();
        assert!(!evidence.is_empty());
        let rank = RankApplication { file: "x".repeat(1000), ..RankApplication::default() };
        report.application = Some(railgate_node_report::Application {
            ranks: vec![rank; 5000],
            ..railgate_node_report::Application::default()
        });
        let content = shortened(&report, 1 << 20).unwrap();
        let back: NodeReport = serde_json::from_slice(&content).unwrap();
        assert_eq!((back.evidence, back.application), (evidence, None));
        assert!(back.faults.iter().any(|fault| fault.contains("left out")), "{:?}", back.faults);
        report.application = None;
        let whole: NodeReport = serde_json::from_slice(&shortened(&report, 1 << 20).unwrap()).unwrap();
        assert_eq!(whole, report);
    }

    #[test]
    fn a_directory_that_is_being_made_is_waited_for() {
        let place = tempfile::tempdir().unwrap();
        let parent = File::open(place.path()).unwrap();
        let mut tries = 0;
        let found = comes(|| {
            tries += 1;
            match tries {
                1 => {}
                // Created, and still of mode 0700 of its maker.
                2 => return Err(Errno::EACCES),
                _ => std::fs::create_dir(place.path().join("7")).unwrap(),
            }
            below(parent.as_fd(), "7")
        });
        assert!(found.is_ok() && tries == 3, "{tries}");
        let mut tries = 0;
        let refused = comes(|| {
            tries += 1;
            Err(Errno::ENOTDIR)
        });
        assert!(refused.is_err() && tries == 1, "{tries}");
    }
}
