//! The rules of `railgate doctor`, one row each.

mod requeue;
mod slurm_conf;

use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;

use super::facts::{Facts, Roles, SlurmConf};
use super::files::Hook;
use super::slurm_file::Setting;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Level {
    /// railgate does not work as documented, or does harm.
    Wrong,
    /// Could not be determined.
    Unknown,
    /// For information.
    Note,
}

impl Level {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Level::Wrong => "WRONG",
            Level::Unknown => "UNKNOWN",
            Level::Note => "note",
        }
    }
}

/// Result of a rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Id of the rule.
    pub(crate) rule: &'static str,
    pub(crate) level: Level,
    /// Location and problem.
    pub(crate) what: String,
    /// Consequence; may be empty.
    pub(crate) why: &'static str,
    /// The line to set, or what to do; may be empty.
    pub(crate) put: String,
}

/// On which machines a rule applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Everywhere,
    Compute,
    Controller,
    /// Where plugins are loaded: compute and login nodes.
    Jobs,
}

/// One rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    id: &'static str,
    on: On,
    /// Consequence if it does not hold.
    why: &'static str,
    check: fn(&Facts, &mut Found),
}

impl Rule {
    pub(crate) fn concerns(&self, roles: Roles) -> bool {
        match self.on {
            On::Everywhere => true,
            On::Compute => roles.compute,
            On::Controller => roles.controller,
            On::Jobs => roles.compute || !roles.controller,
        }
    }

    pub(crate) fn judge(&self, facts: &Facts) -> Vec<Finding> {
        let mut found = Found { rule: *self, findings: Vec::new() };
        (self.check)(facts, &mut found);
        found.findings
    }
}

struct Found {
    rule: Rule,
    findings: Vec<Finding>,
}

impl Found {
    fn add(&mut self, level: Level, what: impl Into<String>, put: impl Into<String>) {
        let (rule, why) = (self.rule.id, self.rule.why);
        self.findings.push(Finding { rule, level, what: what.into(), why, put: put.into() });
    }

    fn wrong(&mut self, what: impl Into<String>, put: impl Into<String>) {
        self.add(Level::Wrong, what, put);
    }
}

/// Words that PrologFlags must contain.
pub(crate) const PROLOG_FLAGS: [&str; 3] = ["Alloc", "Contain", "DeferBatch"];
/// Words that SchedulerParameters must contain.
pub(crate) const SCHEDULER_PARAMETERS: [&str; 1] = ["nohold_on_prolog_fail"];
/// The required line on the controller.
pub(crate) const CONTROLLER_HOOK: &str = "EpilogSlurmctld=/usr/libexec/railgate/railgate-epilog-ctld";
/// The required line for the health check.
pub(crate) const PERIODIC: &str = "HealthCheckProgram=/etc/railgate/periodic.sh";
/// The required line for the plugin.
pub(crate) const PLUGIN: &str = "optional /usr/lib/railgate/spank_railgate.so";

