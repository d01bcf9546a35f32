//! Shell completion of templates, checks and diagnosis rules, with the files that the packages install.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;
use std::process::{Command, Output};

fn run(dir: &Path, words: &[&str]) -> std::io::Result<Output> {
    Command::new(words[0]).args(&words[1..]).current_dir(dir).output()
}

fn railgate(dir: &Path, words: &[&str]) -> Output {
    run(dir, &[&[env!("CARGO_BIN_EXE_railgate")], words].concat()).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A command line so far, and the completions that must be offered.
const TYPED: [(&[&str], &str, &[&str]); 3] = [
    (&["template", "show"], "torch", &["torchrun-multinode", "torchrun-single"]),
    (&["explain"], "gpu-los", &["gpu-lost"]),
    (&["explain"], "slow-", &["slow-clock"]),
];

#[test]
fn shells_complete_templates_checks_and_rules() {
    let dir = tempfile::tempdir().unwrap();
    assert!(railgate(dir.path(), &["generate", "made"]).status.success());
    for (words, begun, wanted) in TYPED {
        let line = format!("railgate {} {begun}", words.join(" "));
        let bash = format!(
            ". made/bash/railgate.bash; COMP_WORDS=({line}); COMP_CWORD={}; \
             _railgate railgate {begun} ''; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            words.len() + 1
        );
        let said = run(dir.path(), &["bash", "--norc", "-c", &bash]).unwrap();
        assert_eq!(text(&said.stdout).lines().collect::<Vec<_>>(), wanted, "{line}: {}", text(&said.stderr));
        for (file, before) in [("zsh/_railgate", ":("), ("fish/railgate.fish", " -f -a \"")] {
            let made = std::fs::read_to_string(dir.path().join("made").join(file)).unwrap();
            let offered = |names: &&str| wanted.iter().all(|name| names.split(' ').any(|word| word == *name));
            let lists = made.split(before).skip(1).filter_map(|rest| rest.split([')', '"']).next());
            assert!(lists.into_iter().any(|names| offered(&names)), "{file}: {line}");
        }
        // Only if fish is installed.
        let fish = format!("source made/fish/railgate.fish; complete -C '{line}'");
        if let Ok(said) = run(dir.path(), &["fish", "--no-config", "-c", &fish]) {
            assert_eq!(text(&said.stdout).lines().collect::<Vec<_>>(), wanted, "fish: {line}");
        }
    }
}

#[test]
fn names_outside_the_completions_are_accepted() {
    let dir = tempfile::tempdir().unwrap();
    for (words, meant) in [
        (
            &["template", "show", "torchrun-multinod"][..],
            "did you mean 'torchrun-multinode'? (known: apptainer, ",
        ),
        (&["explain", "gpu-lots"], "did you mean 'gpu-lost'?"),
        (&["explain", "slow-clok"], "did you mean 'slow-clock'?"),
    ] {
        let said = railgate(dir.path(), words);
        assert!(!said.status.success() && text(&said.stderr).contains(meant), "{}", text(&said.stderr));
    }
    // The help page does not list a hundred ids; only completion does.
    let help = text(&railgate(dir.path(), &["explain", "--help"]).stdout);
    assert!(help.contains("gpu-lost@3") && !help.contains("possible values: boot"), "{help}");
    assert!(!help.contains("gpu-nvlink"), "{help}");
}
