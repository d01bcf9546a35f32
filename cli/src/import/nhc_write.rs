//! The files of an imported configuration.

use std::fs;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, ensure};

use railgate_text::{Lines, printable, put};

use super::nhc::{Imported, Outcome};

/// A path below the directory, and its bytes; what begins with `#!` is executable.
pub(super) type File = (&'static str, Vec<u8>);

const CONFIG: &str = "\
# docs/install.md, \"From report to enforce\", is the way from here: nothing drains yet.
[gate]
mode = \"report\"
";

/// NHC ends itself after 30 s, and after 6 s more where it has to be killed.
const SITE_CHECK: &str = "deadline = \"50s\"

[gate.checks.site]
directory = \"checks.d\"        # beside this file

# nhc/nhc.conf under NHC, as often as HealthCheckProgram. \"fail\" lets it drain.
[gate.checks.site.named.nhc]
worst = \"warn\"
phases = [\"periodic\"]
deadline = \"40s\"              # longer than NHC's own TIMEOUT
";

const SCRIPT: &str = include_str!("nhc.sh");

/// What an import writes.
pub(super) fn files(imported: &Imported<'_>, from: &Path) -> Vec<File> {
    let mut config = format!("# From {} by `railgate import nhc`.\n{CONFIG}", one_line(from));
    let mut files = Vec::new();
    if imported.runs_nhc() {
        config.push_str(SITE_CHECK);
        files.push(("checks.d/nhc.sh", SCRIPT.into()));
        files.push(("nhc/nhc.conf", lines(imported)));
        files.push(("nhc/sysconfig/nhc", include_bytes!("nhc.sysconfig").to_vec()));
    }
    files.insert(0, ("railgate.toml", config.into()));
    files
}

/// The file as it was, so that its line numbers hold; what NHC is not to run has become a comment.
fn lines(imported: &Imported<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    for (line, entry) in &imported.lines {
        text.extend_from_slice(match entry.as_ref().map(|entry| &entry.outcome) {
            None | Some(Outcome::UnderNhc) => b"",
            Some(Outcome::Same(_)) => b"# same meaning in railgate.toml: ",
            Some(Outcome::Not(_)) => b"# not imported: ",
        });
        text.extend_from_slice(line.raw);
    }
    text
}

/// For a comment.
fn one_line(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

/// Into a directory that does not exist yet, readable for everybody and writable for its owner alone.
pub(super) fn write(dir: &Path, files: &[File]) -> anyhow::Result<()> {
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

pub(super) fn next_steps(dir: &Path, files: &[File]) -> Lines {
    let dir = dir.display();
    let names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    let mut text = Lines::new();
    put!(text, "written to {dir}: {}", names.join(", "));
    text.blank();
    put!(text, "next, on a node, as root:");
    put!(text, "  railgate --config {dir}/railgate.toml config check");
    put!(text, "  railgate --config {dir}/railgate.toml check     a trial: lines that change the node do so");
    put!(
        text,
        "  cp -r {dir}/. /etc/railgate/        on every node; nothing drains until [gate] mode = \"enforce\""
    );
    text
}
