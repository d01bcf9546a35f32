//! Runs all rows at the same time and reads the reports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Cluster, ENDED, Process};
use railgate_tests::poll;

use super::row::{Ending, How, Stage, When};
use super::table::{Table, Verdict};
use crate::training::MINUTE;

/// If nothing has changed for this long, a missing ending is recorded as missing.
const STILL: Duration = Duration::from_secs(100);
/// Parts of a report come from other processes, shortly after Slurm shows the end.
const PATIENCE: Duration = Duration::from_secs(45);

/// Sources of job records besides slurmctld.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// Whether slurmdbd runs.
    pub(super) accounted: bool,
    /// Delay after which reports are read again; slurmctld purges the jobs by itself meanwhile.
    pub(super) later: Option<Duration>,
}

/// A job in the queue.
#[derive(Clone, Debug)]
struct Seen {
    job: u32,
    /// Job id as scontrol accepts it.
    name: String,
    state: String,
    reason: String,
    restarts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// An action is pending, or the job has not ended.
    Plays,
    /// The job has ended, or waits as expected; since then its report is read.
    Asked(Instant),
    Through,
}

struct Track<'a> {
    row: &'a Ending,
    process: Option<Process>,
    seen: Option<Seen>,
    acts: usize,
    /// The expected line at this moment.
    says: &'static str,
    is_after: bool,
    stand: Stand,
}

pub(super) fn play(cluster: &Cluster, rows: &[Ending], setup: Setup) -> Result<Table> {
    let mut tracks = submit(cluster, rows)?;
    let mut table = Table::new(rows);
    let mut last = (Instant::now(), String::new());
    while tracks.iter().any(|track| track.stand != Stand::Through) {
        let seen = queue(cluster)?;
        let marks = marks(cluster)?;
        for track in &mut tracks {
            track.go_on(cluster, &seen, &marks)?;
        }
        ask(cluster, &mut tracks, &mut table)?;
        let now: Vec<_> = tracks.iter().map(|track| (&track.seen, track.acts, track.stand)).collect();
        let now = format!("{now:?}");
        if now != last.1 {
            last = (Instant::now(), now);
        }
        if last.0.elapsed() > STILL {
            break;
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    for (place, track) in tracks.iter().enumerate().filter(|(_, track)| track.stand != Stand::Through) {
        let line = format!("the job did not end as planned: {:?}", track.seen);
        table.add(place, "at the end", track.says, Verdict { line, code: None });
    }
    let moment = forget(cluster, &tracks, setup)?;
    let said = reports(cluster, tracks.iter().filter_map(Track::job))?;
    for (place, track) in tracks.iter().enumerate().filter(|(_, track)| track.stand == Stand::Through) {
        let Some(verdict) = track.job().and_then(|job| said.get(&job)) else { continue };
        match track.row.forgotten {
            Some((_, says)) if setup.accounted => table.add(place, moment, says, verdict.clone()),
            Some((says, _)) => table.add(place, moment, says, verdict.clone()),
            None if track.row.began || setup.accounted => table.add_same(place, moment, verdict.clone()),
            None => table.add_nothing(place, moment, verdict.clone()),
        }
    }
    for (place, track) in tracks.iter().enumerate() {
        if table.is_wrong(place)
            && let Some(job) = track.job()
        {
            table.explain(place, evidence(cluster, job, track.process.as_ref()));
        }
    }
    Ok(table)
}

/// The whole report of a job, the output of its srun or salloc, and the lines of railgate's and Slurm's logs about it; what cannot be read
/// is named, so that the table is printed in any case.
fn evidence(cluster: &Cluster, job: u32, process: Option<&Process>) -> String {
    let missing = |why: anyhow::Error| format!("{why:#}\n");
    let report = cluster.alice().run(&["railgate", "report", &job.to_string()]);
    let mut text = report.map_or_else(missing, |report| report.both());
    if let Some(process) = process {
        text += &process.output().unwrap_or_else(missing);
    }
    let about = [format!("job={job}"), format!("job {job}"), format!("JobId={job}")];
    let is_about = |line: &str| {
        about.iter().any(|name| {
            line.split_once(name.as_str())
                .is_some_and(|(_, rest)| !rest.starts_with(|c: char| c.is_ascii_digit()))
        })
    };
    for (machine, _) in cluster.machines() {
        for log in ["railgate.log", "slurm/slurmd.log", "slurm/slurmctld.log"] {
            let Ok(content) = cluster.read(&machine, &format!("/var/log/{log}")) else { continue };
            for line in content.lines().filter(|line| is_about(line)) {
                text += &format!("{machine} {log}: {line}\n");
            }
        }
    }
    text
}

fn submit<'a>(cluster: &Cluster, rows: &'a [Ending]) -> Result<Vec<Track<'a>>> {
    let alice = cluster.alice();
    alice.run(&["mkdir", "marks"])?.ok()?;
    let failed = alice.sbatch(&["-p", "cpu", "-o", "/dev/null"], "exit 1")?.to_string();
    let mut arrays = BTreeSet::new();
    rows.iter()
        .map(|row| {
            let words: Vec<String> = row.words.iter().map(|word| word.replace("FAILED", &failed)).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let named = ["-J", row.job()];
            let script = row.script();
            let process = match row.how {
                How::Task(_) if !arrays.insert(row.job()) => None,
                How::Batch | How::Task(_) => {
                    alice.sbatch(&[&named[..], &["-o", "log.%j"], &words].concat(), &script)?;
                    None
                }
                How::Srun => {
                    Some(alice.spawn(&[&["srun"], &named[..], &words, &["bash", "-c", &script]].concat())?)
                }
                How::Salloc => {
                    Some(alice.spawn(&[&["salloc"], &named[..], &words, &["bash", "-c", &script]].concat())?)
                }
            };
            let (says, stand) = (row.says, Stand::Plays);
            Ok(Track { row, process, seen: None, acts: 0, says, is_after: false, stand })
        })
        .collect()
}

