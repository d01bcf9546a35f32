//! Processes ended jobs in the background: writes the record of the final state beside the node reports (`slurm_end`)
//! and, with `[report] admin_comment`, one line of the report into railgate's field of AdminComment in the accounting
//! database.
//!
//! slurmctld shows the final state only after the epilogs of all nodes, purges the job `MinJobAge` later, and rejects
//! changes to ended jobs. This program must not keep a job completing, so it only leaves a note. One background
//! process handles all notes: it queries slurmctld whether each job was requeued and how it ended, and waits for the
//! node reports if a line is wanted.
//!
//! All jobs that are due share one query, and results are written in batches: 2,000 jobs may end in a minute (`cargo
//! xtask bench storm`). Notes that cannot be kept or handled are counted; the log and `railgate doctor` report their
//! number.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use railgate_child::{Task, ask};
use railgate_fsutil::FileLock;
use railgate_model::UnixMillis;
use railgate_runner::{Config, Loaded, LogConfig, LogLevel, Places, start_logging};
use railgate_slurm::{
    AccountingLine, Client, Env, JobRef, JobStanding, Noted, Spool, array_member, cluster_name, job_from_env,
    note_in_accounting,
};
use railgate_text::clip;
use serde::{Deserialize, Serialize};

use crate::call::{now, own};
use crate::ended_job::{Comment, LONGEST, Next, Note, ROUND, SHARE, Waiting, check};
use crate::old_notes::old_notes;
use crate::{restarts, slurm_end};

/// First argument of the process that works the notes off.
const WORD: &str = "sum-up";
/// The pause after a round is at least this many times the response time of slurmctld and the database in that round.
const EASE: u32 = 4;
/// Most jobs in one query to slurmctld.
const ASKED_ABOUT: usize = 2000;
/// Most jobs in one query to the database, and in one process that writes.
const WRITTEN: usize = 200;
/// Time after which a line that the database has not taken is lost.
const GIVE_UP_MS: u64 = 60 * 60 * 1000;
/// Most notes that are handled at once; further ones wait in the spool. One hour at 2,000 a minute is 120,000.
const MOST: usize = 150_000;

/// Longest job name, characters; longer ones are cut.
const MAX_NAME: usize = 200;

/// Name of the task [`FIND`].
const FIND_NAME: &str = "find-reports";
/// Finds the jobs that have a report directory. One child for many jobs: most jobs have no GPU and no report.
pub(crate) const FIND: Task = Task::new(FIND_NAME, find);

#[derive(Debug, Serialize, Deserialize)]
struct FindOrder {
    dirs: Vec<PathBuf>,
    cluster: String,
    jobs: Vec<u32>,
}

/// Leaves a note of the job of this call, and starts the process that works notes off if none runs. Failures are
/// logged if there is a log, and have no other effect.
pub(crate) fn leave_note(places: &Places, env: &Env) {
    let read = Loaded::read(&places.config(), false, &railgate_runner::node_name());
    let wanted =
        read.is_ok_and(|loaded| loaded.config.report.admin_comment || slurm_end::wanted(&loaded.config));
    let Some(note) = wanted.then(|| note(env)).flatten() else { return };
    let own = own(places);
    let left = write(&own, &note);
    // A process with the lock checks for new notes once more after releasing it. Also started if there was no room:
    // the notes that fill the spool must be worked off.
    let is_at_work = matches!(lock(&own), Ok(None));
    let started = if is_at_work { Ok(()) } else { start(env) };
    if let Err(why) = left.and(started) {
        // A job that succeeded has opened no log so far.
        start_logging(&LogConfig { file: own.join("epilog-ctld.log"), level: LogLevel::Warn });
        tracing::warn!(job = note.job, "end of the job: {why}");
    }
}

