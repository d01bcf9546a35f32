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

/// First lines of one ending.
#[derive(Debug)]
struct Row {
    name: &'static str,
    lines: Vec<Line>,
    /// What explains a wrong line: see [`Table::explain`].
    evidence: String,
}

/// All first lines by row.
#[derive(Debug)]
pub(super) struct Table(Vec<Row>);

impl Table {
    pub(super) fn new(rows: &[Ending]) -> Self {
        let row = |row: &Ending| Row { name: row.name, lines: Vec::new(), evidence: String::new() };
        Table(rows.iter().map(row).collect())
    }

    fn lines(&mut self, row: usize) -> Option<&mut Vec<Line>> {
        self.0.get_mut(row).map(|row| &mut row.lines)
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

    /// Whether a line of this row is wrong.
    pub(super) fn is_wrong(&self, row: usize) -> bool {
        self.0.get(row).is_some_and(|row| row.lines.iter().any(|line| !line.right))
    }

    /// Adds text that is printed below the wrong lines of a row.
    pub(super) fn explain(&mut self, row: usize, evidence: String) {
        if let Some(row) = self.0.get_mut(row) {
            row.evidence = evidence;
        }
    }

    pub(super) fn wrong(&self) -> usize {
        self.0.iter().flat_map(|row| &row.lines).filter(|line| !line.right).count()
    }
}

impl fmt::Display for Table {
    /// All lines in order, then the wrong ones again with their evidence: the end of a long log is what people read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.iter().flat_map(|row| row.lines.iter().map(|line| (row.name, line)));
        let count = all.clone().count();
        for (name, line) in all {
            line.write(f, name)?;
        }
        write!(f, "{} endings, {count} first lines, {} wrong", self.0.len(), self.wrong())?;
        for row in &self.0 {
            let mut wrong = row.lines.iter().filter(|line| !line.right).peekable();
            if wrong.peek().is_none() {
                continue;
            }
            writeln!(f)?;
            wrong.try_for_each(|line| line.write(f, row.name))?;
            row.evidence.lines().try_for_each(|line| writeln!(f, "       {line}"))?;
        }
        Ok(())
    }
}
