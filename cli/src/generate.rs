//! `railgate generate DIR`: man pages and shell completions, from the same definition that parses the command line.

use std::fs;
use std::io;
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
            clap_complete::generate_to(shell, &mut Cli::command(), "railgate", &place)?;
        }
        Ok(())
    };
    write(&args.dir).with_context(|| args.dir.display().to_string())?;
    Ok(exit::OK)
}