/// All rules. docs/install.md lists the same ones.
pub(crate) static RULES: &[Rule] = &[
    Rule {
        id: "slurm-answers",
        on: On::Everywhere,
        why: "slurm.conf is checked as slurmctld has read it",
        check: slurm_answers,
    },
    Rule { id: "slurm-release", on: On::Everywhere, why: "older ones are untested", check: slurm_release },
    Rule {
        id: "configuration",
        on: On::Everywhere,
        why: "a file that cannot be used leaves jobs unchecked",
        check: configuration,
    },
    Rule {
        id: "slurm-conf-read",
        on: On::Everywhere,
        why: "slurmctld uses the configuration that it read when it started",
        check: slurm_conf::read,
    },
    Rule {
        id: "slurm-conf-doubles",
        on: On::Everywhere,
        why: "Slurm takes the last line of such a parameter and ignores those before",
        check: slurm_conf::doubles,
    },
    Rule {
        id: "prolog-flags",
        on: On::Everywhere,
        why: "without Alloc only the first node is checked, without DeferBatch the batch script starts before \
              another node's gate has failed",
        check: prolog_flags,
    },
    Rule {
        id: "held-jobs",
        on: On::Everywhere,
        why: "a job on an unfit node is held instead of starting on other nodes",
        check: held_jobs,
    },
    Rule {
        id: "job-requeue",
        on: On::Everywhere,
        why: "batch jobs without --requeue are cancelled instead of moved",
        check: job_requeue,
    },
    Rule {
        id: "gate-time",
        on: On::Everywhere,
        why: "Slurm kills the gate and drains the node",
        check: gate_time,
    },
    Rule {
        id: "batch-start",
        on: On::Everywhere,
        why: "a job whose gate takes long is requeued as lost",
        check: batch_start,
    },
    Rule {
        id: "job-log",
        on: On::Everywhere,
        why: "a restart truncates the log, which is the evidence; railgate does not restart such jobs",
        check: requeue::job_log,
    },
    Rule {
        id: "requeue-delay",
        on: On::Everywhere,
        why: "a job that moves waits this long before it may start again",
        check: requeue::delay,
    },
    Rule {
        id: "expedited-requeue",
        on: On::Everywhere,
        why: "[requeue] expedite is for jobs of --requeue=expedite, which this Slurm refuses",
        check: requeue::expedited,
    },
    Rule {
        id: "prolog-hook",
        on: On::Everywhere,
        why: "no node is checked before a job, and no NCCL environment is set",
        check: |facts, found| node_hook(&facts.prolog, "Prolog", "prolog", facts, found),
    },
    Rule {
        id: "epilog-hook",
        on: On::Everywhere,
        why: "jobs have no reports, and nodes that fail during a job stay in service",
        check: |facts, found| node_hook(&facts.epilog, "Epilog", "epilog", facts, found),
    },
    Rule {
        id: "controller-hook",
        on: On::Everywhere,
        why: "no job that failed because of a node is requeued",
        check: controller_hook,
    },
    Rule {
        id: "ledger",
        on: On::Controller,
        why: "restarts are counted there; without it no job is restarted",
        check: ledger,
    },
    Rule {
        id: "job-ends",
        on: On::Controller,
        why: "these jobs have no railgate line in the accounting database",
        check: job_ends,
    },
    Rule {
        id: "periodic-check",
        on: On::Everywhere,
        why: "faults of idle nodes wait for a job, and a reason that slurmctld missed never reaches it",
        check: periodic_check,
    },
    Rule {
        id: "plugstack",
        on: On::Everywhere,
        why: "tasks get no NCCL environment, and sbatch refuses scripts with --railgate-… lines",
        check: plugstack,
    },
    Rule {
        id: "plugin-file",
        on: On::Jobs,
        why: "Slurm continues without a plugin that it cannot load",
        check: plugin_file,
    },
    Rule {
        id: "sampler",
        on: On::Compute,
        why: "reports lack GPU and rail figures of the job, and the NCCL variables that applied",
        check: sampler,
    },
    Rule {
        id: "owners",
        on: On::Everywhere,
        why: "a user who can change these can become root on every node",
        check: |facts, found| {
            for what in &facts.untrusted {
                found.wrong(what.clone(), "chown root, chmod go-w");
            }
        },
    },
    Rule {
        id: "machine-source",
        on: On::Compute,
        why: "railgate does not read this machine",
        check: machine_source,
    },
    Rule {
        id: "gpus",
        on: On::Compute,
        why: "GPUs are not judged as long as NVML does not answer",
        check: gpus,
    },
    Rule {
        id: "profile",
        on: On::Compute,
        why: "without a machine type missing GPUs, NVLinks and HCAs are not noticed",
        check: profile,
    },
    Rule {
        id: "metrics-dir",
        on: On::Compute,
        why: "no metrics of this node reach Prometheus",
        check: metrics_dir,
    },
    Rule {
        id: "report-dir",
        on: On::Everywhere,
        why: "each node stores its node reports locally, and a job's report only lists where they are",
        check: report_dir,
    },
];

