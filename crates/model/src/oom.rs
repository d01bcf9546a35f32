//! Processes that the kernel killed for lack of memory, and their jobs.
//!
//! Two consecutive records name a victim (`mm/oom_kill.c` and `mm/memcontrol.c` of 5.10, 5.15, 6.1 and 6.12):
//!
//! ```text
//! oom-kill:constraint=…,cpuset=NAME,mems_allowed=…,oom_memcg=PATH,task_memcg=PATH,task=NAME,pid=4711,uid=1000
//! Memory cgroup out of memory: Killed process 4711 (NAME) total-vm:…, UID:1000 pgtables:… oom_score_adj:0
//! ```
//!
//! If the whole node lacked memory, the first record has `global_oom` in place of `oom_memcg`, and the second one
//! starts with `Out of memory`. Older kernels log `Kill process 4711 (NAME) score …`, without a user. With
//! `memory.oom.group` (Slurm with cgroup v2), further processes of the same group follow, each with only the second
//! record.
//!
//! The user chooses the process name (15 bytes) and the names of cgroups below that of the job. Such text can imitate
//! any field, so values are only taken from positions that the user cannot control: the user id after the last `uid=`,
//! the job directly after Slurm's prefix of the path. If the path is ambiguous, the kill is attributed to no job.

use crate::slurm_cgroup::job_of_path;
use crate::{Job, KernelLine, UnixMillis};

/// Maximum time between the records of one kill. They are logged at once, but a busy serial console can delay them.
const SAME_KILL_MS: u64 = 5_000;

/// A process that the kernel killed for lack of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomKill {
    /// Time of the first record.
    pub time: UnixMillis,
    /// Process id.
    pub pid: u32,
    /// User id.
    pub uid: Option<u32>,
    /// The cgroup in which it ran.
    pub place: OomPlace,
    /// The memory that was exhausted.
    pub limit: OomLimit,
    /// Sequence numbers of its records.
    pub seqs: Vec<u64>,
}

/// The cgroup of a killed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomPlace {
    /// That of a job.
    Job(u32),
    /// A login session or a service, so no job.
    Login,
    /// No record names a cgroup, or Slurm does not create cgroups for jobs.
    Unknown,
}

/// The memory that was exhausted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OomLimit {
    /// The limit of the job's cgroup, or of one below it.
    Job,
    /// The limit of a cgroup that no record names, or that contains several jobs.
    Group,
    /// The memory of the node, or of the NUMA nodes that the process may use.
    Node,
}

impl OomKill {
    /// Returns whether the process belonged to the job. Without a job in the records the user id decides; without both,
    /// it did not.
    #[must_use]
    pub fn is_of(&self, job: &Job) -> bool {
        match self.place {
            OomPlace::Job(id) => id == job.id,
            OomPlace::Login => false,
            OomPlace::Unknown => self.uid == Some(job.uid),
        }
    }
}

/// Returns whether a record reports such a kill.
#[must_use]
pub fn is_oom(text: &str) -> bool {
    ["oom-kill:", GROUP, NODE].iter().any(|begin| text.starts_with(begin))
}

/// Returns the kills in these records, in order.
#[must_use]
pub fn oom_kills(lines: &[KernelLine]) -> Vec<OomKill> {
    let mut kills: Vec<OomKill> = Vec::new();
    for line in lines {
        let Some(told) = parse(&line.text) else { continue };
        let soon = |kill: &&mut OomKill| line.time.abs_diff(kill.time) <= SAME_KILL_MS;
        let same = |kill: &&mut OomKill| kill.pid == told.pid && (kill.uid == told.uid || told.uid.is_none());
        if !told.summary
            && let Some(kill) = kills.iter_mut().rev().take_while(soon).find(same)
        {
            kill.seqs.push(line.seq);
            continue;
        }
        // The other processes of a group are killed directly after the one that the first record names.
        let group = || kills.last().filter(|kill| line.time.abs_diff(kill.time) <= SAME_KILL_MS);
        let of_a_group = told.limit != OomLimit::Node && !told.summary;
        let (place, limit) = match group() {
            Some(kill) if of_a_group && kill.uid == told.uid => (kill.place, kill.limit),
            _ => (told.place, told.limit),
        };
        let Told { pid, uid, .. } = told;
        kills.push(OomKill { time: line.time, pid, uid, place, limit, seqs: vec![line.seq] });
    }
    kills
}

