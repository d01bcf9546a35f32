//! The environment that Slurm gives to its hooks. Users can influence much of it (job names, comments, every variable
//! that begins with `SPANK_`), so it is parsed strictly, and a forged value can do no harm. An environment that
//! cannot be parsed is an error, and no such error drains a node.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use railgate_model::{Allocation, GpuId, Job};
use railgate_rundir::{HangChoice, HangThen, ProfileName, ProfilerChoice};
use serde::{Deserialize, Serialize};

use crate::{Consent, GateLevel, hostlist};

/// A hook's environment.
pub type Env = BTreeMap<OsString, OsString>;

/// Longest value that is read, bytes.
const MAX_VALUE: usize = 64 << 10;

/// Most GPUs in a list, more than any node has; a longer list is not read.
const MAX_GPUS: usize = 1024;

/// A required variable is missing or invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadEnv {
    /// The variable is not set.
    #[error("{0} is not set")]
    Missing(&'static str),
    /// Slurm would not set this value.
    #[error("{name}='{value}': {what}")]
    Invalid {
        /// Name of the variable.
        name: &'static str,
        /// Its value, truncated and without control characters.
        value: String,
        /// What is wrong with the value.
        what: &'static str,
    },
}

/// Parses the job for which a prolog or epilog was started.
///
/// A GPU list that cannot be parsed is [`Allocation::Unreadable`], not an error: the rest of the job is known.
///
/// # Errors
/// [`BadEnv`] if an id, the user or the node list is missing or invalid.
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

/// The array and the index of the job for which a program of slurmctld was started; `None` for a job that is no member of
/// one. For its own programs slurmctld sets the variables for each job; in the environment of a job they can be those of the
/// job that submitted it.
pub fn array_member(env: &Env) -> Option<(u32, u32)> {
    let number = |name: &str| env.get(OsStr::new(name))?.to_str()?.parse::<u32>().ok();
    number("SLURM_ARRAY_JOB_ID").zip(number("SLURM_ARRAY_TASK_ID"))
}

/// `SLURMD_NODENAME`, the node's name in Slurm.
///
/// # Errors
/// [`BadEnv`] if it is missing or not a host name.
pub fn node_name(env: &Env) -> Result<String, BadEnv> {
    let name = text(env, "SLURMD_NODENAME")?.ok_or(BadEnv::Missing("SLURMD_NODENAME"))?;
    if name.is_empty() || name.len() > 255 || !name.bytes().all(is_host_byte) {
        return Err(invalid("SLURMD_NODENAME", name, "no host name"));
    }
    Ok(name.to_owned())
}

/// The number of CPUs that the job has on `node`, from `SLURM_JOB_CPUS_PER_NODE` (`128(x2),64`), which is in the
/// order of the job's nodes.
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

/// `SLURM_CLUSTER_NAME`, validated since it may become the name of a directory.
///
/// # Errors
/// [`BadEnv`] if it is missing or has characters that no cluster name has.
pub fn cluster_name(env: &Env) -> Result<String, BadEnv> {
    let name = text(env, "SLURM_CLUSTER_NAME")?.ok_or(BadEnv::Missing("SLURM_CLUSTER_NAME"))?;
    if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.bytes().all(is_host_byte) {
        return Err(invalid("SLURM_CLUSTER_NAME", name, "no cluster name"));
    }
    Ok(name.to_owned())
}

/// How a job ended, from the epilog's environment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitCodes {
    /// `SLURM_JOB_EXIT_CODE`: wait status of the batch script or of salloc's shell; `None` if it is not set. Also 0
    /// for cancelled, preempted and timed-out jobs.
    pub job: Option<u32>,
    /// `SLURM_JOB_DERIVED_EC`: the highest wait status of any step.
    pub derived: Option<u32>,
}

impl ExitCodes {
    /// Parses both variables.
    ///
    /// # Errors
    /// [`BadEnv`] if one is not a number.
    pub fn from_env(env: &Env) -> Result<Self, BadEnv> {
        Ok(ExitCodes {
            job: number(env, "SLURM_JOB_EXIT_CODE")?,
            derived: number(env, "SLURM_JOB_DERIVED_EC")?,
        })
    }

    /// The exit code, if the script exited by itself.
    pub fn code(&self) -> Option<u32> {
        self.job.filter(|status| status & 0x7f == 0).map(|status| (status >> 8) & 0xff)
    }

    /// The signal, if one ended the script.
    pub fn signal(&self) -> Option<u32> {
        self.job.map(|status| status & 0x7f).filter(|signal| *signal != 0)
    }
}

/// Options of the job's owner. The site's policy decides what is granted ([`UserPolicy::grant`]).
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
    /// `SPANK_RAILGATE_HANG`.
    pub hang: Option<HangChoice>,
    /// Options that could not be parsed, one line each, for the log.
    pub ignored: Vec<String>,
}

