//! Watches the file systems of `[fleet.storage]`: whether each is mounted, answers in time, and has room.
//!
//! A file system is asked in a child process, since its server may not answer. One that is stuck in the kernel is asked again after a
//! longer pause, so that such children do not accumulate; until then its last condition holds.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::statvfs::statvfs;
use railgate_alerts::{Condition, Priority};
use railgate_child::{Call, Ended, Outcome, Task, run_all};
use railgate_runner::StorageConfig;
use railgate_text::Printable;
use serde::{Deserialize, Serialize};

/// Runs in a child.
pub(crate) const TASK: Task = Task::new(NAME, task);
const NAME: &str = "fleet-storage";
/// A file system that is stuck in the kernel is asked again after this time.
const STUCK_PAUSE: Duration = Duration::from_secs(900);
/// From this share of used space or inodes on, writes fail soon, percent.
const FULL: f64 = 99.0;
/// An alert about space ends this far below its limit, percent: a file system at the limit does not begin and end one every minute.
const BELOW: f64 = 1.0;
const TIB: f64 = (1u64 << 40) as f64;

/// What a file system answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Space {
    /// Used space that is not reserved for root, percent.
    used: f64,
    /// Its size, TiB.
    size: f64,
    /// Used inodes, percent; zero if it does not count them.
    inodes: f64,
    /// It is the file system of `/`: another one is not mounted.
    is_root: bool,
}

/// What is wrong with a file system, the gravest first.
#[derive(Clone, Debug, PartialEq)]
enum Trouble {
    Silent,
    NotMounted,
    Unknown(String),
    Full { space: Space, most: u8 },
    Slow { took: Duration, most: Duration },
}

/// One file system between two readings.
#[derive(Debug, Default)]
struct Watched {
    trouble: Vec<Trouble>,
    /// The last answer was slow.
    was_slow: bool,
    not_before: Option<Instant>,
}

/// The watched file systems.
#[derive(Debug, Default)]
pub(crate) struct Storage(BTreeMap<String, Watched>);

impl Storage {
    /// Asks all file systems at once, and returns their conditions. Takes as long as the slowest one, and no longer than
    /// [`StorageConfig::DEADLINE`] and the time to end a child.
    pub(crate) fn conditions(&mut self, config: &BTreeMap<String, StorageConfig>) -> Vec<Condition> {
        let now = Instant::now();
        let due: Vec<(&String, &StorageConfig)> = config
            .iter()
            .filter(|(name, _)| {
                self.0.get(*name).and_then(|one| one.not_before).is_none_or(|time| now >= time)
            })
            .collect();
        let call = |(_, one): &(&String, &StorageConfig)| Call {
            task: NAME.to_owned(),
            input: serde_json::to_vec(&one.path).unwrap_or_default(),
            deadline: StorageConfig::DEADLINE,
        };
        let answers = run_all(due.iter().map(call).collect());
        for ((name, one), answer) in due.into_iter().zip(answers) {
            self.0.entry(name.clone()).or_default().judge(one, &answer);
        }
        let of = |(name, one): (&String, &StorageConfig)| {
            let trouble = self.0.get(name).map(|one| one.trouble.clone()).unwrap_or_default();
            trouble.into_iter().map(|what| what.condition(name, &one.path)).collect::<Vec<_>>()
        };
        config.iter().flat_map(of).collect()
    }
}

impl Watched {
    fn judge(&mut self, config: &StorageConfig, answer: &Ended) {
        let was_full = self.trouble.iter().any(|one| matches!(one, Trouble::Full { .. }));
        self.not_before = None;
        self.trouble = match &answer.outcome {
            Outcome::Silent => vec![Trouble::Silent],
            Outcome::Stuck => {
                self.not_before = Some(Instant::now() + STUCK_PAUSE);
                vec![Trouble::Silent]
            }
            Outcome::Failed(why) => vec![Trouble::Unknown(why.clone())],
            Outcome::Done(reply) => match serde_json::from_slice::<Space>(reply) {
                Err(why) => vec![Trouble::Unknown(why.to_string())],
                Ok(Space { is_root: true, .. }) => vec![Trouble::NotMounted],
                Ok(space) => {
                    let begins = f64::from(config.full) - if was_full { BELOW } else { 0.0 };
                    let full = (space.used.max(space.inodes) >= begins)
                        .then_some(Trouble::Full { space, most: config.full });
                    let is_slow = answer.took > config.slow;
                    let slow = (is_slow && self.was_slow)
                        .then_some(Trouble::Slow { took: answer.took, most: config.slow });
                    self.was_slow = is_slow;
                    full.into_iter().chain(slow).collect()
                }
            },
        };
    }
}

