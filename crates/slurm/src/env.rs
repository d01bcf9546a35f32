//! What Slurm's hooks are told through their environment. All of it passes through people's hands (job
//! names, comments, anything that begins with `SPANK_`), so it is parsed strictly and never believed further
//! than it can do harm. An environment that cannot be understood is an error, and no error here drains.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use railgate_model::{Allocation, GpuId, Job};
use railgate_rundir::{ProfileName, ProfilerChoice};
use serde::{Deserialize, Serialize};

use crate::{Consent, GateLevel, hostlist};

/// A hook's environment.
pub type Env = BTreeMap<OsString, OsString>;

/// Longest value that is looked at, bytes.
const MAX_VALUE: usize = 64 << 10;

/// More GPUs than any node has; a longer list is not read.
const MAX_GPUS: usize = 1024;

/// What a hook cannot do without is missing or wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEnv {
    /// The variable is not there.
    #[error("{0} is not set")]
    Missing(&'static str),
    /// It has a value that Slurm would not give it.
    #[error("{name}='{value}': {what}")]
    Invalid {
        /// Which.
        name: &'static str,
        /// Its value, control characters replaced and cut.
        value: String,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// The job that a prolog or an epilog was started for.
///
/// A GPU list that cannot be read is [`Allocation::Unreadable`], not an error: the rest of the job is known.
///
/// # Errors
/// [`BadEnv`] where an id, the user or the node list is missing or wrong.
pub fn job_from_env(env: &Env) -> Result<Job, BadEnv> {
    let nodelist = text(env, "SLURM_JOB_NODELIST")?
        .or(text(env, "SLURM_NODELIST")?)
        .ok_or(BadEnv::Missing("SLURM_JOB_NODELIST"))?;
    let user = text(env, "SLURM_JOB_USER")?.unwrap_or_default();
    Ok(Job {
        id: job_id(env, "SLURM_JOB_ID")?.ok_or(BadEnv::Missing("SLURM_JOB_ID"))?,
        uid: number(env, "SLURM_JOB_UID")?.ok_or(BadEnv::Missing("SLURM_JOB_UID"))?,
        gid: number(env, "SLURM_JOB_GID")?.ok_or(BadEnv::Missing("SLURM_JOB_GID"))?,
        user: clean(user),
        restarts: number(env, "SLURM_JOB_RESTART_COUNT")?.unwrap_or(0),
        nodelist: checked_list("SLURM_JOB_NODELIST", nodelist)?,
        het_leader: job_id(env, "SLURM_HET_JOB_ID")?,
        allocation: allocation(env),
        partition: clean(text(env, "SLURM_JOB_PARTITION")?.unwrap_or_default()),
    })
}

/// `SLURMD_NODENAME`, the node's name in Slurm.
///
/// # Errors
/// [`BadEnv`] where it is missing or no host name.
pub fn node_name(env: &Env) -> Result<String, BadEnv> {
    let name = text(env, "SLURMD_NODENAME")?.ok_or(BadEnv::Missing("SLURMD_NODENAME"))?;
    if name.is_empty() || name.len() > 255 || !name.bytes().all(is_host_byte) {
        return Err(invalid("SLURMD_NODENAME", name, "no host name"));
    }
    Ok(name.to_owned())
}

/// How many processors of a node its job has: `SLURM_JOB_CPUS_PER_NODE` (`128(x2),64`), in the order of the job's nodes.
pub fn cpus_of_node(env: &Env, nodelist: &str, node: &str) -> Option<u32> {
    let place = hostlist::expand(nodelist).ok()?.iter().position(|name| name == node)?;
    let mut before = 0;
    for entry in text(env, "SLURM_JOB_CPUS_PER_NODE").ok()??.split(',') {
        let (cpus, times) = match entry.split_once("(x") {
            Some((cpus, times)) => (cpus, times.strip_suffix(')')?.parse::<usize>().ok()?),
            None => (entry, 1),
        };
        before += times.min(hostlist::MAX_HOSTS);
        if place < before {
            return cpus.parse().ok();
        }
    }
    None
}

/// `SLURM_CLUSTER_NAME`, as a name that may become a directory.
///
/// # Errors
/// [`BadEnv`] where it is missing or has other characters than a cluster name.
pub fn cluster_name(env: &Env) -> Result<String, BadEnv> {
    let name = text(env, "SLURM_CLUSTER_NAME")?.ok_or(BadEnv::Missing("SLURM_CLUSTER_NAME"))?;
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(is_host_byte) {
        return Err(invalid("SLURM_CLUSTER_NAME", name, "no cluster name"));
    }
    Ok(name.to_owned())
}

/// How a job ended, as the epilog's environment tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitCodes {
    /// `SLURM_JOB_EXIT_CODE`: wait status of the batch script or of salloc's shell; `None` where Slurm gave
    /// none. 0 also for cancelled, preempted and timed-out jobs.
    pub job: Option<u32>,
    /// `SLURM_JOB_DERIVED_EC`: the highest wait status of any step.
    pub derived: Option<u32>,
}

impl ExitCodes {
    /// Reads them.
    ///
    /// # Errors
    /// [`BadEnv`] where one is no number.
    pub fn from_env(env: &Env) -> Result<Self, BadEnv> {
        Ok(ExitCodes {
            job: number(env, "SLURM_JOB_EXIT_CODE")?,
            derived: number(env, "SLURM_JOB_DERIVED_EC")?,
        })
    }

    /// The exit code, where the script ended by itself.
    pub fn code(&self) -> Option<u32> {
        self.job.filter(|status| status & 0x7f == 0).map(|status| (status >> 8) & 0xff)
    }

    /// The signal, where one ended the script.
    pub fn signal(&self) -> Option<u32> {
        self.job.map(|status| status & 0x7f).filter(|signal| *signal != 0)
    }
}

/// What the job's owner asked for. Hints: the site's policy decides ([`UserPolicy::grant`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// `SPANK_RAILGATE_PROFILE`.
    pub profile: Option<String>,
    /// `SPANK_RAILGATE_GATE`.
    pub gate: Option<GateLevel>,
    /// `SPANK_RAILGATE_REQUEUE`.
    pub requeue: Option<Consent>,
    /// `SPANK_RAILGATE_PROFILER`.
    pub profiler: Option<ProfilerChoice>,
    /// What was asked for in a way that cannot be read, one line each, for the log.
    pub ignored: Vec<String>,
}

