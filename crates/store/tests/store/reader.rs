//! Which files readers find, and which they refuse.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::time::Duration;

use railgate_model::Job;
use railgate_node_report::stacks::RankLine;
use railgate_node_report::{
    Decision, JobLog, JobStacks, LogError, LogFound, NodeReport, RankStack, SlurmEnd, SlurmView, Stacks,
};
use railgate_report::{EndKind, load};
use railgate_store::{
    Asked, Placed, Query, ReportAccess, ReportConfig, Retention, bring_stacks, load_nodelist, load_parts,
    load_words, recorded_ends, store, store_decision, store_ends, store_log, store_stacks, sweep,
};

use crate::{GROUP, JOB, MINUTE, OTHER, OWNER, Place, SLURM_USER, as_user, decision, ended, report};

fn component(node: &str, id: u32, uid: u32) -> NodeReport {
    let mut part = report(node);
    part.job = Job { id, uid, gid: uid, het_leader: Some(JOB), nodelist: node.to_owned(), ..part.job };
    part
}

pub(crate) fn heterogeneous(place: &Place) {
    for (node, id, uid) in [("n1", JOB, OWNER), ("n1", JOB + 1, OWNER), ("n2", JOB + 2, OWNER)] {
        assert!(store(&place.config, &component(node, id, uid)).shared);
    }
    // A job of another user that claims to belong to this one.
    assert!(store(&place.config, &component("n3", JOB + 3, OTHER)).shared);
    for asked in [JOB, JOB + 2] {
        let report = load(&place.config, &[], Some("alpha"), asked, Some(OWNER), None, &|_| None);
        assert_eq!((report.job, report.components.as_slice()), (JOB, &[JOB, JOB + 1, JOB + 2][..]));
        assert_eq!(report.attempts[0].nodes.len(), 3);
        assert_eq!(report.attempts[0].nodelist, "n1,n2");
    }
    // If root queries the other job, nothing of this job is shown in it.
    let report = load(&place.config, &[], Some("alpha"), JOB + 3, None, None, &|_| None);
    assert_eq!(report.uid, Some(OTHER));
    assert!(report.attempts[0].nodes.iter().all(|node| node.job.uid == OTHER));
}

