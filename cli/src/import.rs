//! What another health checker was told, as railgate's own configuration.

mod nhc;
mod nhc_line;
mod nhc_map;
mod nhc_write;

use std::path::PathBuf;

use anyhow::Context as _;
use railgate_text::Lines;

use crate::output::complain;
use crate::{Site, exit, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate import nhc /etc/nhc/nhc.conf
  railgate import nhc /etc/nhc/nhc.conf --out railgate-from-nhc
  railgate import nhc nhc.conf --nodes 'gpu[001-064]' --out new")]
pub(crate) struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, clap::Subcommand)]
enum From {
    /// An nhc.conf of LBNL's Node Health Check, with Azure's and DeepOps' checks
    #[command(after_help = "\
Examples:
  railgate import nhc /etc/nhc/nhc.conf                         says what would become of each line
  railgate import nhc /etc/nhc/nhc.conf --out new               writes new/railgate.toml and what it needs
  railgate --config new/railgate.toml config check

Nothing of this machine is read or changed, and nothing that is written drains until you say so.
docs/from-nhc.md has the table of NHC's checks and their counterparts.

Exit codes: 0 done, 2 the file has lines that are no NHC configuration; nothing is written then")]
    Nhc {
        /// The configuration
        file: PathBuf,
        /// A new directory for railgate.toml, profiles/, checks.d/ and nhc-rest.conf
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// The cluster's nodes, to find those that a mask such as gpu* means
        #[arg(long, value_name = "HOSTLIST", default_value = "", hide_default_value = true)]
        nodes: String,
    },
}

pub(crate) fn run(_site: &Site, args: &Args) -> anyhow::Result<u8> {
    let From::Nhc { file, out, nodes } = &args.from;
    let text = std::fs::read(file).with_context(|| file.display().to_string())?;
    let nodes = railgate_slurm::hostlist::expand(nodes).with_context(|| format!("--nodes {nodes}"))?;
    let imported = match nhc::Imported::read(&String::from_utf8_lossy(&text), &nodes) {
        Ok(imported) => imported,
        Err(bad) => {
            for (line, why) in &bad {
                complain!("{}:{line}: {why}", file.display());
            }
            anyhow::bail!("{} bad lines in {}; nothing is written", bad.len(), file.display());
        }
    };
    output::text(&Lines::kept(&imported.told(file)))?;
    if let Some(dir) = out {
        let files = nhc_write::files(&imported, file)?;
        nhc_write::write(dir, &files)?;
        output::text(&Lines::kept(&nhc_write::next_steps(dir, &files)))?;
    }
    Ok(exit::OK)
}
