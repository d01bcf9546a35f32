//! Runs in srun, sbatch and salloc.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use railgate_rundir::{CONTROL_OPEN_MODE, told_open_mode};
use slurm_spank::{LogLevel, SpankHandle};

use crate::log::log;
use crate::options;

/// Longest command line that is read, bytes.
const MOST_BYTES: u64 = 1 << 20;

/// Exports the chosen options to prolog and epilog as `SPANK_RAILGATE_…`, and also the open mode of the log that
/// sbatch was given, which scripts of slurmctld could not determine otherwise.
///
/// Slurm's own forwarding of options does not reach slurmd's scripts on nodes where any plugin has a job prolog or
/// epilog.
pub(crate) fn pass_on(handle: &SpankHandle<'_>) {
    let open_mode = open_mode().map(|mode| (CONTROL_OPEN_MODE, mode.to_owned()));
    for (name, value) in options::chosen_values().into_iter().chain(open_mode) {
        if let Err(why) = handle.job_control_setenv(name, &value, true) {
            log(LogLevel::Debug, format_args!("{name}={value} could not be passed on: {why}"));
        }
    }
}

fn open_mode() -> Option<&'static str> {
    let mut cmdline = Vec::new();
    let size = File::open("/proc/self/cmdline").ok()?.take(MOST_BYTES).read_to_end(&mut cmdline).ok()?;
    // The command line was cut, and the rest may contain another open mode.
    if u64::try_from(size).ok()? == MOST_BYTES {
        return None;
    }
    let variable = std::env::var_os("SBATCH_OPEN_MODE");
    told_open_mode(&cmdline, variable.as_deref().map(OsStrExt::as_bytes)).map(|mode| mode.as_str())
}
