//! Runs the program in a mount namespace with its own directories, and checks every byte that it prints.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Start of a line that railgate did not write.
pub(crate) const MARK: &str = "FORGED";

/// Text with one character of every kind that a terminal acts on or that hides or reorders text, and a forged line.
/// Without NUL, which neither an argument nor a name can contain.
pub(crate) fn hostile() -> String {
    format!(
        "h\x1b[31m\x1b]0;x\x07\u{9b}31m\u{85}\u{202e}\u{2066}\u{61c}\u{200b}\u{2028}\u{2029}\u{e0041}\u{feff}\r\t\x7f\n{MARK} gpu-lost@3: x"
    )
}

/// Whether a character of [`hostile`] must never be printed; defined independently of the code under test.
fn is_raw(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(
            c,
            '\u{202a}'..='\u{202e}'
                | '\u{2066}'..='\u{2069}'
                | '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'
                | '\u{2029}'
                | '\u{e0041}'
                | '\u{feff}'
        )
}

/// Output of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// The output, parsed as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or(Value::Null)
    }
}

/// Directories that replace those of the machine, all in `dir`, and the failures so far.
pub(crate) struct Stage {
    dir: tempfile::TempDir,
    program: &'static str,
    unshare: &'static [&'static str],
    env: Vec<(OsString, OsString)>,
    problems: Vec<String>,
    runs: usize,
}

/// Mounts the stage's directories over the machine's, then executes the program. `$1` is the stage.
const ENTER: &str = "set -e; dir=$1; shift; cd \"$dir\"
for place in /etc /run /var/lib /var/log; do mount -t tmpfs none $place; done
mkdir /etc/railgate /var/lib/railgate /run/railgate
mount --bind etc /etc/railgate; mount --bind state /var/lib/railgate; mount --bind run /run/railgate
exec \"$@\"";