/// `None` if Slurm did not answer; only the first rule reports that.
fn conf(facts: &Facts) -> Option<&SlurmConf> {
    facts.slurm.as_ref().ok()
}

fn slurm_answers(facts: &Facts, found: &mut Found) {
    if let Err(why) = &facts.slurm {
        found.add(Level::Unknown, why.clone(), "try again when slurmctld is up");
    }
}

fn slurm_release(facts: &Facts, found: &mut Found) {
    match conf(facts).map(SlurmConf::release) {
        Some(Some(release)) if release < (22, 5) => {
            found.wrong(format!("Slurm {}.{:02}", release.0, release.1), "Slurm 22.05 or later");
        }
        Some(None) => found.add(Level::Unknown, "the release of Slurm is unknown", ""),
        _ => {}
    }
}

fn configuration(facts: &Facts, found: &mut Found) {
    if let Err(why) = &facts.config {
        found.wrong(why.clone(), "railgate config check");
    } else if !facts.config_file.exists() {
        let what = format!("{} does not exist: the gate only reports", facts.config_file.display());
        found.add(Level::Note, what, "docs/install.md has one to begin with");
    }
}

fn prolog_flags(facts: &Facts, found: &mut Found) {
    listed(facts, "PrologFlags", &PROLOG_FLAGS, found);
}

fn held_jobs(facts: &Facts, found: &mut Found) {
    listed(facts, "SchedulerParameters", &SCHEDULER_PARAMETERS, found);
}

fn listed(facts: &Facts, key: &str, words: &[&str], found: &mut Found) {
    let Some(conf) = conf(facts) else { return };
    let missing: Vec<_> = words.iter().copied().filter(|word| !conf.lists(key, word)).collect();
    let in_file = |line: &Setting| {
        missing.iter().all(|word| slurm_conf::normal(&line.value).contains(&word.to_lowercase()))
    };
    let waits = facts.slurm_file.as_ref().is_ok_and(|file| file.last(key).is_some_and(in_file));
    if !missing.is_empty() && !waits {
        found.wrong(format!("slurm.conf: {key} lacks {}", missing.join(", ")), with_words(conf, key, words));
    }
}

/// The line for a list, with these words added to the current value.
pub(crate) fn with_words(conf: &SlurmConf, key: &str, words: &[&str]) -> String {
    let mut all: Vec<&str> = conf.get(key).map(|have| have.split(',').collect()).unwrap_or_default();
    all.extend(words.iter().filter(|word| !conf.lists(key, word)));
    format!("{key}={}", all.join(","))
}

fn job_requeue(facts: &Facts, found: &mut Found) {
    if conf(facts).is_some_and(|conf| conf.get("JobRequeue") == Some("0")) {
        found.wrong("slurm.conf: JobRequeue=0", "JobRequeue=1, or #SBATCH --requeue in every script");
    }
}

/// Longest run time of a prolog: the gate, queries to Slurm, the notice to the job's owner.
fn needed(facts: &Facts) -> Duration {
    const SLURM_CALLS: u32 = 3;
    const TELLING: Duration = Duration::from_secs(15);
    let config = facts.config.clone().unwrap_or_default();
    config.gate.deadline + config.slurm.timeout * SLURM_CALLS + TELLING
}

/// Recommended limit for prolog and epilog, seconds.
pub(crate) fn hook_limit(facts: &Facts) -> u64 {
    (needed(facts).as_secs() + 1).next_multiple_of(60)
}

/// Recommended limit for the start of a batch script, seconds.
pub(crate) fn start_limit(facts: &Facts) -> u64 {
    hook_limit(facts) + 60
}

/// Whether a value is what Slurm prints for "no limit".
fn unlimited(seconds: u64) -> bool {
    seconds >= 65_534
}

