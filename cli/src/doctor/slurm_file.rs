//! Parser for the file slurm.conf with its includes. `scontrol show config` shows the result in slurmctld.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Deepest include; also ends a file that includes itself.
const DEPTH: u32 = 8;

/// Keys of which every release of Slurm uses all lines.
const REPEATABLE: &[&str] =
    &["downnodes", "frontendname", "nodename", "nodeset", "partitionname", "slurmctldhost"];

/// Settings of slurm.conf in the order in which Slurm reads them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlurmFile {
    settings: Vec<Setting>,
}

/// One `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: String,
    /// For example `/etc/slurm/slurm.conf:12`.
    pub(crate) at: String,
}

/// A key with several lines, of which Slurm uses the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doubled {
    pub(crate) key: String,
    pub(crate) at: Vec<String>,
    /// Values that only earlier lines have.
    pub(crate) lost: String,
    /// One line with the values of all; `None` if they contradict each other.
    pub(crate) merged: Option<String>,
}

impl SlurmFile {
    /// Reads the file with its includes.
    ///
    /// # Errors
    /// One of the files cannot be read.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let mut file = SlurmFile::default();
        file.add(path, path.parent().unwrap_or(Path::new("/")), DEPTH)?;
        Ok(file)
    }

    fn add(&mut self, path: &Path, dir: &Path, depth: u32) -> Result<(), String> {
        let text = fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
        let mut joined = String::new();
        let mut first = None;
        for (number, line) in (1..).zip(text.lines()) {
            let begun = *first.get_or_insert(number);
            if let Some(goes_on) = line.strip_suffix('\\') {
                joined.push_str(goes_on);
                continue;
            }
            joined.push_str(line);
            self.line(&joined, &format!("{}:{begun}", path.display()), dir, depth)?;
            joined.clear();
            first = None;
        }
        Ok(())
    }

    fn line(&mut self, line: &str, at: &str, dir: &Path, depth: u32) -> Result<(), String> {
        let line = line.split('#').next().unwrap_or_default().trim();
        let mut words = line.split_whitespace();
        if words.next().is_some_and(|word| word.eq_ignore_ascii_case("include")) {
            let included = dir.join(words.next().unwrap_or_default());
            return if depth == 0 { Ok(()) } else { self.add(&included, dir, depth - 1) };
        }
        for (key, value) in pairs(line) {
            let several = REPEATABLE.contains(&key.to_ascii_lowercase().as_str());
            self.settings.push(Setting { key, value, at: at.to_owned() });
            // `NodeName=… CPUs=… State=…`: the rest of the line describes the node.
            if several {
                break;
            }
        }
        Ok(())
    }

    /// All lines of a key.
    pub(crate) fn all(&self, key: &str) -> Vec<&Setting> {
        self.settings.iter().filter(|setting| setting.key.eq_ignore_ascii_case(key)).collect()
    }

    /// The line of a key that Slurm uses.
    pub(crate) fn last(&self, key: &str) -> Option<&Setting> {
        self.all(key).pop()
    }

    /// Keys whose earlier lines have values that the last line lacks.
    pub(crate) fn doubled(&self, repeatable: impl Fn(&str) -> bool) -> Vec<Doubled> {
        let mut keys: BTreeMap<String, Vec<&Setting>> = BTreeMap::new();
        for setting in &self.settings {
            let key = setting.key.to_ascii_lowercase();
            if !REPEATABLE.contains(&key.as_str()) && !repeatable(&setting.key) {
                keys.entry(key).or_default().push(setting);
            }
        }
        keys.into_values().filter_map(|lines| doubled(&lines)).collect()
    }
}

fn doubled(lines: &[&Setting]) -> Option<Doubled> {
    let (last, before) = lines.split_last()?;
    let words = |setting: &Setting| -> Vec<String> {
        setting.value.split(',').map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
    };
    let mut merged = words(last);
    let mut lost: Vec<String> = Vec::new();
    for word in before.iter().flat_map(|setting| words(setting)) {
        if !merged.iter().chain(&lost).any(|have| have.eq_ignore_ascii_case(&word)) {
            lost.push(word);
        }
    }
    if lost.is_empty() {
        return None;
    }
    // `bf_window=60` and `bf_window=100`, `PrologEpilogTimeout=60` and `=120`: only the site knows which one is
    // intended.
    let name = |word: &str| word.split('=').next().unwrap_or_default().to_ascii_lowercase();
    let list = ["Parameters", "Flags", "Params"].iter().any(|end| last.key.ends_with(end));
    let contradict = lost.iter().any(|word| merged.iter().any(|have| name(have) == name(word)));
    let lost_text = lost.join(",");
    merged.extend(lost);
    Some(Doubled {
        key: last.key.clone(),
        at: lines.iter().map(|setting| setting.at.clone()).collect(),
        lost: lost_text,
        merged: (list && !contradict).then(|| format!("{}={}", last.key, merged.join(","))),
    })
}

