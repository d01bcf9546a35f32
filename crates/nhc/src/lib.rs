//! Translates a configuration of LBNL's Node Health Check (NHC) 1.4 to one of railgate: the outcome of each line, and
//! the files of the import. Pure functions: `railgate import nhc` reads the configuration and writes the files.

mod checks;
mod files;
mod line;

use std::collections::BTreeMap;
use std::path::Path;

use railgate_text::{Lines, put};

use checks::Known;
pub use files::{File, files, next_steps};
use line::{Line, Words};

/// The outcome of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A setting of railgate has the same meaning: its key and value.
    Same(&'static str),
    /// NHC runs the unchanged line, started by railgate.
    UnderNhc,
    /// Not imported, with the reason.
    Not(&'static str),
}

/// A line that is neither empty nor a comment.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) outcome: Outcome,
    /// Notes for the admin, if the line runs under NHC.
    notes: Vec<String>,
}

/// An NHC configuration with the outcome of each line.
#[derive(Debug)]
pub struct Imported<'t> {
    /// All lines in the order of the file, each with its entry if it has one.
    pub(crate) lines: Vec<(Line<'t>, Option<Entry>)>,
}

const SWALLOWED: &str = "the comment before it ends in a backslash, so NHC reads it as part of the comment";
const NO_NEWLINE: &str =
    "the file does not end in a newline, so NHC never runs this line; add one, and import it again";
const EMPTY: &str = "NHC skips it: nothing before or behind ||";
const REPORTS: &str = "railgate.toml: [gate] mode = \"report\"";
const MARKS: &str =
    "railgate marks nodes instead of NHC: it begins with [gate] mode = \"report\", and \"enforce\" drains";
const DRAINS: &str = "it drains or resumes nodes, which is railgate's to decide";