fn note(env: &Env) -> Option<Note> {
    let job = job_from_env(env).ok()?;
    if job.het_leader.is_some_and(|leader| leader != job.id) {
        return None;
    }
    let member = array_member(env);
    let name = env.get(OsStr::new("SLURM_JOB_NAME")).map(|name| clip(&name.to_string_lossy(), MAX_NAME));
    Some(Note {
        job: job.id,
        member,
        uid: job.uid,
        gid: job.gid,
        restarts: job.restarts,
        nodelist: job.nodelist,
        name,
        exit: env.get(OsStr::new("SLURM_JOB_EXIT_CODE")).and_then(|code| code.to_str()?.parse().ok()),
        time: now(),
    })
}

fn write(own: &Path, note: &Note) -> io::Result<()> {
    let spool = Spool::of_job_ends(own);
    if spool.leave(&serde_json::to_string(note)?)? {
        return Ok(());
    }
    Err(io::Error::other("more job ends wait than there is room for, this one is counted as lost"))
}

/// In its own process group: slurmctld kills this one when this program has ended.
fn start(env: &Env) -> io::Result<()> {
    let conf = env.get(OsStr::new("SLURM_CONF")).map(|conf| ("SLURM_CONF", conf.clone()));
    let cluster = env.get(OsStr::new("SLURM_CLUSTER_NAME")).map(|name| ("SLURM_CLUSTER_NAME", name.clone()));
    Command::new(std::env::current_exe()?)
        .arg(WORD)
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C")])
        .envs(conf.into_iter().chain(cluster))
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(drop)
}

/// Whether this process was started to work the notes off.
pub(crate) fn is_asked() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == WORD)
}

/// Works the notes off until there are none. Returns at once if another process does.
pub(crate) fn work(places: &Places, env: &Env) -> io::Result<()> {
    let own = own(places);
    let Some(mut held) = lock(&own)? else { return Ok(()) };
    let config = Loaded::read(&places.config(), false, &railgate_runner::node_name());
    let config = config.map_err(|why| io::Error::other(why.in_one_line()))?.config;
    start_logging(&LogConfig { file: own.join("epilog-ctld.log"), level: config.log.level });
    let mut desk = Desk::new(config, &own, env);
    loop {
        desk.work_off()?;
        drop(held);
        // Handles a note that was left after the last check by a process that still found the lock taken.
        if !desk.spool.has_notes() {
            return Ok(());
        }
        let Some(again) = lock(&own)? else { return Ok(()) };
        held = again;
    }
}

fn lock(own: &Path) -> io::Result<Option<FileLock>> {
    FileLock::try_take(&own.join("sum-up.lock"))
}

/// The notes, and the state for working them off.
struct Desk {
    config: Config,
    /// The controller's part of the state directory.
    own: PathBuf,
    client: Client,
    cluster: Option<String>,
    spool: Spool,
    waiting: BTreeMap<u32, Waiting>,
    /// Number of refused notes that has been logged.
    told: u64,
    /// The last logged error; empty while lines can be written.
    trouble: String,
}

impl Desk {
    fn new(config: Config, own: &Path, env: &Env) -> Self {
        let spool = Spool::of_job_ends(own);
        Desk {
            own: own.to_owned(),
            client: Client::new(&config.slurm, env),
            cluster: cluster_name(env).ok(),
            // Notes refused earlier were logged by the previous process.
            told: spool.refused().map_or(0, |(count, _)| count),
            spool,
            waiting: BTreeMap::new(),
            trouble: String::new(),
            config,
        }
    }

    fn work_off(&mut self) -> io::Result<()> {
        let before = self.spool.kept()?;
        self.add(before);
        let old = old_notes(self.spool.dir());
        if !old.is_empty() {
            self.add(old.iter().map(|(_, text)| text.clone()).collect());
            self.keep()?;
            old.iter().try_for_each(|(path, _)| fs::remove_file(path))?;
        }
        loop {
            self.take()?;
            if self.waiting.is_empty() {
                return Ok(());
            }
            std::thread::sleep(self.round());
        }
    }

