//! Another health checker's configuration, as railgate's own.

mod nhc;
mod nhc_checks;
mod nhc_line;
mod nhc_write;

use std::path::PathBuf;

use anyhow::Context as _;

use crate::{Site, exit, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate import nhc /etc/nhc/nhc.conf
  railgate import nhc /etc/nhc/nhc.conf --out railgate-from-nhc")]
pub(crate) struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, clap::Subcommand)]
enum From {
    /// An nhc.conf of LBNL's Node Health Check 1.4, with its own checks, Azure's, DeepOps' or yours
    #[command(after_help = "\
Examples:
  railgate import nhc /etc/nhc/nhc.conf                   the outcome of each line
  railgate import nhc /etc/nhc/nhc.conf --out new         writes new/railgate.toml and what it needs
  railgate --config new/railgate.toml check               tries it on this node

Each line has one of three outcomes: it has the same meaning in railgate.toml, it runs under NHC,
or it is not imported, with the reason. The import only reads the file. What it writes drains no node
until you turn that on. docs/from-nhc.md lists the checks.

Exit codes: 0 done, 2 the file cannot be read, or the directory exists")]
    Nhc {
        /// The configuration
        file: PathBuf,
        /// A new directory for railgate.toml, checks.d/ and nhc/
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

pub(crate) fn run(_site: &Site, args: &Args) -> anyhow::Result<u8> {
    let From::Nhc { file, out } = &args.from;
    let text = std::fs::read(file).with_context(|| file.display().to_string())?;
    let imported = nhc::Imported::read(&text);
    output::text(&imported.listing(file))?;
    if let Some(dir) = out {
        let files = nhc_write::files(&imported, file);
        nhc_write::write(dir, &files)?;
        output::text(&nhc_write::next_steps(dir, &files))?;
    }
    Ok(exit::OK)
}
