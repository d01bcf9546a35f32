//! Every option and argument with a value, as `--help` lists them.

use crate::Case;
use crate::stage::{Stage, hostile};

/// The program's own name, and the word in place of a command.
pub(crate) fn of_the_program(stage: &mut Stage) {
    let text = hostile();
    for words in [vec![text.as_str()], vec!["--help"], vec!["check", "--nosuch"], vec![]] {
        stage.run_bare(Some(&text), &words);
    }
    let odd = format!("--{text}");
    for words in [[text.as_str(), "check"], ["--config", text.as_str()], [odd.as_str(), "check"]] {
        stage.run_bare(None, &words);
    }
}

/// Passes hostile text in each option and argument of a command; a file of that name has hostile content too.
pub(crate) fn of(stage: &mut Stage, case: &Case) {
    let command: Vec<&str> = case.command.split(' ').collect();
    let help = stage.run(&[&command[..], &["--help"]].concat()).out;
    let text = hostile();
    stage.write(&text, format!("{text}\n{text}"));
    let odd = format!("--{text}=1");
    let (before, after) = match case.needs.iter().position(|word| *word == "--") {
        Some(at) => case.needs.split_at(at),
        None => (case.needs, &[][..]),
    };
    let mut tried = 0;
    for option in options(&help).iter().map(String::as_str) {
        tried += 1;
        // Both as a separate value and in place of the required arguments.
        let joined = format!("{option}={text}");
        stage.run(&[&command[..], before, &[option, text.as_str()], after].concat());
        stage.run(&[&command[..], &[joined.as_str()], after].concat());
    }
    stage.run(&[&command[..], &[odd.as_str()], before, after].concat());
    stage.run(&[&command[..], &[text.as_str()], after].concat());
    stage.run(&[&command[..], before, &[text.as_str()], after].concat());
    stage.run(&[&command[..], &["--", text.as_str()]].concat());
    if tried == 0 {
        stage.problem(format!("{command:?}: no option with a value in its help, not even --config:\n{help}"));
    }
}

/// Extracts `--file` from `      --file <FILE>`.
fn options(help: &str) -> Vec<String> {
    let mut found: Vec<String> = help
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--")?.split_once(" <"))
        .map(|(name, _)| format!("--{name}"))
        .collect();
    found.dedup();
    found
}
