//! `railgate import`: converts the configuration of another health checker.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use railgate_nhc::{File, Imported, files, next_steps};

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
  railgate import nhc /etc/nhc/nhc.conf      the outcome of each line
  railgate import nhc /etc/nhc/nhc.conf --out new
      writes new/railgate.toml and what it needs
  railgate --config new/railgate.toml check  tries it on this node

Each line has one of three outcomes: it has the same meaning in railgate.toml, it runs under NHC, or it is not \
imported, with the reason. The import only reads the file. What it writes drains no node until you turn that on. \
docs/from-nhc.md lists the checks.

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
    let text = fs::read(file).with_context(|| file.display().to_string())?;
    let imported = Imported::read(&text);
    output::text(&imported.listing(file))?;
    if let Some(dir) = out {
        let files = files(&imported, file);
        write(dir, &files)?;
        output::text(&next_steps(dir, &files))?;
    }
    Ok(exit::OK)
}

/// Writes the files to a directory that must not exist yet; every user can read it, only its owner can write.
fn write(dir: &Path, files: &[File]) -> anyhow::Result<()> {
    ensure!(!dir.exists(), "{}: exists already", dir.display());
    for (name, text) in files {
        let path = dir.join(name);
        let parent = path.parent().unwrap_or(dir);
        let mode = if text.starts_with(b"#!") { 0o755 } else { 0o644 };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)
            .and_then(|()| fs::write(&path, text))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .with_context(|| path.display().to_string())?;
    }
    Ok(())
}