    /// Takes over new notes.
    fn take(&mut self) -> io::Result<()> {
        let new = if self.waiting.len() < MOST { self.spool.take()? } else { Vec::new() };
        if !new.is_empty() || self.waiting.is_empty() {
            self.add(new);
            self.keep()?;
        }
        let (refused, _) = self.spool.refused()?;
        if refused > self.told {
            tracing::error!(
                "{} job ends are neither recorded nor summed up: more were waiting than there is room for",
                refused - self.told
            );
        }
        self.told = refused;
        Ok(())
    }

    fn keep(&self) -> io::Result<()> {
        let notes = self.waiting.values().map(|waiting| serde_json::to_string(&waiting.note));
        self.spool.keep(&notes.collect::<Result<Vec<_>, _>>()?)
    }

    fn add(&mut self, lines: Vec<String>) {
        let mut unreadable = 0;
        for line in lines {
            match serde_json::from_str::<Note>(&line) {
                // A job that was requeued and ended again has a later note.
                Ok(note) if self.waiting.get(&note.job).is_none_or(|old| old.note.time < note.time) => {
                    self.waiting.insert(note.job, Waiting::new(&self.config, note));
                }
                Ok(_) => {}
                Err(_) => unreadable += 1,
            }
        }
        self.lose(unreadable, "notes that cannot be read");
    }

    fn lose(&self, count: u64, why: &str) {
        if count == 0 {
            return;
        }
        tracing::error!("{count} job ends are not recorded or not summed up: {why}");
        if let Err(why) = self.spool.lose(count, now(), why) {
            tracing::error!("lost job ends cannot be counted: {why}");
        }
    }

    /// Checks every job that is due, and returns the pause before the next round.
    fn round(&mut self) -> Duration {
        let mut asked = Duration::ZERO;
        let mut spent = BTreeMap::new();
        loop {
            let now = Instant::now();
            let mut due: Vec<(UnixMillis, u32)> = self
                .waiting
                .iter()
                .filter(|(_, waiting)| waiting.due <= now)
                .map(|(id, waiting)| (waiting.note.time, *id))
                .collect();
            due.sort_unstable();
            let due: Vec<u32> = due.into_iter().take(ASKED_ABOUT).map(|(_, id)| id).collect();
            if due.is_empty() {
                return ROUND.max(asked * EASE).min(LONGEST);
            }
            self.batch(&due, &mut asked, &mut spent);
            // Each job is checked once per round, regardless of the result.
            for id in due {
                if let Some(waiting) = self.waiting.get_mut(&id).filter(|waiting| waiting.due <= now) {
                    waiting.later();
                }
            }
        }
    }

    fn batch(&mut self, due: &[u32], asked: &mut Duration, spent: &mut BTreeMap<u32, Duration>) {
        let names: Vec<JobRef> = due.iter().filter_map(|id| Some(self.waiting.get(id)?.name())).collect();
        let begun = Instant::now();
        let standings = self.client.standings(&names.iter().collect::<Vec<_>>());
        *asked += begun.elapsed();
        match standings {
            Ok(standings) => {
                self.record(due, &standings);
                let found = self.find(due);
                self.fold_restarts(due, &standings, found.as_ref(), spent);
                let ready = self.lines_for(due, &standings, found.as_ref(), spent);
                let begun = Instant::now();
                for lines in ready.chunks(WRITTEN) {
                    if !self.write(lines) {
                        break;
                    }
                }
                *asked += begun.elapsed();
            }
            Err(why) => self.say(why.to_string()),
        }
        let settled = |id: &&u32| self.waiting.get(id).is_some_and(Waiting::is_settled);
        for id in due.iter().filter(settled).copied().collect::<Vec<_>>() {
            self.waiting.remove(&id);
        }
        self.give_up(due);
    }

