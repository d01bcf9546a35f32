//! State of this machine, as input of the rules. Every read that may hang has a deadline; a failed read is kept with
//! its reason.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use railgate_model::PartName;
use railgate_probe::{Request, live};
use railgate_runner::{Config, switches};
use railgate_slurm::{Client, Env, Lost, Spool};

use super::files::{Hook, plugin_release, untrusted};
use super::plugstack::Plugstack;
use super::slurm_file::SlurmFile;
use crate::Site;

/// Deadline for NVML, which is slow to start without persistence mode.
const GPUS: Duration = Duration::from_secs(30);
const DIRECTORY: Duration = Duration::from_secs(5);

/// Roles of this machine in the cluster. Neither is set for a login node, or if Slurm did not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) compute: bool,
    pub(crate) controller: bool,
}

impl Roles {
    pub(crate) fn names(self) -> Vec<&'static str> {
        let roles = [(self.compute, "compute node"), (self.controller, "controller")];
        let names: Vec<_> = roles.iter().filter(|(is, _)| *is).map(|(_, name)| *name).collect();
        if names.is_empty() { vec!["neither compute node nor controller"] } else { names }
    }
}

/// `scontrol show config`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlurmConf(pub(crate) BTreeMap<String, String>);

impl SlurmConf {
    /// Value of a key, if it is set.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str).filter(|value| !value.is_empty() && *value != "(null)")
    }

    /// Value in seconds: `180 sec`, `120`.
    pub(crate) fn seconds(&self, key: &str) -> Option<u64> {
        self.get(key)?.split(' ').next()?.parse().ok()
    }

    /// Whether the list in `key` contains a word.
    pub(crate) fn lists(&self, key: &str, word: &str) -> bool {
        self.get(key).is_some_and(|value| value.split(',').any(|have| have.eq_ignore_ascii_case(word)))
    }

    /// Slurm's release: `(22, 5)` for `22.05.8`.
    pub(crate) fn release(&self) -> Option<(u32, u32)> {
        let mut numbers = self.get("SLURM_VERSION")?.split('.').map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    }

    /// The directory of slurm.conf: the one that slurmctld reports; if it does not exist on this machine
    /// (configless), the one where slurmd keeps the files that it received.
    pub(crate) fn dir(&self) -> PathBuf {
        self.dir_or(Path::new(SENT))
    }

    /// Path of slurm.conf.
    fn file(&self) -> PathBuf {
        let name = Path::new(self.get("SLURM_CONF").unwrap_or_default()).file_name();
        self.dir().join(name.unwrap_or("slurm.conf".as_ref()))
    }

    fn dir_or(&self, sent: &Path) -> PathBuf {
        let file = Path::new(self.get("SLURM_CONF").unwrap_or("/etc/slurm/slurm.conf"));
        if !file.exists() && sent.join("slurm.conf").exists() {
            return sent.to_owned();
        }
        file.parent().unwrap_or(Path::new("/etc/slurm")).to_owned()
    }
}

/// slurmd's link to its copy of slurmctld's files.
const SENT: &str = "/run/slurm/conf";

/// Owner and mode of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dir {
    pub(crate) uid: u32,
    pub(crate) mode: u32,
}

/// The plugin file that plugstack.conf names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PluginFile {
    pub(crate) path: PathBuf,
    pub(crate) release: Result<(u32, u32), String>,
    /// Slurm releases for which the package contains a plugin.
    pub(crate) packaged: Vec<(u32, u32)>,
    pub(crate) untrusted: Option<String>,
}