pub(crate) fn controller(place: &Place) {
    let config = ReportConfig { controller_group: GROUP.0.to_owned(), ..place.config.clone() };
    let config_file = place.dir.path().join("config.json");
    fs::write(&config_file, serde_json::to_string(&config).unwrap()).unwrap();
    fs::set_permissions(&config_file, fs::Permissions::from_mode(0o644)).unwrap();

    // Before the first epilog there is no directory to add to; SlurmUser must not create one for a user.
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

pub(crate) fn log(place: &Place) {
    let config = ReportConfig {
        controller_group: GROUP.0.to_owned(),
        access: ReportAccess::Account,
        ..place.config.clone()
    };
    let config_file = place.dir.path().join("config.json");
    fs::write(&config_file, serde_json::to_string(&config).unwrap()).unwrap();
    fs::set_permissions(&config_file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(store(&config, &report("n1")).shared);
    let first =
        LogError { rule: "exception".to_owned(), text: "ValueError".to_owned(), ..LogError::default() };
    let found = LogFound { first: Some(first), ..LogFound::default() };
    let log =
        JobLog { schema: 1, cluster: "alpha".to_owned(), job: JOB, attempt: 0, node: "n1".to_owned(), found };
    store_log(&config, &report("n1"), &log).unwrap();
    let stopped = RankStack { rank: 3, state: Some('T'), ..RankStack::default() };
    let stacks = Stacks { ranks: vec![stopped.clone()], ..Stacks::default() };
    let (cluster, node) = ("alpha".to_owned(), "n1".to_owned());
    let stacks = JobStacks { schema: 1, cluster, job: JOB, attempt: 0, node, stacks };
    // The file server does not answer at first, and the stacks wait on this machine.
    let local = config.local_dir.join(format!("alpha/{JOB}/0/n1.stacks"));
    let away = ReportConfig { dir: Some(place.dir.path().join("config.json")), ..config.clone() };
    store_stacks(&away, &report("n1"), &stacks).unwrap();
    assert!(bring_stacks(&away, &report("n1")).is_err());
    assert!(local.exists() && !place.job_dir().join("0/n1.stacks").exists());
    bring_stacks(&config, &report("n1")).unwrap();
    assert!(!local.exists() && place.job_dir().join("0/n1.stacks").exists());
    bring_stacks(&config, &report("n1")).unwrap();
    store_stacks(&config, &report("n1"), &stacks).unwrap();
    assert!(!local.exists());
    let path = place.job_dir().join("0/n1.error");
    for file in [&path, &place.job_dir().join("0/n1.stacks")] {
        let meta = fs::metadata(file).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o7777), (OWNER, 0o600));
    }
    let line = RankLine::new(0, "n1", &stopped);

    // Only a reader who asks for it gets it, and only as its owner or as root.
    let shared = place.shared();
    let load = |logs, known| {
        let query = Query { cluster: Some("alpha"), job: JOB, uid: Some(OWNER), known, logs };
        load_parts(&[&shared], &query, config.max_bytes(), MINUTE)
    };
    let nodes = ["n1".to_owned()];
    for known in [None, Some((0, &nodes[..]))] {
        let parts = load(true, known);
        assert_eq!((parts.logs, parts.problems), (vec![log.clone()], vec![]));
        assert_eq!(parts.stacks, std::slice::from_ref(&line));
        let parts = load(false, known);
        assert_eq!((parts.logs, parts.problems, parts.nodes.len()), (vec![], vec![], 1));
        assert_eq!(parts.stacks, []);
    }
    // The account's group reads the report; nothing hints at a file that it cannot read.
    let said = as_user(OTHER, OWNER, "load", &config_file).unwrap();
    assert!(said.starts_with("1 nodes, []"), "{said}");
    let member = as_user(OTHER, OWNER, "read", &path);
    assert!(member.is_err(), "{member:?}");

    // One of another attempt or another user is refused.
    fs::copy(&path, place.job_dir().join("0/n2.error")).unwrap();
    chown(place.job_dir().join("0/n2.error"), Some(OWNER), Some(OWNER)).unwrap();
    let parts = load(true, None);
    assert_eq!(parts.logs.len(), 1);
    fs::write(place.job_dir().join("0/n2.stacks"), serde_json::to_vec(&stacks).unwrap()).unwrap();
    let forged = load(true, None);
    assert_eq!((forged.stacks, forged.problems.len()), (vec![line], 2));
    assert!(parts.problems[0].ends_with("refused: its contents do not match its path"), "{parts:?}");
    chown(&path, Some(OTHER), Some(OTHER)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(load(true, None).logs, []);

    let gone = sweep(&shared, Retention::shared(&config), now() + 200 * 86_400_000, MINUTE);
    assert_eq!((gone.removed, place.job_dir().exists()), (1, false), "{gone:?}");
}

fn now() -> u64 {
    u64::try_from(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis())
        .unwrap()
}

pub(crate) fn ends(place: &Place) {
    let config = ReportConfig { controller_group: GROUP.0.to_owned(), ..place.config.clone() };
    let config_file = place.dir.path().join("config.json");
    fs::write(&config_file, serde_json::to_string(&config).unwrap()).unwrap();
    fs::set_permissions(&config_file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(store(&config, &report("n1")).shared);

    // The other job has no report; SlurmUser does not create a directory for a user.
    let said = as_user(SLURM_USER, GROUP.1, "end", &config_file).unwrap();
    assert_eq!(said, "[Written, NoReport]");
    assert_eq!(place.load().slurm, Some(ended("COMPLETED").slurm));
    assert_eq!(place.load().ended.kind, EndKind::Completed);
    // The state that Slurm still shows takes precedence.
    let shown = SlurmView { state: "TIMEOUT".to_owned(), ..SlurmView::default() };
    let seen = load(&config, &[], Some("alpha"), JOB, Some(OWNER), Some(shown), &|_| None);
    assert_eq!(seen.ended.kind, EndKind::Timeout);

    let find = |uid, numbers| recorded_ends(&config, &[], None, uid, numbers, 10).unwrap();
    for (uid, numbers) in [(Some(OWNER), None), (None, Some((48_200, u32::MAX))), (None, Some((JOB, JOB)))] {
        assert_eq!(find(uid, numbers), [ended("COMPLETED")], "{uid:?} {numbers:?}");
    }
    assert!(find(Some(OTHER), None).is_empty() && find(None, Some((JOB + 1, u32::MAX))).is_empty());

    // The owner can change it, like everything in the report; a file about another job is refused.
    let file = place.job_dir().join("0/slurm-end.json");
    for forged in [SlurmEnd { job: JOB + 1, ..ended("FAILED") }, ended("RUNNING")] {
        fs::write(&file, serde_json::to_string(&forged).unwrap()).unwrap();
        assert!(place.load().slurm.is_none() && find(None, None).is_empty());
        assert!(place.load().problems[0].contains("slurm-end.json: refused"), "{:?}", place.load().problems);
    }
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
    assert!(find(None, None).is_empty());
    assert_eq!(as_user(SLURM_USER, GROUP.1, "end", &config_file).unwrap(), "[Written, NoReport]");
    assert_eq!(find(None, None), [ended("COMPLETED")]);

    // As root, for two users at once, each with its own identity.
    let ends = [(ended("FAILED"), OWNER, OWNER), (SlurmEnd { attempt: 1, ..ended("FAILED") }, OWNER, OWNER)];
    assert_eq!(store_ends(&config, &ends, MINUTE), [Placed::Written, Placed::NoReport]);
    assert_eq!(fs::metadata(&file).unwrap().uid(), OWNER);
    // The owner may have written this file, so only the owner gets it.
    assert_eq!((find(Some(OWNER), None), find(None, None)), (vec![ended("FAILED")], vec![]));
}

pub(crate) fn pages(place: &Place) {
    const NODES: usize = 20;
    for node in 0..NODES {
        let mut part = report(&format!("n{node}"));
        part.faults = vec!["x".repeat(1 << 20)];
        assert!(store(&place.config, &part).shared);
    }
    // A pipe without a writer in place of samples.
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

pub(crate) fn words(place: &Place) {
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
    // A job of another user.
    assert!(load_words(&config, &Asked { uid: OTHER, ..asked(&nodes) }, MINUTE).is_err());
}

/// Sparse files cost their writer nothing: none is opened unless it is named after a node, and then it is
/// refused unread.
pub(crate) fn thousands(place: &Place) {
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

/// Bytes read by ended children of this process.
fn read_by_children() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap();
    let line = io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
    line.parse().unwrap()
}

/// Full files, more than a job of so few nodes may have read: earlier nodes are returned, later ones are named
/// as unknown.
pub(crate) fn too_much(place: &Place) {
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
    // An interactive reader also stops, and reports it.
    let query = Query { cluster: Some("alpha"), job: JOB, known: Some((0, &nodes)), ..Query::default() };
    let parts = load_parts(&[&place.shared()], &query, 8 << 20, MINUTE);
    assert_eq!(parts.nodes.len(), 1);
    let problems = parts.problems.join("\n");
    assert!(problems.contains("could not tell: the parts are larger than allowed together"), "{problems}");
    // Without time all nodes are unknown, none absent.
    let told = load_words(&place.config, &asked(&nodes), Duration::ZERO).unwrap();
    assert_eq!((told.nodes.len(), told.untold_count), (0, 64), "{told:?}");
}

/// A report that would need a hundred times its size in memory.
pub(crate) fn blown_up(place: &Place) {
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
