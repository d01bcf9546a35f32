//! Which files are removed, and as which user.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use railgate_store::{Retention, store, sweep};

use crate::{DAY, DEFAULT, OTHER, OWNER, Place, as_user, now, report, swept_at};

pub(crate) fn swept(place: &Place) {
    assert!(store(&place.config, &report("n1")).shared);
    let outside = place.dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "").unwrap();
    symlink(&outside, place.job_dir().join("0/n2.json")).unwrap();
    symlink(&outside, place.shared().join("alpha/99")).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let now = u64::try_from(now.as_millis()).unwrap();
    let kept = swept_at(&place.shared(), DEFAULT, now);
    assert_eq!((kept.removed, kept.kept), (0, 1), "{kept:?}");
    let gone = swept_at(&place.shared(), DEFAULT, now + 91 * DAY);
    assert_eq!((gone.removed, gone.problems.len()), (1, 0), "{gone:?}");
    assert!(!place.job_dir().exists() && outside.join("precious").exists());
    for job in 1..=3 {
        let mut other = report("n1");
        other.job.id = job;
        assert!(store(&place.config, &other).shared);
    }
    let gone = swept_at(&place.shared(), Retention { jobs: 1, ..DEFAULT }, now);
    assert_eq!((gone.removed, gone.kept), (2, 1), "{gone:?}");
}

pub(crate) fn only_ours_is_swept(place: &Place) {
    assert!(store(&place.config, &report("n1")).shared);
    let attempt = place.job_dir().join("0");
    for name in ["n1.samples", "n2.samples", "notes.txt", ".n3.json.17"] {
        fs::write(attempt.join(name), "").unwrap();
    }
    // A user's own number in a directory of the user.
    let own = place.shared().join("mine");
    as_user(OTHER, OTHER, "mkdir", &own).unwrap();
    fs::create_dir_all(own.join("2024/0")).unwrap();
    fs::write(own.join("2024/0/n1.json"), "").unwrap();
    fs::create_dir_all(place.shared().join("alpha/007/0")).unwrap();

    let early = swept_at(&place.shared(), DEFAULT, now() + 15 * DAY);
    assert_eq!((early.removed, early.samples, early.kept), (0, 2, 1), "{early:?}");
    assert!(attempt.join("n1.json").exists() && !attempt.join("n1.samples").exists());

    let late = swept_at(&place.shared(), DEFAULT, now() + 91 * DAY);
    assert_eq!((late.removed, late.kept), (0, 1), "{late:?}");
    assert!(late.problems[0].contains("alpha/48213: holds something that is not railgate's"), "{late:?}");
    let left: Vec<_> = fs::read_dir(&attempt).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes.txt"]);
    assert!(own.join("2024/0/n1.json").exists() && place.shared().join("alpha/007/0").exists());

    fs::remove_file(attempt.join("notes.txt")).unwrap();
    let none = sweep(&place.shared(), DEFAULT, now() + 200 * DAY, Duration::ZERO);
    assert!(none.more && none.removed == 0, "no time is no work: {none:?}");
    assert_eq!(swept_at(&place.shared(), DEFAULT, now() + 200 * DAY).removed, 1);
}

/// If root is squashed, only the owner has access to a job's directory.
pub(crate) fn swept_by_owners(place: &Place) {
    let cluster = place.shared().join("alpha");
    fs::create_dir(&cluster).unwrap();
    fs::set_permissions(&cluster, fs::Permissions::from_mode(0o1777)).unwrap();
    for (job, uid) in [(1, OWNER), (2, OTHER)] {
        let mut other = report("n1");
        (other.job.id, other.job.uid, other.job.gid) = (job, uid, uid);
        assert!(store(&place.config, &other).shared);
    }
    let said = as_user(OTHER, OTHER, "sweep", &place.shared()).unwrap();
    assert_eq!(said, "removed 1 kept 1 []", "only their own reports");
    assert!(cluster.join("1/0/n1.json").exists() && !cluster.join("2").exists());
    let root = swept_at(&place.shared(), DEFAULT, now() + 91 * DAY);
    assert_eq!((root.removed, root.kept, root.problems.len()), (1, 0, 0), "{root:?}");
}