    /// Records how these jobs ended, as far as Slurm shows it.
    fn record(&mut self, due: &[u32], standings: &BTreeMap<u32, JobStanding>) {
        let cluster = self.cluster.as_deref();
        let mut jobs = Vec::new();
        // One pass over all jobs, since each is borrowed for the batch; `due` is ordered by time.
        let wanted: BTreeSet<u32> = due.iter().copied().collect();
        for (id, waiting) in self.waiting.iter_mut().filter(|(id, _)| wanted.contains(id)) {
            waiting.record.learn(cluster, &waiting.note, standings.get(id));
            jobs.push(waiting);
        }
        let (trouble, lost) = slurm_end::write(&self.config, &mut jobs);
        if let Some(why) = trouble {
            self.lose(lost, &why);
            self.say(why);
        }
    }

    /// Adds restarts inside the allocations of these jobs to the ledger.
    fn fold_restarts(
        &mut self,
        due: &[u32],
        standings: &BTreeMap<u32, JobStanding>,
        found: Option<&BTreeMap<u32, Vec<PathBuf>>>,
        spent: &mut BTreeMap<u32, Duration>,
    ) {
        for id in due {
            let Some(waiting) = self.waiting.get_mut(id).filter(|job| !job.restarts_folded) else { continue };
            let Some(cluster) = &self.cluster else {
                waiting.restarts_folded = true;
                continue;
            };
            let in_time = waiting.in_time();
            let is_completing = standings.get(id).is_some_and(|job| job.state.contains("COMPLETING"));
            let spent = spent.entry(waiting.note.uid).or_default();
            if *spent > SHARE || (in_time && is_completing) {
                continue;
            }
            if found.is_some_and(|found| !found.contains_key(id)) {
                waiting.restarts_folded = true;
                continue;
            }
            let begun = Instant::now();
            let folded = restarts::fold(&self.config, &self.own, cluster, waiting);
            *spent += begun.elapsed();
            match folded {
                // A report that is late stays out; an error may pass, and `give_up` ends it.
                Ok(whole) => waiting.restarts_folded = whole || !in_time,
                Err(why) => self.say(format!("restarts inside an allocation: {why}")),
            }
        }
    }

    /// Logs an error once, not once for each job.
    fn say(&mut self, why: String) {
        if why != self.trouble {
            tracing::warn!("ends of jobs: {why}; will retry");
            self.trouble = why;
        }
    }

    /// The lines that can be written now.
    fn lines_for(
        &mut self,
        due: &[u32],
        standings: &BTreeMap<u32, JobStanding>,
        found: Option<&BTreeMap<u32, Vec<PathBuf>>>,
        spent: &mut BTreeMap<u32, Duration>,
    ) -> Vec<AccountingLine> {
        let open = |id: &&u32| self.waiting.get(id).is_some_and(|job| job.comment != Comment::Settled);
        let mut ready = Vec::new();
        for id in due.iter().filter(open).copied().collect::<Vec<_>>() {
            let Some(waiting) = self.waiting.get_mut(&id) else { continue };
            let dirs = match found {
                Some(found) => found.get(&id).map(Vec::as_slice),
                None => Some(&[][..]),
            };
            let spent = spent.entry(waiting.note.uid).or_default();
            let next = check(&self.config, self.cluster.as_deref(), waiting, standings.get(&id), dirs, spent);
            match next {
                Next::Done => waiting.comment = Comment::Settled,
                Next::Later => {}
                Next::Line(text) => {
                    waiting.comment = Comment::Line(text.clone());
                    ready.push(AccountingLine { job: id, name: waiting.name(), text });
                }
            }
        }
        ready
    }