impl Asked {
    /// Parses the options. Invalid values are left out and listed in `ignored`.
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
        if let Some(value) = asked.option(env, "SPANK_RAILGATE_HANG") {
            asked.hang = asked.known("SPANK_RAILGATE_HANG", &value, value.parse().ok());
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

/// Options that a site lets its users set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UserPolicy {
    /// The gate level of jobs that request none.
    pub default_gate: GateLevel,
    /// Gate levels that users may request.
    pub allow_gate: Vec<GateLevel>,
    /// Whether users may request an environment profile ([rails.profiles], `debug`).
    pub allow_profile: bool,
    /// Whether users may request the NCCL profiler plugin where the site does not enable it by default.
    pub allow_profiler: bool,
    /// Whether users may request that the steps of a job that hangs are ended.
    pub allow_hang_end: bool,
}

impl Default for UserPolicy {
    fn default() -> Self {
        UserPolicy {
            default_gate: GateLevel::Quick,
            allow_gate: vec![GateLevel::Quick, GateLevel::Full, GateLevel::Preflight],
            allow_profile: true,
            allow_profiler: true,
            allow_hang_end: true,
        }
    }
}

/// The options in force for a job, after policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The environment profile, if one was requested and is permitted.
    pub profile: Option<String>,
    /// The gate level.
    pub gate: GateLevel,
    /// Whether the job may be requeued; the number of restarts is limited further when it fails.
    pub requeue: Consent,
    /// The owner's choice about the NCCL profiler plugin; `None`: the site's default applies.
    pub profiler: Option<ProfilerChoice>,
    /// What follows a hang of the job; `None`: the site's default applies.
    pub hang: Option<HangChoice>,
    /// Options that were refused, one line each, for the job's owner and the log.
    pub refused: Vec<String>,
}

impl UserPolicy {
    /// Applies the policy to the owner's options. `requeue` is the site's default.
    pub fn grant(&self, asked: &Asked, requeue: Consent) -> Granted {
        let mut refused = asked.ignored.clone();
        let gate = match asked.gate {
            Some(level) if level == self.default_gate || self.allow_gate.contains(&level) => level,
            Some(level) => {
                refused.push(format!(
                    "--railgate-gate={level} is not allowed here, {} applies",
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
        // The shipped templates request it on every cluster, so a refusal by the site is not worth a message.
        let profiler = asked.profiler.filter(|choice| self.allow_profiler || *choice == ProfilerChoice::Off);
        let hang = match asked.hang {
            Some(choice) if choice.then == HangThen::End && !self.allow_hang_end => {
                refused.push(format!("--railgate-hang={choice} is not allowed here, notify applies"));
                Some(HangChoice { then: HangThen::Notify, after: None })
            }
            choice => choice,
        };
        Granted { profile, gate, requeue: asked.requeue.unwrap_or(requeue), profiler, hang, refused }
    }
}

/// The job's GPUs on this node.
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

/// Parses `0,2-4`, `GPU-…`, `MIG-…`.
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
    // Some releases set 0 for a job that is not heterogeneous.
    Ok(number(env, name)?.filter(|id| *id != 0))
}

fn number(env: &Env, name: &'static str) -> Result<Option<u32>, BadEnv> {
    let Some(value) = text(env, name)? else { return Ok(None) };
    // `parse` alone would accept a leading plus sign.
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

/// Makes text fit for logs and messages: one line without control characters.
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
    fn cpus_of_a_node_follow_the_node_list() {
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
    fn the_environment_of_each_release_gives_the_job() {
        let job =
            job_from_env(&env(&[("SLURM_JOB_GPUS", "0,2-3"), ("SLURM_JOB_RESTART_COUNT", "2")])).unwrap();
        assert_eq!((job.id, job.uid, job.restarts, job.nodelist.as_str()), (7, 1000, 2, "n[1-2]"));
        assert_eq!(job.allocation, Allocation::Gpus([0, 2, 3].map(GpuId::Index).to_vec()));
        let newer = job_from_env(&env(&[("SLURM_JOB_NODELIST", "m1"), ("SLURM_HET_JOB_ID", "5")])).unwrap();
        assert_eq!((newer.nodelist.as_str(), newer.het_leader), ("m1", Some(5)));
        assert_eq!(newer.allocation, Allocation::NoGpus);
    }

    #[test]
    fn invalid_numbers_are_errors() {
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
    fn gpu_lists_are_parsed_strictly() {
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
    fn policy_limits_the_options_of_users() {
        let policy = UserPolicy { allow_profile: false, allow_profiler: false, ..UserPolicy::default() };
        for (text, bounded, free) in [
            ("on", None, Some(ProfilerChoice::On)),
            ("off", Some(ProfilerChoice::Off), Some(ProfilerChoice::Off)),
        ] {
            let asked = Asked::from_env(&env(&[("SPANK_RAILGATE_PROFILER", text)]));
            assert_eq!(policy.grant(&asked, Consent::Never).profiler, bounded);
            assert_eq!(UserPolicy::default().grant(&asked, Consent::Never).profiler, free);
        }
        let asked = Asked::from_env(&env(&[("SPANK_RAILGATE_HANG", "end,after=10m")]));
        let ends = "end,after=10m".parse().ok();
        assert_eq!(UserPolicy::default().grant(&asked, Consent::Never).hang, ends);
        let bounded =
            UserPolicy { allow_hang_end: false, ..UserPolicy::default() }.grant(&asked, Consent::Never);
        assert_eq!((bounded.hang, bounded.refused.len()), ("notify".parse().ok(), 1));
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
    fn invalid_options_are_ignored() {
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
        fn arbitrary_values_do_not_panic(value in ".{0,60}") {
            for name in ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_GPUS", "SLURMD_NODENAME",
                "SLURM_CLUSTER_NAME", "SPANK_RAILGATE_REQUEUE", "SPANK_RAILGATE_PROFILE"] {
                let env = env(&[(name, &value)]);
                let _ = (job_from_env(&env), node_name(&env), cluster_name(&env), Asked::from_env(&env));
            }
        }
    }
}
