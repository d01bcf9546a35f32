//! `railgate rails --check`: exit codes and output, and whether the page documents every field.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;
use std::process::{Command, Output};

fn rails(dir: &Path, words: &[&str]) -> Output {
    std::fs::write(dir.join("railgate.toml"), "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
    command.current_dir(dir).args(["--config", "railgate.toml", "rails"]).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_topology_file_is_checked_against_the_machine() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    let made = rails(dir, &["--simulate", "h200-sxm", "--format", "xml"]);
    std::fs::write(dir.join("good.xml"), &made.stdout).unwrap();
    let good = text(&made.stdout);
    std::fs::write(dir.join("tab.xml"), good.replacen("  <cpu", "\t<cpu", 1)).unwrap();
    std::fs::write(dir.join("quotes.xml"), good.replacen("version=\"1\"", "version='1'", 1)).unwrap();
    std::fs::write(dir.join("stale.xml"), good.replace("0000:1b:00.0", "0000:1c:00.0")).unwrap();

    for (words, code, says) in [
        (
            &["--check", "good.xml", "--simulate", "h200-sxm"][..],
            0,
            "NCCL accepts this file, and it matches simulated\n",
        ),
        (
            &["--check", "good.xml", "--simulate", "h200-sxm:ib-port-down@3"],
            0,
            "NCCL accepts this file, and it matches",
        ),
        (
            &["--check", "tab.xml", "--simulate", "h200-sxm"],
            1,
            "tab.xml:2:1: refused: a tab where '<' should be\n",
        ),
        (&["--check", "quotes.xml", "--simulate", "h200-sxm"], 1, "[NCCL before 2.21, 2.21 to 2.26]"),
        (
            &["--check", "quotes.xml", "--simulate", "h200-sxm", "--nccl", "2.28.9"],
            0,
            "NCCL 2.28.9 accepts this file",
        ),
        (
            &["--check", "stale.xml", "--simulate", "h200-sxm", "--nccl", "2.28.9"],
            1,
            "GPU 0 (0000:1b:00.0) is not in the file",
        ),
        (&["--check", "good.xml", "--simulate", "h200-sxm:nvml-missing"], 3, "not compared: GPUs: "),
    ] {
        let output = rails(dir, words);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{words:?}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        assert!(text(&output.stdout).contains(says), "{words:?}: {}", text(&output.stdout));
    }
    for words in [
        &["--check", "absent.xml", "--simulate", "h200-sxm"][..],
        &["--check", ".", "--simulate", "h200-sxm"],
        &["--check", "good.xml", "--simulate", "h200-sxm", "--format", "env"],
        &["--check", "good.xml", "--simulate", "h200-sxm", "--gpus", "0"],
        &["--check", "good.xml", "--simulate", "h200-sxm", "--nccl", "latest"],
    ] {
        let output = rails(dir, words);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{words:?}");
        assert!(!output.stderr.is_empty());
    }

    let output = rails(dir, &["--check", "tab.xml", "--simulate", "h200-sxm", "--format", "json"]);
    let view: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&view["schema"], &view["accepted"], &view["right"]),
        (&1.into(), &false.into(), &false.into())
    );
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md")).unwrap();
    let fields = view.as_object().unwrap().keys().chain(view["problems"][0].as_object().unwrap().keys());
    for field in fields {
        assert!(page.contains(field.as_str()), "docs/json.md lacks {field}");
    }
}

#[test]
fn the_gate_checks_the_sites_topology_file() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("topo.xml");
    let config = scratch.path().join("railgate.toml");
    std::fs::write(&config, format!("[rails]\nset = {{ NCCL_TOPO_FILE = \"{}\" }}\n[gate.checks.topology-file]\naction = \"notify\"\n", file.display()))
        .unwrap();
    let found = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
        let output =
            command.arg("--config").arg(&config).args(["check", "--format", "json"]).output().unwrap();
        let seen: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let all = seen["verdict"]["findings"].as_array().unwrap().clone();
        let ours = all.into_iter().find(|finding| finding["check"] == "topology-file");
        ours.map(|finding| {
            (finding["severity"].clone(), finding["class"].clone(), finding["what"].to_string())
        })
    };
    std::fs::write(&file, "<system version=\"1\">\n\t</system>\n").unwrap();
    let (severity, class, what) = found().unwrap();
    assert_eq!((severity, class), ("warn".into(), "site".into()));
    assert!(what.contains("NCCL refuses ") && what.contains("topo.xml:2:1: a tab where"), "{what}");
    std::fs::remove_file(&file).unwrap();
    assert!(found().unwrap().2.contains("missing: NCCL continues without it"));
    std::fs::create_dir(&file).unwrap();
    assert_eq!(found().unwrap().0, "unknown");
}

/// Vendors' files are not part of railgate: `RAILGATE_TOPOLOGIES` names a directory of topology files that NCCL
/// accepts.
#[test]
#[expect(clippy::disallowed_macros, reason = "the test's own words")]
fn topology_files_of_vendors_are_accepted_without_nvml() {
    let Some(files) = std::env::var_os("RAILGATE_TOPOLOGIES") else {
        println!("skipped: RAILGATE_TOPOLOGIES names no directory of topology files");
        return;
    };
    let scratch = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for entry in std::fs::read_dir(files).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "xml") {
            continue;
        }
        let file = path.to_str().unwrap();
        let output = rails(scratch.path(), &["--check", file, "--simulate", "h100-sxm:nvml-missing"]);
        let said = text(&output.stdout);
        assert!(said.contains("not compared: GPUs: ") && !said.contains(": refused: "), "{said}");
        assert!(!said.contains("GPU 0000:"), "GPUs were not read: {said}");
        checked += 1;
    }
    println!("{checked} files");
    assert!(checked > 0);
}