fn gate_time(facts: &Facts, found: &mut Found) {
    let Some(conf) = conf(facts) else { return };
    let needed = needed(facts).as_secs();
    for key in ["PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout"] {
        match conf.seconds(key) {
            Some(limit) if limit <= needed && !unlimited(limit) => {
                let what = format!("slurm.conf: {key}={limit}, and railgate may need {needed} s");
                found.wrong(what, format!("{key}={}", hook_limit(facts)));
            }
            _ => {}
        }
    }
}

fn batch_start(facts: &Facts, found: &mut Found) {
    let Some(limit) = conf(facts).and_then(|conf| conf.seconds("BatchStartTimeout")) else { return };
    let needed = needed(facts).as_secs();
    if limit <= needed {
        let what = format!("slurm.conf: BatchStartTimeout={limit}, and the prolog may need {needed} s");
        found.wrong(what, format!("BatchStartTimeout={}", start_limit(facts)));
    }
}

fn node_hook(hook: &Hook, key: &str, name: &str, facts: &Facts, found: &mut Found) {
    if conf(facts).is_none() {
        return;
    }
    let link = format!("ln -s /usr/libexec/railgate/railgate-{name} /etc/slurm/{name}.d/95-railgate");
    if hook.value.is_empty() {
        if facts.waits_for_restart(key) {
            return;
        }
        return found.wrong(
            format!("slurm.conf: {key} is not set"),
            format!("{key}=/etc/slurm/{name}.d/* and {link}"),
        );
    }
    if !facts.roles.compute {
        return;
    }
    if hook.programs.is_empty() {
        return found.wrong(
            format!("slurm.conf: {key}={} matches no file here, and Slurm drains such a node", hook.value),
            link,
        );
    }
    match hook.ours() {
        None => {
            let what = format!("slurm.conf: {key}={} does not lead to railgate-{name}", hook.value);
            found.wrong(what, hook.with_ours(key, name));
        }
        Some(_) => troubles(hook, found),
    }
}

fn troubles(hook: &Hook, found: &mut Found) {
    for program in &hook.programs {
        if let Some(trouble) = &program.trouble {
            found.wrong(format!("{}: {trouble}", program.path.display()), "root's own, mode 0755");
        }
    }
}

fn controller_hook(facts: &Facts, found: &mut Found) {
    if conf(facts).is_none() {
        return;
    }
    let hook = &facts.ctld;
    if hook.value.is_empty() {
        if !facts.waits_for_restart("EpilogSlurmctld") {
            found.wrong("slurm.conf: EpilogSlurmctld is not set", CONTROLLER_HOOK);
        }
    } else if facts.roles.controller && hook.ours().is_none() {
        found.wrong(
            format!("slurm.conf: EpilogSlurmctld={} does not lead to railgate-epilog-ctld", hook.value),
            CONTROLLER_HOOK,
        );
    } else if facts.roles.controller {
        troubles(hook, found);
    }
}

fn ledger(facts: &Facts, found: &mut Found) {
    const PUT: &str = "install -d -o slurm -g slurm /var/lib/railgate/controller";
    match (&facts.ledger, facts.slurm_uid) {
        (Err(why), _) => found.wrong(why.clone(), PUT),
        (Ok(dir), Some(uid)) if dir.uid != uid => found.wrong(
            format!("/var/lib/railgate/controller belongs to uid {}, SlurmUser is uid {uid}", dir.uid),
            PUT,
        ),
        // Created by railgate-epilog-ctld as another user, for example in a manual run.
        (Ok(_), Some(uid)) => {
            if let Some((name, owner)) = facts.in_ledger.iter().find(|(_, owner)| *owner != uid) {
                let what = format!(
                    "/var/lib/railgate/controller/{name} belongs to uid {owner}, SlurmUser is uid {uid}"
                );
                found.wrong(what, "chown -R slurm /var/lib/railgate/controller");
            }
        }
        _ => {}
    }
}