    /// Directories with reports of each job whose reports are still to be read; `None` if they could not be determined.
    fn find(&self, due: &[u32]) -> Option<BTreeMap<u32, Vec<PathBuf>>> {
        let report = &self.config.report;
        let open = |id: &&u32| self.waiting.get(id).is_some_and(Waiting::needs_reports);
        let jobs: Vec<u32> = due.iter().filter(open).copied().collect();
        if jobs.is_empty() {
            return Some(BTreeMap::new());
        }
        let order = FindOrder {
            dirs: report.dir.iter().chain([&report.local_dir]).cloned().collect(),
            cluster: self.cluster.clone()?,
            jobs,
        };
        let reply = ask(FIND_NAME, &serde_json::to_vec(&order).ok()?, report.deadline).ok()?;
        serde_json::from_slice(&reply).ok()
    }

    /// Writes the lines. Returns false if the database takes none.
    fn write(&mut self, lines: &[AccountingLine]) -> bool {
        let noted = match note_in_accounting(&self.client, lines) {
            Ok(noted) => noted,
            Err(why) => {
                self.say(why.to_string());
                return false;
            }
        };
        for (line, noted) in lines.iter().zip(noted) {
            let waiting = self.waiting.get_mut(&line.job);
            if matches!(noted, Noted::Written | Noted::Same | Noted::Kept)
                && let Some(waiting) = waiting
            {
                waiting.comment = Comment::Settled;
            }
            match noted {
                Noted::Written | Noted::Same => self.trouble.clear(),
                Noted::Kept => {
                    tracing::info!(
                        job = %line.name,
                        "AdminComment: other content could not be kept byte for byte"
                    );
                }
                Noted::Absent => {}
                Noted::NotTaken => self.say("sacctmgr did not change some lines".to_owned()),
            }
        }
        true
    }

    fn give_up(&mut self, due: &[u32]) {
        let old = |id: &&u32| self.waiting.get(id).is_some_and(|waiting| waiting.age() > GIVE_UP_MS);
        let old: Vec<u32> = due.iter().filter(old).copied().collect();
        let Some(first) = old.first() else { return };
        let why = match self.trouble.as_str() {
            "" if self.waiting.get(first).is_some_and(|job| job.comment == Comment::Settled) => {
                "slurmctld still shows them as completing".to_owned()
            }
            "" => "the accounting database does not know the jobs".to_owned(),
            trouble => trouble.to_owned(),
        };
        self.lose(old.len() as u64, &format!("given up after an hour, job {first} first: {why}"));
        for id in old {
            self.waiting.remove(&id);
        }
    }
}

