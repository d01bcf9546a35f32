//! `--railgate-gate=preflight`: the task of the batch script, as its owner, runs `railgate preflight` and waits for it before it
//! becomes the script. Its output is in the job's own output file.
//!
//! Only a preflight that names a node, by an exit code of its own, ends the task: with exit code 1, as a script with `railgate preflight || exit 1` in its first
//! line would. Everything else lets the script start. No thread is started or waited for, as the parent has threads.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use railgate_rundir::{CONTROL_GATE, GateChoice, PREFLIGHT_NAMED, TaskEnv};
use slurm_spank::SpankHandle;

use crate::child;
use crate::log::tell;

const PROGRAM: &str = "/usr/bin/railgate";
/// The program begins no test that may end after 420 s, and needs up to 35 s more to leave its result on the nodes.
const DEADLINE: Duration = Duration::from_secs(480);
/// Exit code of a task whose script must not start on these nodes.
const NOT_STARTED: i32 = 1;

/// Whether the prolog has granted it. The job's own environment does not count.
pub(crate) fn is_asked(env: &TaskEnv) -> bool {
    let wanted = GateChoice::Preflight.as_str();
    env.settings.iter().any(|setting| setting.name == CONTROL_GATE && setting.value == wanted)
}

/// Returns if the script may start, and ends the process if not.
pub(crate) fn preflight(handle: &SpankHandle<'_>) {
    let why = match run(handle) {
        Ok(status) if status.code() == Some(i32::from(PREFLIGHT_NAMED)) => {
            // SAFETY: ends the process. The exit handlers of slurmstepd, of which it is a copy, must not run.
            unsafe { libc::_exit(NOT_STARTED) }
        }
        Ok(status) if status.success() => return,
        Ok(status) => format!("{PROGRAM}: {status}"),
        Err(why) => why,
    };
    tell(&[format!("railgate: no preflight, the script starts without it: {why}")]);
}

fn run(handle: &SpankHandle<'_>) -> Result<ExitStatus, String> {
    let env = handle.job_env_os().map_err(|why| format!("the job's environment: {why}"))?;
    let mut started = Command::new(PROGRAM)
        .args(["preflight", "--before-script"])
        .env_clear()
        .envs(env.iter().filter_map(|variable| variable_of(variable)))
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|why| format!("{PROGRAM}: {why}"))?;
    child::wait(&mut started, DEADLINE).map_err(|why| format!("{PROGRAM}: {why}"))
}

/// Name and value, also of a variable that is not UTF-8.
fn variable_of(text: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = text.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (bytes.get(..at)?, bytes.get(at + 1..)?);
    Some((OsStr::from_bytes(name), OsStr::from_bytes(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_need_not_be_utf_8() {
        let whole = OsStr::from_bytes(b"PATH_\xff=/data/\xfe=x");
        let (name, value) = variable_of(whole).unwrap();
        assert_eq!((name.as_bytes(), value.as_bytes()), (&b"PATH_\xff"[..], &b"/data/\xfe=x"[..]));
        assert_eq!(variable_of(OsStr::new("no-value")), None);
    }
}