const GROUP: &str = "Memory cgroup out of memory: ";
const NODE: &str = "Out of memory: ";

struct Told {
    pid: u32,
    uid: Option<u32>,
    place: OomPlace,
    /// Whether it is the record with the path.
    summary: bool,
    limit: OomLimit,
}

fn parse(text: &str) -> Option<Told> {
    if let Some(fields) = text.strip_prefix("oom-kill:constraint=") {
        return summary(fields);
    }
    let (limit, rest) = match text.strip_prefix(GROUP) {
        Some(rest) => (OomLimit::Group, rest),
        None => (OomLimit::Node, text.strip_prefix(NODE)?),
    };
    let rest = rest.strip_prefix("Killed process ").or_else(|| rest.strip_prefix("Kill process "))?;
    let (pid, rest) = number(rest)?;
    let rest = rest.strip_prefix(" (")?;
    // The last one is the kernel's, since the process name precedes it.
    let uid = rest.rsplit_once(", UID:").and_then(|(_, rest)| number(rest)).and_then(|(uid, rest)| {
        (rest.is_empty() || rest.starts_with(" pgtables:") || rest.starts_with(" oom_score_adj:"))
            .then_some(uid)
    });
    Some(Told { pid, uid, place: OomPlace::Unknown, summary: false, limit })
}

/// Parses `CONSTRAINT_MEMCG,…,oom_memcg=PATH,task_memcg=PATH,task=NAME,pid=N,uid=N`.
fn summary(fields: &str) -> Option<Told> {
    let (rest, uid) = fields.rsplit_once(",uid=")?;
    let (rest, pid) = rest.rsplit_once(",pid=")?;
    let whole = |text: &str| number(text).filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value);
    let (pid, uid) = (whole(pid)?, whole(uid)?);
    let place = match once(rest, ",task_memcg=").and_then(|(_, path)| Some(path.rsplit_once(",task=")?.0)) {
        Some(path) if path.starts_with("/user.slice/") => OomPlace::Login,
        Some(path) if path.starts_with('/') => job_of_path(path).map_or(OomPlace::Unknown, OomPlace::Job),
        _ => OomPlace::Unknown,
    };
    let limit = if fields.starts_with("CONSTRAINT_MEMCG,") {
        let path = once(rest, ",oom_memcg=").and_then(|(_, paths)| once(paths, ",task_memcg="));
        let of_a_job = path.is_some_and(|(path, _)| path.starts_with('/') && job_of_path(path).is_some());
        if of_a_job { OomLimit::Job } else { OomLimit::Group }
    } else {
        OomLimit::Node
    };
    Some(Told { pid, uid: Some(uid), place, summary: true, limit })
}

/// Splits at a text that occurs exactly once. If it occurs twice, one of them was chosen by a user.
fn once<'a>(text: &'a str, words: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(words).filter(|(_, rest)| !rest.contains(words))
}

