//! Steps, their results, and a transcript of all output.

use std::cell::{Cell, RefCell};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use railgate_tests::cluster::Output;

/// A step and, if it failed, the reason.
struct Row {
    seconds: f32,
    chapter: &'static str,
    step: String,
    wrong: Option<String>,
}

/// The results of the run and its transcript.
pub(super) struct Record {
    start: Instant,
    dir: PathBuf,
    transcript: RefCell<File>,
    chapter: Cell<&'static str>,
    rows: RefCell<Vec<Row>>,
    totals: RefCell<Vec<String>>,
}

impl Record {
    pub(super) fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let file = File::create(dir.join("transcript.txt")).with_context(|| dir.display().to_string())?;
        Ok(Record {
            start: Instant::now(),
            dir: dir.to_owned(),
            transcript: RefCell::new(file),
            chapter: Cell::new(""),
            rows: RefCell::default(),
            totals: RefCell::default(),
        })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts a group of steps.
    pub(super) fn chapter(&self, name: &'static str) {
        println!("\n{name}");
        self.write(&format!("\n==== {name}\n"));
        self.chapter.set(name);
    }

    /// Runs a step and records its result. Later steps do not depend on it.
    pub(super) fn step(&self, name: &str, work: impl FnOnce() -> Result<()>) -> bool {
        self.write(&format!("\n---- {name}\n"));
        let wrong = work().err().map(|why| format!("{why:#}"));
        let seconds = self.start.elapsed().as_secs_f32();
        let word = if wrong.is_some() { "WRONG" } else { "right" };
        println!("{seconds:6.1} s  {word}  {name}");
        if let Some(why) = &wrong {
            println!("{}", indented(why));
            self.write(&format!("WRONG: {why}\n"));
        }
        let right = wrong.is_none();
        self.rows.borrow_mut().push(Row {
            seconds,
            chapter: self.chapter.get(),
            step: name.to_owned(),
            wrong,
        });
        right
    }

    /// Runs a step on which all later steps depend.
    pub(super) fn need(&self, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.step(name, work) {
            bail!("later steps depend on '{name}', which failed");
        }
        Ok(())
    }

    /// Records a command and its output.
    pub(super) fn typed(&self, prompt: &str, output: &Output) {
        let code = if output.code == 0 { String::new() } else { format!("[exit code {}]\n", output.code) };
        self.write(&format!("{prompt} {}\n{}{code}", line(&output.command), output.both()));
    }

    /// Records a change that an admin would make in an editor.
    pub(super) fn edited(&self, machine: &str, file: &str, text: &str) {
        self.write(&format!("{machine}: {file} is now\n{}\n", indented(text)));
    }

    /// Adds a line below the table of results.
    pub(super) fn total(&self, line: String) {
        self.totals.borrow_mut().push(line);
    }

    /// Whether all steps have passed.
    pub(super) fn all_right(&self) -> bool {
        self.rows.borrow().iter().all(|row| row.wrong.is_none())
    }

    /// Prints the table of results.
    pub(super) fn show(&self) {
        let rows = self.rows.borrow();
        let mut text = String::new();
        let mut chapter = "";
        for row in rows.iter() {
            if row.chapter != chapter {
                chapter = row.chapter;
                text.push_str(&format!("\n{chapter}\n"));
            }
            let word = if row.wrong.is_some() { "WRONG" } else { "right" };
            text.push_str(&format!("  {word}  {:6.1} s  {}\n", row.seconds, row.step));
            if let Some(why) = &row.wrong {
                text.push_str(&format!("{}\n", indented(why)));
            }
        }
        let wrong = rows.iter().filter(|row| row.wrong.is_some()).count();
        text.push_str(&format!("\n{} steps, {wrong} wrong\n", rows.len()));
        for total in self.totals.borrow().iter() {
            text.push_str(&format!("{total}\n"));
        }
        print!("{text}");
        self.write(&text);
        println!("transcript: {}", self.dir.join("transcript.txt").display());
    }

    /// Failure to write the transcript is not an error of the run.
    fn write(&self, text: &str) {
        let _ = self.transcript.borrow_mut().write_all(text.as_bytes());
    }
}

/// The command without the shell that ran it.
fn line(command: &str) -> &str {
    command.strip_prefix("bash -c ").unwrap_or(command)
}

fn indented(text: &str) -> String {
    text.trim_end().lines().map(|line| format!("           {line}")).collect::<Vec<_>>().join("\n")
}
