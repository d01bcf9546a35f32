use railgate_model::{ProcessExit, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::GpuError;
use crate::comm::numbered;
use crate::gpu_errors::bound_errors;

/// Most hangs that are kept: the first ones.
const MOST: usize = 16;
/// Most ranks that are named as the cause; if there are more, no single one is.
const MOST_CULPRITS: usize = 16;
/// Most signs of a hang, and the longest one, bytes.
const MOST_SIGNS: usize = 8;
const MOST_SIGN: usize = 240;
/// Most ports that are listed.
const MOST_PORTS: usize = 8;
/// Longest name of an operation, a communicator or a function of the kernel.
pub(crate) const MOST_NAME: usize = 64;

/// Times in which ranks of this node waited for another one that did not come, as the guard found them while the job ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hangs {
    /// In time order; the first ones.
    pub list: Vec<Hang>,
    /// How many more there were.
    #[serde(skip_serializing_if = "crate::plain::is_zero")]
    pub more: u32,
}

/// One such time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hang {
    /// What it is.
    pub kind: HangKind,
    /// Since when no rank of this node has made progress, or since the end of the rank's process.
    pub since: UnixMillis,
    /// When the guard named it.
    pub named: UnixMillis,
    /// When GPUs worked again, or ranks made progress; `None`: not before the end of the samples.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<UnixMillis>,
    /// Ranks that the others wait for; empty if unknown.
    #[serde(default)]
    pub culprits: Vec<Culprit>,
    /// GPUs of the node that wait.
    #[serde(default)]
    pub waiting_gpus: u32,
    /// What the waiting ranks had enqueued last, by NCCL's profiler plugin; `None` if not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<WaitedIn>,
    /// What it was concluded from, one sentence each.
    #[serde(default)]
    pub signs: Vec<String>,
    /// Ports of the job's rails that are not active, `mlx5_2:1 is DOWN`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports_down: Vec<String>,
    /// Errors of the job's GPUs from two minutes before `since` on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpu_errors: Vec<GpuError>,
    /// What the guard did about it; `None`: nothing but naming it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<HangAct>,
}

/// What the guard did about a hang. Written before the steps are ended, and again with the outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HangAct {
    /// When.
    pub time: UnixMillis,
    /// Kind of act.
    pub what: HangActKind,
    /// Whose wish it was; of steps that were not ended, why.
    pub why: String,
}

/// Kinds of [`HangAct`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HangActKind {
    /// The steps of the job were ended, or are about to be.
    Ended,
    /// They were to be ended, and were not.
    NotEnded,
}

impl HangAct {
    /// What was done: `the guard ended the job's steps (--railgate-hang=end)`.
    pub fn sentence(&self) -> String {
        match self.what {
            HangActKind::Ended => format!("the guard ended the job's steps ({})", self.why),
            HangActKind::NotEnded => format!("the guard did not end the job's steps: {}", self.why),
        }
    }
}

/// What keeps the ranks waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HangKind {
    /// A rank's process has ended while others wait: proof by itself.
    Gone,
    /// A rank's process is stopped (SIGSTOP).
    Stopped,
    /// A rank has enqueued fewer operations than the others, does not compute and transfers no data.
    Behind,
    /// All ranks of the job wait, and none is behind: operations in different order or of different size, or a broken link.
    AllWait,
    /// Ranks wait in different operations, none of which can end.
    Order,
    /// A rank has enqueued fewer operations than the others and waits for its own GPU.
    OwnGpu,
    /// A rank waits in the kernel, for a device or for memory.
    Blocked,
    /// The driver reported an error of a GPU of the job, and other GPUs wait.
    GpuError,
    /// A rank waits for a file system. Becomes a hang only after a long time: storage recovers.
    Storage,
}

