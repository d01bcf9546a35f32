//! `railgate import nhc`: every check of NHC's own, Azure's and DeepOps'; what it writes is accepted and runs.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nhc").join(name)
}

fn railgate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_railgate")).args(words).output().unwrap()
}

fn out(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What each line became, and the directory that was written.
fn import(conf: &Path, more: &[&str]) -> (String, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let new = dir.path().join("new");
    let done = railgate(
        &[&["import", "nhc", conf.to_str().unwrap(), "--out", new.to_str().unwrap()], more].concat(),
    );
    assert!(done.status.success(), "{}", out(&done));
    let checked = railgate(&["--config", new.join("railgate.toml").to_str().unwrap(), "config", "check"]);
    assert!(
        checked.status.success(),
        "{}\n{}",
        out(&checked),
        fs::read_to_string(new.join("railgate.toml")).unwrap()
    );
    (out(&done), dir)
}

fn toml(dir: &tempfile::TempDir, name: &str) -> toml::Table {
    toml::from_str(&fs::read_to_string(dir.path().join("new").join(name)).unwrap()).unwrap()
}

#[test]
fn every_check_of_nhcs_own_becomes_something() {
    let (told, dir) = import(&fixture("lbnl.conf"), &["--nodes", "gn[1-8],cpu[1-2]"]);
    for line in
        fs::read_to_string(fixture("lbnl.conf")).unwrap().lines().filter(|line| line.contains("|| check"))
    {
        let command: String = line.split_once("|| ").unwrap().1.chars().take(40).collect();
        assert!(told.contains(command.trim_end()), "{command} is not told of in\n{told}");
    }
    assert!(told.contains("/lbnl.conf: 58 lines: 12 become settings, "), "{told}");
    let profile = toml(&dir, "profiles/nhc.toml");
    assert_eq!(profile["host"]["cpus"].as_integer(), Some(128));
    assert_eq!(profile["host"]["memory_gib"].as_integer(), Some(1031));
    assert_eq!(profile["fabric"]["hcas"].as_integer(), Some(2));
    assert_eq!(profile["fabric"]["exclude"][0].as_str(), Some("mlx5_8"));
    let config = toml(&dir, "railgate.toml");
    assert_eq!(config["gate"]["mode"].as_str(), Some("report"));
    assert_eq!(config["gate"]["checks"]["memory"]["tolerance_percent"].as_float(), Some(5.0));
    assert_eq!(config["gate"]["checks"]["mounts"]["required"].as_array().unwrap().len(), 2);
    assert_eq!(config["gate"]["checks"]["module"]["required"][0].as_str(), Some("nvidia_peermem"));
    assert_eq!(config["gate"]["checks"]["service"]["required"][0].as_str(), Some("cron"));
    // Each node is in one table, with what all nodes have.
    let tables = config["node"].as_array().unwrap();
    let of = |name: &str| tables.iter().find(|table| table["names"].as_str() == Some(name)).unwrap();
    for names in ["gn[3-4]", "gn[5-6]"] {
        let required = &of(names)["gate"]["checks"]["mounts"]["required"];
        assert_eq!(required.as_array().unwrap().len(), 3, "{names}");
    }
    assert_eq!(
        toml(&dir, &format!("profiles/{}.toml", of("gn2")["profile"].as_str().unwrap()))["host"]["cpus"]
            .as_integer(),
        Some(64)
    );
    assert_eq!(toml(&dir, &format!("profiles/{}.toml", of("cpu[1-2]")["profile"].as_str().unwrap()))["host"]["memory_gib"].as_integer(), Some(512));
    // What NHC alone can say goes on there.
    let rest = fs::read_to_string(dir.path().join("new/nhc-rest.conf")).unwrap();
    for part in [
        "/^login[0-9]+$/ || check_fs_mount_rw -f /archive",
        "check_dmi_data_match",
        "$((2*HW_CORES))",
        "check_ps_time",
    ] {
        assert!(rest.contains(part), "{part} is not in\n{rest}");
    }
    assert!(!rest.contains("check_hw") && !rest.contains("check_moab"), "{rest}");
}

#[test]
fn azures_and_deepops_checks_become_something() {
    let (told, dir) = import(&fixture("clouds.conf"), &[]);
    let profile = toml(&dir, "profiles/nhc.toml");
    assert_eq!(profile["gpus"]["count"].as_integer(), Some(8));
    assert_eq!(profile["gpus"]["driver"][0].as_str(), Some("570.86.15"));
    assert_eq!(profile["fabric"]["interfaces_up"].as_bool(), Some(true));
    let rest = fs::read_to_string(dir.path().join("new/nhc-rest.conf")).unwrap();
    let rest: Vec<&str> = rest.lines().skip(1).collect();
    // No load beside jobs, whatever the line looks like to bash.
    assert_eq!(rest, ["* || check_num_numa_nodes 8", "* || check_of_our_own 7"], "{told}");
}

#[test]
fn what_it_writes_runs() {
    let (_, dir) = import(&fixture("lbnl.conf"), &["--nodes", "gn[1-8]"]);
    let run = |name: &str, node: &str| {
        let path = dir.path().join("new/checks.d").join(name);
        let done = Command::new(path).env("RAILGATE_NODE", node).output().unwrap();
        (done.status.code(), out(&done))
    };
    assert_eq!(run("nhc-files.sh", "x"), (Some(0), String::new()));
    assert_eq!(run("nhc-space.sh", "x"), (Some(0), String::new()));
    assert_eq!(run("nhc-commands.sh", "x"), (Some(0), String::new()));
    assert_eq!(run("nhc-network.sh", "x"), (Some(0), String::new()));
    assert_eq!(run("nhc-network.sh", "gn1"), (Some(2), "no interface ens1\n".to_owned()));
    assert_eq!(run("nhc-mounts.sh", "x"), (Some(2), "/opt/software is not mounted read-only\n".to_owned()));
    // A file that is there is not written over.
    let again = railgate(&[
        "import",
        "nhc",
        fixture("lbnl.conf").to_str().unwrap(),
        "--out",
        dir.path().to_str().unwrap(),
    ]);
    assert!(again.status.code() == Some(2) && out(&again).contains("exists already"), "{}", out(&again));
}

#[test]
fn a_failing_limit_is_told_in_one_line() {
    let conf = "* || check_fs_free / 100%\n* || check_hw_mem_free 999t\n* || check_file_test -s /nowhere\n\
                * || check_cmd_output -t 1 -m '/quiet/' -e 'echo \"it'\\''s loud\"'\n* || check_cmd_status -t 1 sleep 9\n\
                * || check_ps_loadavg 0\n* || check_ps_daemon no-such-daemon nobody\n";
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("nhc.conf"), conf).unwrap();
    let (_, dir) = import(&dir.path().join("nhc.conf"), &[]);
    for (name, wanted) in [
        ("space", "/: free "),
        ("memory", "MemAvailable SwapFree: "),
        ("files", "/nowhere: not -s"),
        ("commands", "echo \"it's loud\": lacks quiet; sleep 9: exit code 124"),
        ("processes", "no process no-such-daemon of nobody"),
    ] {
        let done = Command::new(dir.path().join(format!("new/checks.d/nhc-{name}.sh"))).output().unwrap();
        assert_eq!(done.status.code(), Some(2), "{name}: {}", out(&done));
        assert!(out(&done).contains(wanted) && out(&done).lines().count() == 1, "{name}: {}", out(&done));
    }
}

#[test]
fn bad_lines_are_named_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (conf, new) = (dir.path().join("nhc.conf"), dir.path().join("new"));
    fs::write(
        &conf,
        "* || check_hw_eth lo\n\ncheck_hw_eth lo\n* || check_hw_cpuinfo 2\n{n[1-} || check_hw_mcelog\n",
    )
    .unwrap();
    let done = railgate(&["import", "nhc", conf.to_str().unwrap(), "--out", new.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(2));
    for (line, why) in [(3, "expected MASK || CHECK"), (4, "check_hw_cpuinfo: arguments"), (5, "mask {n[1-}")]
    {
        assert!(out(&done).contains(&format!("{}:{line}: {why}", conf.display())), "{}", out(&done));
    }
    assert!(!new.exists());
}
