use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use railgate_rundir::{Root, RunDir};
use railgate_runner::{
    Config, Loaded, Places, SAMPLER_END, SAMPLER_SOCKET, node_name, start_logging, switches,
};
use railgate_stats::NodeReport;

/// The job's processes are this machine's, whatever hardware a test shows it.
pub(crate) const PROC: &str = "/proc";

/// The other side has one word to say.
const WORD: Duration = Duration::from_secs(1);

/// The run that this sampler is for.
#[derive(Debug)]
pub(crate) struct Mine {
    pub(crate) job: u32,
    pub(crate) dir: RunDir,
    pub(crate) report: NodeReport,
    pub(crate) config: Config,
    places: Places,
    listener: UnixListener,
}

/// What somebody wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Nothing,
    End,
}

impl Mine {
    /// Finds the run and makes this its sampler. `None` where railgate is off or the run has another one.
    pub(crate) fn enter(arguments: &[String]) -> Result<Option<Self>> {
        let places = Places::default();
        if switches::disabled(&places) {
            return Ok(None);
        }
        let config = match Loaded::read(&places.config(), false, &node_name()) {
            Ok(loaded) => loaded.config,
            // The prolog has said it.
            Err(_) => return Ok(None),
        };
        start_logging(&config.log);
        let [job, name] = arguments else { anyhow::bail!("usage: railgate-sampler JOB RUN") };
        let job: u32 = job.parse().with_context(|| format!("'{job}' is no job id"))?;
        let dir = Root::new(&places.run).job(job).current(job)?;
        ensure!(
            dir.path().file_name() == Some(name.as_ref()),
            "run {name} of job {job} is not the current one"
        );
        let report: NodeReport = dir.read_json("report.json").context("report.json")?;
        let Some(listener) = listen(&dir.file(SAMPLER_SOCKET))? else { return Ok(None) };
        Ok(Some(Mine { job, dir, report, config, places, listener }))
    }

    /// Waits for a word, no longer than `time`.
    pub(crate) fn wait(&self, time: Duration) -> Asked {
        let timeout = PollTimeout::try_from(time + Duration::from_micros(999)).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        if !matches!(poll(&mut fds, timeout), Ok(1..)) {
            return Asked::Nothing;
        }
        match self.listener.accept() {
            Ok((stream, _)) => heard(stream),
            Err(_) => Asked::Nothing,
        }
    }

    /// The run is still the job's current one on this node.
    pub(crate) fn is_current(&self) -> bool {
        let current = Root::new(&self.places.run).job(self.job).current(self.job);
        current.is_ok_and(|current| current.path() == self.dir.path())
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.dir.file(SAMPLER_SOCKET));
    }
}

/// The word is one line. Whoever says it waits for the end of this process, which closes the connection: so it is
/// kept open until then.
fn heard(mut stream: UnixStream) -> Asked {
    let mut word = [0; SAMPLER_END.len()];
    let read = stream.set_read_timeout(Some(WORD)).and_then(|()| stream.read_exact(&mut word));
    if read.is_ok() && word == *SAMPLER_END {
        std::mem::forget(stream);
        return Asked::End;
    }
    Asked::Nothing
}

/// One sampler for a run: a socket that answers is another's, one that does not was left by one that was killed.
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
    fn a_run_has_one_sampler_and_a_dead_ones_socket_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SAMPLER_SOCKET);
        let first = listen(&path).unwrap().unwrap();
        assert!(listen(&path).unwrap().is_none());
        drop(first);
        assert!(path.exists() && listen(&path).unwrap().is_some());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn only_the_word_ends_it() {
        for (said, asked) in [(&b"end\n"[..], Asked::End), (b"emd\n", Asked::Nothing), (b"e", Asked::Nothing)]
        {
            let (mut there, here) = UnixStream::pair().unwrap();
            there.write_all(said).unwrap();
            there.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(heard(here), asked, "{said:?}");
        }
    }
}
