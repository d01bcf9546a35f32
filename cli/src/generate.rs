//! `railgate generate DIR`: man pages and shell completions, from the definition that also parses the command line.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::{Cli, exit};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to: `man1/`, `bash/`, `zsh/` and `fish/` are made in it
    dir: PathBuf,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<u8> {
    let write = |dir: &Path| -> io::Result<()> {
        let man = dir.join("man1");
        fs::create_dir_all(&man)?;
        clap_mangen::generate_to(Cli::command(), &man)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let place = dir.join(shell.to_string());
            fs::create_dir_all(&place)?;
            let file = clap_complete::generate_to(shell, &mut Cli::command(), "railgate", &place)?;
            if shell == Shell::Fish {
                let mut command = Cli::command();
                command.build();
                let values = fish_values(&command, "__fish_railgate_using_subcommand");
                OpenOptions::new().append(true).open(file)?.write_all(values.as_bytes())?;
            }
        }
        Ok(())
    };
    write(&args.dir).with_context(|| args.dir.display().to_string())?;
    Ok(exit::OK)
}

/// Completions of positional arguments for fish, which `clap_complete` writes only for bash and zsh. `seen` is fish's
/// condition on the preceding words.
fn fish_values(command: &clap::Command, seen: &str) -> String {
    let mut lines = String::new();
    for below in command.get_subcommands() {
        let seen = format!("{seen} {}", below.get_name());
        for argument in below.get_positionals() {
            let values = argument.get_possible_values();
            let names: Vec<&str> = values.iter().map(|value| value.get_name()).collect();
            if !names.is_empty() {
                let _ = writeln!(lines, "complete -c railgate -n \"{seen}\" -f -a \"{}\"", names.join(" "));
            }
        }
        lines += &fish_values(below, &format!("{seen}; and __fish_seen_subcommand_from"));
    }
    lines
}
