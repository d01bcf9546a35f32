//! A whole NHC configuration: what becomes of each line, and which nodes share one fate.

use std::collections::BTreeMap;
use std::path::Path;

use railgate_text::Printable;

use super::nhc_line::{Command, Line, Mask};
use super::nhc_map::{self, Became, Effect};
use crate::output;

/// Every line that says something, with what becomes of it.
#[derive(Debug)]
pub(super) struct Imported {
    pub(super) lines: Vec<(Line, Became)>,
}

/// A line's number, and what is wrong with it.
pub(super) type Bad = (usize, String);

impl Imported {
    /// Reads a configuration. `nodes` are the cluster's, where they are known.
    ///
    /// # Errors
    /// Every line that is none of NHC's.
    pub(super) fn read(text: &str, nodes: &[String]) -> Result<Imported, Vec<Bad>> {
        let (mut lines, mut bad) = (Vec::new(), Vec::new());
        for (index, text) in text.lines().enumerate() {
            let number = index + 1;
            let read = Line::read(number, text, nodes).and_then(|line| match line {
                Some(line) => Ok(Some((became(&line)?, line))),
                None => Ok(None),
            });
            match read {
                Ok(Some((became, line))) => lines.push((line, became)),
                Ok(None) => {}
                Err(why) => bad.push((number, why)),
            }
        }
        if bad.is_empty() { Ok(Imported { lines }) } else { Err(bad) }
    }

    /// Line by line, for a person.
    pub(super) fn told(&self, file: &Path) -> String {
        let mut rows = vec![["LINE", "NHC", "BECOMES"].map(str::to_owned).to_vec()];
        for (line, became) in &self.lines {
            let command = line.text.split_once("||").map_or("", |(_, command)| command.trim());
            let command: String = command.chars().take(48).collect();
            rows.push(vec![line.number.to_string(), command, became.told.clone()]);
        }
        let count =
            |wanted: &dyn Fn(&Became) -> bool| self.lines.iter().filter(|(_, became)| wanted(became)).count();
        let rest = count(&|became| became.effects.contains(&Effect::Rest));
        let by_itself = count(&|became| became.told.starts_with("on by itself"));
        let dropped = count(&|became| became.told.starts_with("dropped"));
        let script = count(&|became| matches!(became.effects.first(), Some(Effect::Script(..))));
        let all = self.lines.len();
        format!(
            "{}\n{}: {all} lines: {} become settings, {by_itself} are on by themselves, {script} become checks of the site's \
             own, {rest} go on under NHC, {dropped} are dropped\n",
            output::table(&rows),
            Printable(file.display()),
            all - rest - by_itself - dropped - script,
        )
    }

    /// The effects for all nodes, and for each set of nodes that share further lines: names, and theirs and everybody's.
    pub(super) fn groups(&self) -> Vec<(Vec<String>, Vec<&Effect>)> {
        let mut lines_of: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (index, (line, _)) in self.lines.iter().enumerate() {
            if let Mask::Nodes(names) = &line.mask {
                for name in names {
                    lines_of.entry(name).or_default().push(index);
                }
            }
        }
        let mut sets: BTreeMap<Vec<usize>, Vec<String>> = BTreeMap::new();
        for (name, lines) in lines_of {
            sets.entry(lines).or_default().push(name.to_owned());
        }
        let effects = |own: &[usize]| -> Vec<&Effect> {
            let meant =
                |(index, (line, _)): &(usize, &(Line, Became))| line.mask == Mask::All || own.contains(index);
            self.lines.iter().enumerate().filter(meant).flat_map(|(_, (_, became))| &became.effects).collect()
        };
        let mut groups = vec![(Vec::new(), effects(&[]))];
        groups.extend(sets.iter().map(|(own, names)| (names.clone(), effects(own))));
        groups
    }
}

fn became(line: &Line) -> Result<Became, String> {
    let became = match &line.command {
        Command::Check(words) => nhc_map::map(words)?,
        Command::Variable(_) => nhc_map::rest("a setting of NHC's own"),
        // Of some checks the arguments do not matter.
        Command::Bash(text) => {
            let name = text.split_whitespace().next().unwrap_or_default();
            let plain = nhc_map::map(&[name.to_owned()]).ok().filter(|became| became.effects.is_empty());
            plain.unwrap_or_else(|| nhc_map::rest("bash must work it out"))
        }
    };
    let settles = |effect: &Effect| !matches!(effect, Effect::Rest);
    if line.mask == Mask::NhcOnly && became.effects.iter().any(settles) {
        return Ok(nhc_map::rest("a mask that is no list of nodes (--nodes turns gpu* into one)"));
    }
    Ok(became)
}