impl<'t> Imported<'t> {
    /// Parses a configuration. No line is an error: NHC runs the lines that railgate does not know.
    pub fn read(file: &'t [u8]) -> Imported<'t> {
        let mut lines = Vec::new();
        let mut facts: BTreeMap<(String, String), (usize, Vec<String>)> = BTreeMap::new();
        for line in line::lines(file) {
            let entry = entry(&line).map(|(outcome, notes)| {
                let notes = contradiction(&line, &mut facts).into_iter().chain(notes).collect();
                Entry { outcome, notes }
            });
            lines.push((line, entry));
        }
        Imported { lines }
    }

    /// Returns the lines that are not empty or comments, each with its number, text, outcome and note.
    pub(crate) fn entries(&self) -> Vec<(String, String, Outcome, String)> {
        let mut rows = Vec::new();
        for (line, entry) in &self.lines {
            if let Some(entry) = entry {
                let last = line.number + line.height() - 1;
                let number =
                    if last == line.number { last.to_string() } else { format!("{}-{last}", line.number) };
                let (_, command) = line.parts();
                let note = match &entry.outcome {
                    Outcome::Same(what) | Outcome::Not(what) => (*what).to_owned(),
                    Outcome::UnderNhc => entry.notes.join("; "),
                };
                rows.push((number, command.to_owned(), entry.outcome.clone(), note));
            } else {
                // A comment that continues on lines which resemble checks.
                let raw = String::from_utf8_lossy(line.raw);
                for (index, text) in raw.lines().enumerate().skip(1) {
                    let text = text.trim();
                    if !text.is_empty() && !text.starts_with('#') {
                        let number = (line.number + index).to_string();
                        rows.push((number, text.to_owned(), Outcome::Not(SWALLOWED), SWALLOWED.to_owned()));
                    }
                }
            }
        }
        rows
    }

    /// Returns a table with the number, outcome, text and note of each line, followed by totals. `file` is the path of
    /// the configuration.
    pub fn listing(&self, file: &Path) -> Lines {
        let mut rows = vec![["LINE", "OUTCOME", "NHC", "NOTE"].map(str::to_owned).to_vec()];
        let (mut same, mut under, mut not, mut warnings) = (0, 0, 0, 0);
        for (number, command, outcome, note) in self.entries() {
            let (word, count) = match outcome {
                Outcome::Same(_) => ("same meaning", &mut same),
                Outcome::UnderNhc => ("under NHC", &mut under),
                Outcome::Not(_) => ("not imported", &mut not),
            };
            *count += 1;
            warnings += usize::from(note.contains("warning: "));
            rows.push(vec![number, word.to_owned(), command.chars().take(56).collect(), note]);
        }
        let mut text = Lines::table(&rows, "");
        text.blank();
        put!(
            text,
            "{}: {} lines: {same} same meaning, {under} under NHC, {not} not imported; {warnings} warning{}",
            file.display(),
            same + under + not,
            if warnings == 1 { "" } else { "s" }
        );
        text
    }

    /// Returns whether NHC has any line to run.
    pub(crate) fn runs_nhc(&self) -> bool {
        self.lines
            .iter()
            .any(|(_, entry)| entry.as_ref().is_some_and(|entry| entry.outcome == Outcome::UnderNhc))
    }
}

/// Returns `None` for a line without a check: empty, or a comment.
fn entry(line: &Line<'_>) -> Option<(Outcome, Vec<String>)> {
    let (mask, command) = line.parts();
    if line.text.trim_matches([' ', '\t', '\r']).is_empty() || mask.starts_with('#') {
        return None;
    }
    let not = |why| Some((Outcome::Not(why), Vec::new()));
    if mask.is_empty() || command.is_empty() {
        return not(EMPTY);
    }
    if !line.ended {
        return not(NO_NEWLINE);
    }
    match line::assignments(command).as_deref() {
        Some([("MARK_OFFLINE", "0")]) => return Some((Outcome::Same(REPORTS), Vec::new())),
        Some([("MARK_OFFLINE", _)]) => return not(MARKS),
        _ => {}
    }
    let has = |words: &[&str]| words.iter().all(|word| command.to_lowercase().contains(word));
    let drains = has(&["offline_node="])
        || has(&["online_node="])
        || has(&["node-mark-o"])
        || has(&["scontrol", "update", "state"]);
    if drains {
        return not(DRAINS);
    }
    if let Some(why) = line::commands(command).find_map(checks::left) {
        return not(why);
    }
    Some((Outcome::UnderNhc, notes(line)))
}

/// Warnings and hints about a line that runs under NHC.
fn notes(line: &Line<'_>) -> Vec<String> {
    let (mask, command) = line.parts();
    if line.text.contains("{{") || line.text.contains("{%") {
        return vec!["warning: a template's placeholder: import the file that your nodes have".to_owned()];
    }
    let mut notes = Vec::new();
    let mut warn = |what: &str| notes.push(format!("warning: {what}"));
    if !line.text.contains("||") {
        warn("no || in it: NHC takes the whole line for the mask and for the check");
    }
    if line.text.ends_with('\r') {
        warn("a carriage return at its end, which NHC hands to the check");
    }
    let (negated, positive) = mask.strip_prefix('!').map_or((false, mask), |rest| (true, rest));
    let range = positive.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    if range.is_some_and(|range| !line::is_range(range)) {
        let does = if negated { "runs" } else { "skips" };
        warn(&format!("NHC does not understand this mask, and {does} the line on every node"));
    }
    let words = Words::of(command);
    if words == Words::Broken {
        warn("a quote without its end: bash refuses the line, and NHC fails");
    }
    if line::assignments(command).is_some() {
        notes.push("a setting of NHC".to_owned());
        return notes;
    }
    let known: Vec<&Known> = line::commands(command).filter_map(Known::find).collect();
    let acts = match &words {
        Words::Plain(words) => words
            .split_first()
            .is_some_and(|(name, rest)| Known::find(name).is_some_and(|known| known.acts(rest))),
        Words::Computed | Words::Broken => false,
    };
    if acts {
        notes.push("changes the node, as under NHC".to_owned());
    }
    if known.is_empty() {
        notes.push("not a check of NHC itself: a command, or a check with a script of its own".to_owned());
    }
    let near: Vec<&str> = known.iter().map(|known| known.near).filter(|near| !near.is_empty()).collect();
    if !near.is_empty() {
        notes.push(format!("similar: {}", near.join(", ")));
    }
    notes
}

/// An earlier line with the same mask that expects another value of the same property.
fn contradiction(
    line: &Line<'_>,
    facts: &mut BTreeMap<(String, String), (usize, Vec<String>)>,
) -> Option<String> {
    let (mask, command) = line.parts();
    let Words::Plain(words) = Words::of(command) else { return None };
    let (name, arguments) = words.split_first()?;
    let key = (mask.to_owned(), Known::find(name)?.fact(arguments)?);
    match facts.get(&key) {
        Some((above, other)) if other != arguments => {
            Some(format!("warning: line {above} expects another value, and NHC fails where either does"))
        }
        Some(_) => None,
        None => {
            facts.insert(key, (line.number, arguments.to_vec()));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(text: &str) -> (Outcome, String) {
        let file = format!("{text}\n");
        let imported = Imported::read(file.as_bytes());
        let rows = imported.entries();
        assert_eq!(rows.len(), 1, "{text}");
        (rows[0].2.clone(), rows[0].3.clone())
    }

    #[test]
    fn no_line_makes_the_import_fail() {
        for (text, why) in [
            ("check_hw_eth lo", "no || in it"),
            ("{{ mask }} || check_hw_ib 100", "a template's placeholder"),
            ("{n[1-} || check_hw_ib 100", "does not understand this mask"),
            ("{n[1-4,7]} || check_hw_ib 100", "skips the line on every node"),
            ("!{n[1-4,7]} || check_hw_ib 100", "runs the line on every node"),
            ("* || check_cmd_status 'a", "a quote without its end"),
            ("* || check_hw_eth lo\r", "a carriage return"),
            ("* || check_fs_mount_rw -F \"/home\"", "similar: mounts"),
            ("* || check_hw_cpuinfo 2 24", "similar: cpu"),
            ("* || check_hw_physmem 1eb 1eb", "similar: memory"),
            ("* || check_ps_service -k sshd:", "changes the node"),
            ("* || check_of_our_own 7", "not a check of NHC itself"),
            ("* || export TIMEOUT=20", "a setting"),
            ("* || export MARK_OFFLINE=1 NHC_CHECK_ALL=0", "a setting"),
        ] {
            let (outcome, note) = outcome(text);
            assert!(outcome == Outcome::UnderNhc && note.contains(why), "{text}: {outcome:?} {note}");
        }
    }

    #[test]
    fn lines_that_are_not_imported_have_a_reason() {
        for (text, why) in [
            ("* || check_gpu_bw 48 335", "a load test"),
            ("* || check_nccl_allreduce 460.0 1 16G $AZ_NHC_ROOT/x.xml", "a load test"),
            ("* || [[ -e /x ]] && check_ib_bw_gdr 380", "a load test"),
            ("* || check_hw_gm myri0", "Myrinet"),
            ("* || check_moab_rm", "Slurm"),
            ("* || export MARK_OFFLINE=1", "railgate marks nodes"),
            ("* || OFFLINE_NODE=/opt/mark", "drains or resumes"),
            (
                "* || check_ps_service -e 'scontrol update nodename=x state=DRAIN reason=x' sshd",
                "drains or resumes",
            ),
            ("* ||", "nothing before or behind"),
            ("|| check_hw_eth lo", "nothing before or behind"),
        ] {
            let (outcome, note) = outcome(text);
            assert!(matches!(outcome, Outcome::Not(_)) && note.contains(why), "{text}: {outcome:?} {note}");
        }
        assert_eq!(outcome("* || export MARK_OFFLINE=0").0, Outcome::Same(REPORTS));
        // A command that only reads does not drain.
        assert_eq!(outcome("* || check_cmd_output -m '!/DRAIN/' scontrol show node n1").0, Outcome::UnderNhc);
        // A word in the arguments is not a command of the line.
        assert_eq!(outcome("* || check_cmd_output -m '*ok*' grep check_gpu_bw /x").0, Outcome::UnderNhc);
    }

    #[test]
    fn empty_lines_and_comments_have_no_entry() {
        let imported = Imported::read(b"\n  \r\n# a\r\n\t# b || c\n");
        assert_eq!(imported.entries(), []);
    }

    #[test]
    fn lines_that_nhc_does_not_run_have_a_note() {
        let imported = Imported::read(b"# a \\\n* || check_hw_eth a\n* || check_hw_eth b");
        let rows: Vec<_> = imported.entries().into_iter().map(|row| (row.0, row.3)).collect();
        assert_eq!(rows, [("2".to_owned(), SWALLOWED.to_owned()), ("3".to_owned(), NO_NEWLINE.to_owned())]);
        assert!(!imported.runs_nhc());
    }

    #[test]
    fn contradicting_lines_have_a_note_and_both_are_kept() {
        let file =
            b"* || check_hw_physmem 1g 1g\nn1 || check_hw_physmem 2g 2g\n* || check_hw_physmem 2g 2g\n\
                     * || check_hw_ib 100 a:1\n* || check_hw_ib 100 b:1\n* || check_hw_ib 200 a:1\n";
        let imported = Imported::read(file);
        let warned: Vec<_> = imported
            .entries()
            .into_iter()
            .filter(|row| row.3.contains("another value"))
            .map(|row| row.0)
            .collect();
        assert_eq!(warned, ["3", "6"]);
        assert!(imported.entries().iter().all(|row| row.2 == Outcome::UnderNhc));
    }
}