/// Jobs by name and array task.
type Queue = BTreeMap<(String, Option<u32>), Seen>;

fn queue(cluster: &Cluster) -> Result<Queue> {
    let columns = "JobID:12,ArrayJobID:12,ArrayTaskID:12,State:20,RestartCnt:12,Reason:40,Name:60";
    let text = cluster.root().run(&["squeue", "-a", "-r", "-h", "-t", "all", "-O", columns])?.ok()?;
    let mut found = Queue::new();
    for line in text.lines() {
        let mut rest = line;
        let mut column = |width: usize| {
            let (cell, more) = rest.split_at(width.min(rest.len()));
            rest = more;
            cell.trim().to_owned()
        };
        let (job, array, task) = (column(12), column(12), column(12));
        let (state, restarts, reason, name) = (column(20), column(12), column(40), column(60));
        let job: u32 = job.parse().with_context(|| line.to_owned())?;
        let task: Option<u32> = task.parse().ok();
        let restarts = restarts.parse().unwrap_or(0);
        let as_named = task.map_or_else(|| job.to_string(), |task| format!("{array}_{task}"));
        let seen = Seen { job, name: as_named, state, reason, restarts };
        // For a heterogeneous job the first component counts.
        let place = found.entry((name, task)).or_insert_with(|| seen.clone());
        if seen.job < place.job {
            *place = seen;
        }
    }
    Ok(found)
}

/// Names of the marks that scripts made, for example `began.48213.0`.
fn marks(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let place = cluster.path("ctl", "/home/rgalice/marks")?;
    let names = std::fs::read_dir(place)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

impl Track<'_> {
    fn job(&self) -> Option<u32> {
        self.seen.as_ref().map(|seen| seen.job)
    }

    fn go_on(&mut self, cluster: &Cluster, queue: &Queue, marks: &BTreeSet<String>) -> Result<()> {
        let task = if let How::Task(task) = self.row.how { Some(task) } else { None };
        let Some(seen) = queue.get(&(self.row.job().to_owned(), task)) else { return Ok(()) };
        self.seen = Some(seen.clone());
        if self.stand != Stand::Plays {
            return Ok(());
        }
        if let Some((when, act)) = self.row.acts.get(self.acts).filter(|_| !self.is_after) {
            let has_come = match when {
                When::Waits(reason) => {
                    seen.state == "PENDING" && seen.reason.to_ascii_lowercase().contains(reason)
                }
                When::Began(attempt) => marks.contains(&format!("began.{}.{attempt}", seen.job)),
                When::In(place) => marks.contains(&format!("{place}.{}.0", seen.job)),
                When::Back => seen.state == "PENDING" && seen.restarts > 0,
            };
            if has_come {
                let process = self.process.as_ref();
                act(&Stage { cluster, job: seen.job, name: &seen.name, process })
                    .with_context(|| format!("{}: {seen:?}", self.row.name))?;
                self.acts += 1;
            }
            return Ok(());
        }
        let has_come = if self.row.waits && !self.is_after {
            seen.state == "PENDING"
        } else {
            ENDED.contains(&seen.state.as_str())
        };
        if has_come {
            self.stand = Stand::Asked(Instant::now());
        }
        Ok(())
    }
}