impl Asked {
    /// Reads the options. Values of another form are left out and named in `ignored`.
    pub fn from_env(env: &Env) -> Self {
        let mut asked = Asked::default();
        if let Some(value) = asked.option(env, "SPANK_RAILGATE_PROFILE") {
            let name = value.parse::<ProfileName>().map(|name| name.as_str().to_owned());
            asked.profile = asked.known("SPANK_RAILGATE_PROFILE", &value, name.ok());
        }
        if let Some(value) = asked.option(env, "SPANK_RAILGATE_GATE") {
            asked.gate = asked.known("SPANK_RAILGATE_GATE", &value, value.parse().ok());
        }
        if let Some(value) = asked.option(env, "SPANK_RAILGATE_REQUEUE") {
            asked.requeue = asked.known("SPANK_RAILGATE_REQUEUE", &value, value.parse().ok());
        }
        if let Some(value) = asked.option(env, "SPANK_RAILGATE_PROFILER") {
            asked.profiler = asked.known("SPANK_RAILGATE_PROFILER", &value, value.parse().ok());
        }
        asked
    }

    fn option(&mut self, env: &Env, name: &'static str) -> Option<String> {
        match text(env, name) {
            Ok(value) => value.map(str::to_owned),
            Err(why) => {
                self.ignored.push(why.to_string());
                None
            }
        }
    }

    fn known<T>(&mut self, name: &str, value: &str, parsed: Option<T>) -> Option<T> {
        if parsed.is_none() {
            self.ignored.push(format!("{name}='{}': not understood", clean(value)));
        }
        parsed
    }
}

