use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use railgate_model::{Job, UnixMillis};
use railgate_runner::{Config, Loaded, LogConfig, Places, acting, start_logging};
use railgate_slurm::{
    Acting, Asked, Client, Consent, Env, ExitCodes, JobRef, Ledger, array_member, cluster_name, job_from_env,
};

/// Size at which the log is started again, bytes.
const LOG_SIZE: u64 = 16 << 20;

/// Context of one call by slurmctld.
#[derive(Debug)]
pub(crate) struct Call {
    /// Site configuration.
    pub(crate) config: Config,
    /// Whether anything may be changed.
    pub(crate) acting: Acting,
    /// The environment that slurmctld set.
    pub(crate) env: Env,
    /// The cluster's name.
    pub(crate) cluster: String,
    /// The job, without its GPUs, which are unknown here.
    pub(crate) job: Job,
    /// Its name in Slurm's commands.
    pub(crate) name: JobRef,
    /// How the job ended.
    pub(crate) exit: ExitCodes,
    /// The owner's choice about requeueing, after policy.
    pub(crate) consent: Consent,
    /// What `--railgate-requeue` says; `None` without it.
    pub(crate) asked: Option<Consent>,
    /// Client for Slurm's commands.
    pub(crate) client: Client,
    /// History of jobs and nodes.
    pub(crate) ledger: Ledger,
    /// `/var/lib/railgate/controller`.
    pub(crate) own: PathBuf,
}

/// Why the call has nothing to do.
#[derive(Debug)]
pub(crate) enum Nothing {
    /// Another call handles the job.
    Quiet,
    /// railgate has a problem; the job stays as Slurm left it.
    Trouble(String),
}

/// Exit code 0 in the first attempt: such a job needs no action.
pub(crate) fn ended_well(env: &Env) -> bool {
    let is_zero = |name: &str| env.get(OsStr::new(name)).is_none_or(|value| value == "0");
    is_zero("SLURM_JOB_EXIT_CODE") && is_zero("SLURM_JOB_RESTART_COUNT")
}

/// State directory of this program.
pub(crate) fn own(places: &Places) -> PathBuf {
    places.state.join("controller")
}

impl Call {
    pub(crate) fn enter(places: Places, env: Env) -> Result<Self, Nothing> {
        let trouble = |why: String| Nothing::Trouble(why);
        let job = job_from_env(&env).map_err(|why| trouble(why.to_string()))?;
        // Every component of a heterogeneous job has its own call, and all are requeued or none.
        if job.het_leader.is_some_and(|leader| leader != job.id) {
            return Err(Nothing::Quiet);
        }
        let node = railgate_runner::node_name();
        let config =
            Loaded::read(&places.config(), false, &node).map_err(|why| trouble(why.in_one_line()))?.config;
        let own = own(&places);
        log_to(&own, &config.log);
        let acting = acting(&config, &places);
        Self::with(config, acting, own, env, job)
    }

    /// As [`Call::enter`], with given directories for tests.
    pub(crate) fn with(
        config: Config,
        acting: Acting,
        own: PathBuf,
        env: Env,
        job: Job,
    ) -> Result<Self, Nothing> {
        let trouble = |why: String| Nothing::Trouble(why);
        let cluster = cluster_name(&env).map_err(|why| trouble(why.to_string()))?;
        let exit = ExitCodes::from_env(&env).map_err(|why| trouble(why.to_string()))?;
        let asked = Asked::from_env(&env);
        let granted = config.slurm.user_policy().grant(&asked, config.requeue.default);
        let name = array_member(&env)
            .map_or_else(|| JobRef::plain(job.id), |(array, task)| JobRef::member(array, task));
        let client = Client::new(&config.slurm, &env);
        let ledger = Ledger::new(&own).counting(config.requeue.window);
        Ok(Call {
            acting,
            cluster,
            name,
            exit,
            consent: granted.requeue,
            asked: asked.requeue,
            client,
            ledger,
            own,
            config,
            env,
            job,
        })
    }

    /// Node lists of all components of the job, unexpanded.
    pub(crate) fn nodelist(&self) -> &str {
        let all = self.env.get(OsStr::new("SLURM_HET_JOB_NODELIST")).and_then(|list| list.to_str());
        all.filter(|list| !list.is_empty()).unwrap_or(&self.job.nodelist)
    }
}

/// slurmctld logs standard error only of a failed program, so this program has its own log.
fn log_to(own: &PathBuf, config: &LogConfig) {
    let made = DirBuilder::new().mode(0o755).recursive(true).create(own);
    let file = own.join("epilog-ctld.log");
    if fs::metadata(&file).is_ok_and(|found| found.len() >= LOG_SIZE) {
        let _ = fs::rename(&file, own.join("epilog-ctld.1.log"));
    }
    start_logging(&LogConfig { file, level: config.level });
    match made {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
            tracing::error!("{}: {why} (it must belong to SlurmUser)", own.display());
        }
        _ => {}
    }
}

/// Current time.
pub(crate) fn now() -> UnixMillis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMillis::try_from(since.as_millis()).unwrap_or(UnixMillis::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_first_attempt_with_exit_code_0_needs_no_action() {
        let env = |exit: &str, restarts: &str| {
            [("SLURM_JOB_EXIT_CODE", exit), ("SLURM_JOB_RESTART_COUNT", restarts)]
                .map(|(name, value)| (name.into(), value.into()))
                .into()
        };
        assert!(ended_well(&env("0", "0")));
        assert!(ended_well(&Env::new()));
        assert!(!ended_well(&env("256", "0")));
        assert!(!ended_well(&env("0", "1")));
    }
}
