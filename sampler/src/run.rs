use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use railgate_metrics::JobFile;
use railgate_node_report::NodeReport;
use railgate_node_report::usage::GpuFigures;
use railgate_rundir::{Root, RunDir};
use railgate_runner::{
    Config, Loaded, Places, SAMPLER_END, SAMPLER_SOCKET, YIELD_SOCKET, gpu_figures, node_name, start_logging,
    switches,
};

/// The job's processes are always those of this machine, even if a test simulates its hardware.
pub(crate) const PROC: &str = "/proc";

/// Timeout for reading a command from a connection.
const WORD: Duration = Duration::from_secs(1);

/// The run that this sampler belongs to.
#[derive(Debug)]
pub(crate) struct Mine {
    pub(crate) job: u32,
    pub(crate) dir: RunDir,
    pub(crate) report: NodeReport,
    pub(crate) config: Config,
    /// Peaks and calibrations of the node's GPUs.
    pub(crate) figures: GpuFigures,
    places: Places,
    listener: UnixListener,
    yields: Option<UnixListener>,
    yielding: Vec<UnixStream>,
    /// Before this time no connection on `yields` is accepted.
    next_round: Instant,
}

/// Maximum number of open yield connections; one is sufficient.
const MOST_YIELDS: usize = 16;
/// Maximum number of connections accepted at once, because the job's user can connect without limit. Further
/// ones wait, or the kernel refuses them.
const MOST_ACCEPTED: usize = 32;
/// Interval between rounds of accepting; the sampler does not wake up for connections in between.
const ROUND: Duration = Duration::from_millis(200);

/// A request to the sampler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Nothing,
    End,
}

impl Mine {
    /// Finds the run and registers this process as its sampler. `None` if railgate is disabled, or the run
    /// already has a sampler.
    pub(crate) fn enter(arguments: &[String]) -> Result<Option<Self>> {
        let places = Places::default();
        if switches::disabled(&places) {
            return Ok(None);
        }
        let config = match Loaded::read(&places.config(), false, &node_name()) {
            Ok(loaded) => loaded.config,
            // The prolog has already reported it.
            Err(_) => return Ok(None),
        };
        start_logging(&config.log);
        let [job, name] = arguments else { anyhow::bail!("usage: railgate-sampler JOB RUN") };
        let job: u32 = job.parse().with_context(|| format!("'{job}' is not a job id"))?;
        let dir = Root::new(&places.run).job(job).current(job)?;
        ensure!(
            dir.path().file_name() == Some(name.as_ref()),
            "run {name} of job {job} is not the current one"
        );
        let report: NodeReport = dir.read_json("report.json").context("report.json")?;
        let Some(listener) = listen(&dir.file(SAMPLER_SOCKET))? else { return Ok(None) };
        let yields = match yields(&dir.file(YIELD_SOCKET), report.job.uid) {
            Ok(yields) => Some(yields),
            Err(why) => {
                tracing::info!(job, "sampler: {YIELD_SOCKET}: {why}");
                None
            }
        };
        Ok(Some(Mine {
            job,
            dir,
            report,
            figures: gpu_figures(&places, &config),
            config,
            places,
            listener,
            yields,
            yielding: Vec::new(),
            next_round: Instant::now(),
        }))
    }

    /// A run without GPUs, of job 7, below a directory.
    #[cfg(test)]
    pub(crate) fn of_test(place: &std::path::Path) -> Self {
        let places = Places { run: place.to_owned(), ..Places::default() };
        let run = r#"{"schema":1,"job":7,"attempt":0,"start":1700000000,"boot_id":"b","kernel_seq":null,"profile":null,
            "gate":"quick","requeue":"auto"}"#;
        let dir = Root::new(place).job(7).create(&serde_json::from_str(run).unwrap()).unwrap();
        dir.publish().unwrap();
        let job = r#"{"id":7,"uid":1000,"gid":1000,"user":"alice","het_leader":null,"partition":"gpu","nodelist":"n1",
            "restarts":0,"allocation":"no-gpus"}"#;
        let report = NodeReport::new("alpha", "n1", serde_json::from_str(job).unwrap(), 0, 1_700_000_000_000);
        let mut config = Config::default();
        config.source.sysfs = place.join("sys");
        let listener = listen(&dir.file(SAMPLER_SOCKET)).unwrap().unwrap();
        let (yielding, next_round) = (Vec::new(), Instant::now());
        let figures = GpuFigures::default();
        Mine { job: 7, dir, report, config, figures, places, listener, yields: None, yielding, next_round }
    }

    /// Waits for a request, no longer than `time`, or until one of `others` is readable.
    pub(crate) fn wait<'f>(
        &mut self,
        time: Duration,
        others: impl IntoIterator<Item = BorrowedFd<'f>>,
    ) -> Asked {
        let pause = self.next_round.saturating_duration_since(Instant::now());
        let hears = pause.is_zero();
        let time = if hears { time } else { time.min(pause) };
        let timeout = PollTimeout::try_from(time + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        let fd = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut fds = vec![fd(self.listener.as_fd())];
        if hears {
            fds.extend(self.yields.iter().map(|yields| fd(yields.as_fd())));
            fds.extend(self.yielding.iter().map(|stream| fd(stream.as_fd())));
        }
        fds.extend(others.into_iter().map(|other| PollFd::new(other, PollFlags::POLLIN)));
        if !matches!(poll(&mut fds, timeout), Ok(1..)) {
            return Asked::Nothing;
        }
        if fds.first().and_then(PollFd::any) == Some(true)
            && let Ok((stream, _)) = self.listener.accept()
        {
            return heard(stream);
        }
        drop(fds);
        if hears {
            self.hear_yields();
        }
        Asked::Nothing
    }

    /// Whether the job's user (or root) holds a connection open; as long as it does, the GPUs are not accessed.
    pub(crate) fn yielded(&self) -> bool {
        !self.yielding.is_empty()
    }

    fn hear_yields(&mut self) {
        // Data on it is never read: a readable connection is closed, or has sent data and is dropped.
        self.yielding.retain(|stream| {
            let mut fds = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
            matches!(poll(&mut fds, PollTimeout::ZERO), Ok(0))
        });
        let Some(yields) = &self.yields else { return };
        self.next_round = Instant::now() + ROUND;
        for _ in 0..MOST_ACCEPTED {
            let Ok((stream, _)) = yields.accept() else { break };
            let uid = getsockopt(&stream, PeerCredentials).map(|peer| peer.uid());
            let theirs = uid.is_ok_and(|uid| uid == 0 || uid == self.report.job.uid);
            if theirs && self.yielding.len() < MOST_YIELDS {
                self.yielding.push(stream);
            }
        }
    }

    /// The job's file for Prometheus, if the site configures metrics.
    pub(crate) fn metrics(&self) -> io::Result<Option<JobFile>> {
        let locks = self.places.run.join("metrics");
        JobFile::open(&self.config.metrics, &self.figures, &locks, &self.report)
    }

    /// Directory of the runs of this node's jobs.
    pub(crate) fn run_places(&self) -> &Path {
        &self.places.run
    }

    /// Whether the run is still the job's current one on this node.
    pub(crate) fn is_current(&self) -> bool {
        let current = Root::new(&self.places.run).job(self.job).current(self.job);
        current.is_ok_and(|current| current.path() == self.dir.path())
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.dir.file(SAMPLER_SOCKET));
        let _ = fs::remove_file(self.dir.file(YIELD_SOCKET));
    }
}