impl HangKind {
    /// Its name in JSON and metrics.
    pub fn id(self) -> &'static str {
        match self {
            HangKind::Gone => "gone",
            HangKind::Stopped => "stopped",
            HangKind::Behind => "behind",
            HangKind::AllWait => "all-wait",
            HangKind::Order => "order",
            HangKind::OwnGpu => "own-gpu",
            HangKind::Blocked => "blocked",
            HangKind::GpuError => "gpu-error",
            HangKind::Storage => "storage",
        }
    }

    /// Whether it is called a hang. A wait for storage is only named.
    pub fn is_hang(self) -> bool {
        self != HangKind::Storage
    }

    /// What to do.
    pub fn advice(self) -> &'static str {
        match self {
            HangKind::Stopped => {
                "find out who stopped the process: a debugger, `kill -STOP`, or a program that watches resources"
            }
            HangKind::Blocked => "check the file system or the device that the rank waits for",
            HangKind::Storage => "look at the file server first; the job continues if it answers",
            HangKind::Order => "compare the stacks of the ranks: they call collectives in different order",
            HangKind::OwnGpu => {
                "look in that rank's stack for the kernel that it started last; a collective that only this rank has called \
                 looks the same"
            }
            HangKind::GpuError => {
                "look for a CUDA error in the log of the rank on that GPU: the usual cause is the program"
            }
            HangKind::AllWait => {
                "check that all ranks call the same collectives in the same order, with equal sizes"
            }
            HangKind::Gone => {
                "read in that rank's log why its process ended: with exit code 0 the program itself left"
            }
            HangKind::Behind => "check that rank's log and stack",
        }
    }
}

/// A rank that the others wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Culprit {
    /// `RANK` of a launcher, else `SLURM_PROCID`.
    pub rank: u32,
    /// Its node, if that is another one than the node that found the hang.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Process id of its program on the node; 0 if not known.
    pub pid: u32,
    /// How the process ended; `None` if it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<ProcessExit>,
    /// State of its main thread, as in `/proc/PID/stat`: `S`, `D`, `T`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<char>,
    /// Function of the kernel in which its main thread waits (`/proc/PID/wchan`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
}

/// The operation that ranks wait in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitedIn {
    /// [`crate::comm::Communicator::hash`].
    pub communicator: String,
    /// Name: `AllReduce`.
    pub op: String,
    /// Its number among operations of the same name; `None` if not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
}

/// Keeps a list of ports within its limits.
pub(crate) fn bound_ports(ports: &mut Vec<String>) {
    ports.truncate(MOST_PORTS);
    ports.iter_mut().for_each(|port| port.truncate(port.floor_char_boundary(MOST_SIGN)));
}

impl Hangs {
    /// Adds a hang that begins.
    pub fn add(&mut self, hang: Hang) {
        if self.list.len() < MOST {
            self.list.push(hang.bounded());
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// The hang that has not ended.
    pub fn open(&mut self) -> Option<&mut Hang> {
        self.list.last_mut().filter(|hang| hang.over.is_none())
    }

    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The same within the limits, for a list from a file.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.more =
            self.more.saturating_add(u32::try_from(self.list.len().saturating_sub(MOST)).unwrap_or(0));
        self.list.truncate(MOST);
        self.list = self.list.into_iter().map(Hang::bounded).collect();
        self
    }
}

/// The first two sentences, and the number of others.
fn shortened(sentences: &[String]) -> String {
    match sentences {
        [first, second, _] => format!("{first}, {second} and 1 more error"),
        [first, second, rest @ ..] if !rest.is_empty() => {
            format!("{first}, {second} and {} more errors", rest.len())
        }
        few => few.join(", "),
    }
}

/// Parts of the names of kernel functions that get memory for a process: over its control group's `memory.high`, out of it, while the
/// kernel frees pages, and from swap.
const MEMORY_WAITS: [&str; 5] = [
    "mem_cgroup_handle_over_high",
    "mem_cgroup_oom",
    "reclaim_throttle",
    "throttle_direct_reclaim",
    "swap_read",
];

impl Culprit {
    /// The same within the limits.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let name = |text: &mut String| text.truncate(text.floor_char_boundary(MOST_NAME));
        self.kernel.iter_mut().chain(&mut self.node).for_each(name);
        self
    }
}

