use std::io::Write;
use std::os::unix::fs::symlink;

use nix::sys::stat::Mode;
use railgate_node_report::LogError;

use super::*;

const ERROR: &str = "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 88, in main\n    step()\n\
                     ValueError: bad sample in shard 17\n";

fn uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn log(path: &Path) -> Wanted {
    let meta = std::fs::symlink_metadata(path).unwrap();
    let id = Some((meta.dev(), meta.ino()));
    Wanted { path: path.to_owned(), id, from: 0, not_before: None, rank: None }
}

fn searched(files: Vec<Wanted>) -> LogFound {
    let order = Order { user: "alice".to_owned(), uid: uid(), gid: 0, ranks: 8, files };
    search(&order, Instant::now() + READING)
}

fn text(found: &LogFound) -> &str {
    found.first.as_ref().map_or("", |first| first.text.as_str())
}

#[test]
fn the_error_is_found_with_its_place_and_log() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("slurm-7.out");
    std::fs::write(&path, format!("step 1\n{ERROR}")).unwrap();
    let found = searched(vec![log(&path)]);
    let first = found.first.unwrap();
    assert_eq!(
        (first.text.as_str(), first.rule.as_str()),
        ("ValueError: bad sample in shard 17", "exception")
    );
    assert_eq!((first.file.as_deref(), first.line, first.log_line), (Some("train.py"), Some(88), 2));
    assert_eq!(first.log, path.to_string_lossy());
    assert_eq!((found.files, found.problems), (1, vec![]));
}

#[test]
fn only_the_users_own_regular_file_that_the_job_wrote_is_read() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    std::fs::write(at("log"), ERROR).unwrap();
    symlink(at("log"), at("link")).unwrap();
    nix::unistd::mkfifo(&at("fifo"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let refused = |file: Wanted| {
        let found = searched(vec![file]);
        assert_eq!((text(&found), found.files), ("", 0));
        found.problems[0].clone()
    };
    assert!(refused(log(&at("link"))).ends_with("refused: a symbolic link"));
    assert!(refused(log(&at("fifo"))).ends_with("refused: not a regular file"));
    assert!(refused(log(place.path())).ends_with("refused: not a regular file"));
    let replaced = log(&at("log"));
    std::fs::write(at("new"), ERROR).unwrap();
    std::fs::rename(at("new"), at("log")).unwrap();
    assert!(refused(replaced).ends_with("refused: another file than the job wrote"));
    let others =
        Order { user: String::new(), uid: uid() + 1, gid: 0, ranks: 1, files: vec![log(&at("log"))] };
    let found = search(&others, Instant::now() + READING);
    assert!(found.first.is_none() && found.problems[0].contains("refused: it belongs to uid"), "{found:?}");
    // What only Slurm named may be a device, or a path of another machine: nothing is known then.
    for path in [at("absent"), PathBuf::from("/dev/null")] {
        let found = searched(vec![Wanted { path, id: None, from: 0, not_before: Some(0), rank: None }]);
        assert_eq!(found, LogFound::default());
    }
    assert!(refused(Wanted { path: at("absent"), ..log(&at("log")) }).contains("No such file"));
}

#[test]
fn of_a_log_of_10_gb_the_end_is_read() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("log");
    let mut file = File::create(&path).unwrap();
    file.write_all(ERROR.as_bytes()).unwrap();
    file.set_len(10 << 30).unwrap();
    let found = searched(vec![log(&path)]);
    assert_eq!((text(&found), found.files), ("", 1));
    let [why] = &found.problems[..] else { panic!("{:?}", found.problems) };
    assert!(why.ends_with(" MiB were searched: they have no first error; one may lie before"), "{why}");
    // An error in the part that is read, with much before it.
    let mut file = File::options().append(true).open(&path).unwrap();
    write!(file, "\nstep 2\n{ERROR}").unwrap();
    let found = searched(vec![log(&path)]);
    assert_eq!(text(&found), "ValueError: bad sample in shard 17");
    assert_eq!(found.first.map(|first| first.log_line), Some(0), "too much lies before to count its lines");
    assert_eq!(found.problems, [""; 0]);
    // Two long logs, of which one has an error behind 12 MiB of lines: half of the 16 MiB are for each.
    let (long, other) = (place.path().join("long"), place.path().join("other"));
    std::fs::write(&long, format!("{}{ERROR}", "x\n".repeat(6 << 20))).unwrap();
    std::fs::write(&other, "x\n".repeat(6 << 20)).unwrap();
    let found = searched(vec![log(&long), log(&other)]);
    assert_eq!(found.first.map(|first| first.log_line), Some((6 << 20) + 1));
    std::fs::write(&long, "x\n".repeat(6 << 20)).unwrap();
    let [why] = &searched(vec![log(&long), log(&other)]).problems[..] else { panic!("one line") };
    assert!(why.contains(" were searched (and only the end of 1 other log): "), "{why}");
    // One in its first lines may not be the first.
    let mut file = File::create(&path).unwrap();
    file.write_all(&b"x\n".repeat(100)).unwrap();
    file.write_all(ERROR.as_bytes()).unwrap();
    let size = file.metadata().unwrap().len();
    let part = tail(&File::open(&path).unwrap(), 0, size, 150, Instant::now() + READING).unwrap();
    assert!(part.cut && part.bytes.len() <= 150);
}

