//! Starting and ending the sampler: the prolog starts it, the epilog ends it. Neither waits longer than three times
//! [`PATIENCE`], and neither depends on it.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Pid;
use railgate_rundir::RunDir;

use crate::Hook;

/// Installed beside the programs that start and end it.
const PROGRAM: &str = "railgate-sampler";
/// In the run's directory. Only root can connect to it, to end the sampler.
pub const SAMPLER_SOCKET: &str = "sampler.sock";
/// In the run's directory: the GPUs that the sampler reads, left by the prolog
/// ([`SampledGpus`](railgate_model::SampledGpus)).
pub const SAMPLER_GPUS: &str = "gpus.json";
/// In the run's directory: the tasks found so far, rewritten after each sample.
pub const SAMPLER_TASKS: &str = "tasks.json";

/// In the run's directory: the files that the job's processes have as output, with their ranks.
pub const SAMPLER_OUTPUTS: &str = "outputs.json";
/// In the run's directory: pauses of the job's ranks ([`Pauses`](railgate_node_report::comm::Pauses)); absent: none so far.
pub const SAMPLER_PAUSES: &str = "pauses.json";
/// In the run's directory: hangs that the guard found ([`Hangs`](railgate_node_report::Hangs)); absent: none so far.
pub const SAMPLER_HANGS: &str = "hangs.json";
/// In the run's directory: no GPU of the node has worked for long ([`NodeWait`](railgate_node_report::NodeWait)); absent: one works.
pub const SAMPLER_WAIT: &str = "wait.json";
/// Xids that NVML reported to the sampler where the kernel log cannot be read: a list.
pub const SAMPLER_XIDS: &str = "xids.json";
/// In the run's directory: while the job's user keeps a connection open here, the sampler does not read the GPUs.
pub const YIELD_SOCKET: &str = "yield.sock";
/// In the run's directory: samples aggregated to minutes.
pub const SAMPLES_MINUTES: &str = "samples.minutes";
/// Samples of the last hour, in a rotation of three files.
pub const SAMPLES_FINE: [&str; 3] = ["samples.fine0", "samples.fine1", "samples.fine2"];
/// The samples around events.
pub const SAMPLES_EVENTS: &str = "samples.events";
/// All files of samples.
pub const SAMPLER_FILES: [&str; 5] =
    [SAMPLES_MINUTES, SAMPLES_EVENTS, SAMPLES_FINE[0], SAMPLES_FINE[1], SAMPLES_FINE[2]];
/// The message that ends the sampler.
pub const SAMPLER_END: &[u8] = b"end\n";

/// Longest wait for the sampler to end. Writing its last lines takes milliseconds, on a busy node seconds. A killed sampler
/// leaves its file of samples without the last record.
const PATIENCE: Duration = Duration::from_secs(5);

/// How the sampler of a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerEnd {
    /// It ended on request.
    Ended,
    /// It was not running.
    Absent,
    /// It did not answer and was killed.
    Killed,
}

/// Starts the run's sampler. The run's directory must be complete.
///
/// # Errors
/// The program is not installed, or no process can be created.
pub fn start_sampler(hook: &Hook, run: &RunDir) -> io::Result<()> {
    let own = std::env::current_exe()?;
    let program = own.with_file_name(PROGRAM);
    let name = run.path().file_name().ok_or_else(|| io::Error::other("run directory without a name"))?;
    let started = Command::new(&program)
        .arg(hook.job.id.to_string())
        .arg(name)
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C"), ("SLURMD_NODENAME", hook.node.as_str())])
        .envs(hook.env.get_key_value(OsStr::new("SLURM_CONF")))
        .current_dir("/")
        // slurmd kills the prolog's process group when the prolog has ended.
        .process_group(0)
        // The prolog would not end for slurmd while a stream inherited from it stays open.
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    // Not waited for: it outlives this process, and init reaps it.
    started.map(drop).map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", program.display())))
}

/// Ends the run's sampler. Its files are complete afterwards, up to the last sample if it had to be killed.
///
/// # Errors
/// The socket exists and cannot be used.
pub fn end_sampler(run: &RunDir) -> io::Result<SamplerEnd> {
    let mut stream = match UnixStream::connect(run.file(SAMPLER_SOCKET)) {
        Ok(stream) => stream,
        Err(why) if matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(SamplerEnd::Absent);
        }
        Err(why) => return Err(why),
    };
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut nothing = [0; 16];
    // The sampler closes the connection when it ends.
    let ended = stream.write_all(SAMPLER_END).and_then(|()| stream.read(&mut nothing));
    match ended {
        Ok(_) => Ok(SamplerEnd::Ended),
        Err(why) if matches!(why.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            Ok(SamplerEnd::Ended)
        }
        Err(_) => {
            // The connection is open, so the process still exists and the pid is not reused.
            let pid = getsockopt(&stream, PeerCredentials)?.pid();
            kill(Pid::from_raw(pid), Signal::SIGKILL)?;
            // The connection closes when the process ends; until then it may still write. A process in D state writes
            // nothing.
            let _ = stream.read(&mut nothing);
            Ok(SamplerEnd::Killed)
        }
    }
}
