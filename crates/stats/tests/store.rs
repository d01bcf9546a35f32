//! The report store with real identities: another user, SlurmUser, links, pipes and squatters.
//!
//! Needs root for everything that is about identities; without it those cases are skipped by name.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test with a main of its own")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use railgate_node::child::{Outcome, Task, become_user, dispatch, run};
use railgate_node::{Allocation, Job};
use railgate_stats::store::{
    Asked, Query, Retention, Swept, TASKS, load, load_nodelist, load_parts, load_words, store,
    store_decision, store_start, sweep,
};
use railgate_stats::{Decision, DecisionKind, JobReport, NodeReport, ReportAccess, ReportConfig};

const OWNER: u32 = 12_001;
const OTHER: u32 = 12_002;
const SLURM_USER: u32 = 12_003;
/// A group that every Debian has, in the place of SlurmUser's.
const GROUP: (&str, u32) = ("daemon", 1);
const JOB: u32 = 48_213;
const MINUTE: Duration = Duration::from_secs(60);

type Case = (&'static str, fn(&Place));

const CASES: &[Case] = &[
    ("what is stored is found again, by its owner and by root", stored_and_found),
    ("other users cannot read it", others_cannot_read),
    ("a squatter's directory is refused, the part stays on the node", squatter),
    ("the directory of a cluster that a user made is refused", squatted_cluster),
    ("where root is squashed the owner makes the directory", squashed),
    ("where root is squashed and the directory is SlurmUser's no user squats", accounts_directory),
    ("links, pipes, hard links and foreign files are refused", planted),
    ("a directory open to all without the sticky bit is refused", no_sticky_bit),
    ("a missing or full directory leaves the part on the node", missing_and_full),
    ("SlurmUser reads evidence and adds its decision", controller),
    ("a heterogeneous job is one report, and nobody else's", heterogeneous),
    ("that a job began never takes the place of how it ended", begun),
    ("old reports go, links in them are not followed", swept),
    ("samples go before their report, and what is not ours stays", only_ours_is_swept),
    ("everybody sweeps their own, root becomes each owner where it must", swept_by_owners),
    ("with access for the account its group reads, and nobody else", account),
    ("a large job is read in pages, and its samples are left alone", pages),
    ("what decides comes in short fields and of one attempt", words),
    ("thousands of files of holes are not read", thousands),
    ("what the budget cuts is told as such", too_much),
    ("a part takes no more memory than its file", blown_up),
];

struct Place {
    dir: tempfile::TempDir,
    config: ReportConfig,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let shared = dir.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
        let config = ReportConfig {
            dir: Some(shared),
            local_dir: dir.path().join("var/reports"),
            controller_group: "no-such-group".to_owned(),
            deadline: Duration::from_secs(20),
            ..ReportConfig::default()
        };
        Place { dir, config }
    }

    fn shared(&self) -> PathBuf {
        self.config.dir.clone().unwrap()
    }

    fn job_dir(&self) -> PathBuf {
        self.shared().join("alpha").join(JOB.to_string())
    }

    fn load(&self) -> JobReport {
        load(&self.config, &[], Some("alpha"), JOB, Some(OWNER), None, &|_| None)
    }
}

fn report(node: &str) -> NodeReport {
    let job = Job {
        id: JOB,
        uid: OWNER,
        gid: OWNER,
        user: "ann".to_owned(),
        restarts: 0,
        nodelist: "n[1-2]".to_owned(),
        het_leader: None,
        allocation: Allocation::NoGpus,
        partition: "gpu".to_owned(),
    };
    NodeReport::new("alpha", node, job, 0, 1_800_000_000_000)
}

fn component(node: &str, id: u32, uid: u32) -> NodeReport {
    let mut part = report(node);
    part.job = Job { id, uid, gid: uid, het_leader: Some(JOB), nodelist: node.to_owned(), ..part.job };
    part
}

