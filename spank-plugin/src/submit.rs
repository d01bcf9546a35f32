//! In srun, sbatch and salloc.

use slurm_spank::{LogLevel, SpankHandle, spank_log};

use crate::options;

/// Puts the chosen options where prolog and epilog find them, as `SPANK_RAILGATE_…`.
///
/// What Slurm passes on by itself does not reach slurmd's scripts on nodes where any plugin has a job prolog
/// or epilog.
pub(crate) fn pass_on(handle: &SpankHandle<'_>) {
    for (name, value) in options::chosen_values() {
        if let Err(why) = handle.job_control_setenv(name, &value, true) {
            spank_log(LogLevel::Debug, &format!("railgate: {name}={value} is not passed on: {why}"));
        }
    }
}
