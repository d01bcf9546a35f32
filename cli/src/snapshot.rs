use std::path::PathBuf;

use crate::node_source::{NodeArgs, parts};
use crate::output::say;
use crate::{Site, exit, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate snapshot --out node.json    as root: also reads the kernel log
  railgate check --snapshot node.json  check it, on any machine
  railgate snapshot --simulate h100-sxm:gpu-lost@3

With --out it prints each part, how long reading it took, and what is missing. The file holds serial numbers, \
UUIDs and process names.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,
    /// Where to write it [default: standard output]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let config = site.config()?;
    let seen = args.node.read(site, &config)?;
    output::to_json(args.out.as_deref(), &seen.snapshot)?;
    if args.out.is_some() {
        for (part, missing, took_ms) in parts(&seen.snapshot) {
            let outcome = missing.unwrap_or_else(|| "read".to_owned());
            say!("{:<10}  {took_ms:>8.1} ms  {outcome}", part.as_str())?;
        }
    }
    Ok(exit::OK)
}
