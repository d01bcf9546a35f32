//! A controller that the test makes: a report directory, a ledger, and an slurmctld.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_railgate-fleet");

pub(crate) struct Place {
    pub(crate) dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        let place = Place { dir: tempfile::tempdir().unwrap() };
        for dir in ["bin", "reports", "state/controller"] {
            fs::create_dir_all(place.at(dir)).unwrap();
        }
        let config = format!(
            "[report]\ndir = '{0}/reports'\n[slurm]\nbin_dir = '{0}/bin'\n[fleet]\ndatabase = '{0}/fleet/fleet.db'\n\
             [fleet.leaf]\nleaf-1 = 'n[1-2]'\n",
            place.dir.path().display()
        );
        fs::write(place.at("railgate.toml"), config).unwrap();
        place.slurm("echo 'NodeName=n1 State=IDLE BootTime=2026-11-21T01:36:02'");
        place
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What `scontrol` does; each call adds a line to `asked`.
    pub(crate) fn slurm(&self, does: &str) {
        let path = self.at("bin/scontrol");
        let script = format!("#!/bin/sh\necho asked >> '{}'\n{does}\n", self.at("asked").display());
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn asked(&self) -> usize {
        fs::read_to_string(self.at("asked")).unwrap_or_default().lines().count()
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("--config").arg(self.at("railgate.toml")).arg("--state").arg(self.at("state"));
        command.args(words);
        command
    }

    pub(crate) fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    pub(crate) fn once(&self) -> String {
        let done = self.run(&["once"]);
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(0), "{said}");
        said
    }
}

/// A program that ends with the test.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets this time pass for the program, milliseconds: all times in the state of the alerts are so much earlier. Without the history,
/// Slurm is asked again within the same minute.
pub(crate) fn pass(place: &Place, time: u64) {
    fn earlier(value: &mut Value, by: u64) {
        match value {
            Value::Number(number) => {
                if let Some(time) = number.as_u64().filter(|time| *time > 1_600_000_000_000) {
                    *value = (time - by).into();
                }
            }
            Value::Array(all) => all.iter_mut().for_each(|value| earlier(value, by)),
            Value::Object(all) => all.values_mut().for_each(|value| earlier(value, by)),
            _ => {}
        }
    }
    let path = place.at("fleet/alerts.json");
    let mut state: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    earlier(&mut state, time);
    fs::write(&path, state.to_string()).unwrap();
    for file in fs::read_dir(place.at("fleet")).unwrap().flatten() {
        if file.file_name().to_str().unwrap().starts_with("fleet.db") {
            fs::remove_file(file.path()).unwrap();
        }
    }
}
