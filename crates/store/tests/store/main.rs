//! The report store with real identities: another user, SlurmUser, links, pipes and squatters.
//!
//! Cases about identities need root; without it they are skipped by name.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test with a main of its own")]

mod reader;
mod sweep;
mod writer;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use railgate_child::{Outcome, Task, become_user, dispatch, run};
use railgate_model::{Allocation, Job, JobRequest};
use railgate_node_report::{Decision, DecisionKind, NodeReport, SlurmEnd, SlurmView};
use railgate_report::{JobReport, load};
use railgate_store::{
    ReportConfig, Retention, Swept, TASKS, store, store_decision, store_ends, sweep as sweep_store,
};

pub(crate) const OWNER: u32 = 12_001;
pub(crate) const OTHER: u32 = 12_002;

pub(crate) const SLURM_USER: u32 = 12_003;

/// A group that every Debian has, in place of SlurmUser's.
pub(crate) const GROUP: (&str, u32) = ("daemon", 1);

pub(crate) const JOB: u32 = 48_213;
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

type Case = (&'static str, fn(&Place));

const CASES: &[Case] = &[
    ("what is stored is found again, by its owner and by root", writer::stored_and_found),
    ("other users cannot read it", writer::others_cannot_read),
    ("a squatter's directory is refused, the part stays on the node", writer::squatter),
    ("the directory of a cluster that a user made is refused", writer::squatted_cluster),
    ("where root is squashed the owner makes the directory", writer::squashed),
    ("where root is squashed and the directory is SlurmUser's no user squats", writer::accounts_directory),
    ("links, pipes, hard links and foreign files are refused", writer::planted),
    ("a directory open to all without the sticky bit is refused", writer::no_sticky_bit),
    ("a missing or full directory leaves the part on the node", writer::missing_and_full),
    ("SlurmUser reads evidence and adds its decision", reader::controller),
    ("SlurmUser records how Slurm ended jobs, and finds them again", reader::ends),
    ("a directory that root made and had no time to give away is given", writer::half_made),
    ("a heterogeneous job has one report, separate from other jobs", reader::heterogeneous),
    ("that a job began never takes the place of how it ended", writer::begun),
    ("old reports go, links in them are not followed", sweep::swept),
    ("samples go before their report, and what is not ours stays", sweep::only_ours_is_swept),
    ("each user sweeps their own reports, root becomes each owner if it must", sweep::swept_by_owners),
    ("the text of a log is for its owner alone, regardless of the access", reader::log),
    ("with access for the account only its group reads", writer::account),
    ("a large job is read in pages, and its samples are left alone", reader::pages),
    ("what decides comes in short fields and of one attempt", reader::words),
    ("thousands of files of holes are not read", reader::thousands),
    ("data cut by the budget is marked", reader::too_much),
    ("a part takes no more memory than its file", reader::blown_up),
];

pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) config: ReportConfig,
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

    pub(crate) fn shared(&self) -> PathBuf {
        self.config.dir.clone().unwrap()
    }

    pub(crate) fn job_dir(&self) -> PathBuf {
        self.shared().join("alpha").join(JOB.to_string())
    }

    pub(crate) fn load(&self) -> JobReport {
        load(&self.config, &[], Some("alpha"), JOB, Some(OWNER), None, &|_| None)
    }
}

pub(crate) fn report(node: &str) -> NodeReport {
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

pub(crate) fn decision() -> Decision {
    Decision {
        schema: 1,
        cluster: "alpha".to_owned(),
        job: JOB,
        attempt: 0,
        time: 1_800_000_100_000,
        what: DecisionKind::Requeued,
        why: "GPU 3 of n1 was lost".to_owned(),
        state: None,
        request: JobRequest::default(),
        discounted: Vec::new(),
        not_asked: false,
        exit_status: Some(256),
        consent: "auto".to_owned(),
        budget: None,
        nodelist: String::new(),
        nodes: Vec::new(),
        waited_ms: 0,
    }
}

/// The end of the job as Slurm shows it.
pub(crate) fn ended(state: &str) -> SlurmEnd {
    SlurmEnd {
        schema: 1,
        cluster: "alpha".to_owned(),
        job: JOB,
        task: Some((48_200, 3)),
        slurm: SlurmView { state: state.to_owned(), name: Some("train".to_owned()), ..SlurmView::default() },
        ..SlurmEnd::default()
    }
}

/// Runs a task of a test as another user; `what` and `path` select it.
pub(crate) fn as_user(uid: u32, gid: u32, what: &str, path: &Path) -> Result<String, String> {
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
        "load" | "decide" | "end" => {
            let config: ReportConfig = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
            if words[2] == "load" {
                let report = load(&config, &[], Some("alpha"), JOB, Some(OWNER), None, &|_| None);
                format!(
                    "{} nodes, {:?}",
                    report.attempts.iter().map(|a| a.nodes.len()).sum::<usize>(),
                    report.problems
                )
            } else if words[2] == "end" {
                let ends = [
                    (ended("COMPLETED"), OWNER, OWNER),
                    (SlurmEnd { job: 7, ..ended("FAILED") }, OTHER, OTHER),
                ];
                format!("{:?}", store_ends(&config, &ends, MINUTE))
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

pub(crate) fn squashed_root(config: &ReportConfig, part: Option<&NodeReport>) -> String {
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

/// First argument of this program in calls of [`squashed_root`].
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

pub(crate) const DAY: u64 = 86_400_000;

pub(crate) const DEFAULT: Retention = Retention { days: 90, sample_days: 14, jobs: 0 };

pub(crate) fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_millis()).unwrap()
}

pub(crate) fn swept_at(dir: &Path, retention: Retention, now: u64) -> Swept {
    sweep_store(dir, retention, now, Duration::from_secs(20))
}

fn main() -> ExitCode {
    let mut tasks = TASKS.to_vec();
    tasks.push(Task::new("test-as-user", as_user_task));
    if let Some(code) = dispatch(&[&tasks]) {
        return code;
    }
    let words: Vec<String> = std::env::args().collect();
    if let [_, word, file] = words.as_slice()
        && word == SQUASHED
    {
        return squashed_program(file);
    }
    // One at a time, because the tests change state of the whole process.
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
