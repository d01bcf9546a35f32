//! Reads the cells of an Excel workbook (`.xlsx`: XML files in a ZIP archive, which `unzip` unpacks).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesRef, BytesStart, Event};

/// Cells of one row by column (for example `A`), with white space collapsed; empty cells are left out.
pub(super) type Row = BTreeMap<String, String>;

/// A workbook, read from disk.
pub(super) struct Workbook {
    path: PathBuf,
    strings: Vec<String>,
}

impl Workbook {
    pub(super) fn open(path: &Path) -> Result<Workbook> {
        let mut book = Workbook { path: path.to_owned(), strings: Vec::new() };
        let mut strings = Vec::new();
        walk(&book.part("xl/sharedStrings.xml")?, |step| match step {
            Step::Open("si", _) => strings.push(String::new()),
            Step::Text("t", text) => {
                if let Some(last) = strings.last_mut() {
                    last.push_str(text);
                }
            }
            Step::Open(..) | Step::Text(..) | Step::Close(_) => {}
        })?;
        book.strings = strings;
        Ok(book)
    }

    /// Date of the last change, for example `2025-09-30`.
    pub(super) fn modified(&self) -> Result<String> {
        let mut modified = None;
        walk(&self.part("docProps/core.xml")?, |step| {
            if let Step::Text("modified", text) = step {
                modified = text.get(..10).map(str::to_owned);
            }
        })?;
        modified
            .with_context(|| format!("{}: docProps/core.xml has no dcterms:modified", self.path.display()))
    }

    /// The rows of a sheet, starting with its header.
    pub(super) fn sheet(&self, name: &str) -> Result<Vec<Row>> {
        let mut id = None;
        walk(&self.part("xl/workbook.xml")?, |step| {
            if let Step::Open("sheet", attributes) = step
                && attributes.get("name").is_some_and(|known| known == name)
            {
                id = attributes.get("r:id").cloned();
            }
        })?;
        let id = id.with_context(|| format!("{}: no sheet '{name}'", self.path.display()))?;
        let mut target = None;
        walk(&self.part("xl/_rels/workbook.xml.rels")?, |step| {
            if let Step::Open("Relationship", attributes) = step
                && attributes.get("Id") == Some(&id)
            {
                target = attributes.get("Target").cloned();
            }
        })?;
        let target =
            target.with_context(|| format!("{}: sheet '{name}' has no file", self.path.display()))?;
        rows(&self.part(&format!("xl/{target}"))?, &self.strings)
            .with_context(|| format!("{}: sheet '{name}'", self.path.display()))
    }

    fn part(&self, name: &str) -> Result<String> {
        let output = Command::new("unzip").arg("-p").arg(&self.path).arg(name).output().context("unzip")?;
        if !output.status.success() {
            bail!("{}: no '{name}' in it: {}", self.path.display(), String::from_utf8_lossy(&output.stderr));
        }
        String::from_utf8(output.stdout).with_context(|| format!("{}: '{name}'", self.path.display()))
    }
}

fn rows(xml: &str, strings: &[String]) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    let mut cell = (String::new(), false, String::new());
    let mut broken = None;
    walk(xml, |step| match step {
        Step::Open("row", _) => rows.push(Row::new()),
        Step::Open("c", attributes) => {
            let place = attributes.get("r").cloned().unwrap_or_default();
            cell = (place, attributes.get("t").is_some_and(|kind| kind == "s"), String::new());
        }
        Step::Text("v" | "t", text) => cell.2.push_str(text),
        Step::Close("c") => {
            let (place, shared, text) = &cell;
            let text = match shared {
                true => text.parse().ok().and_then(|at: usize| strings.get(at)),
                false => Some(text),
            };
            let Some(text) = text else {
                broken.get_or_insert_with(|| format!("cell {place}: no such shared string"));
                return;
            };
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let column = place.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
            if let (Some(row), false) = (rows.last_mut(), text.is_empty()) {
                row.insert(column, text);
            }
        }
        Step::Open(..) | Step::Text(..) | Step::Close(_) => {}
    })?;
    match broken {
        Some(why) => bail!("{why}"),
        None => Ok(rows),
    }
}

enum Step<'a> {
    /// An element's local name and its attributes.
    Open(&'a str, BTreeMap<String, String>),
    /// A text and the local name of its element.
    Text(&'a str, &'a str),
    Close(&'a str),
}

fn walk(xml: &str, mut on: impl FnMut(Step<'_>)) -> Result<()> {
    let mut reader = Reader::from_str(xml);
    let mut open: Vec<String> = Vec::new();
    loop {
        match reader.read_event()? {
            Event::Start(element) => {
                let name = local(&element);
                on(Step::Open(&name, attributes(&element)?));
                open.push(name);
            }
            Event::Empty(element) => {
                let name = local(&element);
                on(Step::Open(&name, attributes(&element)?));
                on(Step::Close(&name));
            }
            Event::Text(text) => {
                on(Step::Text(open.last().map_or("", String::as_str), &text.xml10_content()))
            }
            Event::GeneralRef(reference) => {
                on(Step::Text(open.last().map_or("", String::as_str), &referred(&reference)?));
            }
            Event::End(_) => on(Step::Close(&open.pop().unwrap_or_default())),
            Event::Eof => return Ok(()),
            _ => {}
        }
    }
}

fn local(element: &BytesStart<'_>) -> String {
    element.local_name().as_ref().to_owned()
}

fn attributes(element: &BytesStart<'_>) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for attribute in element.attributes() {
        let attribute = attribute?;
        found.insert(attribute.key.as_ref().to_owned(), attribute.value.into_owned());
    }
    Ok(found)
}

/// The character that `&amp;` or `&#10;` stands for.
fn referred(reference: &BytesRef<'_>) -> Result<String> {
    if let Some(character) = reference.resolve_char_ref()? {
        return Ok(character.to_string());
    }
    let name: &str = reference;
    let known = resolve_predefined_entity(name).with_context(|| format!("&{name}; is not defined"))?;
    Ok(known.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_found_by_column() {
        let xml = r#"<worksheet><sheetData><row r="1"><c r="A1" t="s"><v>1</v></c><c r="C1"><v>154</v></c>
            <c r="D1" t="inlineStr"><is><t>a &lt; b</t></is></c><c r="E1"/></row><row r="2"/></sheetData></worksheet>"#;
        let found = rows(xml, &["no".to_owned(), "Xid  154\nlinkage".to_owned()]).unwrap();
        let cell = |column: &str| found[0].get(column).map(String::as_str);
        assert_eq!(
            (cell("A"), cell("C"), cell("D"), cell("E")),
            (Some("Xid 154 linkage"), Some("154"), Some("a < b"), None)
        );
        assert_eq!(found.len(), 2);
        assert!(rows(r#"<row><c r="A1" t="s"><v>7</v></c></row>"#, &[]).is_err());
    }
}
