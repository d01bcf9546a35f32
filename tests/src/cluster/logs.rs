//! Logs and state that are kept after a failed test.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::{CONTROLLER, Cluster, lock};

/// Messages that every slurmctld logs at its first start.
const USUAL: [&str; 5] = ["Could not open", "NOTE: Trying backup", "pmix", "MailProg", "pam_slurm_adopt"];

impl Cluster {
    /// A summary for the person who reads the failure: jobs, nodes, and the last lines of the logs.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let limit = Duration::from_secs(15);
        for words in [
            &["sinfo", "-N", "-l"][..],
            &["sinfo", "-R"],
            &["squeue", "-l"],
            &["scontrol", "-o", "show", "jobs"],
        ] {
            match self.root().deadline(limit).run(words) {
                Ok(output) => drop(writeln!(text, "--- {}\n{}", output.command, output.both().trim_end())),
                Err(error) => drop(writeln!(text, "--- {}: {error:#}", words.join(" "))),
            }
        }
        if let Ok(log) = self.read(CONTROLLER, "/var/log/slurm/slurmctld.log") {
            let told =
                |line: &&str| line.contains("error") && !USUAL.iter().any(|usual| line.contains(usual));
            let lines: Vec<&str> = log.lines().filter(told).collect();
            let _ = writeln!(text, "--- slurmctld's errors");
            for line in lines.iter().rev().take(20).rev() {
                let _ = writeln!(text, "{line}");
            }
        }
        text
    }

    /// Copies the machines' logs, railgate's state and the shared files to a directory.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn save_logs(&self, place: &Path) -> Result<()> {
        let sandbox = self.sandbox()?;
        fs::create_dir_all(place)?;
        fs::write(place.join("state.txt"), self.describe())?;
        copy_tree(&sandbox.path("slurm"), &place.join("etc-slurm"))?;
        copy_tree(&sandbox.path("shared"), &place.join("shared"))?;
        copy_tree(&sandbox.path("home"), &place.join("home"))?;
        for host in lock(&self.machines).iter() {
            let name = &host.spec.name;
            let own = sandbox.path("machines").join(name);
            let target = place.join(name);
            fs::create_dir_all(&target)?;
            let _ = fs::copy(own.join("console.log"), target.join("console.log"));
            for (from, to) in
                [("upper/var/log", "log"), ("state", "lib-railgate"), ("upper/etc/railgate", "etc-railgate")]
            {
                copy_tree(&own.join(from), &target.join(to))?;
            }
            if let Some(machine) = &host.running {
                let run = PathBuf::from(format!("/proc/{}/root/run/railgate", machine.pid));
                copy_tree(&run, &target.join("run-railgate"))?;
            }
        }
        Ok(())
    }
}

/// Copies files and directories, skips other kinds, and ignores files that disappear meanwhile.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    for entry in entries.flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => copy_tree(&entry.path(), &target)?,
            Ok(kind) if kind.is_file() => drop(fs::copy(entry.path(), target)),
            _ => {}
        }
    }
    Ok(())
}
