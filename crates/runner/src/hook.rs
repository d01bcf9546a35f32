use std::collections::BTreeMap;
use std::ffi::OsString;

use railgate_model::Job;
use railgate_rundir::Root;
use railgate_slurm::{Asked, Env, Granted, cluster_name, job_from_env, node_name};

use crate::{Config, Loaded, LogConfig, Places, start_logging, switches};

/// Context of a program that slurmd starts for a job, known before any check runs.
#[derive(Debug)]
pub struct Hook {
    /// Where railgate keeps things.
    pub places: Places,
    /// Site configuration in force on this node.
    pub config: Config,
    /// The environment that Slurm set.
    pub env: Env,
    /// The job.
    pub job: Job,
    /// This node's name in Slurm.
    pub node: String,
    /// The cluster's name.
    pub cluster: String,
    /// Options of the job's owner, as far as the site permits them.
    pub granted: Granted,
}

impl Hook {
    /// Reads configuration and environment. Returns `None`, after logging the reason, if there is nothing to do and
    /// the job must simply run: railgate is disabled, its configuration is invalid, or Slurm's environment cannot be
    /// parsed.
    pub fn enter(name: &str) -> Option<Self> {
        let places = Places::default();
        if switches::disabled(&places) {
            return None;
        }
        let env: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        let node = match node_name(&env) {
            Ok(node) => node,
            Err(why) => return nothing(name, &why.to_string()),
        };
        let config = match Loaded::read(&places.config(), false, &node) {
            Ok(loaded) => loaded.config,
            Err(why) => return nothing(name, &why.in_one_line()),
        };
        start_logging(&config.log);
        let (job, cluster) = match (job_from_env(&env), cluster_name(&env)) {
            (Ok(job), Ok(cluster)) => (job, cluster),
            (Err(why), _) | (_, Err(why)) => return nothing(name, &why.to_string()),
        };
        let mut granted = config.slurm.user_policy().grant(&Asked::from_env(&env), config.requeue.default);
        // The SPANK plugin validates the name at submission, but not on a login node without this file or for a job
        // submitted by other means.
        if let Some(Err(why)) = granted.profile.as_deref().map(|name| config.rails.check_profile(name)) {
            granted.refused.push(format!("{why}: the job runs without it"));
            granted.profile = None;
        }
        for refused in &granted.refused {
            tracing::info!(job = job.id, "{refused}");
        }
        Some(Hook { places, config, env, job, node, cluster, granted })
    }

    /// The run directories of this node.
    pub fn runs(&self) -> Root {
        Root::new(&self.places.run)
    }
}

fn nothing(name: &str, why: &str) -> Option<Hook> {
    start_logging(&LogConfig::default());
    tracing::error!("{name}: {why}; the job continues without railgate");
    None
}
