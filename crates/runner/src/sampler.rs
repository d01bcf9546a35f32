//! The sampler from outside: the prolog starts it, the epilog ends it. Neither waits for it longer than
//! [`PATIENCE`], and neither needs it.

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

/// Beside the programs that start and end it.
const PROGRAM: &str = "railgate-sampler";
/// In the run's directory: who can connect, root, can end it.
pub const SAMPLER_SOCKET: &str = "sampler.sock";
/// In the run's directory: what it has found so far, written whole after each look.
pub const SAMPLER_TASKS: &str = "tasks.json";

/// What NVML told the sampler, where the kernel's log cannot be read: a list of Xids.
pub const SAMPLER_XIDS: &str = "xids.json";
/// In the run's directory: as long as the job's user holds a connection here open, the GPUs are left alone.
pub const YIELD_SOCKET: &str = "yield.sock";
/// In the run's directory: its samples, folded to minutes.
pub const SAMPLES_MINUTES: &str = "samples.minutes";
/// The last hour's samples, in turn.
pub const SAMPLES_FINE: [&str; 3] = ["samples.fine0", "samples.fine1", "samples.fine2"];
/// The samples around events.
pub const SAMPLES_EVENTS: &str = "samples.events";
/// All of them.
pub const SAMPLER_FILES: [&str; 5] =
    [SAMPLES_MINUTES, SAMPLES_EVENTS, SAMPLES_FINE[0], SAMPLES_FINE[1], SAMPLES_FINE[2]];
/// What is said to it.
pub const SAMPLER_END: &[u8] = b"end\n";

/// A sampler that writes its last lines needs milliseconds.
const PATIENCE: Duration = Duration::from_secs(2);

/// How the sampler of a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerEnd {
    /// It was asked to, and did.
    Ended,
    /// There is none: it did not start, or went before.
    Absent,
    /// It did not answer and was killed.
    Killed,
}

/// Starts the run's sampler, once the run's directory is complete.
///
/// # Errors
/// It is not installed, or the system has no room for a process.
pub fn start_sampler(hook: &Hook, run: &RunDir) -> io::Result<()> {
    let own = std::env::current_exe()?;
    let program = own.with_file_name(PROGRAM);
    let name = run.path().file_name().ok_or_else(|| io::Error::other("run directory without a name"))?;
    let started = Command::new(&program)
        .arg(hook.job.id.to_string())
        .arg(name)
        .env_clear()
        .envs([("PATH", "/usr/bin:/bin"), ("LC_ALL", "C"), ("SLURMD_NODENAME", hook.node.as_str())])
        .current_dir("/")
        // slurmd kills the prolog's process group when the prolog has ended.
        .process_group(0)
        // A stream of slurmd's that stays open would keep it waiting for the prolog.
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    // Not waited for: it outlives us, and init collects it.
    started.map(drop).map_err(|why| io::Error::new(why.kind(), format!("{}: {why}", program.display())))
}

/// Ends the run's sampler. What it has found is in its files by then, also where it had to be killed.
///
/// # Errors
/// The socket is there and cannot be used.
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
    // It closes the connection by ending.
    let ended = stream.write_all(SAMPLER_END).and_then(|()| stream.read(&mut nothing));
    match ended {
        Ok(_) => Ok(SamplerEnd::Ended),
        Err(why) if matches!(why.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) => {
            Ok(SamplerEnd::Ended)
        }
        Err(_) => {
            // The connection is open, so the number is still its own.
            let pid = getsockopt(&stream, PeerCredentials)?.pid();
            kill(Pid::from_raw(pid), Signal::SIGKILL)?;
            // Its end closes the connection; until then it may still write. Whoever hangs in the kernel writes nothing.
            let _ = stream.read(&mut nothing);
            Ok(SamplerEnd::Killed)
        }
    }
}
