//! Which files the writer creates, and what it refuses.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use railgate_node_report::NodeReport;
use railgate_report::load;
use railgate_store::{ReportAccess, ReportConfig, store, store_start};

use crate::{GROUP, JOB, OTHER, OWNER, Place, SLURM_USER, as_user, report, squashed_root};

pub(crate) fn begun(place: &Place) {
    store_start(&place.config, &report("n1")).unwrap();
    let attempt = &place.load().attempts[0];
    assert_eq!((attempt.nodes.len(), attempt.nodes[0].end), (1, None));
    let file = place.job_dir().join("0/n1.json");
    let made = fs::symlink_metadata(&file).unwrap();
    assert_eq!((made.uid(), made.nlink()), (OWNER, 1));
    let whole = NodeReport { end: Some(1_800_000_100_000), ..report("n1") };
    assert!(store(&place.config, &whole).shared);
    // A late one, from a file server that hung.
    store_start(&place.config, &report("n1")).unwrap_err();
    let report = place.load();
    assert_eq!(report.attempts[0].nodes[0].end, whole.end);
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}

pub(crate) fn half_made(place: &Place) {
    let cluster = place.shared().join("alpha");
    fs::create_dir(&cluster).unwrap();
    fs::set_permissions(&cluster, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(place.job_dir()).unwrap();
    fs::set_permissions(place.job_dir(), fs::Permissions::from_mode(0o700)).unwrap();
    // A directory of root, for example an old job of root, does not change its owner.
    let old = place.job_dir().join("7");
    fs::create_dir(&old).unwrap();
    assert!(!store(&place.config, &report("n1")).shared);
    assert_eq!(fs::metadata(place.job_dir()).unwrap().uid(), 0);
    fs::remove_dir(old).unwrap();
    let stored = store(&place.config, &report("n1"));
    assert!(stored.shared, "{stored:?}");
    assert_eq!(fs::metadata(place.job_dir()).unwrap().uid(), OWNER);
}

pub(crate) fn stored_and_found(place: &Place) {
    for node in ["n1", "n2"] {
        let stored = store(&place.config, &report(node));
        assert!(stored.shared, "{stored:?}");
    }
    let meta = fs::metadata(place.job_dir()).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o7777), (OWNER, 0o700));
    let cluster = fs::metadata(place.shared().join("alpha")).unwrap();
    assert_eq!((cluster.uid(), cluster.mode() & 0o7777), (0, 0o755), "made by root before the user comes");
    let next = place.shared().join("alpha/48214");
    assert!(as_user(OTHER, OTHER, "mkdir", &next).is_err(), "no user squats");
    assert_eq!(fs::metadata(place.job_dir().join("0/n1.json")).unwrap().uid(), OWNER);
    let left: Vec<_> = fs::read_dir(place.job_dir().join("0")).unwrap().collect();
    assert_eq!(left.len(), 2, "no temporary file stays");
    let found = place.load();
    assert_eq!(found.attempts[0].nodes, [report("n1"), report("n2")]);
    assert!(found.problems.is_empty(), "{:?}", found.problems);
    // A later report of the same node replaces the earlier one.
    let mut later = report("n1");
    later.end = Some(1_800_000_050_000);
    assert!(store(&place.config, &later).shared);
    assert_eq!(place.load().attempts[0].nodes[0], later);
    let any = load(&place.config, &[], None, JOB, None, None, &|_| None);
    assert_eq!((any.cluster.as_str(), any.attempts[0].nodes.len()), ("alpha", 2));
}

