//! Notices the end of each process that runs a rank, within milliseconds, and how it ended.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use railgate_model::{ProcessExit, RankProcess};
use railgate_node_report::{TaskRank, add_ranks};
use railgate_probe::{EndedProcess, ExitTold, Hold, ProcessId, ProcessWatch};
use railgate_runner::now;

use crate::run::{Mine, PROC};

/// Descriptors for processes. Nodes have up to 16 ranks, each with a shell and a program.
const MOST: usize = 128;
/// Interval of questions while the parent has not taken the status, and how long they go on.
const AGAIN: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(3);

/// The processes of the ranks on this node.
#[derive(Debug)]
pub(crate) struct Ends {
    watch: ProcessWatch,
    ranks: Vec<TaskRank>,
    /// Processes that start ranks. Before these run and after they have ended, such a process looks like a rank.
    launchers: BTreeSet<ProcessId>,
    /// Ended, but how is not known yet.
    open: Vec<Open>,
    unwatched: u32,
    told: Option<String>,
}

#[derive(Debug)]
struct Open {
    process: EndedProcess,
    until: Instant,
}

/// What a step found out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// The list differs from the one that was written last.
    pub(crate) changed: bool,
    /// A process has ended: a launcher may start the step again.
    pub(crate) ended: bool,
}

impl Ends {
    pub(crate) fn new() -> Self {
        Ends {
            watch: ProcessWatch::new(MOST),
            ranks: Vec::new(),
            launchers: BTreeSet::new(),
            open: Vec::new(),
            unwatched: 0,
            told: None,
        }
    }

    /// The ranks' processes, and how many of the last probe are not watched.
    pub(crate) fn ranks(&self) -> (&[TaskRank], u32) {
        (&self.ranks, self.unwatched)
    }

    /// Processes that are known to use a GPU.
    pub(crate) fn programs(&self) -> Vec<ProcessId> {
        self.ranks.iter().filter(|one| one.gpu && one.ended.is_none()).map(id).collect()
    }

    /// Descriptors that become readable when a process ends.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.watch.fds()
    }

    /// Time until the next step without an event.
    pub(crate) fn due(&self) -> Duration {
        if self.open.is_empty() { Duration::MAX } else { AGAIN }
    }

    /// Adds the processes that a probe found, and begins to watch them. Returns whether the list has changed.
    pub(crate) fn add(&mut self, job: u32, mut found: Vec<RankProcess>) -> bool {
        let before = (self.ranks.clone(), self.unwatched);
        for one in found.iter().filter(|one| one.launcher) {
            if self.launchers.len() < MOST {
                self.launchers.insert((one.pid, one.ticks));
            }
        }
        found.retain(|one| !one.launcher && !self.launchers.contains(&(one.pid, one.ticks)));
        self.ranks.retain(|one| !self.launchers.contains(&id(one)));
        add_ranks(&mut self.ranks, found);
        self.unwatched = 0;
        for one in self.ranks.iter_mut().filter(|one| one.ended.is_none()) {
            match self.watch.hold(PROC.as_ref(), id(one)) {
                Hold::Held => {}
                // It ended since the probe found it.
                Hold::Gone => (one.ended, one.exit) = (Some(now()), Some(ProcessExit::Unknown)),
                Hold::Refused(why) => {
                    self.unwatched = self.unwatched.saturating_add(1);
                    if self.told.as_ref() != Some(&why) {
                        tracing::info!(job, "sampler: the end of a rank will not be known: {why}");
                        self.told = Some(why);
                    }
                }
            }
        }
        before != (self.ranks.clone(), self.unwatched)
    }

    /// Records what has ended.
    pub(crate) fn step(&mut self, mine: &Mine) -> News {
        let mut news = News::default();
        let (time, until) = (now(), Instant::now() + PATIENCE);
        for process in self.watch.ended() {
            news = News { changed: true, ended: true };
            self.put(process.id, |one| one.ended = Some(time));
            self.open.push(Open { process, until });
        }
        for open in std::mem::take(&mut self.open) {
            let late = Instant::now() >= open.until;
            let exit = match open.process.told() {
                ExitTold::Exit(exit) => exit,
                ExitTold::NotYet if !late => {
                    self.open.push(open);
                    continue;
                }
                ExitTold::NotYet | ExitTold::Unsupported => {
                    let job = &mine.report.job;
                    open.process.of_zombie(PROC.as_ref(), job.uid, job.gid)
                }
            };
            news.changed = true;
            self.put(open.process.id, |one| one.exit = Some(exit));
        }
        news
    }

    /// The last step: what has ended by now, without waiting for parents.
    pub(crate) fn finish(&mut self, mine: &Mine) -> News {
        let news = self.step(mine);
        for open in std::mem::take(&mut self.open) {
            self.put(open.process.id, |one| one.exit = Some(ProcessExit::Unknown));
        }
        news
    }

    fn put(&mut self, process: ProcessId, change: impl FnOnce(&mut TaskRank)) {
        if let Some(one) = self.ranks.iter_mut().find(|one| id(one) == process) {
            change(one);
        }
    }
}

