//! A parsed configuration file as a tree in which every value has its position in the file.

use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::problem::{Problem, line_of};

/// Problems reported for one file at most.
const MAX_PROBLEMS: usize = 50;

/// One parsed file, or one table of it.
#[derive(Clone, Debug)]
pub(super) struct Layer<'t> {
    file: &'t Path,
    text: &'t str,
    tree: Spanned<DeTable<'t>>,
}

impl<'t> Layer<'t> {
    /// Parses a file's text. All syntax errors are reported, not only the first.
    pub(super) fn parse(file: &'t Path, text: &'t str) -> Result<Self, Vec<Problem>> {
        let (tree, errors) = DeTable::parse_recoverable(text);
        if !errors.is_empty() {
            return Err(errors
                .iter()
                .take(MAX_PROBLEMS)
                .map(|error| Problem::at(file, text, error.span(), error.message()))
                .collect());
        }
        Ok(Layer { file, text, tree })
    }

    /// Removes `key` from the top level and returns it: an array of tables, each with its position.
    pub(super) fn take_tables(&mut self, key: &str) -> Result<Vec<Layer<'t>>, Problem> {
        let Some((_, value)) = self.tree.get_mut().remove_entry(key) else {
            return Ok(Vec::new());
        };
        let wrong =
            |span| self.problem(Some(span), format!("`{key}` must be an array of tables: write [[{key}]]"));
        let span = value.span();
        let DeValue::Array(entries) = value.into_inner() else { return Err(wrong(span)) };
        let mut tables = Vec::new();
        for entry in entries {
            let span = entry.span();
            let DeValue::Table(table) = entry.into_inner() else { return Err(wrong(span)) };
            tables.push(Layer { file: self.file, text: self.text, tree: Spanned::new(span, table) });
        }
        Ok(tables)
    }

    /// Removes the text at `key` from the top level and returns it with its position.
    pub(super) fn take_text(&mut self, key: &str) -> Result<(String, Range<usize>), Problem> {
        let here = self.tree.span();
        match self.tree.get_mut().remove_entry(key) {
            Some((_, value)) => match value.get_ref() {
                DeValue::String(text) => Ok((text.to_string(), value.span())),
                _ => Err(self.problem(Some(value.span()), format!("`{key}` must be a string"))),
            },
            None => Err(self.problem(Some(here), format!("missing key `{key}`"))),
        }
    }

    /// Lays `over` on top: tables are merged, everything else replaced.
    pub(super) fn overlay(&mut self, over: &Layer<'t>) {
        merge(self.tree.get_mut(), over.tree.get_ref());
    }

    /// Deserializes the tree as `T`. A value that does not fit is removed and the rest is read again, so that one run
    /// reports all problems.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, Vec<Problem>> {
        let mut tree = self.tree.clone();
        let mut problems = Vec::new();
        loop {
            match T::deserialize(Deserializer::from(tree.clone())) {
                Ok(value) if problems.is_empty() => return Ok(value),
                Ok(_) => return Err(problems),
                Err(error) => {
                    let span = error.span();
                    problems.push(self.problem(span.clone(), error.message()));
                    let struck = span.is_some_and(|span| strike(tree.get_mut(), &span));
                    if !struck || problems.len() >= MAX_PROBLEMS {
                        return Err(problems);
                    }
                }
            }
        }
    }

    /// A problem in this file, at `span`.
    pub(super) fn problem(&self, span: Option<Range<usize>>, message: impl Into<String>) -> Problem {
        Problem::at(self.file, self.text, span, message)
    }

    /// Every value: its dotted path and the position of its key.
    pub(super) fn places(&self) -> Vec<(String, Range<usize>)> {
        fn walk(table: &DeTable<'_>, path: &str, into: &mut Vec<(String, Range<usize>)>) {
            for (key, value) in table.iter() {
                let name = key.get_ref();
                let path = if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
                match value.get_ref() {
                    DeValue::Table(inner) => walk(inner, &path, into),
                    _ => into.push((path, key.span())),
                }
            }
        }
        let mut places = Vec::new();
        walk(self.tree.get_ref(), "", &mut places);
        places
    }

    /// The line of a byte offset, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        line_of(self.text, offset)
    }
}

fn merge<'t>(under: &mut DeTable<'t>, over: &DeTable<'t>) {
    for (key, value) in over.iter() {
        match (under.get_mut(key), value.get_ref()) {
            (Some(below), DeValue::Table(inner)) if below.get_ref().is_table() => {
                if let DeValue::Table(below) = below.get_mut() {
                    merge(below, inner);
                }
            }
            _ => {
                // The key is replaced too, so that its span is that of the value in force.
                under.remove(key);
                under.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Removes the innermost entry that contains `span`. Returns whether there was one.
fn strike(table: &mut DeTable<'_>, span: &Range<usize>) -> bool {
    let within = |outer: Range<usize>| outer.start <= span.start && span.end <= outer.end;
    let mut doomed = None;
    for (key, value) in table.iter_mut() {
        if let DeValue::Table(inner) = value.get_mut()
            && strike(inner, span)
        {
            return true;
        }
        if within(key.span()) || within(value.span()) {
            doomed = Some(key.clone());
            break;
        }
    }
    doomed.is_some_and(|key| table.remove(&key).is_some())
}