pub(crate) fn others_cannot_read(place: &Place) {
    assert!(store(&place.config, &report("n1")).shared);
    let file = place.job_dir().join("0/n1.json");
    assert!(as_user(OWNER, OWNER, "read", &file).is_ok());
    assert!(as_user(OTHER, OTHER, "read", &file).unwrap_err().contains("ermission denied"));
    assert!(as_user(OTHER, OTHER, "list", &place.job_dir()).is_err());
    let local = ReportConfig { dir: None, ..place.config.clone() };
    let stored = store(&local, &report("n9"));
    assert!(!stored.shared && stored.path.is_some(), "{stored:?}");
    assert!(as_user(OWNER, OWNER, "read", &stored.path.unwrap()).is_err(), "this one is root's alone");
}

pub(crate) fn squatter(place: &Place) {
    let cluster = place.shared().join("alpha");
    fs::create_dir(&cluster).unwrap();
    fs::set_permissions(&cluster, fs::Permissions::from_mode(0o1777)).unwrap();
    as_user(OTHER, OTHER, "mkdir", &place.job_dir()).unwrap();
    fs::set_permissions(place.job_dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let stored = store(&place.config, &report("n1"));
    assert!(!stored.shared, "{stored:?}");
    assert!(stored.problems[0].contains("belongs to uid 12002, not to 12001"), "{stored:?}");
    assert!(stored.path.unwrap().starts_with(&place.config.local_dir));
    assert_eq!(fs::read_dir(place.job_dir()).unwrap().count(), 0, "nothing was put into it");
    let found = place.load();
    assert_eq!(found.attempts[0].nodes.len(), 1, "the local part");
    assert!(found.problems[0].contains("belongs to uid 12002"), "{:?}", found.problems);
}

pub(crate) fn squatted_cluster(place: &Place) {
    let cluster = place.shared().join("alpha");
    as_user(OTHER, OTHER, "mkdir", &cluster).unwrap();
    fs::set_permissions(&cluster, fs::Permissions::from_mode(0o1777)).unwrap();
    let stored = store(&place.config, &report("n1"));
    assert!(!stored.shared, "{stored:?}");
    assert!(stored.problems[0].contains("alpha: refused: uid 12002 owns it"), "{stored:?}");
    assert!(stored.path.unwrap().starts_with(&place.config.local_dir));
}

/// A report directory created manually by a site, or by root if root is squashed.
pub(crate) fn squashed(place: &Place) {
    for owner in [0, 65_534] {
        let cluster = place.shared().join("alpha");
        fs::create_dir(&cluster).unwrap();
        chown(&cluster, Some(owner), None).unwrap();
        fs::set_permissions(&cluster, fs::Permissions::from_mode(0o1777)).unwrap();
        let stored = store(&place.config, &report("n1"));
        assert!(stored.shared, "{owner}: {stored:?}");
        assert_eq!(fs::metadata(place.job_dir()).unwrap().uid(), OWNER);
        assert_eq!(fs::metadata(&cluster).unwrap().mode() & 0o7777, 0o1777, "left as it was");
        fs::remove_dir_all(cluster).unwrap();
    }
}

/// Stores as a root without privileges, as on a file server that squashes root.
fn store_squashed(config: &ReportConfig, part: &NodeReport) -> String {
    squashed_root(config, Some(part))
}

/// Removes reports older than 90 days, 200 days from now, as such a root.
fn sweep_squashed(config: &ReportConfig) -> String {
    squashed_root(config, None)
}

pub(crate) fn accounts_directory(place: &Place) {
    let given = |path: &Path, mode: u32| {
        chown(path, Some(SLURM_USER), Some(GROUP.1)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let config = ReportConfig { controller_group: GROUP.0.to_owned(), ..place.config.clone() };
    // As before: world-writable, and another user occupies the names of this job and the next.
    let cluster = place.shared().join("alpha");
    fs::create_dir(&cluster).unwrap();
    given(&cluster, 0o1777);
    for squat in [JOB.to_string(), (JOB + 1).to_string(), ".new".to_owned()] {
        as_user(OTHER, OTHER, "mkdir", &cluster.join(squat)).unwrap();
    }
    let said = store_squashed(&config, &report("n1"));
    assert!(said.starts_with("shared false"), "{said}");
    // The site gives report directory and cluster directory to SlurmUser.
    given(&place.shared(), 0o755);
    let said = store_squashed(&config, &report("n1"));
    assert_eq!(said, "shared true []");
    assert_eq!(fs::metadata(&cluster).unwrap().mode() & 0o7777, 0o755);
    let staging = fs::metadata(cluster.join(".new")).unwrap();
    assert_eq!((staging.uid(), staging.mode() & 0o7777), (SLURM_USER, 0o1733));
    assert_eq!(fs::read_dir(cluster.join(".new")).unwrap().count(), 0);
    let meta = fs::metadata(place.job_dir()).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (OWNER, GROUP.1, 0o770));
    // The other nodes of the job use the same directory.
    assert_eq!(store_squashed(&config, &report("n2")), "shared true []");
    assert_eq!(
        load(&config, &[], Some("alpha"), JOB, Some(OWNER), None, &|_| None).attempts[0].nodes.len(),
        2
    );
    // Entries that were moved aside still belong to their owner.
    let aside = |name: &str| name.starts_with(&format!("{JOB}.foreign."));
    let names: Vec<String> = fs::read_dir(&cluster)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names.iter().filter(|name| aside(name)).count(), 1, "{names:?}");
    for squat in ["48215", ".new/x", "48213/1"] {
        let made = as_user(OTHER, OTHER, "mkdir", &cluster.join(squat));
        assert_eq!(made.is_ok(), squat == ".new/x", "{squat}: {made:?}");
    }
    assert!(as_user(OTHER, OTHER, "list", &cluster.join(".new")).is_err(), "names there are not to be seen");
    // Owners may not remove their directories, SlurmUser may: that of this job, and the one that another user
    // occupied.
    assert_eq!(sweep_squashed(&config), "removed 2 kept 0 []");
    assert!(!place.job_dir().exists());
    // From scratch, with the job's group as reader, and without a group of SlurmUser.
    fs::remove_dir_all(&cluster).unwrap();
    let account = ReportConfig { access: ReportAccess::Account, ..config.clone() };
    let bare = ReportConfig { controller_group: "no-such-group".to_owned(), ..config.clone() };
    for (job, config, mode) in [(1, &account, 0o750), (2, &bare, 0o700)] {
        let mut part = report("n1");
        part.job.id = job;
        assert_eq!(store_squashed(config, &part), "shared true []", "{job}");
        let meta = fs::metadata(cluster.join(job.to_string())).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (OWNER, OWNER, mode), "{job}");
        let meta = fs::metadata(cluster.join(format!("{job}/0"))).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (OWNER, OWNER, mode), "{job}");
    }
}