/// Reads the reports of the jobs that have ended.
fn ask(cluster: &Cluster, tracks: &mut [Track<'_>], table: &mut Table) -> Result<()> {
    let asked = |track: &&Track<'_>| matches!(track.stand, Stand::Asked(_));
    let said = reports(cluster, tracks.iter().filter(asked).filter_map(Track::job))?;
    for (place, track) in tracks.iter_mut().enumerate() {
        let (Stand::Asked(since), Some(seen)) = (track.stand, &track.seen) else { continue };
        let Some(verdict) = said.get(&seen.job) else { continue };
        if verdict.says() != Some(track.says) && since.elapsed() < PATIENCE {
            continue;
        }
        let moment = if track.is_after { "afterwards" } else { "at the end" };
        table.add(place, moment, track.says, verdict.clone());
        match track.row.after {
            Some((act, says)) if !track.is_after => {
                act(&Stage { cluster, job: seen.job, name: &seen.name, process: track.process.as_ref() })?;
                (track.says, track.is_after, track.stand) = (says, true, Stand::Plays);
            }
            _ => track.stand = Stand::Through,
        }
    }
    Ok(())
}

/// The reports as the jobs' owner reads them, by job.
fn reports(cluster: &Cluster, jobs: impl Iterator<Item = u32>) -> Result<BTreeMap<u32, Verdict>> {
    const READ: &str = "for job; do railgate report $job > report.txt 2>&1; echo \"= $job $?\"; \
                        head -n 3 report.txt; done";
    let jobs: Vec<String> = jobs.map(|job| job.to_string()).collect();
    if jobs.is_empty() {
        return Ok(BTreeMap::new());
    }
    let words: Vec<&str> =
        ["bash", "-c", READ, "bash"].into_iter().chain(jobs.iter().map(String::as_str)).collect();
    let text = cluster.alice().run(&words)?.ok()?;
    let mut found = BTreeMap::new();
    for block in text.split("= ").filter(|block| !block.is_empty()) {
        let (head, said) = block.split_once('\n').unwrap_or((block, ""));
        let (job, code) = head.split_once(' ').with_context(|| block.to_owned())?;
        // The report of an array's last task begins with a line that names the task.
        let line = said.lines().find(|line| !line.starts_with("array ")).unwrap_or_default().to_owned();
        found.insert(job.parse()?, Verdict { line, code: Some(code.parse()?) });
    }
    Ok(found)
}

/// Waits until the controller has recorded how Slurm ended the jobs. It takes up to a quarter of a minute, longer on a busy machine,
/// and slurmctld keeps a job for five minutes by default; here it keeps jobs much shorter.
fn recorded(cluster: &Cluster) -> Result<()> {
    let records = ["pgrep", "-f", "^[^ ]*railgate-epilog-ctld sum-up"];
    poll::until(2 * MINUTE, "the ends of the jobs to be recorded", || {
        Ok((cluster.root().run(&records)?.code == 1).then_some(()))
    })
}

/// Makes slurmctld purge all jobs. Returns a name for that moment.
fn forget(cluster: &Cluster, tracks: &[Track<'_>], setup: Setup) -> Result<&'static str> {
    let moment = match setup.later {
        Some(later) => {
            std::thread::sleep(later);
            "later"
        }
        None => {
            recorded(cluster)?;
            let conf = cluster.read("ctl", "/etc/slurm/slurm.conf")?;
            ensure!(conf.contains("MinJobAge=900"), "{conf}");
            cluster.write("ctl", "/etc/slurm/slurm.conf", &conf.replace("MinJobAge=900", "MinJobAge=20"))?;
            cluster.root().run(&["scontrol", "reconfigure"])?.ok()?;
            "forgotten"
        }
    };
    let through = || tracks.iter().filter(|track| track.stand == Stand::Through).filter_map(Track::job);
    poll::until(2 * MINUTE, "slurmctld to forget the jobs", || {
        let queue = queue(cluster)?;
        Ok((!through().any(|job| queue.values().any(|seen| seen.job == job))).then_some(()))
    })?;
    if let Some(job) = through().next() {
        let known = cluster.root().run(&["scontrol", "show", "job", &job.to_string()])?;
        ensure!(known.code != 0, "{known}");
    }
    Ok(moment)
}