#[test]
fn the_budget_is_for_all_logs_together() {
    let place = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (name, mib) in [("a", 40_usize), ("b", 1), ("c", 40)] {
        let path = place.path().join(name);
        std::fs::write(&path, vec![b'\n'; mib << 20]).unwrap();
        files.push(log(&path));
    }
    let order = Order { user: String::new(), uid: uid(), gid: 0, ranks: 1, files };
    let mut read = 0;
    let (mut left, mut count) = (MOST_BYTES, 3);
    for file in [&order.files[1], &order.files[0], &order.files[2]] {
        let (opened, size) = open(file, uid()).unwrap();
        let part = tail(&opened, 0, size, left / count, Instant::now() + READING).unwrap();
        let length = u64::try_from(part.bytes.len()).unwrap();
        (read, left, count) = (read + length, left - length, count - 1);
    }
    assert!(read <= MOST_BYTES && read > MOST_BYTES / 2, "{read}");
    let late = tail(&File::open(place.path().join("a")).unwrap(), 0, 40 << 20, 1 << 20, Instant::now());
    assert_eq!(late.err().as_deref(), Some("not read within 3s"));
}

#[test]
fn text_of_an_earlier_attempt_is_not_read() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("log");
    let before = ERROR.replace("shard 17", "shard 3");
    std::fs::write(&path, format!("{before}{ERROR}")).unwrap();
    let from = u64::try_from(before.len()).unwrap();
    let found = searched(vec![Wanted { from, ..log(&path) }]);
    assert_eq!(text(&found), "ValueError: bad sample in shard 17");
    assert!(!found.may_lie_before);
    assert_eq!(found.first.map(|first| first.log_line), Some(5), "counted from the start of the file");
    // The program emptied it since.
    std::fs::write(&path, ERROR).unwrap();
    assert_eq!(
        text(&searched(vec![Wanted { from: 1 << 20, ..log(&path) }])),
        "ValueError: bad sample in shard 17"
    );
    // Only Slurm named it, and it is older than the run.
    let now = railgate_runner::now();
    let named = |not_before| Wanted { id: None, not_before: Some(not_before), ..log(&path) };
    assert!(searched(vec![named(now + 60_000)]).problems[0].contains("earlier attempts"));
    assert_eq!(text(&searched(vec![named(now - 60_000)])), "ValueError: bad sample in shard 17");
}

