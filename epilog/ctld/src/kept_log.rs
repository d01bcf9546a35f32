use std::ffi::OsStr;

use railgate_slurm::{JobState, script_appends};

use crate::call::Call;

/// Whether the log of the attempt that ended survives a restart.
///
/// Slurm does not show a job's open mode. Sources are the job's script, the cluster's default, and
/// `SPANK_RAILGATE_OPEN_MODE`, in which the plugin can pass on the option of sbatch's command line.
pub(crate) fn keeps_log(call: &Call, job: &JobState) -> bool {
    if job.silent {
        return true;
    }
    if let Some(told) = call.env.get(OsStr::new("SPANK_RAILGATE_OPEN_MODE")) {
        return told == "append";
    }
    // The script takes precedence over the default.
    match call.client.batch_script(&call.name).map(|script| script_appends(&script)) {
        Ok(Some(appends)) => return appends,
        Ok(None) => {}
        Err(why) => tracing::warn!(job = %call.name, "{why}"),
    }
    match call.client.config() {
        Ok(config) => config.get("JobFileAppend").is_some_and(|value| value == "1"),
        Err(why) => {
            tracing::warn!(job = %call.name, "{why}");
            false
        }
    }
}