/// Which choices a site leaves to its users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserPolicy {
    /// The gate's level where the user asks for none.
    pub default_gate: GateLevel,
    /// Levels that users may ask for.
    pub allow_gate: Vec<GateLevel>,
    /// Whether users may ask for an environment profile ([rails.profiles], `debug`).
    pub allow_profile: bool,
    /// Whether users may ask for the NCCL profiler plugin where the site does not give it by itself.
    pub allow_profiler: bool,
}

impl Default for UserPolicy {
    fn default() -> Self {
        UserPolicy {
            default_gate: GateLevel::Quick,
            allow_gate: vec![GateLevel::Quick, GateLevel::Full],
            allow_profile: true,
            allow_profiler: true,
        }
    }
}

/// What holds for a job after policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The environment profile, where the user may and did ask for one.
    pub profile: Option<String>,
    /// The gate's level.
    pub gate: GateLevel,
    /// Whether the job may come back; how often is bounded again where it is decided.
    pub requeue: Consent,
    /// The owner's word about the NCCL profiler plugin; `None`: the site's holds.
    pub profiler: Option<ProfilerChoice>,
    /// What was refused, one line each, for the job's owner and the log.
    pub refused: Vec<String>,
}

impl UserPolicy {
    /// What holds of what was asked for. `requeue` is the site's default.
    pub fn grant(&self, asked: &Asked, requeue: Consent) -> Granted {
        let mut refused = asked.ignored.clone();
        let gate = match asked.gate {
            Some(level) if level == self.default_gate || self.allow_gate.contains(&level) => level,
            Some(level) => {
                refused.push(format!(
                    "--railgate-gate={level} is not allowed here, {} it is",
                    self.default_gate
                ));
                self.default_gate
            }
            None => self.default_gate,
        };
        let profile = match &asked.profile {
            Some(profile) if !self.allow_profile => {
                refused.push(format!("--railgate-profile={profile} is not allowed here"));
                None
            }
            profile => profile.clone(),
        };
        // The shipped templates ask for it everywhere: where the site does not want it, that is no news to anybody.
        let profiler = asked.profiler.filter(|choice| self.allow_profiler || *choice == ProfilerChoice::Off);
        Granted { profile, gate, requeue: asked.requeue.unwrap_or(requeue), profiler, refused }
    }
}

/// The GPUs of the job on this node.
fn allocation(env: &Env) -> Allocation {
    match env.get(OsStr::new("SLURM_JOB_GPUS")) {
        None => Allocation::NoGpus,
        Some(value) => match value.to_str().and_then(gpu_list) {
            Some(gpus) if gpus.is_empty() => Allocation::NoGpus,
            Some(gpus) => Allocation::Gpus(gpus),
            None => Allocation::Unreadable(clean(&value.to_string_lossy())),
        },
    }
}

/// `0,2-4`, `GPU-…`, `MIG-…`.
fn gpu_list(text: &str) -> Option<Vec<GpuId>> {
    let mut gpus = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        if item.starts_with("GPU-") || item.starts_with("MIG-") {
            let fits =
                item.len() <= 80 && item.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'/');
            gpus.push(GpuId::Uuid(fits.then(|| item.to_owned())?));
        } else {
            let (low, high) = item.split_once('-').unwrap_or((item, item));
            let index = |digits: &str| {
                (!digits.is_empty() && digits.len() <= 4 && digits.bytes().all(|b| b.is_ascii_digit()))
                    .then(|| digits.parse::<u32>().ok())
                    .flatten()
            };
            let (low, high) = (index(low)?, index(high)?);
            if high < low {
                return None;
            }
            gpus.extend((low..=high).map(GpuId::Index));
        }
        if gpus.len() > MAX_GPUS {
            return None;
        }
    }
    Some(gpus)
}

fn checked_list(name: &'static str, list: &str) -> Result<String, BadEnv> {
    hostlist::expand(list).map_err(|_| invalid(name, list, "no host list"))?;
    Ok(list.to_owned())
}