fn report() -> NodeReport {
    let job = r#"{"id":7,"uid":1000,"gid":1000,"user":"ann","het_leader":null,"partition":"gpu","nodelist":"n[1-2]",
        "restarts":0,"allocation":"no-gpus"}"#;
    NodeReport::new("alpha", "n1", serde_json::from_str(job).unwrap(), 0, 1_700_000_000_000)
}

#[test]
fn a_node_reads_its_own_logs_and_the_first_node_the_shared_one() {
    let file = |name: &str, rank: Option<u32>, task: Option<u32>| JobOutput {
        path: format!("/home/ann/{name}"),
        device: 1,
        inode: name.len() as u64,
        size: 40,
        created: Some(1_700_000_000_500),
        rank,
        task,
    };
    let files =
        vec![file("slurm-7.out", None, None), file("r8", Some(8), Some(1)), file("task1", None, Some(1))];
    let outputs = JobOutputs { files, ranks: vec![8, 9], ..JobOutputs::default() };
    let env = |pairs: &[(&str, &str)]| -> Env {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    };
    let names = |env: &Env, is_first: bool| -> Vec<String> {
        let all = wanted(Some(&outputs), env, &report(), is_first);
        all.iter().map(|file| file.path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names(&Env::new(), true), ["slurm-7.out", "r8", "task1"]);
    assert_eq!(names(&Env::new(), false), ["r8", "task1"]);
    // One task of this node writes into the script's own file.
    let shared = env(&[("SLURM_JOB_STDOUT", "task1"), ("SLURM_JOB_WORK_DIR", "/home/ann")]);
    assert_eq!(names(&shared, false), ["r8"]);

    // Where the sampler saw nothing, Slurm's own words count, on the first node.
    let unseen = |pairs: &[(&str, &str)], is_first| wanted(None, &env(pairs), &report(), is_first);
    let said = [("SLURM_JOB_STDOUT", "out/%u-%j.log"), ("SLURM_JOB_WORK_DIR", "/home/ann")];
    assert_eq!(unseen(&said, true)[0].path, Path::new("/home/ann/out/ann-7.log"));
    assert_eq!(unseen(&said, false), []);
    for unknown in [
        &[("SLURM_JOB_STDOUT", "/home/ann/%x.log")][..],
        &[("SLURM_JOB_STDOUT", "a.log")],
        &[("SLURM_JOB_STDOUT", "a.log"), ("SLURM_JOB_WORK_DIR", "home")],
        &[],
    ] {
        assert_eq!(unseen(unknown, true), [], "{unknown:?}");
    }
}

#[test]
fn a_file_that_was_there_before_is_read_from_where_the_run_began() {
    let file = |created| JobOutput {
        path: "/log".to_owned(),
        device: 1,
        inode: 2,
        size: 40,
        created,
        rank: None,
        task: None,
    };
    let first = report();
    assert_eq!(from(&file(Some(first.start + 100)), &first), 0);
    assert_eq!(from(&file(Some(first.start - 60_000)), &first), 40);
    assert_eq!(from(&file(None), &first), 0);
    let second = NodeReport { attempt: 1, ..report() };
    assert_eq!(from(&file(None), &second), 40);
}

#[test]
fn an_answer_beyond_its_limits_is_refused_and_made_printable() {
    let mut large = serde_json::to_vec(&LogFound::default()).unwrap();
    assert!(understood(&large).is_ok());
    large.resize(MOST_REPLY + 1, b' ');
    assert!(understood(&large).is_err());
    let first = LogError { rule: "no-such".to_owned(), ..LogError::default() };
    let reply = |first| serde_json::to_vec(&LogFound { first: Some(first), ..LogFound::default() }).unwrap();
    assert!(understood(&reply(first)).is_err());
    let first = LogError {
        rule: "exception".to_owned(),
        text: format!("a\u{1b}[2J{}", "x".repeat(5_000)),
        ..LogError::default()
    };
    let text = understood(&reply(first)).unwrap().first.unwrap().text;
    assert!(text.chars().count() <= TEXT && !text.contains('\u{1b}'), "{text}");
}
