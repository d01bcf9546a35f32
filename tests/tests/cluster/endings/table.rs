//! The table of first lines, and whether each is right.

use std::fmt;

use super::row::Ending;

/// The line for a job that never started and that slurmctld has purged, on a site without slurmdbd.
const NOTHING: &str = "no record; Slurm has forgotten it";

/// Beginning of a report.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) line: String,
    /// Exit code of `railgate report`.
    pub(super) code: Option<i32>,
}

impl Verdict {
    /// For example `completed, 2 attempts` of `job 7 'train' on test: completed, 2 attempts; 1 node x 8 H100`.
    pub(super) fn says(&self) -> Option<&str> {
        let (_, says) = self.line.strip_prefix("job ")?.rsplit_once(": ")?;
        Some(says.split(';').next().unwrap_or(says))
    }
}

/// A first line.
#[derive(Debug)]
struct Line {
    moment: &'static str,
    wanted: String,
    verdict: Verdict,
    right: bool,
}

impl Line {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        let Verdict { line: said, code } = &self.verdict;
        let code = code.filter(|code| *code != 0).map(|code| format!(" (exit code {code})"));
        let (right, code) = (if self.right { "right" } else { "WRONG" }, code.unwrap_or_default());
        writeln!(f, "{right}  {name:32}  {:10}  {said}{code}", self.moment)?;
        if !self.right {
            writeln!(f, "{:53}wanted: {}", "", self.wanted)?;
        }
        Ok(())
    }
}

/// All first lines by row.
#[derive(Debug)]
pub(super) struct Table(Vec<(&'static str, Vec<Line>)>);

impl Table {
    pub(super) fn new(rows: &[Ending]) -> Self {
        Table(rows.iter().map(|row| (row.name, Vec::new())).collect())
    }

    fn lines(&mut self, row: usize) -> Option<&mut Vec<Line>> {
        self.0.get_mut(row).map(|(_, lines)| lines)
    }

    /// Adds a line that must be `says`.
    pub(super) fn add(&mut self, row: usize, moment: &'static str, says: &str, verdict: Verdict) {
        let right = verdict.says() == Some(says);
        let line = Line { moment, wanted: says.to_owned(), verdict, right };
        if let Some(lines) = self.lines(row) {
            lines.push(line);
        }
    }

    /// Adds a line that must equal the row's previous line.
    pub(super) fn add_same(&mut self, row: usize, moment: &'static str, verdict: Verdict) {
        let Some(lines) = self.lines(row) else { return };
        let wanted = lines.last().map_or_else(String::new, |last| last.verdict.line.clone());
        // A wrong line does not become right by staying the same.
        let was_right = lines.last().is_some_and(|last| last.right);
        let right = was_right && verdict.line == wanted && verdict.code == Some(0);
        lines.push(Line { moment, wanted, verdict, right });
    }

    /// Adds a line that must report that there is no record.
    pub(super) fn add_nothing(&mut self, row: usize, moment: &'static str, verdict: Verdict) {
        let right = verdict.line.contains(NOTHING) && verdict.code == Some(3);
        let wanted = format!("{NOTHING} (exit code 3)");
        let Some(lines) = self.lines(row) else { return };
        lines.push(Line { moment, wanted, verdict, right });
    }

    pub(super) fn wrong(&self) -> usize {
        self.0.iter().flat_map(|(_, lines)| lines).filter(|line| !line.right).count()
    }
}

impl fmt::Display for Table {
    /// All lines in order, then the wrong ones again: the end of a long log is what people read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = || self.0.iter().flat_map(|(name, lines)| lines.iter().map(move |line| (*name, line)));
        for (name, line) in lines() {
            line.write(f, name)?;
        }
        write!(f, "{} endings, {} first lines, {} wrong", self.0.len(), lines().count(), self.wrong())?;
        for (name, line) in lines().filter(|(_, line)| !line.right) {
            writeln!(f)?;
            line.write(f, name)?;
        }
        Ok(())
    }
}
