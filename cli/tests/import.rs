//! `railgate import nhc`: the outcome of each line, and the files that it writes. `nhc_verdicts` compares the verdicts.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use tempfile::TempDir;

fn railgate(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_railgate")).args(words).output().unwrap()
}

fn out(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Output of the import, and the new directory in a temporary one.
fn import(conf: impl AsRef<[u8]>) -> (String, TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (file, new) = (dir.path().join("nhc.conf"), dir.path().join("new"));
    fs::write(&file, conf).unwrap();
    let done = railgate(&["import", "nhc", file.to_str().unwrap(), "--out", new.to_str().unwrap()]);
    assert!(done.status.success(), "{}", out(&done));
    (out(&done), dir, new)
}

/// Number and outcome of each listed line.
fn outcomes(listing: &str) -> Vec<(&str, &str)> {
    let rows = listing.lines().skip(1).take_while(|line| !line.is_empty());
    rows.map(|row| {
        let (number, rest) = row.split_once(' ').unwrap();
        let rest = rest.trim_start();
        let all = ["same meaning", "under NHC", "not imported"];
        (number, *all.iter().find(|outcome| rest.starts_with(**outcome)).unwrap())
    })
    .collect()
}

/// Lines that earlier versions changed, dropped or refused, and their conversion now.
#[test]
fn every_line_has_one_of_three_outcomes_and_reaches_nhc_unchanged() {
    let conf: &[u8] = b"# Checks.\n\
        * || export MARK_OFFLINE=0\n\
        \n\
        * || check_hw_ib 40 mlx5_an0:1\n\
        * || check_ps_service -u root -k sshd:\n\
        * || check_fs_mount_rw -t nfs -f /home -f /scratch -f /apps\n\
        * || check_fs_mount_rw -F \"/home\"\n\
        * || check_hw_cpuinfo 2 24\n\
        * || check_hw_physmem 1eb 1eb\n\
        * || check_gpu_bw 48 \\\n335\n\
        gn* || check_file_contents /etc/motd '/\xff/'\r\n\
        * || check_hw_gm myri0\n\
        {gn[1-} || check_hw_eth lo\n\
        * || check_cmd_status 'a\n\
        * || check_hw_eth no-newline";
    let (listing, _dir, new) = import(conf);
    let under = "under NHC";
    let wanted = [
        ("2", "same meaning"),
        ("4", under),
        ("5", under),
        ("6", under),
        ("7", under),
        ("8", under),
        ("9", under),
        ("10-11", "not imported"),
        ("12", under),
        ("13", "not imported"),
        ("14", under),
        ("15", under),
        ("16", "not imported"),
    ];
    assert_eq!(outcomes(&listing), wanted, "{listing}");
    assert!(
        listing.contains(": 13 lines: 1 same meaning, 9 under NHC, 3 not imported; 3 warnings\n"),
        "{listing}"
    );
    for words in
        ["changes the node", "similar: ib-port", "a load test", "Myrinet", "does not end in a newline"]
    {
        assert!(listing.contains(words), "{words}: {listing}");
    }
    // The same lines at the same positions; lines that NHC must not run are comments.
    let mut same = conf.to_vec();
    for (line, mark) in [
        ("* || export MARK", "# same meaning in railgate.toml: "),
        ("* || check_gpu_bw", "# not imported: "),
        ("* || check_hw_gm", "# not imported: "),
        ("* || check_hw_eth no-newline", "# not imported: "),
    ] {
        let at = same.windows(line.len()).position(|here| here == line.as_bytes()).unwrap();
        same.splice(at..at, mark.bytes());
    }
    assert_eq!(fs::read(new.join("nhc/nhc.conf")).unwrap(), same);
    // No check is replaced by one of railgate's, and none drains.
    let config: toml::Table =
        toml::from_str(&fs::read_to_string(new.join("railgate.toml")).unwrap()).unwrap();
    assert_eq!(config.keys().collect::<Vec<_>>(), ["gate"]);
    assert_eq!(config["gate"]["mode"].as_str(), Some("report"));
    assert_eq!(config["gate"]["checks"].as_table().unwrap().keys().collect::<Vec<_>>(), ["site"]);
    assert_eq!(config["gate"]["checks"]["site"]["named"]["nhc"]["worst"].as_str(), Some("warn"));
}

#[test]
fn the_new_configuration_can_be_tried_in_place() {
    let (_, _dir, new) = import("* || check_hw_eth lo\n");
    let config = new.join("railgate.toml");
    let run = |words: &[&str]| {
        let done = railgate(&[&["--config", config.to_str().unwrap()], words].concat());
        assert!(done.status.success(), "{}", out(&done));
        out(&done)
    };
    run(&["config", "check"]);
    let shown = run(&["config", "show"]);
    let directory = format!("gate.checks.site.directory = \"{}\"", new.join("checks.d").display());
    assert!(shown.contains(&directory), "{shown}");
    assert!(run(&["check", "--list"]).contains("site-nhc"));
}

#[test]
fn a_file_without_checks_needs_no_nhc() {
    for conf in ["", "# nothing\n", "* || check_gpu_bw 1\n", "* || check_hw_eth lo"] {
        let (_, _dir, new) = import(conf);
        let names: Vec<_> = fs::read_dir(&new).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names, ["railgate.toml"], "{conf}");
    }
}

/// NHC itself treats a missing configuration as a healthy node, and runs one that other users have written.
#[test]
fn a_missing_nhc_or_nhc_conf_makes_the_check_fail() {
    let (_, _dir, new) = import("* || check_hw_eth lo\n");
    let run = |path: &str| {
        let done = Command::new(new.join("checks.d/nhc.sh")).env("PATH", path).output().unwrap();
        (done.status.code(), out(&done))
    };
    assert_eq!(run("/nowhere"), (Some(3), "nhc is not installed\n".to_owned()));
    let place = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/true", place.path().join("nhc")).unwrap();
    let path = format!("{}:/usr/bin:/bin", place.path().display());
    assert_eq!(run(&path), (Some(0), String::new()));
    let lines = new.join("nhc/nhc.conf");
    fs::set_permissions(&lines, fs::Permissions::from_mode(0o664)).unwrap();
    assert_eq!(run(&path), (Some(3), format!("{}: others may write it\n", lines.display())));
    fs::set_permissions(&lines, fs::Permissions::from_mode(0o644)).unwrap();
    let blank = place.path().join("a b");
    fs::rename(&new, &blank).unwrap();
    let done = Command::new(blank.join("checks.d/nhc.sh")).env("PATH", &path).output().unwrap();
    assert_eq!(done.status.code(), Some(3), "{}", out(&done));
    fs::rename(&blank, &new).unwrap();
    for file in ["nhc/sysconfig/nhc", "nhc/nhc.conf"] {
        fs::remove_file(new.join(file)).unwrap();
        assert_eq!(run(&path), (Some(3), format!("{} is missing\n", new.join(file).display())));
    }
}

#[test]
fn an_existing_directory_is_not_changed() {
    let (_, dir, new) = import("* || check_hw_eth lo\n");
    let again = railgate(&[
        "import",
        "nhc",
        dir.path().join("nhc.conf").to_str().unwrap(),
        "--out",
        new.to_str().unwrap(),
    ]);
    assert_eq!(again.status.code(), Some(2), "{}", out(&again));
    assert!(out(&again).contains("exists already"), "{}", out(&again));
}