/// Input of all rules.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) node: String,
    pub(crate) roles: Roles,
    /// The configuration in force on this machine, or all its problems.
    pub(crate) config: Result<Config, String>,
    pub(crate) config_file: PathBuf,
    pub(crate) slurm: Result<SlurmConf, String>,
    /// slurm.conf as found on this machine.
    pub(crate) slurm_file: Result<SlurmFile, String>,
    pub(crate) prolog: Hook,
    pub(crate) epilog: Hook,
    pub(crate) ctld: Hook,
    pub(crate) periodic: Hook,
    pub(crate) plugstack: Result<Plugstack, String>,
    pub(crate) plugin: Option<PluginFile>,
    /// Whether the sampler, which the prolog starts beside a job, can run; else the problem.
    pub(crate) sampler: Result<(), String>,
    /// Directories of railgate that users other than root can change.
    pub(crate) untrusted: Vec<String>,
    /// `/var/lib/railgate/controller`.
    pub(crate) ledger: Result<Dir, String>,
    /// Files in it, each with its owner.
    pub(crate) in_ledger: Vec<(String, u32)>,
    /// Job ends whose record or accounting line was lost, or both.
    pub(crate) lost_ends: Result<Option<Lost>, String>,
    pub(crate) slurm_uid: Option<u32>,
    /// `[metrics] dir`.
    pub(crate) metrics_dir: Option<Result<Dir, String>>,
    /// Whether the profile of this node can be loaded; else the reason.
    pub(crate) profile: Result<(), String>,
    /// `[report] dir`.
    pub(crate) report_dir: Option<Result<Dir, String>>,
    /// The cluster's directory in it, if it exists.
    pub(crate) report_cluster: Option<Dir>,
    /// Number of GPUs that NVML lists; 0 if Slurm offers no GPUs of this node.
    pub(crate) gpus: Result<usize, String>,
    /// The sentence about a switch that stops railgate, if one is set.
    pub(crate) stopped: Option<String>,
}

impl Facts {
    /// Whether this Slurm uses all lines of a key instead of the last one.
    pub(crate) fn repeatable(&self, key: &str) -> bool {
        const HOOKS: [&str; 4] = ["Prolog", "Epilog", "PrologSlurmctld", "EpilogSlurmctld"];
        let new = self.slurm.as_ref().ok().and_then(SlurmConf::release).is_some_and(|have| have >= (24, 5));
        new && HOOKS.iter().any(|hook| hook.eq_ignore_ascii_case(key))
    }

    /// Whether slurm.conf sets the key although slurmctld has not read it yet; the rule `slurm-conf-read` reports
    /// that on the controller.
    pub(crate) fn waits_for_restart(&self, key: &str) -> bool {
        self.slurm_file.as_ref().is_ok_and(|file| file.last(key).is_some())
    }
}

pub(crate) fn gather(site: &Site) -> Facts {
    let config = site.config().map_err(|why| format!("{why:#}"));
    let in_force = config.clone().unwrap_or_default();
    let client = Client::new(&in_force.slurm, &Env::new());
    let slurm = client.config().map(SlurmConf).map_err(|why| why.to_string());
    let said = slurm.clone().unwrap_or_default();
    // If the first query got no answer, do not wait for a second one.
    let here = slurm.as_ref().ok().and_then(|_| client.node(&site.node).ok());
    let roles = Roles { compute: here.is_some(), controller: is_controller(site, &said) };
    let hook = |key: &str, ours: &str| Hook::resolve(said.get(key).unwrap_or_default(), ours);
    let plugstack = Plugstack::read(&plugstack_conf(&said));
    let plugin = plugstack.as_ref().ok().and_then(|stack| plugin_file(stack, &said));
    let prolog = hook("Prolog", "railgate-prolog");
    Facts {
        node: site.node.clone(),
        roles,
        sampler: prolog.sampler(),
        prolog,
        epilog: hook("Epilog", "railgate-epilog"),
        ctld: hook("EpilogSlurmctld", "railgate-epilog-ctld"),
        // This hook is a script, which calls `railgate check`.
        periodic: hook("HealthCheckProgram", "railgate"),
        slurm_file: SlurmFile::read(&said.file()),
        plugstack,
        plugin,
        untrusted: others_can_change(site, &in_force),
        ledger: dir(&site.places.state.join("controller")),
        in_ledger: owners(&site.places.state.join("controller")),
        lost_ends: Spool::of_job_ends(&site.places.state.join("controller"))
            .lost()
            .map_err(|why| why.to_string()),
        slurm_uid: said.get("SlurmUser").and_then(uid),
        report_cluster: said
            .get("ClusterName")
            .and_then(|name| dir(&in_force.report.dir.as_ref()?.join(name)).ok()),
        report_dir: in_force.report.dir.as_deref().map(dir),
        metrics_dir: in_force.metrics.dir.as_deref().map(dir),
        profile: match in_force.profile.as_str() {
            "auto" => Ok(()),
            id => {
                railgate_profiles::load(id, &site.places.profiles()).map(drop).map_err(|why| why.to_string())
            }
        },
        gpus: match &here {
            Some(node) if node.gpus != Some(false) => gpus(site, &in_force),
            _ => Ok(0),
        },
        stopped: stopped(site),
        config_file: site.config_file.clone(),
        config,
        slurm,
    }
}