fn number(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at_checked(digits)?;
    Some((digits.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Allocation;

    fn kills(texts: &[&str]) -> Vec<(u32, Option<u32>, OomPlace, usize)> {
        let lines: Vec<KernelLine> = (0..)
            .zip(texts)
            .map(|(seq, text)| KernelLine { seq, time: 1000, level: 3, text: (*text).to_owned() })
            .collect();
        let short = |kill: OomKill| (kill.pid, kill.uid, kill.place, kill.seqs.len());
        oom_kills(&lines).into_iter().map(short).collect()
    }

    fn summary_of(path: &str, name: &str) -> String {
        format!(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg={path},\
             task_memcg={path},task={name},pid=4711,uid=1000"
        )
    }

    const KILLED: &str = "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:4194304kB, \
                          anon-rss:1048576kB, file-rss:9216kB, shmem-rss:0kB, UID:1000 pgtables:4096kB \
                          oom_score_adj:0";

    #[test]
    fn both_cgroup_layouts_name_the_job() {
        for path in [
            "/slurm/uid_1000/job_48213/step_0",
            "/slurm_n2/uid_1000/job_48213/step_batch/task_0",
            "/system.slice/slurmstepd.scope/job_48213/step_0/user/task_0",
            "/system.slice/n2_slurmstepd.scope/job_48213/step_extern/user/task_special",
        ] {
            let found = kills(&[&summary_of(path, "python3"), KILLED]);
            assert_eq!(found, [(4711, Some(1000), OomPlace::Job(48_213), 2)], "{path}");
        }
    }

    #[test]
    fn every_known_wording_is_parsed() {
        let unknown = |uid| (4711, uid, OomPlace::Unknown, 1);
        for (text, want) in [
            (KILLED, unknown(Some(1000))),
            (
                "Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB, file-rss:0kB, \
                 shmem-rss:0kB, UID:1000 pgtables:4kB oom_score_adj:0",
                unknown(Some(1000)),
            ),
            (
                "Memory cgroup out of memory: Killed process 4711 (python3) total-vm:1kB, shmem-rss:0kB, UID:1000",
                unknown(Some(1000)),
            ),
            ("Out of memory: Kill process 4711 (python3) score 961 or sacrifice child", unknown(None)),
            (
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,\
                 task_memcg=/slurm/uid_1000/job_7/step_0,task=python3,pid=4711,uid=1000",
                (4711, Some(1000), OomPlace::Job(7), 1),
            ),
            (
                &summary_of("/user.slice/user-1000.slice/session-2.scope", "vi"),
                (4711, Some(1000), OomPlace::Login, 1),
            ),
            (&summary_of("/system.slice/slurmd.service", "a.out"), unknown(Some(1000))),
        ] {
            assert_eq!(kills(&[text]), [want], "{text}");
        }
    }

    #[test]
    fn text_chosen_by_a_user_sets_neither_user_nor_job() {
        let own = "/slurm/uid_1000/job_5/step_0";
        for name in [",pid=1,uid=0", "x,uid=0", ",task=y", ")", ",task=a,pid=1"] {
            assert_eq!(kills(&[&summary_of(own, name)]), [(4711, Some(1000), OomPlace::Job(5), 1)], "{name}");
        }
        for path in [
            "/slurm/uid_1000/job_5/step_0/job_9",
            "/slurm/uid_1000/job_5/step_0/slurm_x/uid_0/job_9",
            "/slurm/uid_1000/job_5/x,pid=1,uid=0",
        ] {
            assert_eq!(kills(&[&summary_of(path, "a")])[0].2, OomPlace::Job(5), "{path}");
        }
        // The name of a cgroup imitates the field, so the kernel's own field cannot be identified.
        let repeated = "/slurm/uid_1000/job_5/x,task_memcg=/slurm/uid_0/job_9";
        assert_eq!(kills(&[&summary_of(repeated, "a")]), [(4711, Some(1000), OomPlace::Unknown, 1)]);
        for name in [") UID:0 (", "a, UID:0", "), UID:0 x:("] {
            let text = KILLED.replace("python3", name);
            assert_eq!(kills(&[&text]), [(4711, Some(1000), OomPlace::Unknown, 1)], "{name}");
        }
        for no_kill in [
            "oom-kill:constraint=CONSTRAINT_MEMCG,task=a,pid=4711,uid=",
            "oom-kill:constraint=CONSTRAINT_MEMCG,task=a,pid=x,uid=1",
            "Out of memory: Killed process (python3)",
            "Out of memory and swap",
            "x oom-kill:constraint=CONSTRAINT_MEMCG,task=a,pid=1,uid=1",
        ] {
            assert_eq!(kills(&[no_kill]), [], "{no_kill}");
        }
        // Without a complete last field the user is unknown.
        assert_eq!(kills(&["Out of memory: Killed process 4711 (a, UID:0)"])[0].1, None);
    }

    /// With `memory.oom.group` there is one record with the path, then one record for each process.
    #[test]
    fn processes_of_a_group_share_the_job_of_the_first() {
        let second = KILLED.replace("4711", "4712");
        let foreign = KILLED.replace("4711", "4713").replace("UID:1000", "UID:1001");
        let found = kills(&[&summary_of("/slurm/uid_1000/job_5/step_0", "a"), KILLED, &second, &foreign]);
        let want = [
            (4711, Some(1000), OomPlace::Job(5), 2),
            (4712, Some(1000), OomPlace::Job(5), 1),
            (4713, Some(1001), OomPlace::Unknown, 1),
        ];
        assert_eq!(found, want);
    }

    #[test]
    fn only_kills_of_the_jobs_processes_belong_to_it() {
        let job = Job {
            id: 5,
            uid: 1000,
            gid: 1000,
            user: String::new(),
            restarts: 0,
            nodelist: String::new(),
            het_leader: None,
            allocation: Allocation::NoGpus,
            partition: String::new(),
        };
        let own = |uid, place| {
            OomKill { time: 0, pid: 1, uid, place, limit: OomLimit::Job, seqs: vec![] }.is_of(&job)
        };
        // The user id in a container differs, but its cgroup is that of the job.
        assert!(own(Some(100_000), OomPlace::Job(5)) && own(Some(1000), OomPlace::Unknown));
        assert!(!own(Some(1000), OomPlace::Job(6)) && !own(Some(1000), OomPlace::Login));
        assert!(!own(Some(1001), OomPlace::Unknown) && !own(None, OomPlace::Unknown));
    }

    #[test]
    fn the_records_determine_the_exhausted_limit() {
        let limits = |texts: &[&str]| -> Vec<OomLimit> {
            let line = |(seq, text): (u64, &&str)| KernelLine {
                seq,
                time: 1000,
                level: 3,
                text: (*text).to_owned(),
            };
            oom_kills(&(0..).zip(texts).map(line).collect::<Vec<_>>())
                .into_iter()
                .map(|kill| kill.limit)
                .collect()
        };
        let own = "/slurm/uid_1000/job_7/step_0";
        let of = |what: &str| format!("oom-kill:constraint={what},task_memcg={own},task=a,pid=4711,uid=1000");
        let second = KILLED.replace("4711", "4712");
        for (texts, wants) in [
            (vec![summary_of(own, "a").as_str(), KILLED, &second], vec![OomLimit::Job, OomLimit::Job]),
            (
                vec![&of("CONSTRAINT_MEMCG,cpuset=/,mems_allowed=0,oom_memcg=/slurm/uid_1000/job_7"), KILLED],
                vec![OomLimit::Job],
            ),
            // The cgroup of all Slurm jobs, or of all jobs of a user.
            (
                vec![&of("CONSTRAINT_MEMCG,cpuset=/,mems_allowed=0,oom_memcg=/slurm/uid_1000")],
                vec![OomLimit::Group],
            ),
            (
                vec![&of(
                    "CONSTRAINT_MEMCG,cpuset=x,oom_memcg=/slurm/uid_1/job_7,mems_allowed=0,oom_memcg=/",
                )],
                vec![OomLimit::Group],
            ),
            (vec![KILLED], vec![OomLimit::Group]),
            (vec![&of("CONSTRAINT_NONE,cpuset=/,mems_allowed=0,global_oom")], vec![OomLimit::Node]),
            (vec![&of("CONSTRAINT_CPUSET,cpuset=/,mems_allowed=0")], vec![OomLimit::Node]),
            (
                vec!["Out of memory: Kill process 4711 (python3) score 961 or sacrifice child"],
                vec![OomLimit::Node],
            ),
        ] {
            assert_eq!(limits(&texts), wants, "{texts:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "(oom-kill:constraint=|Out of memory: Killed process )?.{0,60}(,pid=|,uid=|, UID:)?.{0,9}") {
            let _ = kills(&[&text]);
        }
    }
}