fn job_ends(facts: &Facts, found: &mut Found) {
    const PUT: &str = "see /var/lib/railgate/controller/epilog-ctld.log, then remove `lost` and `refused` in \
                       /var/lib/railgate/controller/sum-up";
    match &facts.lost_ends {
        Ok(None) => {}
        Ok(Some(lost)) => {
            // The year 9999: later times cannot be displayed.
            let last = UNIX_EPOCH + Duration::from_millis(lost.last.min(253_402_300_799_000));
            let last = humantime::format_rfc3339_seconds(last);
            found.wrong(
                format!(
                    "{} job ends were not recorded or not summed up, the last one at {last}: {}",
                    lost.count, lost.why
                ),
                PUT,
            );
        }
        Err(why) => found.add(
            Level::Unknown,
            format!("unknown whether all job ends were recorded and summed up: {why}"),
            "run doctor as root or SlurmUser",
        ),
    }
}

fn periodic_check(facts: &Facts, found: &mut Found) {
    let Some(conf) = conf(facts) else { return };
    const LINES: &str = "HealthCheckProgram=/etc/railgate/periodic.sh and HealthCheckInterval=300";
    let hook = &facts.periodic;
    if hook.value.is_empty() {
        if !facts.waits_for_restart("HealthCheckProgram") {
            found.wrong("slurm.conf: HealthCheckProgram is not set", LINES);
        }
    } else if conf.seconds("HealthCheckInterval") == Some(0) {
        found.wrong(
            "slurm.conf: HealthCheckInterval=0, so HealthCheckProgram never runs",
            "HealthCheckInterval=300",
        );
    } else if facts.roles.compute && hook.ours().is_none() {
        let what = format!("slurm.conf: HealthCheckProgram={} does not call railgate", hook.value);
        found.wrong(what, format!("{PERIODIC}, with --then {} at the end of its last line", hook.value));
    } else if facts.roles.compute {
        troubles(hook, found);
    }
}

const SUBMITS: &str = "plugstack.conf: railgate's plugin is not configured; where users submit on this machine, sbatch refuses \
                       scripts with #SBATCH --railgate lines";

fn plugstack(facts: &Facts, found: &mut Found) {
    let stack = match &facts.plugstack {
        Ok(stack) => stack,
        Err(why) => return found.add(Level::Unknown, why.clone(), ""),
    };
    if facts.roles.controller && !facts.roles.compute {
        if stack.ours().is_none() {
            found.add(Level::Note, SUBMITS, PLUGIN);
        }
        return;
    }
    let Some((place, ours)) = stack.ours() else {
        return found.wrong("plugstack.conf: railgate's plugin is not configured", PLUGIN);
    };
    if ours.required {
        let what = format!(
            "{}: the plugin is required, and slurmd does not start where it cannot be loaded",
            ours.at
        );
        found.wrong(what, PLUGIN);
    }
    let pyxis = stack.lines.iter().position(|line| line.name().contains("pyxis"));
    if pyxis.is_some_and(|pyxis| pyxis < place) {
        let what = format!("{}: pyxis is before railgate, and containers miss railgate's variables", ours.at);
        found.wrong(what, "put railgate's line first");
    }
}

fn plugin_file(facts: &Facts, found: &mut Found) {
    let Some(plugin) = &facts.plugin else { return };
    let wanted = conf(facts).and_then(SlurmConf::release);
    match (&plugin.release, wanted) {
        (Err(why), _) => return found.wrong(why.clone(), "docs/install.md, \"Build and copy\""),
        (Ok(built), Some(running)) if *built != running => {
            let [built, running] = [*built, running].map(|(year, month)| format!("{year}.{month:02}"));
            let what = format!("{} is for Slurm {built}, and this is {running}", plugin.path.display());
            let put = if plugin.packaged.iter().any(|release| Some(*release) == wanted) {
                format!("/usr/libexec/railgate/railgate-link-plugin {running}")
            } else {
                format!("RAILGATE_SLURM_VERSION={running} cargo build --release -p spank-railgate")
            };
            found.wrong(what, put);
        }
        _ => {}
    }
    if let Some(why) = &plugin.untrusted {
        found.wrong(why.clone(), "chown root, chmod go-w");
    }
}