impl Trouble {
    fn condition(self, name: &str, path: &Path) -> Condition {
        let path = Printable(path.display());
        let seconds = |time: Duration| time.as_secs_f64();
        let deadline = seconds(StorageConfig::DEADLINE);
        let (what, priority, title, details) = match self {
            Trouble::Silent => (
                "silent",
                Priority::P0,
                format!("file system {name} does not answer"),
                format!(
                    "{path} gave no answer in {deadline:.0} s on this host. Other hosts may have an answer."
                ),
            ),
            Trouble::NotMounted => (
                "not-mounted",
                Priority::P1,
                format!("file system {name} is not mounted on the host of railgate-fleet"),
                format!("{path} is on the file system of /. Nodes may have it."),
            ),
            Trouble::Unknown(why) => (
                "unknown",
                Priority::P1,
                format!("could not tell whether file system {name} has room"),
                format!("{path}: {why}"),
            ),
            Trouble::Full { space, most } => {
                let is_full = space.used.max(space.inodes) >= FULL;
                (
                    "full",
                    if is_full { Priority::P0 } else { Priority::P1 },
                    format!(
                        "file system {name} is {}",
                        if is_full { "full".to_owned() } else { format!("more than {most} % full") }
                    ),
                    format!(
                        "{path}: {:.1} % of {:.1} TiB used; {:.1} % of inodes used.",
                        space.used, space.size, space.inodes
                    ),
                )
            }
            Trouble::Slow { took, most } => (
                "slow",
                Priority::P1,
                format!("file system {name} answers slowly"),
                format!(
                    "{path} answered after {:.1} s, the second time in a row above {:.1} s.",
                    seconds(took),
                    seconds(most)
                ),
            ),
        };
        Condition {
            key: format!("storage/{name}/{what}"),
            priority,
            title,
            details,
            check: None,
            nodes: BTreeMap::new(),
            since: None,
        }
    }
}

/// Asks for space and inodes, and for the names in the directory: an answer about space alone can come from a cache of the client.
fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let path: PathBuf = serde_json::from_slice(input).map_err(|why| why.to_string())?;
    let device = |path: &Path| std::fs::metadata(path).map(|one| one.dev()).map_err(|why| why.to_string());
    let is_root = device(&path)? == device(Path::new("/"))?;
    let all = statvfs(&path).map_err(|why| why.desc().to_owned())?;
    std::fs::read_dir(&path)
        .map_err(|why| why.to_string())?
        .next()
        .transpose()
        .map_err(|why| why.to_string())?;
    let share = |used: u64, of: u64| if of == 0 { 0.0 } else { used as f64 / of as f64 * 100.0 };
    let used = all.blocks().saturating_sub(all.blocks_free());
    let inodes = all.files().saturating_sub(all.files_free());
    let space = Space {
        // As df: of what users can write.
        used: share(used, used + all.blocks_available()),
        size: all.blocks() as f64 * all.fragment_size() as f64 / TIB,
        inodes: share(inodes, all.files()),
        is_root,
    };
    serde_json::to_vec(&space).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> StorageConfig {
        StorageConfig { path: PathBuf::from("/scratch"), full: 90, slow: Duration::from_secs(2) }
    }

    fn answer(used: f64, inodes: f64, took: f64) -> Ended {
        let space = Space { used, size: 1200.0, inodes, is_root: false };
        Ended {
            outcome: Outcome::Done(serde_json::to_vec(&space).unwrap()),
            took: Duration::from_secs_f64(took),
        }
    }

    /// Keys and priorities after each of these answers.
    fn after(answers: &[Ended]) -> Vec<String> {
        let mut watched = Watched::default();
        let one = |answer: &Ended| {
            watched.judge(&config(), answer);
            let found =
                watched.trouble.iter().cloned().map(|one| one.condition("scratch", Path::new("/scratch")));
            let found = found
                .map(|one| format!("{} {}", one.priority, one.key.trim_start_matches("storage/scratch/")));
            found.collect::<Vec<_>>().join(", ")
        };
        answers.iter().map(one).collect()
    }

    #[test]
    fn room_and_time_have_limits() {
        let fast = 0.05;
        let full = [
            answer(89.9, 5.0, fast),
            answer(90.0, 5.0, fast),
            answer(89.2, 5.0, fast),
            answer(88.9, 5.0, fast),
        ];
        assert_eq!(after(&full), ["", "P1 full", "P1 full", ""], "one percent below the limit it ends");
        assert_eq!(after(&[answer(10.0, 99.5, fast)]), ["P0 full"], "no inodes");
        let slow =
            [answer(1.0, 1.0, 3.0), answer(1.0, 1.0, 3.0), answer(1.0, 1.0, fast), answer(1.0, 1.0, 3.0)];
        assert_eq!(after(&slow), ["", "P1 slow", "", ""], "one slow answer is none");
        let all = [answer(95.0, 1.0, 3.0), answer(95.0, 1.0, 3.0)];
        assert_eq!(after(&all), ["P1 full", "P1 full, P1 slow"]);
    }

    #[test]
    fn no_answer_is_not_an_empty_file_system() {
        let ended = |outcome: Outcome| Ended { outcome, took: StorageConfig::DEADLINE };
        let root = Space { is_root: true, used: 95.0, ..Space::default() };
        let answers = [
            ended(Outcome::Silent),
            ended(Outcome::Failed("Permission denied".to_owned())),
            ended(Outcome::Done(b"{}".to_vec())),
            ended(Outcome::Done(serde_json::to_vec(&root).unwrap())),
        ];
        assert_eq!(after(&answers), ["P0 silent", "P1 unknown", "P1 unknown", "P1 not-mounted"]);
        let mut watched = Watched::default();
        watched.judge(&config(), &ended(Outcome::Stuck));
        assert!(watched.not_before.is_some() && watched.trouble == [Trouble::Silent]);
    }

    #[test]
    fn a_real_file_system_is_read() {
        let space: Space = serde_json::from_slice(&task(br#""/proc""#).unwrap()).unwrap();
        assert!(!space.is_root && space.used == 0.0, "{space:?}");
        let root: Space = serde_json::from_slice(&task(br#""/""#).unwrap()).unwrap();
        assert!(root.is_root && root.size > 0.0 && root.used > 0.0, "{root:?}");
        assert!(task(br#""/no/such""#).unwrap_err().contains("No such file"));
    }
}
