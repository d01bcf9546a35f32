//! Process set-up of programs that Slurm starts: they inherit slurmd's signal mask, umask and environment.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::signal::SigSet;
use nix::sys::stat::{Mode, umask};
use railgate_child::{UserError, become_user};
use railgate_model::UnixMillis;

/// Runs `run` as the body of a program that Slurm starts. An internal failure must let the job run: a panic is
/// logged, and the exit code is then 0.
pub fn guarded(name: &str, run: impl FnOnce() -> ExitCode) -> ExitCode {
    own_process();
    // The panic payload has no location; the panic hook receives it.
    let said = Arc::new(Mutex::new(String::new()));
    let noted = Arc::clone(&said);
    std::panic::set_hook(Box::new(move |info| {
        *noted.lock().unwrap_or_else(PoisonError::into_inner) = info.to_string().replace('\n', " ");
    }));
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        let said = said.lock().unwrap_or_else(PoisonError::into_inner);
        tracing::error!("railgate's {name} failed, the job continues without it: {said}");
        ExitCode::SUCCESS
    })
}

/// Resets the signal mask and umask that a root program may inherit from a daemon.
pub fn own_process() {
    // Slurm up to 24.05 starts its programs with signals blocked, and their children would inherit that.
    if let Err(why) = SigSet::empty().thread_set_mask() {
        crate::logging::complain(format_args!("cannot unblock signals: {why}"));
    }
    // Files of railgate are not writable by others, regardless of slurmd's umask.
    umask(Mode::S_IWGRP | Mode::S_IWOTH);
}

/// Becomes the owner of a directory if this process is root and the owner is not: for files that belong to SlurmUser, which root should
/// neither write nor leave behind as its own. A missing directory changes nothing.
///
/// # Errors
/// The identity could not be changed; it is undefined then, and the process must end.
pub fn become_owner(dir: &Path) -> Result<(), UserError> {
    match std::fs::symlink_metadata(dir) {
        Ok(found) if found.is_dir() && found.uid() != 0 && nix::unistd::geteuid().is_root() => {
            become_user(found.uid(), found.gid(), &[])
        }
        _ => Ok(()),
    }
}

/// Current time; 0 if the clock is before 1970.
pub fn now() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis::try_from(since.as_millis()).unwrap_or(UnixMillis::MAX)
}

/// This node's name: `SLURMD_NODENAME`, else the short host name.
pub fn node_name() -> String {
    let from_slurm = std::env::var_os("SLURMD_NODENAME").and_then(plain_name);
    from_slurm.unwrap_or_else(|| {
        let host = nix::unistd::gethostname().ok().and_then(plain_name).unwrap_or_default();
        host.split('.').next().unwrap_or_default().to_owned()
    })
}

fn plain_name(name: OsString) -> Option<String> {
    let name = name.into_string().ok()?;
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    plain.then_some(name)
}