pub(crate) fn planted(place: &Place) {
    assert!(store(&place.config, &report("n1")).shared);
    let attempt = place.job_dir().join("0");
    let secret = place.dir.path().join("secret.json");
    fs::write(&secret, "{\"secret\": 1}").unwrap();
    symlink(&secret, attempt.join("n2.json")).unwrap();
    nix::unistd::mkfifo(&attempt.join("n3.json"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    chown(attempt.join("n3.json"), Some(OWNER), None).unwrap();
    fs::hard_link(&secret, attempt.join("n4.json")).unwrap();
    fs::File::create(attempt.join("n5.json")).unwrap().set_len(1 << 40).unwrap();
    fs::write(attempt.join("n6.json"), serde_json::to_vec(&report("n7")).unwrap()).unwrap();
    chown(attempt.join("n6.json"), Some(OTHER), None).unwrap();
    fs::write(attempt.join("n8.json"), serde_json::to_vec(&report("n7")).unwrap()).unwrap();
    fs::write(attempt.join("n9.json"), "[".repeat(100_000)).unwrap();
    symlink("/etc", place.job_dir().join("1")).unwrap();
    fs::create_dir(place.job_dir().join("01")).unwrap();
    let found = place.load();
    assert_eq!(found.attempts.len(), 1);
    assert_eq!(found.attempts[0].nodes.len(), 1, "n1 alone");
    let problems = found.problems.join("\n");
    for (what, why) in [
        ("0/n2.json", "symbolic link"),
        ("0/n3.json", "not a regular file"),
        ("0/n4.json", "2 names"),
        ("0/n5.json", "at most"),
        ("0/n6.json", "belongs to uid 12002"),
        ("0/n8.json", "do not match its path"),
        ("0/n9.json", "not a node report"),
        ("48213/1:", ""),
        ("48213/01:", "not an attempt"),
    ] {
        assert!(
            problems.lines().any(|line| line.contains(what) && line.contains(why)),
            "{what}:\n{problems}"
        );
    }
    assert!(!problems.contains("secret\""), "{problems}");

    // Writing onto a link replaces the link; writing through one is refused.
    let stored = store(&place.config, &report("n2"));
    assert!(stored.shared, "{stored:?}");
    assert_eq!(fs::read_to_string(&secret).unwrap(), "{\"secret\": 1}");
    let mut next = report("n1");
    next.attempt = 1;
    let stored = store(&place.config, &next);
    assert!(!stored.shared, "{stored:?}");
    assert!(!Path::new("/etc/n1.json").exists());

    // The job's directory is a link to one that the owner can write to.
    fs::rename(place.job_dir(), place.shared().join("alpha/elsewhere")).unwrap();
    symlink("elsewhere", place.job_dir()).unwrap();
    assert!(!store(&place.config, &report("n1")).shared);
}

pub(crate) fn no_sticky_bit(place: &Place) {
    fs::set_permissions(place.shared(), fs::Permissions::from_mode(0o777)).unwrap();
    let stored = store(&place.config, &report("n1"));
    assert!(!stored.shared && stored.problems[0].contains("sticky bit"), "{stored:?}");
}

pub(crate) fn missing_and_full(place: &Place) {
    let gone = ReportConfig { dir: Some(place.dir.path().join("gone")), ..place.config.clone() };
    let stored = store(&gone, &report("n1"));
    assert!(!stored.shared && stored.path.is_some() && stored.problems.len() == 1, "{stored:?}");

    let full = place.dir.path().join("full");
    fs::create_dir(&full).unwrap();
    let options = Some("size=16k,mode=1777");
    if nix::mount::mount(Some("tmpfs"), &full, Some("tmpfs"), nix::mount::MsFlags::empty(), options).is_err()
    {
        println!("  (no mounts here: the full file system is left out)");
        return;
    }
    let full_config = ReportConfig { dir: Some(full.clone()), ..place.config.clone() };
    let mut large = report("n1");
    large.faults = vec!["x".repeat(60_000)];
    let stored = store(&full_config, &large);
    let left = fs::read_dir(full.join("alpha/48213/0")).map(Iterator::count);
    nix::mount::umount(&full).unwrap();
    assert!(!stored.shared && stored.path.is_some(), "{stored:?}");
    assert!(stored.problems[0].contains("No space left"), "{stored:?}");
    assert_eq!(left.unwrap(), 0, "no half file stays");
}

pub(crate) fn account(place: &Place) {
    let config = ReportConfig { access: ReportAccess::Account, ..place.config.clone() };
    let mut part = report("n1");
    part.job.gid = GROUP.1;
    assert!(store(&config, &part).shared);
    let meta = fs::metadata(place.job_dir()).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (OWNER, GROUP.1, 0o750));
    let file = place.job_dir().join("0/n1.json");
    assert!(as_user(OTHER, GROUP.1, "read", &file).is_ok(), "of the same account");
    assert!(as_user(OTHER, OTHER, "read", &file).unwrap_err().contains("ermission denied"));
    assert!(as_user(OTHER, GROUP.1, "mkdir", &place.job_dir().join("1")).is_err(), "to read, not to write");
}
