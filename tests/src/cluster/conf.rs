//! The configuration files of a test cluster.

use std::fmt::Write as _;

/// The lines of slurm.conf by key, in order. Setting a key again replaces its line.
#[derive(Clone, Debug)]
pub(super) struct SlurmConf(Vec<(String, String)>);

impl SlurmConf {
    /// The settings of `docs/install.md`, with timeouts short enough for a test.
    pub(super) fn new(cluster: &str, controller: &str) -> Self {
        let mut conf = SlurmConf(Vec::new());
        for (key, value) in [
            ("ClusterName", cluster),
            ("SlurmctldHost", controller),
            ("SlurmUser", "slurm"),
            ("AuthType", "auth/munge"),
            // A requeued job waits this many seconds plus one.
            ("AuthInfo", "cred_expire=5"),
            ("MpiDefault", "none"),
            ("ProctrackType", "proctrack/linuxproc"),
            ("TaskPlugin", "task/none"),
            ("JobAcctGatherType", "jobacct_gather/none"),
            ("AccountingStorageType", "accounting_storage/none"),
            ("SelectType", "select/cons_tres"),
            ("SelectTypeParameters", "CR_Core"),
            ("SchedulerType", "sched/backfill"),
            ("SchedulerParameters", "nohold_on_prolog_fail,bf_interval=1,sched_interval=5"),
            // The nodes claim more processors than the machine has.
            ("SlurmdParameters", "config_overrides"),
            ("GresTypes", "gpu"),
            ("StateSaveLocation", "/var/spool/slurmctld"),
            ("SlurmdSpoolDir", "/var/spool/slurmd"),
            ("SlurmctldPidFile", "/run/slurmctld.pid"),
            ("SlurmdPidFile", "/run/slurmd.pid"),
            ("SlurmctldLogFile", "/var/log/slurm/slurmctld.log"),
            ("SlurmdLogFile", "/var/log/slurm/slurmd.log"),
            ("SlurmctldDebug", "debug"),
            ("SlurmdDebug", "debug"),
            ("SlurmctldTimeout", "30"),
            // On a busy machine slurmd can answer late without being dead. Tests that kill nodes set a shorter timeout.
            ("SlurmdTimeout", "60"),
            ("KillWait", "3"),
            ("MinJobAge", "900"),
            ("InactiveLimit", "0"),
            ("ReturnToService", "1"),
            ("BatchStartTimeout", "180"),
            ("PrologEpilogTimeout", "120"),
            ("PrologFlags", "Alloc,Contain,DeferBatch"),
            ("JobFileAppend", "1"),
        ] {
            conf.set(key, value);
        }
        conf
    }

    /// Removes railgate's settings, as on a site without railgate.
    pub(super) fn keep_plain(&mut self) {
        let ours = [
            "SchedulerParameters",
            "BatchStartTimeout",
            "PrologEpilogTimeout",
            "PrologFlags",
            "JobFileAppend",
        ];
        self.0.retain(|(key, _)| !ours.contains(&key.as_str()));
    }

    pub(super) fn set(&mut self, key: &str, value: &str) {
        match self.0.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(key)) {
            Some(line) => value.clone_into(&mut line.1),
            None => self.0.push((key.to_owned(), value.to_owned())),
        }
    }

    /// The text of the file with the nodes and one partition. `nodes` holds name, address and number of GPUs.
    pub(super) fn text(&self, nodes: &[(String, String, usize)], cpus: usize) -> String {
        let mut text = String::new();
        for (key, value) in &self.0 {
            let _ = writeln!(text, "{key}={value}");
        }
        for (name, address, gpus) in nodes {
            let gres = if *gpus > 0 { format!(" Gres=gpu:{gpus}") } else { String::new() };
            let _ = writeln!(
                text,
                "NodeName={name} NodeAddr={address} CPUs={cpus} Boards=1 SocketsPerBoard=2 CoresPerSocket={} \
                 ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN{gres}",
                cpus / 2
            );
        }
        let _ = writeln!(text, "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP");
        text
    }
}

/// gres.conf with the device files that each machine creates.
pub(super) fn gres(nodes: &[(String, String, usize)]) -> String {
    let mut text = String::new();
    for (name, _, gpus) in nodes.iter().filter(|node| node.2 > 0) {
        let _ = writeln!(text, "NodeName={name} Name=gpu File=/dev/nvidia[0-{}]", gpus - 1);
    }
    text
}

/// Merges `over` into `base`, table by table; values of `over` win.
pub(super) fn merge(base: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(more)) => merge(inner, more),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_set_again_replaces_its_line() {
        let mut conf = SlurmConf::new("t", "ctl");
        conf.set("killwait", "9");
        let text = conf.text(&[("gn1".into(), "10.77.0.1".into(), 8)], 16);
        assert!(text.contains("KillWait=9\n"), "{text}");
        assert_eq!(text.matches("KillWait").count(), 1);
        assert!(text.contains("CoresPerSocket=8"));
    }

    #[test]
    fn tables_are_merged_and_not_replaced() {
        let mut base: toml::Table = toml::from_str("[gate]\nmode = 'enforce'\ndeadline = '30s'").unwrap();
        merge(&mut base, toml::from_str("[gate]\nmode = 'report'\n[breaker]\nmax = 1").unwrap());
        assert_eq!(base["gate"]["mode"].as_str(), Some("report"));
        assert_eq!(base["gate"]["deadline"].as_str(), Some("30s"));
        assert_eq!(base["breaker"]["max"].as_integer(), Some(1));
    }
}
