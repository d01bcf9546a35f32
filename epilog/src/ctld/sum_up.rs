//! One line of a job's report into our field of its AdminComment, in the accounting database.
//!
//! slurmctld refuses to change a job that has ended, and this program must not keep a job completing while reports are
//! on their way. So it leaves a note, and one process for all of them, which outlives it, works the notes off: it
//! waits until the job's nodes have written their parts, asks slurmctld once whether the job went back, and writes.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::libc::O_NOFOLLOW;
use railgate_node::{FileLock, UnixMillis};
use railgate_runner::{Config, Loaded, LogConfig, Places, start_logging};
use railgate_slurm::{Client, Env, JobRef, JobState, Noted, hostlist, job_from_env, note_in_accounting};
use railgate_stats::store::load;
use railgate_stats::{JobReport, SlurmView, summary};
use serde::{Deserialize, Serialize};

use crate::call::{now, own};

/// The first argument of the process that works the notes off.
const WORD: &str = "sum-up";
/// Between two rounds.
const ROUND: Duration = Duration::from_secs(5);
/// Between two jobs: an array's thousand ends are no reason to storm a database.
const BREATH: Duration = Duration::from_millis(200);
/// Epilogs and file servers are slow; a part that has not come by then is missing.
const PATIENCE_MS: u64 = 5 * 60 * 1000;
/// What the database has not taken by then is lost.
const GIVE_UP_MS: u64 = 60 * 60 * 1000;
/// More notes than that are not made.
const MOST: usize = 20_000;

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    job: u32,
    /// The array and the member's number, of a member.
    member: Option<(u32, u32)>,
    uid: u32,
    restarts: u32,
    nodelist: String,
    time: UnixMillis,
}

fn place(own: &Path) -> PathBuf {
    own.join("sum-up")
}

/// Leaves a note of the job that this call is about, and sees to it that somebody works it off. Trouble is logged where
/// there is a log, and no more: nothing depends on it.
pub(crate) fn leave_note(places: &Places, env: &Env) {
    let read = Loaded::read(&places.config(), false, &railgate_runner::node_name());
    let wanted = read.is_ok_and(|loaded| loaded.config.report.admin_comment);
    let Some(note) = wanted.then(|| note(env)).flatten() else { return };
    if let Err(why) = write(&own(places), &note).and_then(|()| start(env)) {
        tracing::warn!(job = note.job, "AdminComment: {why}");
    }
}

fn note(env: &Env) -> Option<Note> {
    let number = |name: &str| env.get(OsStr::new(name))?.to_str()?.parse::<u32>().ok();
    let job = job_from_env(env).ok()?;
    if job.het_leader.is_some_and(|leader| leader != job.id) {
        return None;
    }
    let member = number("SLURM_ARRAY_JOB_ID").zip(number("SLURM_ARRAY_TASK_ID"));
    Some(Note {
        job: job.id,
        member,
        uid: job.uid,
        restarts: job.restarts,
        nodelist: job.nodelist,
        time: now(),
    })
}

fn write(own: &Path, note: &Note) -> io::Result<()> {
    let dir = place(own);
    DirBuilder::new().mode(0o755).recursive(true).create(&dir)?;
    if fs::read_dir(&dir)?.take(MOST).count() >= MOST {
        return Err(io::Error::other(format!("{MOST} jobs wait to be summed up already")));
    }
    let temporary = dir.join(format!(".{}.{}", note.job, std::process::id()));
    fs::write(&temporary, serde_json::to_vec(note)?)?;
    fs::rename(&temporary, dir.join(note.job.to_string()))
}

/// In a process group of its own: slurmctld ends ours when we have ended.
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

/// This process is the one that works the notes off.
pub(crate) fn is_asked() -> bool {
    std::env::args_os().nth(1).is_some_and(|word| word == WORD)
}

/// Works the notes off until there are none. Where another process does, there is nothing to do.
pub(crate) fn work(places: &Places, env: &Env) -> io::Result<()> {
    let own = own(places);
    let dir = place(&own);
    let Some(_held) = FileLock::try_take(&own.join("sum-up.lock"))? else { return Ok(()) };
    let config = Loaded::read(&places.config(), false, &railgate_runner::node_name());
    let config = config.map_err(|why| io::Error::other(why.in_one_line()))?.config;
    start_logging(&LogConfig { file: own.join("epilog-ctld.log"), level: config.log.level });
    let client = Client::new(&config.slurm, env);
    loop {
        let notes = notes(&dir)?;
        if notes.is_empty() {
            return Ok(());
        }
        for (path, note) in notes {
            if round(&config, &client, &note) {
                fs::remove_file(&path)?;
            }
            std::thread::sleep(BREATH);
        }
        std::thread::sleep(ROUND);
    }
}

fn notes(dir: &Path) -> io::Result<Vec<(PathBuf, Note)>> {
    let mut notes = Vec::new();
    for entry in fs::read_dir(dir)?.flatten().take(MOST) {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let mut text = String::new();
        let read = File::options().read(true).custom_flags(O_NOFOLLOW).open(&path);
        let read = read.and_then(|file| file.take(64 << 10).read_to_string(&mut text));
        match read.ok().and_then(|_| serde_json::from_str(&text).ok()) {
            Some(note) => notes.push((path, note)),
            None => fs::remove_file(path)?,
        }
    }
    Ok(notes)
}