fn heterogeneous(place: &Place) {
    for (node, id, uid) in [("n1", JOB, OWNER), ("n1", JOB + 1, OWNER), ("n2", JOB + 2, OWNER)] {
        assert!(store(&place.config, &component(node, id, uid)).shared);
    }
    // A job of somebody else's that says it belongs to this one.
    assert!(store(&place.config, &component("n3", JOB + 3, OTHER)).shared);
    for asked in [JOB, JOB + 2] {
        let report = load(&place.config, &[], Some("alpha"), asked, Some(OWNER), None, &|_| None);
        assert_eq!((report.job, report.components.as_slice()), (JOB, &[JOB, JOB + 1, JOB + 2][..]));
        assert_eq!(report.attempts[0].nodes.len(), 3);
        assert_eq!(report.attempts[0].nodelist, "n1,n2");
    }
    // Root asks about the other one: nothing of this job is shown as theirs.
    let report = load(&place.config, &[], Some("alpha"), JOB + 3, None, None, &|_| None);
    assert_eq!(report.uid, Some(OTHER));
    assert!(report.attempts[0].nodes.iter().all(|node| node.job.uid == OTHER));
}

fn begun(place: &Place) {
    store_start(&place.config, &report("n1")).unwrap();
    let attempt = &place.load().attempts[0];
    assert_eq!((attempt.nodes.len(), attempt.nodes[0].end), (1, None));
    let file = place.job_dir().join("0/n1.json");
    let made = fs::symlink_metadata(&file).unwrap();
    assert_eq!((made.uid(), made.nlink()), (OWNER, 1));
    let whole = NodeReport { end: Some(1_800_000_100_000), ..report("n1") };
    assert!(store(&place.config, &whole).shared);
    // One that comes late, from a file server that hung.
    store_start(&place.config, &report("n1")).unwrap_err();
    let report = place.load();
    assert_eq!(report.attempts[0].nodes[0].end, whole.end);
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
}

fn decision() -> Decision {
    Decision {
        schema: 1,
        cluster: "alpha".to_owned(),
        job: JOB,
        attempt: 0,
        time: 1_800_000_100_000,
        what: DecisionKind::Requeued,
        why: "GPU 3 of n1 was lost".to_owned(),
        state: None,
        exit_status: Some(256),
        consent: "auto".to_owned(),
        budget: None,
        nodelist: String::new(),
        nodes: Vec::new(),
        waited_ms: 0,
    }
}

/// Does a test's own task as another user; `what` and `path` say which.
fn as_user(uid: u32, gid: u32, what: &str, path: &Path) -> Result<String, String> {
    let input = format!("{uid} {gid} {what} {}", path.display());
    match run("test-as-user", input.as_bytes(), Duration::from_secs(30)) {
        Outcome::Done(reply) => Ok(String::from_utf8(reply).unwrap()),
        Outcome::Failed(why) => Err(why),
        other => panic!("{what}: {other:?}"),
    }
}

fn as_user_task(input: &[u8]) -> Result<Vec<u8>, String> {
    let input = String::from_utf8(input.to_vec()).unwrap();
    let words: Vec<&str> = input.splitn(4, ' ').collect();
    let path = PathBuf::from(words[3]);
    become_user(words[0].parse().unwrap(), words[1].parse().unwrap(), &[]).map_err(|why| why.to_string())?;
    let said = match words[2] {
        "read" => fs::read_to_string(path).map_err(|why| why.to_string())?,
        "list" => format!("{}", fs::read_dir(path).map_err(|why| why.to_string())?.count()),
        "mkdir" => {
            fs::create_dir(path).map_err(|why| why.to_string())?;
            String::new()
        }
        "load" | "decide" => {
            let config: ReportConfig = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
            if words[2] == "load" {
                let report = load(&config, &[], Some("alpha"), JOB, Some(OWNER), None, &|_| None);
                format!(
                    "{} nodes, {:?}",
                    report.attempts.iter().map(|a| a.nodes.len()).sum::<usize>(),
                    report.problems
                )
            } else {
                let stored = store_decision(&config, &decision(), OWNER, OWNER);
                format!("shared {} {:?}", stored.shared, stored.problems)
            }
        }
        "sweep" => {
            let swept = swept_at(&path, DEFAULT, now() + 91 * DAY);
            format!("removed {} kept {} {:?}", swept.removed, swept.kept, swept.problems)
        }
        other => panic!("{other}"),
    };
    Ok(said.into_bytes())
}

