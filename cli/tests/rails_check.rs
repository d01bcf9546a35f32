//! `railgate rails --check`: exit codes, what is said where, and that the page about it has every field.
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
fn a_site_can_have_its_file_checked() {
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
            "NCCL takes this file, and it is right for simulated\n",
        ),
        (
            &["--check", "good.xml", "--simulate", "h200-sxm:ib-port-down@3"],
            0,
            "NCCL takes this file, and it is right",
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
            "NCCL 2.28.9 takes this file",
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