/// Whether that was all that can be done for the job.
fn round(config: &Config, client: &Client, note: &Note) -> bool {
    let name = match note.member {
        Some((array, task)) => JobRef::member(array, task),
        None => JobRef::plain(note.job),
    };
    let age = now().saturating_sub(note.time);
    if age > GIVE_UP_MS {
        tracing::warn!(job = %name, "AdminComment: given up");
        return true;
    }
    let state = match client.job(&name) {
        Ok(job) => job.into_iter().next(),
        // What it has forgotten has ended.
        Err(why) if why.no_answer() => return false,
        Err(_) => None,
    };
    if let Some(state) = &state {
        if state.restarts > note.restarts || is_back(state) {
            return true;
        }
        if state.state.contains("COMPLETING") && age < PATIENCE_MS {
            return false;
        }
    }
    let view = state.as_ref().map(|state| SlurmView {
        state: state.state.clone(),
        reason: state.reason.clone(),
        restarts: Some(state.restarts),
        nodelist: note.nodelist.clone(),
        ..SlurmView::default()
    });
    let expand = |list: &str| hostlist::expand(list).ok();
    let report = load(&config.report, &[], None, note.job, Some(note.uid), view, &expand);
    if !whole(&report) && age < PATIENCE_MS {
        return false;
    }
    let Some(line) = summary(&report) else { return true };
    match note_in_accounting(client, &name, &line) {
        Ok(Noted::Absent) => false,
        Ok(Noted::Kept) => {
            tracing::info!(job = %name, "AdminComment: what stands there could not be kept byte for byte");
            true
        }
        Ok(Noted::Written | Noted::Same) => true,
        Err(why) => {
            tracing::warn!(job = %name, "AdminComment: {why}");
            false
        }
    }
}

fn is_back(state: &JobState) -> bool {
    ["PENDING", "RUNNING", "CONFIGURING", "SUSPENDED", "REQUEUE"]
        .iter()
        .any(|word| state.state.contains(word))
}

/// Every node of the last attempt has written its last word.
fn whole(report: &JobReport) -> bool {
    report.attempts.last().is_some_and(|attempt| {
        attempt.silent_nodes.is_empty() && attempt.nodes.iter().all(|node| node.end.is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Scene, job};

    fn note(time: UnixMillis) -> Note {
        Note { job: 7, member: None, uid: 1000, restarts: 0, nodelist: "n[1-2]".to_owned(), time }
    }

    #[test]
    fn only_a_job_that_has_ended_for_good_is_summed_up() {
        let scene = Scene::new("0", "0");
        let call = scene.call();
        let done = |state: &[(&str, &str)], time| {
            scene.jobs(&[job(state)]);
            round(&call.config, &call.client, &note(time))
        };
        // Its nodes' epilogs run; it went back; it waits; nobody waits for ever.
        assert!(!done(&[], now()));
        assert!(done(&[("Restarts", "1")], now()));
        assert!(done(&[("JobState", "PENDING")], now()));
        assert!(done(&[], now() - GIVE_UP_MS - 1));
        // No part of a report: in time one may come, then there is nothing to say.
        assert!(!done(&[("JobState", "COMPLETED")], now()));
        assert!(done(&[("JobState", "COMPLETED")], now() - PATIENCE_MS - 1));
        assert!(scene.calls().iter().all(|call| !call.starts_with("sacct")));
    }

    #[test]
    fn a_line_goes_into_our_field_and_nowhere_else() {
        let scene = Scene::new("0", "0");
        let client = scene.call().client;
        scene.file("release", "slurm-wlm 24.11.5\n");
        let wrote = |comment: &str| {
            scene.file("comment", comment);
            let noted = note_in_accounting(&client, &JobRef::plain(7), "completed, MFU 41.0 %").unwrap();
            (noted, scene.calls().pop().unwrap())
        };
        let (noted, call) = wrote("7|JS1:H4s= railgate: attempt 0 died;\n");
        let want =
            "sacctmgr -i modify job where jobid=7 set AdminComment=JS1:H4s= railgate: completed, MFU 41.0 %;";
        assert_eq!((noted, call.as_str()), (Noted::Written, want));
        assert_eq!(wrote("7|railgate: completed, MFU 41.0 %;\n").0, Noted::Same);
        assert_eq!(wrote("7|{\"theirs\": 1}\n").0, Noted::Kept);
        assert_eq!(wrote("").0, Noted::Absent);
        // It would make capitals small, those of others too.
        for release in ["slurm-wlm 22.05.8\n", ""] {
            scene.file("release", release);
            assert_eq!(wrote("7|JS1:H4s= railgate: attempt 0 died;\n").0, Noted::Kept, "{release}");
            let (noted, call) = wrote("7|cost=3 railgate: MFU 7 %;\n");
            assert!(call.ends_with("AdminComment=cost=3 railgate: completed, mfu 41.0 %;"), "{call}");
            assert_eq!(
                (noted, wrote("7|railgate: completed, mfu 41.0 %;\n").0),
                (Noted::Written, Noted::Same)
            );
        }
        scene.file("comment", "8|x\n");
        assert!(note_in_accounting(&client, &JobRef::plain(7), "x").is_err());
    }

    #[test]
    fn notes_are_found_again_and_what_is_none_goes() {
        let place = tempfile::tempdir().unwrap();
        write(place.path(), &note(5)).unwrap();
        let dir = super::place(place.path());
        fs::write(dir.join("9"), "no note").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.join("10")).unwrap();
        let found = notes(&dir).unwrap();
        assert_eq!((found.len(), found[0].1.job), (1, 7));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    }
}