/// Whether slurmctld runs, or is configured to run, on this machine.
pub(crate) fn is_controller(site: &Site, said: &SlurmConf) -> bool {
    let here = site.node.as_str();
    let is_here = |host: &str| {
        let host = host.split(['(', ' ']).next().unwrap_or_default();
        host.split('.').next() == Some(here)
    };
    said.0.iter().filter(|(key, _)| key.starts_with("SlurmctldHost")).any(|(_, host)| is_here(host))
}

pub(crate) fn plugstack_conf(said: &SlurmConf) -> PathBuf {
    said.get("PlugStackConfig").map_or_else(|| said.dir().join("plugstack.conf"), PathBuf::from)
}

fn plugin_file(stack: &Plugstack, said: &SlurmConf) -> Option<PluginFile> {
    let (_, line) = stack.ours()?;
    // Slurm's PluginDir may be a list.
    let dirs = said.get("PluginDir").unwrap_or_default().split(':');
    let mut places = dirs.map(|dir| Path::new(dir).join(&line.plugin));
    let path = places.find(|path| path.exists()).unwrap_or_else(|| line.plugin.clone());
    let (release, untrusted) = (plugin_release(&path), untrusted(&path));
    Some(PluginFile { release, packaged: packaged_plugins(Path::new(PACKAGED)), untrusted, path })
}

/// Where the package installs one plugin per release, and the program that links one of them.
const PACKAGED: &str = "/usr/lib/railgate";

fn packaged_plugins(lib: &Path) -> Vec<(u32, u32)> {
    let entries = fs::read_dir(lib).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (year, month) = name.strip_prefix("slurm-")?.split_once('.')?;
            Some((year.parse().ok()?, month.parse().ok()?))
        })
        .collect()
}

/// Directories of railgate, profiles and site checks that users other than root can change. The configuration file
/// itself is refused when it is read.
fn others_can_change(site: &Site, config: &Config) -> Vec<String> {
    let mut places = vec![site.places.etc.clone(), site.places.state.clone(), site.places.share.clone()];
    for dir in site.places.profiles().into_iter().chain([config.gate.checks.site.directory.clone()]) {
        let files = fs::read_dir(&dir).into_iter().flatten().flatten().map(|entry| entry.path());
        places.extend(files);
        places.push(dir);
    }
    places.retain(|path| path.exists());
    let mut wrong: Vec<String> = places.iter().filter_map(|path| untrusted(path)).collect();
    wrong.sort();
    wrong.dedup();
    wrong
}

/// The uid in `slurm(64030)`.
fn uid(user: &str) -> Option<u32> {
    user.split_once('(')?.1.strip_suffix(')')?.parse().ok()
}

