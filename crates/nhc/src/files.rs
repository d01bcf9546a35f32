//! The files of an imported configuration.

use std::path::Path;

use railgate_text::{Lines, printable, put};

use crate::{Imported, Outcome};

/// A path below the directory, and its contents. A file that starts with `#!` is executable.
pub type File = (&'static str, Vec<u8>);

const CONFIG: &str = "\
# docs/install.md, \"From report to enforce\", is the way from here: nothing drains yet.
[gate]
mode = \"report\"
";

/// NHC ends by itself after 30 s, or 6 s later if it has to be killed.
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

/// Returns the files of an import; `from` is the path of the configuration.
pub fn files(imported: &Imported<'_>, from: &Path) -> Vec<File> {
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

/// The original file with its line numbers, in which lines that NHC must not run are comments.
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

/// The path in a form that is safe in a comment.
fn one_line(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

/// Describes the next steps of the admin, with `files` written to `dir`.
pub fn next_steps(dir: &Path, files: &[File]) -> Lines {
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