fn job_id(env: &Env, name: &'static str) -> Result<Option<u32>, BadEnv> {
    // 0 is what some releases say for a job that is not heterogeneous.
    Ok(number(env, name)?.filter(|id| *id != 0))
}

fn number(env: &Env, name: &'static str) -> Result<Option<u32>, BadEnv> {
    let Some(value) = text(env, name)? else { return Ok(None) };
    // `parse` alone would take a leading plus sign.
    if value.is_empty() || !value.bytes().all(|b| b.is_ascii_digit()) {
        return Err(invalid(name, value, "no number"));
    }
    value.parse().map(Some).map_err(|_| invalid(name, value, "too large"))
}

fn text<'a>(env: &'a Env, name: &'static str) -> Result<Option<&'a str>, BadEnv> {
    let Some(value) = env.get(OsStr::new(name)) else { return Ok(None) };
    match value.to_str() {
        Some(value) if value.len() <= MAX_VALUE => Ok(Some(value)),
        Some(value) => Err(invalid(name, value, "too long")),
        None => Err(invalid(name, &value.to_string_lossy(), "not UTF-8")),
    }
}

fn invalid(name: &'static str, value: &str, what: &'static str) -> BadEnv {
    BadEnv::Invalid { name, value: clean(value), what }
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

/// For logs and messages: one line without control characters.
pub(crate) fn clean(text: &str) -> String {
    railgate_text::clip(text, 120)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Env {
        let mut env: Env = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_UID", "1000"),
            ("SLURM_JOB_GID", "1000"),
            ("SLURM_JOB_USER", "ada"),
            ("SLURM_NODELIST", "n[1-2]"),
            ("SLURM_JOB_PARTITION", "main"),
        ]
        .iter()
        .map(|(k, v)| (OsString::from(k), OsString::from(v)))
        .collect();
        for (name, value) in pairs {
            env.insert(OsString::from(name), OsString::from(value));
        }
        env
    }

    #[test]
    fn processors_of_a_node() {
        let of = |text: &str, node: &str| {
            cpus_of_node(&env(&[("SLURM_JOB_CPUS_PER_NODE", text)]), "n[1-3],gpu7", node)
        };
        for (node, cpus) in [("n1", Some(128)), ("n2", Some(128)), ("n3", Some(64)), ("gpu7", Some(2))] {
            assert_eq!(of("128(x2),64,2", node), cpus, "{node}");
        }
        assert_eq!(of("128(x4)", "gpu7"), Some(128));
        for bad in ["", "128", "x(x4)", "128(x", "128(x99999999999999999999)", "128(x3)"] {
            assert_eq!(of(bad, "gpu7"), None, "{bad}");
        }
        assert_eq!(of("128(x4)", "n4"), None);
        assert_eq!(cpus_of_node(&env(&[]), "n1", "n1"), None);
    }

    #[test]
    fn a_job_of_either_release() {
        let job =
            job_from_env(&env(&[("SLURM_JOB_GPUS", "0,2-3"), ("SLURM_JOB_RESTART_COUNT", "2")])).unwrap();
        assert_eq!((job.id, job.uid, job.restarts, job.nodelist.as_str()), (7, 1000, 2, "n[1-2]"));
        assert_eq!(job.allocation, Allocation::Gpus([0, 2, 3].map(GpuId::Index).to_vec()));
        let newer = job_from_env(&env(&[("SLURM_JOB_NODELIST", "m1"), ("SLURM_HET_JOB_ID", "5")])).unwrap();
        assert_eq!((newer.nodelist.as_str(), newer.het_leader), ("m1", Some(5)));
        assert_eq!(newer.allocation, Allocation::NoGpus);
    }

    #[test]
    fn numbers_that_are_none_are_errors() {
        for (name, value) in [
            ("SLURM_JOB_ID", "seven"),
            ("SLURM_JOB_ID", "-1"),
            ("SLURM_JOB_ID", "+7"),
            ("SLURM_JOB_ID", "99999999999"),
            ("SLURM_JOB_UID", ""),
            ("SLURM_JOB_RESTART_COUNT", "1 2"),
            ("SLURM_JOB_NODELIST", "n[1-"),
            ("SLURM_JOB_NODELIST", "$(reboot)"),
        ] {
            assert!(job_from_env(&env(&[(name, value)])).is_err(), "{name}={value}");
        }
        let mut without = env(&[]);
        without.remove(OsStr::new("SLURM_NODELIST"));
        assert_eq!(job_from_env(&without), Err(BadEnv::Missing("SLURM_JOB_NODELIST")));
    }

    #[test]
    fn gpu_lists() {
        let gpus = |text: &str| job_from_env(&env(&[("SLURM_JOB_GPUS", text)])).unwrap().allocation;
        assert_eq!(gpus(""), Allocation::NoGpus);
        assert_eq!(gpus("MIG-aa-1,5"), {
            Allocation::Gpus(vec![GpuId::Uuid("MIG-aa-1".to_owned()), GpuId::Index(5)])
        });
        for text in ["3-1", "a", "0,,x", "0-99999", "GPU-$(id)", "1\u{7}"] {
            assert!(matches!(gpus(text), Allocation::Unreadable(_)), "{text}");
        }
    }

    #[test]
    fn exit_codes_are_wait_statuses() {
        let codes = |text: &str| ExitCodes::from_env(&env(&[("SLURM_JOB_EXIT_CODE", text)])).unwrap();
        assert_eq!((codes("768").code(), codes("768").signal()), (Some(3), None));
        assert_eq!((codes("9").code(), codes("9").signal()), (None, Some(9)));
        assert_eq!(codes("0").code(), Some(0));
        assert_eq!(ExitCodes::from_env(&env(&[])).unwrap().code(), None);
    }

    #[test]
    fn policy_bounds_what_users_may_choose() {
        let policy = UserPolicy { allow_profile: false, allow_profiler: false, ..UserPolicy::default() };
        for (text, bounded, free) in [
            ("on", None, Some(ProfilerChoice::On)),
            ("off", Some(ProfilerChoice::Off), Some(ProfilerChoice::Off)),
        ] {
            let asked = Asked::from_env(&env(&[("SPANK_RAILGATE_PROFILER", text)]));
            assert_eq!(policy.grant(&asked, Consent::Never).profiler, bounded);
            assert_eq!(UserPolicy::default().grant(&asked, Consent::Never).profiler, free);
        }
        let asked = Asked::from_env(&env(&[
            ("SPANK_RAILGATE_GATE", "off"),
            ("SPANK_RAILGATE_PROFILE", "debug"),
            ("SPANK_RAILGATE_REQUEUE", "2"),
        ]));
        let granted = policy.grant(&asked, Consent::Never);
        assert_eq!(granted.gate, GateLevel::Quick);
        assert_eq!(granted.profile, None);
        assert_eq!(granted.requeue, Consent::Times(2));
        assert_eq!(granted.refused.len(), 2);
        assert_eq!(granted.requeue.at_most(1), 1);
        assert_eq!(policy.grant(&Asked::default(), Consent::Auto).requeue, Consent::Auto);
    }

    #[test]
    fn options_of_another_form_are_left_out() {
        let asked = Asked::from_env(&env(&[
            ("SPANK_RAILGATE_GATE", "full; reboot"),
            ("SPANK_RAILGATE_PROFILE", "../../etc/shadow"),
            ("SPANK_RAILGATE_REQUEUE", "99999"),
        ]));
        assert_eq!((asked.gate, &asked.profile, asked.requeue), (None, &None, None));
        assert_eq!(asked.ignored.len(), 3);
    }

    proptest! {
        #[test]
        fn no_value_makes_it_panic(value in ".{0,60}") {
            for name in ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_GPUS", "SLURMD_NODENAME",
                "SLURM_CLUSTER_NAME", "SPANK_RAILGATE_REQUEUE", "SPANK_RAILGATE_PROFILE"] {
                let env = env(&[(name, &value)]);
                let _ = (job_from_env(&env), node_name(&env), cluster_name(&env), Asked::from_env(&env));
            }
        }
    }
}