/// Splits a line into `KEY=VALUE` and `KEY="A B"`.
fn pairs(line: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some((key, after)) = rest.split_once('=') {
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(char::is_whitespace).unwrap_or((after, "")),
        };
        found.push((key.trim().trim_end_matches(['+', '-']).to_owned(), value.to_owned()));
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> SlurmFile {
        let place = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(place.path().join(name), text).unwrap();
        }
        let mut file = SlurmFile::read(&place.path().join("slurm.conf")).unwrap();
        for setting in &mut file.settings {
            setting.at = setting.at.rsplit('/').next().unwrap().to_owned();
        }
        file
    }

    #[test]
    fn lines_are_parsed_as_slurm_parses_them() {
        let file = read(&[
            (
                "slurm.conf",
                "# SchedulerParameters=no\nSlurmctldPort=6817 SlurmdPort=6818\nInclude railgate.conf\n\
                 schedulerparameters=bf_window=60,\\\nbf_continue # mine\nNodeName=n[1-2] CPUs=4 Gres=gpu:8\n\
                 MailProg=\"/bin/a b\"\n",
            ),
            ("railgate.conf", "Prolog=/etc/slurm/prolog.d/*\n"),
        ]);
        let told: Vec<_> =
            file.settings.iter().map(|one| format!("{} {}={}", one.at, one.key, one.value)).collect();
        assert_eq!(
            told,
            [
                "slurm.conf:2 SlurmctldPort=6817",
                "slurm.conf:2 SlurmdPort=6818",
                "railgate.conf:1 Prolog=/etc/slurm/prolog.d/*",
                "slurm.conf:4 schedulerparameters=bf_window=60,bf_continue",
                "slurm.conf:6 NodeName=n[1-2]",
                "slurm.conf:7 MailProg=/bin/a b",
            ]
        );
        assert_eq!(file.last("SchedulerParameters").unwrap().at, "slurm.conf:4");
    }

    #[test]
    fn values_missing_in_the_last_line_are_merged() {
        let site =
            "SchedulerParameters=bf_window=60,defer\nPrologEpilogTimeout=300\nNodeName=a\nNodeName=b\n";
        let ours = "SchedulerParameters=nohold_on_prolog_fail\nPrologEpilogTimeout=120\n";
        let file =
            read(&[("slurm.conf", &format!("{site}include railgate.conf\n")), ("railgate.conf", ours)]);
        let doubled = file.doubled(|_| false);
        let told: Vec<_> =
            doubled.iter().map(|one| (one.key.as_str(), one.lost.as_str(), one.merged.as_deref())).collect();
        assert_eq!(
            told,
            [
                ("PrologEpilogTimeout", "300", None),
                (
                    "SchedulerParameters",
                    "bf_window=60,defer",
                    Some("SchedulerParameters=nohold_on_prolog_fail,bf_window=60,defer")
                ),
            ]
        );
        assert_eq!(doubled[1].at, ["slurm.conf:1", "railgate.conf:1"]);
    }

    #[test]
    fn a_complete_last_line_is_no_finding() {
        let file = read(&[(
            "slurm.conf",
            "SchedulerParameters=defer\nSchedulerParameters=defer,nohold_on_prolog_fail\nProlog=/a\nProlog=/b\n",
        )]);
        assert_eq!(file.doubled(|key| key == "Prolog"), []);
        assert_eq!(file.doubled(|_| false).len(), 1, "before 24.05 the second Prolog replaces the first");
    }

    #[test]
    fn a_file_that_includes_itself_ends_at_the_maximum_depth() {
        assert_eq!(read(&[("slurm.conf", "include slurm.conf\n")]).settings, []);
        assert!(
            SlurmFile::read(Path::new("/nowhere/slurm.conf")).unwrap_err().contains("/nowhere/slurm.conf")
        );
    }
}