/// Runs in a child: for each job, the directories that have reports of it.
fn find(order: &[u8]) -> Result<Vec<u8>, String> {
    let order: FindOrder = serde_json::from_slice(order).map_err(|why| why.to_string())?;
    let mut found: BTreeMap<u32, Vec<PathBuf>> = BTreeMap::new();
    for dir in &order.dirs {
        for job in &order.jobs {
            let place = dir.join(&order.cluster).join(job.to_string());
            // Only directories that certainly do not exist are left out.
            let absent = fs::symlink_metadata(place).is_err_and(|why| {
                [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied].contains(&why.kind())
            });
            if !absent {
                found.entry(*job).or_default().push(dir.clone());
            }
        }
    }
    serde_json::to_vec(&found).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ended_job::PATIENCE_MS;
    use crate::testing::{Scene, ended_at as note};

    /// A job in the output format of squeue.
    fn shown(job: u32, state: &str, restarts: u32) -> String {
        let times = ["2026-11-21T00:59:59", "2026-11-21T01:00:00", "2026-11-21T01:10:00"];
        let [submitted, start, end] = times.map(|time| format!("{time:<20}"));
        format!("{job:<12}{state:<24}{restarts:<12}{submitted}{start}{end}\n")
    }

    fn places(scene: &Scene) -> Places {
        let place = |name: &str| scene.path(name);
        let places =
            Places { etc: place("etc"), run: place("run"), state: place("state"), share: place("share") };
        fs::create_dir_all(own(&places)).unwrap();
        fs::create_dir_all(&places.etc).unwrap();
        let config =
            format!("report.admin_comment = true\n[slurm]\nbin_dir = '{}'\n", place("bin").display());
        fs::write(places.config(), config).unwrap();
        places
    }

    fn with_comments(scene: &Scene) -> Config {
        let mut config = scene.call().config;
        config.report.admin_comment = true;
        config
    }

    #[test]
    fn many_ended_jobs_need_few_queries() {
        let scene = Scene::new("0", "0");
        let places = places(&scene);
        let own = own(&places);
        let old = now() - PATIENCE_MS - 1;
        let mut shown_all = String::new();
        for job in 1..=60 {
            write(&own, &note(job, old)).unwrap();
            shown_all += &shown(job, "COMPLETED", 0);
        }
        scene.file("standings", &shown_all);
        work(&places, &Env::new()).unwrap();
        let calls = scene.calls();
        assert!(calls.len() <= 4, "{} queries for 60 ends", calls.len());
        assert!(!Spool::of_job_ends(&own).has_notes());
    }

    #[test]
    fn with_20_000_waiting_ends_one_more_is_accepted() {
        let scene = Scene::new("0", "0");
        let places = places(&scene);
        let own = own(&places);
        let old = now() - PATIENCE_MS - 1;
        // In the form of an earlier version.
        let dir = Spool::of_job_ends(&own).dir().to_owned();
        fs::create_dir_all(&dir).unwrap();
        for job in 1..=20_000 {
            fs::write(dir.join(job.to_string()), serde_json::to_vec(&note(job, old)).unwrap()).unwrap();
        }
        for job in 20_001..=20_100 {
            write(&own, &note(job, old)).unwrap();
        }
        let desk = || Desk::new(with_comments(&scene), &own, &Env::new());
        let mut first = desk();
        first.add(old_notes(&dir).into_iter().map(|(_, text)| text).collect());
        first.take().unwrap();
        assert_eq!(first.waiting.len(), 20_100);
        // A process that takes over from one that was killed.
        let mut next = desk();
        next.add(next.spool.kept().unwrap());
        assert_eq!(next.waiting.len(), 20_100);
        // All of them were requeued, so no report is read.
        scene.file("standings", &(1..=20_100).map(|job| shown(job, "PENDING", 1)).collect::<String>());
        next.work_off().unwrap();
        assert!(next.spool.lost().unwrap().is_none() && !next.spool.has_notes());
        assert!(old_notes(&dir).is_empty());
    }

    #[test]
    fn lost_ends_are_counted() {
        let scene = Scene::new("0", "0");
        let own = scene.path("own");
        let mut desk = Desk::new(with_comments(&scene), &own, &Env::new());
        write(&own, &note(7, now() - GIVE_UP_MS - 1)).unwrap();
        write(&own, &note(8, now() - GIVE_UP_MS - 1)).unwrap();
        desk.spool.leave("no note").unwrap();
        scene.file("dead", "");
        desk.work_off().unwrap();
        let lost = desk.spool.lost().unwrap().unwrap();
        assert_eq!(lost.count, 3);
        assert!(lost.why.contains("given up after an hour, job 7 first: squeue"), "{lost:?}");
        // No room.
        let small = Spool::new(desk.spool.dir()).with_room(1);
        assert!(!small.leave("{}").unwrap());
        assert_eq!(desk.spool.lost().unwrap().unwrap().count, 4);
    }

    #[test]
    fn an_outage_loses_no_line() {
        let scene = Scene::new("0", "0");
        let own = scene.path("own");
        let mut desk = Desk::new(with_comments(&scene), &own, &Env::new());
        let old = now() - PATIENCE_MS - 1;
        (1..=9).for_each(|job| write(&own, &note(job, old)).unwrap());
        scene.file("dead", "");
        desk.take().unwrap();
        desk.round();
        assert_eq!(desk.waiting.len(), 9);
        fs::remove_file(scene.path("dead")).unwrap();
        scene.file("standings", &shown(3, "COMPLETED", 0));
        desk.waiting.values_mut().for_each(|waiting| waiting.due = Instant::now());
        desk.round();
        assert_eq!((desk.waiting.len(), desk.spool.lost().unwrap()), (0, None));
    }

    fn line(job: u32, text: &str) -> AccountingLine {
        AccountingLine { job, name: JobRef::plain(job), text: text.to_owned() }
    }

    #[test]
    fn a_line_changes_only_our_field() {
        let scene = Scene::new("0", "0");
        let client = scene.call().client;
        scene.file("release", "slurm-wlm 24.11.5\n");
        let wrote = |comment: &str| {
            scene.file("comment", comment);
            let noted = note_in_accounting(&client, &[line(7, "completed, MFU 41.0 %")]).unwrap();
            let kept = fs::read_to_string(scene.path("comment")).unwrap();
            (noted[0], kept.trim_end().to_owned())
        };
        let (noted, kept) = wrote("7|JS1:H4s= railgate: attempt 0 died;\n");
        assert_eq!((noted, kept.as_str()), (Noted::Written, "7|JS1:H4s= railgate: completed, MFU 41.0 %;"));
        assert_eq!(wrote("7|railgate: completed, MFU 41.0 %;\n").0, Noted::Same);
        let theirs = "7|{\"theirs\": 1}";
        assert_eq!(wrote(theirs), (Noted::Kept, theirs.to_owned()));
        assert_eq!(wrote("").0, Noted::Absent);
        assert_eq!(wrote("8|x\n").0, Noted::Absent);
        // It would convert capitals to lower case, also in text of others.
        for release in ["slurm-wlm 22.05.8\n", ""] {
            scene.file("release", release);
            assert_eq!(wrote("7|JS1:H4s= railgate: attempt 0 died;\n").0, Noted::Kept, "{release}");
            let (noted, kept) = wrote("7|cost=3 railgate: MFU 7 %;\n");
            assert_eq!((noted, kept.as_str()), (Noted::Written, "7|cost=3 railgate: completed, mfu 41.0 %;"));
            assert_eq!(wrote("7|railgate: completed, mfu 41.0 %;\n").0, Noted::Same);
        }
    }

    #[test]
    fn one_process_writes_many_lines() {
        let scene = Scene::new("0", "0");
        let client = scene.call().client;
        scene.file("release", "slurm-wlm 24.11.5\n");
        let lines: Vec<AccountingLine> =
            (1..=50).map(|job| line(job, &format!("completed, MFU {job} %"))).collect();
        let empty: String = (1..=49).map(|job| format!("{job}|theirs\n")).collect();
        scene.file("comment", &empty);
        let noted = note_in_accounting(&client, &lines).unwrap();
        assert_eq!(noted.iter().filter(|noted| **noted == Noted::Written).count(), 49);
        assert_eq!(noted[49], Noted::Absent);
        let kept = fs::read_to_string(scene.path("comment")).unwrap();
        assert!(kept.contains("33|theirs railgate: completed, MFU 33 %;"), "{kept}");
        let calls = scene.calls();
        // A query before, sacctmgr's release, the changes, a query after.
        assert_eq!(calls.len(), 4, "{calls:?}");

        // A comment that is too long for an input line, and a sacctmgr that reads no input.
        let long = "y".repeat(4000);
        scene.file("comment", &format!("1|{long}\n2|\n"));
        let noted = note_in_accounting(&client, &lines[..2]).unwrap();
        assert_eq!(noted, [Noted::Written; 2]);
        assert!(scene.calls().iter().any(|call| call.contains("where jobid=1 set AdminComment=yyy")));
        scene.file("deaf", "");
        scene.file("comment", "1|\n2|\n");
        assert_eq!(note_in_accounting(&client, &lines[..2]).unwrap(), [Noted::Written; 2]);
        assert!(scene.calls().iter().any(|call| call.contains("where jobid=2 set AdminComment=railgate:")));
    }
}