impl Stage {
    /// Returns `None` if neither root nor a user may mount: the test is skipped with a message.
    pub(crate) fn new(program: &'static str) -> Option<Stage> {
        let works = |words: &&&[&str]| {
            let (program, rest) = words.split_first().unwrap();
            let tried = [rest, &["mount", "-t", "tmpfs", "none", "/run"]].concat();
            Command::new(program).args(tried).output().is_ok_and(|tried| tried.status.success())
        };
        // In its own pid namespace: background processes of the program end with it.
        let ways: [&'static [&'static str]; 2] = [
            &["unshare", "-m", "-p", "-f", "--kill-child"],
            &["unshare", "-r", "-m", "-p", "-f", "--kill-child"],
        ];
        let Some(unshare) = ways.iter().find(works) else {
            eprintln!("skipped: neither root nor a user may mount here");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        // tempfile creates it with mode 0700, but railgate also reads as other users.
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let stage = Stage { dir, program, unshare, env: Vec::new(), problems: Vec::new(), runs: 0 };
        for made in ["etc", "state", "run", "bin", "reports", "sys", "proc"] {
            std::fs::create_dir(stage.path(made)).unwrap();
        }
        let at = stage.dir.path().display();
        stage.write(
            "railgate.toml",
            format!(
                "[slurm]\nbin_dir = '{at}/bin'\ntimeout = '5s'\n[report]\ndir = '{at}/reports'\n[log]\nfile = ''\n\
                 [source]\nnvml_library = '{at}/none.so'\nsysfs = '{at}/sys'\nproc = '{at}/proc'\nkmsg = '{at}/kmsg'\n"
            ),
        );
        Some(stage)
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file below the stage, and creates its directories.
    pub(crate) fn write(&self, name: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    /// Writes a shell script into `bin`.
    pub(crate) fn program(&self, name: &str, script: &str) {
        self.write(format!("bin/{name}"), format!("#!/bin/sh\n{script}\n"));
        let path = self.path(format!("bin/{name}"));
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Sets a variable for later runs.
    pub(crate) fn env(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.env.push((name.into(), value.as_ref().to_owned()));
    }

    /// Removes a variable.
    pub(crate) fn unset(&mut self, name: &str) {
        self.env.retain(|(known, _)| known != name);
    }

    /// Runs the program with the stage's configuration.
    pub(crate) fn run<S: AsRef<OsStr>>(&mut self, words: &[S]) -> Ran {
        let mut all: Vec<OsString> = Vec::new();
        if words.first().is_none_or(|word| word.as_ref() != "--config") {
            all.extend(["--config".into(), "railgate.toml".into()]);
        }
        all.extend(words.iter().map(|word| word.as_ref().to_owned()));
        self.run_bare(None, &all)
    }

    /// Runs the program, optionally under another name, and checks its output.
    pub(crate) fn run_bare<S: AsRef<OsStr>>(&mut self, name: Option<&str>, words: &[S]) -> Ran {
        let program = self.program;
        let (unshare, rest) = self.unshare.split_first().unwrap();
        let mut command = match name {
            None => {
                let mut command = Command::new(unshare);
                command.args(rest).args(["sh", "-c", ENTER, "sh"]).arg(self.dir.path()).arg(program);
                command
            }
            Some(name) => {
                let mut command = Command::new(program);
                command.arg0(name).current_dir(self.dir.path());
                command
            }
        };
        command.args(words).env("SLURMD_NODENAME", "gn1").env_remove("RUST_BACKTRACE");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.path("bin").display()));
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let output = command.output().unwrap();
        self.runs += 1;
        let shown: Vec<_> = words.iter().map(|word| word.as_ref().to_string_lossy().into_owned()).collect();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ran = Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) };
        for (stream, bytes, text) in [("out", &output.stdout, &ran.out), ("err", &output.stderr, &ran.err)] {
            if std::str::from_utf8(bytes).is_err() {
                self.problem(format!("{shown:?}: {stream} is not UTF-8: {text:?}"));
            }
            let forged = |line: &str| line.starts_with(MARK);
            if let Some(line) = text.lines().find(|line| forged(line) || line.chars().any(is_raw)) {
                self.problem(format!("{shown:?}: {stream}: {line:?}"));
            }
        }
        if ran.code.is_none_or(|code| code > 3) || ran.err.contains("panicked") {
            self.problem(format!("{shown:?}: ended with {:?}: {:?}", ran.code, ran.err));
        }
        let is_json = shown.windows(2).any(|two| two == ["--format", "json"]);
        if is_json && !ran.out.is_empty() && serde_json::from_str::<Value>(&ran.out).is_err() {
            self.problem(format!("{shown:?}: no JSON: {:?}", ran.out));
        }
        ran
    }

    /// Runs the program and requires that the hostile text is in the output: otherwise the input was not read.
    pub(crate) fn shows<S: AsRef<OsStr>>(&mut self, words: &[S]) -> Ran {
        let ran = self.run(words);
        if !ran.out.contains(MARK) && !ran.err.contains(MARK) {
            let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
            self.problem(format!("{words:?}: the hostile text is not in it: {ran:?}"));
        }
        ran
    }

    /// As [`Stage::shows`], as a table and as JSON. If `whole`, the JSON must contain the value unchanged.
    pub(crate) fn shows_both(&mut self, words: &[&str], whole: bool) {
        self.shows(words);
        let ran = self.shows(&[words, &["--format", "json"]].concat());
        if whole && !texts(&ran.json()).iter().any(|text| text.contains(&hostile())) {
            self.problem(format!("{words:?}: the value is not the same in JSON: {}", ran.out));
        }
    }

    pub(crate) fn problem(&mut self, what: String) {
        self.problems.push(what);
    }

    pub(crate) fn end(self) {
        let (count, runs) = (self.problems.len(), self.runs);
        assert!(self.problems.is_empty(), "{count} in {runs} runs:\n{}", self.problems.join("\n"));
    }
}

/// All texts in a value, including keys.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(map) => {
            map.iter().flat_map(|(key, value)| [vec![key.as_str()], texts(value)].concat()).collect()
        }
        _ => Vec::new(),
    }
}

/// All paths to text in a value, with `*` for an index, each once.
pub(crate) fn places(value: &Value) -> Vec<String> {
    fn walk(value: &Value, at: &str, into: &mut Vec<String>) {
        match value {
            Value::String(_) => into.push(at.to_owned()),
            Value::Array(items) => items.iter().for_each(|item| walk(item, &format!("{at}/*"), into)),
            Value::Object(map) => map.iter().for_each(|(key, item)| walk(item, &format!("{at}/{key}"), into)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    walk(value, "", &mut all);
    all.sort();
    all.dedup();
    all
}

/// The value with hostile text appended at this path, at every index.
pub(crate) fn spoiled(value: &Value, place: &str) -> Value {
    let Some((head, rest)) = place.strip_prefix('/').map(|rest| rest.split_once('/').unwrap_or((rest, "")))
    else {
        return match value {
            Value::String(text) => Value::String(format!("{text}{}", hostile())),
            other => other.clone(),
        };
    };
    let rest = if rest.is_empty() { String::new() } else { format!("/{rest}") };
    match value {
        Value::Array(items) if head == "*" => items.iter().map(|item| spoiled(item, &rest)).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, item)| (key.clone(), if key == head { spoiled(item, &rest) } else { item.clone() }))
            .collect(),
        other => other.clone(),
    }
}