fn id(rank: &TaskRank) -> ProcessId {
    (rank.pid, rank.ticks)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn start(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap()
    }

    fn found(rank: u32, child: &Child) -> RankProcess {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let ticks = stat.rsplit(')').next().unwrap().split_ascii_whitespace().nth(19).unwrap();
        RankProcess { rank, pid: child.id(), ticks: ticks.parse().unwrap(), ..RankProcess::default() }
    }

    /// Waits as the sampler does, until the exits of all ended processes are known.
    fn settle(ends: &mut Ends, mine: &Mine, count: usize) {
        let until = Instant::now() + Duration::from_secs(20);
        while ends.ranks.iter().filter(|one| one.exit.is_some()).count() < count {
            assert!(Instant::now() < until, "{:?}", ends.ranks);
            let mut fds: Vec<_> = ends.fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
            poll(&mut fds, PollTimeout::from(20_u8)).unwrap();
            drop(fds);
            ends.step(mine);
        }
    }

    #[test]
    fn the_end_of_each_rank_is_recorded_with_its_exit() {
        let place = tempfile::tempdir().unwrap();
        let mine = Mine::of_test(place.path());
        let scripts = ["read x; exit 3", "read x; exit 0", "read x; kill -KILL $$", "read x; read x"];
        let mut children: Vec<Child> = scripts.iter().map(|script| start(script)).collect();
        let mut ends = Ends::new();
        let ranks = || (0..).zip(&children).map(|(rank, child)| found(rank, child)).collect();
        let (first, again): (Vec<_>, Vec<_>) = (ranks(), ranks());
        assert!(ends.add(7, first) && !ends.add(7, again), "a second probe finds the same");
        assert_eq!((ends.step(&mine), ends.due()), (News::default(), Duration::MAX));
        for child in &mut children[..3] {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        settle(&mut ends, &mine, 3);
        let exits: Vec<_> = ends.ranks.iter().map(|one| one.exit).collect();
        let release = nix::sys::utsname::uname().unwrap().release().to_string_lossy().into_owned();
        let mut numbers = release.split(['.', '-']).filter_map(|part| part.parse::<u32>().ok());
        if (numbers.next(), numbers.next()) >= (Some(6), Some(15)) {
            let exit = [ProcessExit::Code(3), ProcessExit::Code(0), ProcessExit::Signal(9)];
            assert_eq!(exits, [Some(exit[0]), Some(exit[1]), Some(exit[2]), None]);
        }
        assert!(ends.ranks[..3].iter().all(|one| one.ended.is_some()), "{:?}", ends.ranks);
        assert_eq!((ends.ranks[3].ended, ends.fds().count(), ends.unwatched), (None, 1, 0));
        // At the end of the job a parent may not have taken the status yet.
        children[3].kill().unwrap();
        let mut fds: Vec<_> = ends.fds().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        assert_eq!(poll(&mut fds, PollTimeout::from(20_000_u16)), Ok(1));
        drop(fds);
        assert!(ends.finish(&mine).ended && ends.ranks[3].exit.is_some());
        children[3].wait().unwrap();
    }

    #[test]
    fn a_process_that_ended_before_it_was_watched_has_an_unknown_exit() {
        let mut child = start("exit 3");
        let process = found(0, &child);
        child.wait().unwrap();
        let mut ends = Ends::new();
        assert!(ends.add(7, vec![process]));
        assert_eq!((ends.ranks[0].exit, ends.fds().count()), (Some(ProcessExit::Unknown), 0));
    }

    #[test]
    fn a_launcher_is_no_rank_once_its_ranks_are_known() {
        let mut children: Vec<Child> = (0..3).map(|_| start("read x")).collect();
        let mut ends = Ends::new();
        let pids = |ends: &Ends| ends.ranks.iter().map(|one| one.pid).collect::<Vec<_>>();
        let [launcher, first, second] = [0, 1, 2].map(|at: usize| children[at].id());
        let as_rank = found(1, &children[0]);
        ends.add(7, vec![as_rank.clone()]);
        assert_eq!(pids(&ends), [launcher], "it may as well be the program itself");
        let as_launcher = RankProcess { launcher: true, ..as_rank.clone() };
        ends.add(7, vec![found(8, &children[1]), found(9, &children[2]), as_launcher]);
        assert_eq!(pids(&ends), [first, second]);
        // Its ranks have ended.
        ends.add(7, vec![as_rank]);
        assert_eq!(pids(&ends), [first, second]);
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn processes_beyond_the_descriptors_are_counted() {
        let mut children: Vec<Child> = (0..MOST + 3).map(|_| start("read x")).collect();
        let mut ends = Ends::new();
        ends.add(7, (0..).zip(&children).map(|(rank, child)| found(rank, child)).collect());
        assert_eq!((ends.ranks.len(), ends.fds().count(), ends.unwatched), (MOST + 3, MOST, 3));
        for child in &mut children {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        let place = tempfile::tempdir().unwrap();
        settle(&mut ends, &Mine::of_test(place.path()), MOST);
        // Those that ended unwatched are found gone by the next probe.
        ends.add(7, Vec::new());
        assert_eq!((ends.fds().count(), ends.unwatched), (0, 0));
        assert!(ends.ranks[MOST..].iter().all(|one| one.exit == Some(ProcessExit::Unknown)));
    }
}
