//! The table of what was said, and whether it is right.

use std::fmt;

use super::row::Ending;

/// What a site without slurmdbd reads of a job that never began and that slurmctld has forgotten.
const NOTHING: &str = "no record; Slurm has forgotten it";

/// What a report began with.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) line: String,
    /// The command's exit code.
    pub(super) code: Option<i32>,
}

impl Verdict {
    /// `completed, 2 attempts` of `job 7 'train' on test: completed, 2 attempts; 1 node x 8 H100`.
    pub(super) fn says(&self) -> Option<&str> {
        let (_, says) = self.line.strip_prefix("job ")?.rsplit_once(": ")?;
        Some(says.split(';').next().unwrap_or(says))
    }
}

/// One first line.
#[derive(Debug)]
struct Line {
    moment: &'static str,
    wanted: String,
    verdict: Verdict,
    right: bool,
}

/// All first lines, by row.
#[derive(Debug)]
pub(super) struct Told(Vec<(&'static str, Vec<Line>)>);

impl Told {
    pub(super) fn new(rows: &[Ending]) -> Self {
        Told(rows.iter().map(|row| (row.name, Vec::new())).collect())
    }

    fn lines(&mut self, row: usize) -> Option<&mut Vec<Line>> {
        self.0.get_mut(row).map(|(_, lines)| lines)
    }

    /// It must say this.
    pub(super) fn add(&mut self, row: usize, moment: &'static str, says: &str, verdict: Verdict) {
        let right = verdict.says() == Some(says);
        let line = Line { moment, wanted: says.to_owned(), verdict, right };
        if let Some(lines) = self.lines(row) {
            lines.push(line);
        }
    }

    /// It must say what it said before, to the letter.
    pub(super) fn add_same(&mut self, row: usize, moment: &'static str, verdict: Verdict) {
        let Some(lines) = self.lines(row) else { return };
        let wanted = lines.last().map_or_else(String::new, |last| last.verdict.line.clone());
        // A line that was wrong before is not right for being the same.
        let was_right = lines.last().is_some_and(|last| last.right);
        let right = was_right && verdict.line == wanted && verdict.code == Some(0);
        lines.push(Line { moment, wanted, verdict, right });
    }

    /// There must be no record of it.
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

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut count = 0;
        for (name, lines) in &self.0 {
            for line in lines {
                count += 1;
                let Verdict { line: said, code } = &line.verdict;
                let code = code.filter(|code| *code != 0).map(|code| format!(" (exit code {code})"));
                let (right, code) = (if line.right { "right" } else { "WRONG" }, code.unwrap_or_default());
                writeln!(f, "{right}  {name:32}  {:10}  {said}{code}", line.moment)?;
                if !line.right {
                    writeln!(f, "{:53}wanted: {}", "", line.wanted)?;
                }
            }
        }
        write!(f, "{} endings, {count} first lines, {} wrong", self.0.len(), self.wrong())
    }
}