/// Reads a request of one line. The client waits for the end of this process, which closes the connection, so
/// it is kept open until then.
fn heard(mut stream: UnixStream) -> Asked {
    let mut word = [0; SAMPLER_END.len()];
    let read = stream.set_read_timeout(Some(WORD)).and_then(|()| stream.read_exact(&mut word));
    if read.is_ok() && word == *SAMPLER_END {
        std::mem::forget(stream);
        return Asked::End;
    }
    Asked::Nothing
}

/// Creates the socket for yield connections; the kernel admits only the job's user and root.
fn yields(path: &PathBuf, uid: u32) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    chown(path, Some(uid), None)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Ensures one sampler per run: a socket that answers belongs to another sampler, one that does not was left by
/// a killed one.
fn listen(path: &PathBuf) -> io::Result<Option<UnixListener>> {
    for _ in 0..2 {
        match UnixListener::bind(path) {
            Ok(listener) => {
                fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
                listener.set_nonblocking(true)?;
                return Ok(Some(listener));
            }
            Err(why) if why.kind() == io::ErrorKind::AddrInUse => {
                if UnixStream::connect(path).is_ok() {
                    return Ok(None);
                }
                fs::remove_file(path)?;
            }
            Err(why) => return Err(why),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn run_has_one_sampler_and_the_socket_of_a_dead_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SAMPLER_SOCKET);
        let first = listen(&path).unwrap().unwrap();
        assert!(listen(&path).unwrap().is_none());
        drop(first);
        assert!(path.exists() && listen(&path).unwrap().is_some());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn connections_are_accepted_in_rounds_and_few_are_kept() {
        let place = tempfile::tempdir().unwrap();
        let mut mine = Mine::of_test(place.path());
        let uid = nix::unistd::geteuid().as_raw();
        mine.report.job.uid = uid;
        let path = mine.dir.file(YIELD_SOCKET);
        mine.yields = Some(yields(&path, uid).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let connected: Vec<_> = (0..100).map(|_| UnixStream::connect(&path).unwrap()).collect();
        mine.wait(Duration::ZERO, []);
        assert!(mine.yielded());
        assert_eq!(mine.yielding.len(), MOST_YIELDS);
        // No more are accepted in the same round: later connections still wait.
        let waiting = |mine: &Mine| {
            let mut fds = [PollFd::new(mine.yields.as_ref().unwrap().as_fd(), PollFlags::POLLIN)];
            poll(&mut fds, PollTimeout::ZERO) == Ok(1)
        };
        mine.next_round = Instant::now() + Duration::from_secs(3600);
        mine.wait(Duration::ZERO, []);
        assert!(waiting(&mine));
        drop(connected);
        for _ in 0..4 {
            mine.next_round = Instant::now();
            mine.wait(Duration::ZERO, []);
        }
        assert!(!waiting(&mine) && !mine.yielded());
    }

    #[test]
    fn only_the_end_request_ends_it() {
        for (said, asked) in [(&b"end\n"[..], Asked::End), (b"emd\n", Asked::Nothing), (b"e", Asked::Nothing)]
        {
            let (mut there, here) = UnixStream::pair().unwrap();
            there.write_all(said).unwrap();
            there.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(heard(here), asked, "{said:?}");
        }
    }
}