fn stored_and_found(place: &Place) {
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
    // A later part of the same node replaces the earlier one.
    let mut later = report("n1");
    later.end = Some(1_800_000_050_000);
    assert!(store(&place.config, &later).shared);
    assert_eq!(place.load().attempts[0].nodes[0], later);
    let any = load(&place.config, &[], None, JOB, None, None, &|_| None);
    assert_eq!((any.cluster.as_str(), any.attempts[0].nodes.len()), ("alpha", 2));
}

fn others_cannot_read(place: &Place) {
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

fn squatter(place: &Place) {
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

fn squatted_cluster(place: &Place) {
    let cluster = place.shared().join("alpha");
    as_user(OTHER, OTHER, "mkdir", &cluster).unwrap();
    fs::set_permissions(&cluster, fs::Permissions::from_mode(0o1777)).unwrap();
    let stored = store(&place.config, &report("n1"));
    assert!(!stored.shared, "{stored:?}");
    assert!(stored.problems[0].contains("alpha: refused: uid 12002 owns it"), "{stored:?}");
    assert!(stored.path.unwrap().starts_with(&place.config.local_dir));
}

/// What a site makes by hand, or root where it is nobody.
fn squashed(place: &Place) {
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

/// Stores as a root that may do no more than any other user, which is what a file server that squashes root makes of it.
fn store_squashed(config: &ReportConfig, part: &NodeReport) -> String {
    squashed_root(config, Some(part))
}

/// Removes what is 90 days old, 200 days from now, as such a root.
fn sweep_squashed(config: &ReportConfig) -> String {
    squashed_root(config, None)
}

fn squashed_root(config: &ReportConfig, part: Option<&NodeReport>) -> String {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("order.json");
    fs::write(&file, serde_json::to_string(&(config, part)).unwrap()).unwrap();
    let said = std::process::Command::new("setpriv")
        .arg("--bounding-set=-dac_override,-dac_read_search,-fowner,-chown")
        .arg(std::env::current_exe().unwrap())
        .arg(SQUASHED)
        .arg(file)
        .output()
        .unwrap();
    assert!(said.status.success(), "{said:?}");
    String::from_utf8(said.stdout).unwrap()
}

/// First argument of this program as [`store_squashed`] calls it.
const SQUASHED: &str = "store-squashed";

fn squashed_program(file: &str) -> ExitCode {
    let (config, part): (ReportConfig, Option<NodeReport>) =
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    match part {
        Some(part) => {
            let stored = store(&config, &part);
            print!("shared {} {:?}", stored.shared, stored.problems);
        }
        None => {
            let swept = swept_at(&config.dir.unwrap(), DEFAULT, now() + 200 * DAY);
            print!("removed {} kept {} {:?}", swept.removed, swept.kept, swept.problems);
        }
    }
    ExitCode::SUCCESS
}

fn accounts_directory(place: &Place) {
    let given = |path: &Path, mode: u32| {
        chown(path, Some(SLURM_USER), Some(GROUP.1)).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let config = ReportConfig { controller_group: GROUP.0.to_owned(), ..place.config.clone() };
    // As it was: open to all, and another user is where this job and the next will be.
    let cluster = place.shared().join("alpha");
    fs::create_dir(&cluster).unwrap();
    given(&cluster, 0o1777);
    for squat in [JOB.to_string(), (JOB + 1).to_string(), ".new".to_owned()] {
        as_user(OTHER, OTHER, "mkdir", &cluster.join(squat)).unwrap();
    }
    let said = store_squashed(&config, &report("n1"));
    assert!(said.starts_with("shared false"), "{said}");
    // The site gives report directory and cluster's directory to SlurmUser.
    given(&place.shared(), 0o755);
    let said = store_squashed(&config, &report("n1"));
    assert_eq!(said, "shared true []");
    assert_eq!(fs::metadata(&cluster).unwrap().mode() & 0o7777, 0o755);
    let staging = fs::metadata(cluster.join(".new")).unwrap();
    assert_eq!((staging.uid(), staging.mode() & 0o7777), (SLURM_USER, 0o1733));
    assert_eq!(fs::read_dir(cluster.join(".new")).unwrap().count(), 0);
    let meta = fs::metadata(place.job_dir()).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (OWNER, GROUP.1, 0o770));
    // The other nodes of the job find it.
    assert_eq!(store_squashed(&config, &report("n2")), "shared true []");
    assert_eq!(
        load(&config, &[], Some("alpha"), JOB, Some(OWNER), None, &|_| None).attempts[0].nodes.len(),
        2
    );
    // What was in the way is its owner's still.
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
    // The owners may not remove their directories, SlurmUser may: this job's, and the one that another user occupied.
    assert_eq!(sweep_squashed(&config), "removed 2 kept 0 []");
    assert!(!place.job_dir().exists());
    // From nothing, with the job's group as reader, and without a group of SlurmUser's.
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

fn planted(place: &Place) {
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
        ("0/n8.json", "something else than its place"),
        ("0/n9.json", "not a part"),
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

    // The job's directory itself as a link to one that the owner could write to.
    fs::rename(place.job_dir(), place.shared().join("alpha/elsewhere")).unwrap();
    symlink("elsewhere", place.job_dir()).unwrap();
    assert!(!store(&place.config, &report("n1")).shared);
}

fn no_sticky_bit(place: &Place) {
    fs::set_permissions(place.shared(), fs::Permissions::from_mode(0o777)).unwrap();
    let stored = store(&place.config, &report("n1"));
    assert!(!stored.shared && stored.problems[0].contains("sticky bit"), "{stored:?}");
}

fn missing_and_full(place: &Place) {
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

fn controller(place: &Place) {
    let config = ReportConfig { controller_group: GROUP.0.to_owned(), ..place.config.clone() };
    let config_file = place.dir.path().join("config.json");
    fs::write(&config_file, serde_json::to_string(&config).unwrap()).unwrap();
    fs::set_permissions(&config_file, fs::Permissions::from_mode(0o644)).unwrap();

    // Before an epilog has come there is nothing to add to; SlurmUser must not make a user's directory.
    let early = as_user(SLURM_USER, GROUP.1, "decide", &config_file).unwrap();
    assert!(early.starts_with("shared false"), "{early}");
    assert!(!place.job_dir().exists());

    assert!(store(&config, &report("n1")).shared);
    let meta = fs::metadata(place.job_dir()).unwrap();
    assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (OWNER, GROUP.1, 0o770));
    let said = as_user(SLURM_USER, GROUP.1, "load", &config_file).unwrap();
    assert!(said.starts_with("1 nodes, []"), "{said}");
    let said = as_user(SLURM_USER, GROUP.1, "decide", &config_file).unwrap();
    assert_eq!(said, "shared true []");
    assert_eq!(fs::metadata(place.job_dir().join("0/decision.json")).unwrap().uid(), SLURM_USER);
    let by_owner = as_user(OWNER, OWNER, "load", &config_file).unwrap();
    assert!(by_owner.starts_with("1 nodes, []"), "{by_owner}");
    assert_eq!(place.load().attempts[0].decision, Some(decision()));
    let said = as_user(OTHER, OTHER, "load", &config_file).unwrap();
    assert!(said.starts_with("0 nodes"), "{said}");
}

fn swept(place: &Place) {
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

const DAY: u64 = 86_400_000;
const DEFAULT: Retention = Retention { days: 90, sample_days: 14, jobs: 0 };

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

fn swept_at(dir: &Path, retention: Retention, now: u64) -> Swept {
    sweep(dir, retention, now, Duration::from_secs(20))
}

fn only_ours_is_swept(place: &Place) {
    assert!(store(&place.config, &report("n1")).shared);
    let attempt = place.job_dir().join("0");
    for name in ["n1.samples", "n2.samples", "notes.txt", ".n3.json.17"] {
        fs::write(attempt.join(name), "").unwrap();
    }
    // A number of one's own, in a directory of one's own.
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

/// Where root is nobody, only the owner may look into a job's directory.
fn swept_by_owners(place: &Place) {
    let cluster = place.shared().join("alpha");
    fs::create_dir(&cluster).unwrap();
    fs::set_permissions(&cluster, fs::Permissions::from_mode(0o1777)).unwrap();
    for (job, uid) in [(1, OWNER), (2, OTHER)] {
        let mut other = report("n1");
        (other.job.id, other.job.uid, other.job.gid) = (job, uid, uid);
        assert!(store(&place.config, &other).shared);
    }
    let said = as_user(OTHER, OTHER, "sweep", &place.shared()).unwrap();
    assert_eq!(said, "removed 1 kept 1 []", "their own, and nobody else's");
    assert!(cluster.join("1/0/n1.json").exists() && !cluster.join("2").exists());
    let root = swept_at(&place.shared(), DEFAULT, now() + 91 * DAY);
    assert_eq!((root.removed, root.kept, root.problems.len()), (1, 0, 0), "{root:?}");
}

fn account(place: &Place) {
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

fn pages(place: &Place) {
    const NODES: usize = 20;
    for node in 0..NODES {
        let mut part = report(&format!("n{node}"));
        part.faults = vec!["x".repeat(1 << 20)];
        assert!(store(&place.config, &part).shared);
    }
    // A pipe that nobody writes to, where samples would be.
    nix::unistd::mkfifo(&place.job_dir().join("0/n1.samples"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let found = place.load();
    let mut names: Vec<_> = found.attempts[0].nodes.iter().map(|node| node.node.clone()).collect();
    names.dedup();
    assert_eq!((names.len(), found.problems.len()), (NODES, 0), "{:?}", found.problems);
}

const JOBS: &[u32] = &[JOB];

fn asked(nodes: &[String]) -> Asked<'_> {
    Asked { cluster: "alpha", jobs: JOBS, uid: OWNER, attempt: 0, nodes }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

fn words(place: &Place) {
    for attempt in 0..3 {
        let mut part = report("n1");
        part.attempt = attempt;
        part.end = (attempt == 1).then_some(1_800_000_100_000);
        part.faults = vec!["a figure".to_owned()];
        assert!(store(&place.config, &part).shared);
    }
    let nodes = names(&["n1", "n2"]);
    let told = load_words(&place.config, &Asked { attempt: 1, ..asked(&nodes) }, MINUTE).unwrap();
    assert_eq!((told.nodes.len(), told.untold_count), (1, 0), "{told:?}");
    assert_eq!((told.nodes[0].node.as_str(), told.nodes[0].ended), ("n1", true));
    assert_eq!(load_nodelist(&place.config, &asked(&[]), MINUTE), Ok(None));
    let config = ReportConfig { controller_group: GROUP.0.to_owned(), ..place.config.clone() };
    assert!(store(&config, &report("n1")).shared);
    let decided = Decision { nodelist: "n[1-2]".to_owned(), ..decision() };
    assert!(store_decision(&config, &decided, OWNER, OWNER).shared);
    assert_eq!(load_nodelist(&config, &asked(&[]), MINUTE), Ok(Some("n[1-2]".to_owned())));
    // Another's job.
    assert!(load_words(&config, &Asked { uid: OTHER, ..asked(&nodes) }, MINUTE).is_err());
}

/// Files of holes cost their writer nothing: none of them is opened unless it is named after a node, and then it is
/// refused unread.
fn thousands(place: &Place) {
    let mut part = report("n1");
    part.end = Some(1_800_000_100_000);
    assert!(store(&place.config, &part).shared);
    let attempt = place.job_dir().join("0");
    for number in 0..4_000 {
        let path = attempt.join(format!("m{number:04}.json"));
        fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
        chown(&path, Some(OWNER), None).unwrap();
    }
    let nodes = names(&["n1", "m0001", "n2"]);
    let before = read_by_children();
    let told = load_words(&place.config, &asked(&nodes), MINUTE).unwrap();
    let all = place.load();
    assert!(read_by_children() - before < 16 << 20, "{} bytes", read_by_children() - before);
    assert_eq!(
        (told.nodes.len(), told.untold.as_slice(), told.untold_count),
        (1, &nodes[1..2], 1),
        "{told:?}"
    );
    assert!(told.problems[0].contains("m0001: refused: it has holes"), "{told:?}");
    assert_eq!(all.attempts[0].nodes.len(), 1, "the reader of a report sees the one part");
    assert!(all.problems.iter().any(|problem| problem.contains("it has holes")), "{:?}", all.problems);
}

/// What this process's children that have ended have read, bytes.
fn read_by_children() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
    line.parse().unwrap()
}

/// Full files, beyond what a job of so few nodes may have read: the nodes before them are told, the others are named.
fn too_much(place: &Place) {
    let nodes: Vec<String> = (0..64).map(|node| format!("n{node:02}")).collect();
    let mut part = report("n00");
    part.end = Some(1_800_000_100_000);
    assert!(store(&place.config, &part).shared);
    for node in &nodes[1..] {
        let path = place.job_dir().join(format!("0/{node}.json"));
        fs::write(&path, "[".repeat(8 << 20)).unwrap();
        chown(&path, Some(OWNER), None).unwrap();
    }
    let before = read_by_children();
    let told = load_words(&place.config, &asked(&nodes), MINUTE).unwrap();
    let read = read_by_children() - before;
    assert!(read < 64 << 20, "{read} bytes");
    assert_eq!((told.nodes.len(), told.untold_count), (1, 63), "{:?}", told.problems);
    let clause = told.could_not_tell().unwrap();
    assert!(clause.starts_with("could not tell what n01, n02"), "{clause}");
    assert!(clause.contains(" and 55 more reported"), "{clause}");
    // A person's reader stops, too, and says so.
    let query = Query { cluster: Some("alpha"), job: JOB, known: Some((0, &nodes)), ..Query::default() };
    let parts = load_parts(&[&place.shared()], &query, 8 << 20, MINUTE);
    assert_eq!(parts.nodes.len(), 1);
    let problems = parts.problems.join("\n");
    assert!(problems.contains("could not tell: the parts are larger than allowed together"), "{problems}");
    // No time at all: everything is untold, nothing is absent.
    let told = load_words(&place.config, &asked(&nodes), Duration::ZERO).unwrap();
    assert_eq!((told.nodes.len(), told.untold_count), (0, 64), "{told:?}");
}

/// A part that would take a hundred times its size in memory.
fn blown_up(place: &Place) {
    let mut part = report("n1");
    part.end = Some(1_800_000_100_000);
    assert!(store(&place.config, &part).shared);
    let file = place.job_dir().join("0/n1.json");
    let text = fs::read_to_string(&file).unwrap();
    let blown = |list: &str, element: &str| {
        let many = format!("[{}", format!("{element},").repeat((7 << 20) / (element.len() + 1)));
        let many = format!("{}]", many.trim_end_matches(','));
        let cut = text.replacen(&format!("\"{list}\":[]"), &format!("\"{list}\":{many}"), 1);
        assert_ne!(cut, text, "{list}");
        fs::write(&file, cut).unwrap();
    };
    for (list, element) in
        [("faults", "\"\""), ("acts", r#"{"what":"drained","time":1,"by":"","detail":""}"#)]
    {
        blown(list, element);
        let told = load_words(&place.config, &asked(&names(&["n1"])), MINUTE).unwrap();
        assert_eq!((told.nodes.len(), told.untold_count), (1, 0), "{list}: {told:?}");
    }
}

fn main() -> ExitCode {
    let mut tasks = TASKS.to_vec();
    tasks.push(Task::new("test-as-user", as_user_task));
    if let Some(code) = dispatch(&tasks) {
        return code;
    }
    let words: Vec<String> = std::env::args().collect();
    if let [_, word, file] = words.as_slice()
        && word == SQUASHED
    {
        return squashed_program(file);
    }
    // One after the other: what they change is the whole process's.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let needs_root = !nix::unistd::geteuid().is_root();
    let trial = |(name, case): &(&str, fn(&Place))| {
        let case = *case;
        Trial::test(*name, move || {
            case(&Place::new());
            Ok(())
        })
        .with_ignored_flag(needs_root)
    };
    libtest_mimic::run(&arguments, CASES.iter().map(trial).collect()).exit_code()
}