fn sampler(facts: &Facts, found: &mut Found) {
    let Ok(config) = &facts.config else { return };
    // The location is unknown without Slurm's answer or our prolog, and other rules report those.
    let known = conf(facts).is_some() && facts.prolog.ours().is_some();
    if let (Err(why), true, true) = (&facts.sampler, known, config.stats.sampler) {
        found.wrong(why.clone(), "install it beside railgate-prolog, or [stats] sampler = false");
    }
}

fn machine_source(facts: &Facts, found: &mut Found) {
    let Ok(config) = &facts.config else { return };
    let source = &config.source;
    if !source.is_system() {
        let level = if source.test_node { Level::Note } else { Level::Wrong };
        found.add(level, "[source] names other places than the system's own", "remove [source]");
    }
    if source.test_node {
        found.add(
            Level::Note,
            "[source] test_node = true: a simulated machine may drain this node",
            "remove it",
        );
    }
}

fn gpus(facts: &Facts, found: &mut Found) {
    // The path of NVML is in the configuration.
    if let (Err(why), Ok(_)) = (&facts.gpus, &facts.config) {
        found.wrong(format!("GPUs: {why}"), "install the driver, or set [source] nvml_library");
    }
}

fn profile(facts: &Facts, found: &mut Found) {
    let Ok(config) = &facts.config else { return };
    if let Err(why) = &facts.profile {
        return found.wrong(why.clone(), "`railgate simulate --list` has the names");
    }
    if config.profile == "auto" || config.profile == "generic" {
        let what = format!("profile = \"{}\"", config.profile);
        found.add(Level::Note, what, "profile = \"h100-sxm\", or another of `railgate simulate --list`");
    }
}

fn metrics_dir(facts: &Facts, found: &mut Found) {
    if let Some(Err(why)) = &facts.metrics_dir {
        found.wrong(why.clone(), "create it, or set [metrics] dir to the textfile collector's directory");
    }
}

fn report_dir(facts: &Facts, found: &mut Found) {
    const SHARED: u32 = 0o1777;
    const OPEN: u32 = 0o022;
    const GIVE: &str =
        "chown it and the cluster's directory in it to SlurmUser, chmod 755 both, on the file server";
    const MAKE: &str =
        "install -d -m 1777 it on a shared file system, or -o SlurmUser -m 755 where that squashes root";
    match &facts.report_dir {
        _ if facts.config.is_err() => return,
        None => {
            return found.add(
                Level::Note,
                "[report] dir is not set",
                "a directory that nodes and controller share",
            );
        }
        Some(Err(why)) => return found.wrong(why.clone(), MAKE),
        // Owned by SlurmUser: railgate creates the directories of jobs as that user.
        Some(Ok(dir)) if dir.mode & SHARED != SHARED => {
            let mode = format!("[report] dir has mode {:04o}", dir.mode);
            match facts.slurm_uid {
                _ if dir.mode & OPEN != 0 || dir.uid == 0 => found.wrong(mode, MAKE),
                Some(uid) if uid != dir.uid => {
                    found.wrong(
                        format!("{mode} and belongs to uid {}, SlurmUser is uid {uid}", dir.uid),
                        MAKE,
                    );
                }
                _ => {}
            }
        }
        Some(Ok(_)) => {}
    }
    match &facts.report_cluster {
        Some(cluster) if cluster.mode & OPEN != 0 => found.wrong(
            "every user can create directories of future jobs in the cluster's directory in [report] dir, and \
             the reports of those jobs then stay on the nodes",
            GIVE,
        ),
        Some(cluster) if cluster.uid != 0 && facts.slurm_uid.is_some_and(|uid| uid != cluster.uid) => {
            found.wrong(
                format!("uid {} owns the cluster's directory in [report] dir and could replace the reports of all users", cluster.uid),
                GIVE,
            );
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