/// Owner and mode of a directory. Its file server may be dead, so this has a deadline; a hanging thread is abandoned.
fn dir(path: &Path) -> Result<Dir, String> {
    let (send, receive) = mpsc::channel();
    let asked = path.to_owned();
    std::thread::spawn(move || {
        let seen = fs::metadata(&asked).map_err(|why| format!("{}: {why}", asked.display()));
        let seen = seen.and_then(|meta| {
            let seen = Dir { uid: meta.uid(), mode: meta.permissions().mode() & 0o7777 };
            meta.is_dir().then_some(seen).ok_or_else(|| format!("{}: not a directory", asked.display()))
        });
        let _ = send.send(seen);
    });
    receive
        .recv_timeout(DIRECTORY)
        .unwrap_or_else(|_| Err(format!("{}: no answer in {} s", path.display(), DIRECTORY.as_secs())))
}

/// Owner of each file in a directory; unreadable ones are left out.
fn owners(dir: &Path) -> Vec<(String, u32)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            Some((entry.file_name().to_string_lossy().into_owned(), entry.metadata().ok()?.uid()))
        })
        .collect()
}

fn gpus(site: &Site, config: &Config) -> Result<usize, String> {
    let mut request = Request::everything(&site.node, GPUS);
    request.plan.parts = vec![PartName::Gpus];
    let snapshot = live(&config.source, &request);
    match (snapshot.gpus.data(), snapshot.gpus.missing()) {
        (Some(gpus), _) => Ok(gpus.gpus.len()),
        (None, why) => Err(why.unwrap_or_else(|| "not read".to_owned())),
    }
}

fn stopped(site: &Site) -> Option<String> {
    match switches::state(&site.places) {
        switches::Switch::On => None,
        switches::Switch::Disabled => {
            Some(format!("railgate does nothing: {} exists", site.places.etc.join("disable").display()))
        }
        switches::Switch::Paused(pause) => {
            let why = if pause.why.is_empty() { String::new() } else { format!(": {}", pause.why) };
            Some(format!("jobs are checked and nothing is changed: paused by {}{why}", pause.by))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_slurm_conf_are_parsed() {
        let pairs = [
            ("BatchStartTimeout", "180 sec"),
            ("PrologFlags", "Alloc,contain"),
            ("SLURM_VERSION", "24.11.5"),
            ("SlurmUser", "slurm(64030)"),
            ("Prolog", "(null)"),
        ];
        let conf = SlurmConf(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
        assert_eq!(conf.seconds("BatchStartTimeout"), Some(180));
        assert!(conf.lists("PrologFlags", "Contain") && !conf.lists("PrologFlags", "DeferBatch"));
        assert_eq!((conf.release(), conf.get("Prolog")), (Some((24, 11)), None));
        assert_eq!(uid(conf.get("SlurmUser").unwrap()), Some(64030));
        assert_eq!(conf.dir(), Path::new("/etc/slurm"));
    }

    #[test]
    fn files_of_a_configless_node_are_found_in_slurmds_directory() {
        let place = tempfile::tempdir().unwrap();
        let theirs = place.path().join("etc/slurm.conf");
        let conf = SlurmConf([("SLURM_CONF".to_owned(), theirs.display().to_string())].into());
        let sent = place.path().join("conf");
        assert_eq!(conf.dir_or(&sent), place.path().join("etc"), "neither is there");
        fs::create_dir(&sent).unwrap();
        fs::write(sent.join("slurm.conf"), "").unwrap();
        assert_eq!(conf.dir_or(&sent), sent);
        fs::create_dir(place.path().join("etc")).unwrap();
        fs::write(&theirs, "").unwrap();
        assert_eq!(conf.dir_or(&sent), place.path().join("etc"), "its own go first");
    }

    #[test]
    fn owner_and_mode_of_directories_are_read() {
        assert!(dir(Path::new("/proc/version")).unwrap_err().contains("not a directory"));
        assert!(dir(Path::new("/nowhere")).is_err());
        assert_eq!(dir(Path::new("/tmp")).unwrap().uid, 0);
    }
}