impl Hang {
    /// What happened, without times: `rank 2 is stopped (SIGSTOP), and 3 GPUs wait for it`.
    pub fn sentence(&self) -> String {
        let who = self.who();
        let gpus = match self.waiting_gpus {
            1 => "1 GPU waits".to_owned(),
            many => format!("{many} GPUs wait"),
        };
        let wait = match &self.operation {
            Some(WaitedIn { op, seq: Some(seq), .. }) => format!("{gpus} in {}", numbered(op, *seq)),
            Some(operation) if !operation.op.is_empty() => format!("{gpus} in {}", operation.op),
            _ => gpus,
        };
        let first = self.culprits.first();
        let place = first
            .and_then(|one| one.kernel.as_deref())
            .map(|kernel| format!(" ({kernel})"))
            .unwrap_or_default();
        match self.kind {
            HangKind::Gone => {
                let exit = first.and_then(|one| one.exit).map_or("ended".to_owned(), |exit| exit.to_string());
                let process = if self.culprits.len() > 1 { "processes" } else { "process" };
                format!("the {process} of {who} {exit}, and {wait}")
            }
            HangKind::Stopped => format!("{who} stopped (SIGSTOP), and {wait}"),
            HangKind::Behind => {
                let nothing = if self.culprits.len() > 1 { "compute nothing" } else { "computes nothing" };
                format!("{who} asleep{place} and {nothing}, and {wait}")
            }
            HangKind::Blocked if self.waits_for_memory() => {
                format!("{who} waiting for memory{place}, and {wait}")
            }
            HangKind::Blocked => format!("{who} blocked in the kernel{place}, and {wait}"),
            HangKind::Storage => format!("{who} waiting for storage{place}, and {wait}"),
            HangKind::GpuError => {
                let errors: Vec<String> = self.gpu_errors.iter().map(GpuError::sentence).collect();
                format!("{}, and {wait}", shortened(&errors))
            }
            HangKind::Order if self.culprits.is_empty() => {
                format!(
                    "{wait}, and the ranks are in different operations, so none of these operations completes"
                )
            }
            HangKind::Order => format!("{who} in another operation than the other ranks, and {wait}"),
            HangKind::OwnGpu => {
                let own = if self.culprits.len() > 1 { "their own GPUs" } else { "its own GPU" };
                format!("{who} waiting for a kernel of {own} that does not end, and {wait}")
            }
            HangKind::AllWait if !self.ports_down.is_empty() => {
                format!("all {wait}, and port {}", self.ports_down.join(", "))
            }
            HangKind::AllWait => {
                // Without counts it is not known whether one is.
                let none = if self.operation.is_some() { ", and no rank is behind" } else { "" };
                format!(
                    "all {wait}{none}; possible causes: operations in a different order or of different size, a message \
                     that is not received, or a broken link"
                )
            }
        }
    }

    /// What to do.
    pub fn fix(&self) -> &'static str {
        match self.kind {
            _ if !self.ports_down.is_empty() => "check the cable and the switch port",
            _ if self.gpu_errors.iter().any(|error| error.hardware) => {
                "likely the GPU's hardware or the driver: cancel the job, and railgate checks the GPU when it ends"
            }
            HangKind::Blocked if self.waits_for_memory() => {
                "the job has reached its memory limit, or the node swaps: request more memory (--mem) or use less"
            }
            kind => kind.advice(),
        }
    }

    /// Whether the kernel function in which the first rank waits gets memory for it.
    fn waits_for_memory(&self) -> bool {
        let kernel = self.culprits.first().and_then(|one| one.kernel.as_deref());
        kernel.is_some_and(|kernel| MEMORY_WAITS.iter().any(|part| kernel.contains(part)))
    }

    /// The same, with the ports that are down.
    pub fn advice(&self) -> String {
        match self.ports_down.as_slice() {
            [] => self.fix().to_owned(),
            ports => format!("{}: {}", self.fix(), ports.join(", ")),
        }
    }

    /// `rank 1`, and with a verb for kinds whose processes still run: `rank 1 is`, `ranks 1 and 5 are`.
    fn who(&self) -> String {
        let numbers: Vec<String> = self.culprits.iter().take(4).map(|one| one.rank.to_string()).collect();
        // Ranks on other nodes are those of one node, or of few.
        let mut nodes: Vec<&str> = self.culprits.iter().filter_map(|one| one.node.as_deref()).collect();
        nodes.dedup();
        let on = match nodes.as_slice() {
            [] => String::new(),
            [one] => format!(" on {one}"),
            [one, rest @ ..] => format!(" on {one} and {} more", rest.len()),
        };
        let (who, verb) = match (numbers.as_slice(), self.culprits.len()) {
            ([], _) => ("an unknown rank".to_owned(), "is"),
            ([one], _) => (format!("rank {one}"), "is"),
            ([all @ .., last], 2..=4) => (format!("ranks {} and {last}", all.join(", ")), "are"),
            (all, many) => (format!("ranks {} and {} more", all.join(", "), many - all.len()), "are"),
        };
        if self.kind == HangKind::Gone { format!("{who}{on}") } else { format!("{who}{on} {verb}") }
    }

    /// The same within the limits.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        self.culprits.truncate(MOST_CULPRITS);
        self.signs.truncate(MOST_SIGNS);
        self.signs.iter_mut().for_each(|sign| sign.truncate(sign.floor_char_boundary(MOST_SIGN)));
        let name = |text: &mut String| text.truncate(text.floor_char_boundary(MOST_NAME));
        self.culprits = self.culprits.into_iter().map(Culprit::bounded).collect();
        bound_ports(&mut self.ports_down);
        bound_errors(&mut self.gpu_errors, MOST_NAME);
        if let Some(act) = &mut self.act {
            act.why.truncate(act.why.floor_char_boundary(MOST_SIGN));
        }
        if let Some(operation) = &mut self.operation {
            name(&mut operation.communicator);
            name(&mut operation.op);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hang(since: UnixMillis) -> Hang {
        Hang {
            kind: HangKind::Behind,
            since,
            named: since + 150_000,
            over: None,
            culprits: vec![Culprit { rank: 3, kernel: Some("é".repeat(100)), ..Culprit::default() }; 40],
            waiting_gpus: 7,
            operation: Some(WaitedIn { op: "x".repeat(100), ..WaitedIn::default() }),
            signs: vec!["y".repeat(1000); 20],
            ports_down: Vec::new(),
            gpu_errors: vec![GpuError { node: Some("n".repeat(100)), ..GpuError::default() }; 20],
            act: Some(HangAct { time: 1, what: HangActKind::NotEnded, why: "z".repeat(1000) }),
        }
    }

    /// As a rank of an H200 node under `memory.high` waited.
    #[test]
    fn a_rank_that_waits_for_memory_is_not_sent_to_the_file_system() {
        let blocked = |kernel: &str| Hang {
            kind: HangKind::Blocked,
            culprits: vec![Culprit { rank: 1, kernel: Some(kernel.to_owned()), ..Culprit::default() }],
            waiting_gpus: 1,
            operation: None,
            gpu_errors: Vec::new(),
            ..hang(1)
        };
        let memory = blocked("__mem_cgroup_handle_over_high");
        assert_eq!(
            memory.sentence(),
            "rank 1 is waiting for memory (__mem_cgroup_handle_over_high), and 1 GPU waits"
        );
        assert!(memory.advice().starts_with("the job has reached its memory limit"), "{}", memory.advice());
        let device = blocked("nvidia_wait");
        assert!(device.sentence().starts_with("rank 1 is blocked in the kernel (nvidia_wait)"));
        assert!(device.advice().starts_with("check the file system"), "{}", device.advice());
    }

    #[test]
    fn lists_and_texts_are_bounded() {
        let mut hangs = Hangs::default();
        (0..20).for_each(|at| hangs.add(hang(at)));
        assert_eq!((hangs.list.len(), hangs.more), (16, 4));
        let one = &hangs.list[0];
        assert_eq!((one.culprits.len(), one.signs.len(), one.signs[0].len()), (16, 8, 240));
        assert_eq!(one.act.as_ref().unwrap().why.len(), 240);
        assert_eq!((one.gpu_errors.len(), one.gpu_errors[0].node.as_ref().unwrap().len()), (8, 64));
        assert_eq!(one.culprits[0].kernel.as_ref().unwrap().len(), 64);
        assert_eq!(one.operation.as_ref().unwrap().op.len(), 64);
        let many = Hangs { list: vec![hang(1); 20], more: 1 }.bounded();
        assert_eq!((many.list.len(), many.more), (16, 5));
        let text = serde_json::to_string(&hangs).unwrap();
        assert_eq!(serde_json::from_str::<Hangs>(&text).unwrap(), hangs);
        assert!(serde_json::from_str::<Hangs>("{}").unwrap().is_empty());
    }

    #[test]
    fn a_hang_is_told_in_one_sentence() {
        let one = |rank| Culprit { rank, kernel: Some("hrtimer_nanosleep".to_owned()), ..Culprit::default() };
        let operation = WaitedIn { op: "AllReduce".to_owned(), seq: Some(1181), ..WaitedIn::default() };
        let say = |kind, culprits: &[Culprit], operation: Option<WaitedIn>| {
            Hang { kind, culprits: culprits.to_vec(), operation, waiting_gpus: 3, ..hang(1) }.sentence()
        };
        let exit = Culprit { exit: Some(ProcessExit::Code(0)), ..one(1) };
        assert_eq!(
            say(HangKind::Gone, &[exit], Some(operation.clone())),
            "the process of rank 1 ended with exit code 0, and 3 GPUs wait in AllReduce number 1182"
        );
        assert_eq!(say(HangKind::Stopped, &[one(2)], None), "rank 2 is stopped (SIGSTOP), and 3 GPUs wait");
        assert_eq!(
            say(HangKind::Behind, &[one(2)], None),
            "rank 2 is asleep (hrtimer_nanosleep) and computes nothing, and 3 GPUs wait"
        );
        let elsewhere = Culprit { node: Some("gn5".to_owned()), ..one(8) };
        assert_eq!(
            say(HangKind::Behind, &[elsewhere.clone(), Culprit { rank: 9, ..elsewhere }], None),
            "ranks 8 and 9 on gn5 are asleep (hrtimer_nanosleep) and compute nothing, and 3 GPUs wait"
        );
        let many: Vec<Culprit> = (1..=6).map(one).collect();
        assert!(
            say(HangKind::Blocked, &many[..3], None)
                .starts_with("ranks 1, 2 and 3 are blocked in the kernel")
        );
        assert!(
            say(HangKind::Storage, &many, None)
                .starts_with("ranks 1, 2, 3, 4 and 2 more are waiting for storage")
        );
        assert!(
            say(HangKind::AllWait, &[], None)
                .starts_with("all 3 GPUs wait; possible causes: operations in a different order")
        );
        assert!(say(HangKind::AllWait, &[], Some(operation.clone())).starts_with(
            "all 3 GPUs wait in AllReduce number 1182, and no rank is behind; possible causes: "
        ));
    }

    #[test]
    fn an_error_of_a_gpu_is_told_with_what_to_do() {
        let xid = |code| GpuError::new(3, code, "", 1_700_000_000_000).unwrap();
        let say = |gpu_errors: Vec<GpuError>| {
            let hang = Hang { kind: HangKind::GpuError, operation: None, gpu_errors, ..hang(1) };
            (hang.sentence(), hang.advice())
        };
        let (what, advice) = say(vec![xid(79)]);
        assert_eq!(what, "GPU 3 reported Xid 79 (fallen off the bus) at 22:13:20, and 7 GPUs wait");
        assert!(advice.starts_with("likely the GPU's hardware or the driver"), "{advice}");
        let (what, advice) = say(vec![xid(31), xid(13), xid(13)]);
        assert!(
            what.ends_with(
                "Xid 13 (graphics engine exception) at 22:13:20 and 1 more error, and 7 GPUs wait"
            ),
            "{what}"
        );
        assert!(advice.starts_with("look for a CUDA error in the log of the rank on that GPU"), "{advice}");
    }

    #[test]
    fn only_the_last_hang_can_be_open() {
        let mut hangs = Hangs::default();
        assert!(hangs.open().is_none());
        hangs.add(hang(1));
        hangs.open().unwrap().over = Some(9);
        assert!(hangs.open().is_none());
        hangs.add(hang(20));
        assert_eq!(hangs.open().unwrap().since, 20);
    }
}
