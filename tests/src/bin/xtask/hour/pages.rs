//! The pages, and a user who types their commands.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use railgate_tests::cluster::{Cluster, Output, Session};

use super::super::build;
use super::record::Record;

/// The pages that an admin and a researcher follow.
const PAGES: [&str; 4] = ["install.md", "oncall.md", "researchers.md", "templates.md"];

/// Runs commands of the pages on the machines.
pub(super) struct Typist<'a> {
    cluster: &'a Cluster,
    record: &'a Record,
    pages: BTreeMap<&'static str, String>,
}

impl<'a> Typist<'a> {
    pub(super) fn new(cluster: &'a Cluster, record: &'a Record) -> Result<Self> {
        let read = |name: &'static str| -> Result<(&'static str, String)> {
            let path = build::workspace().join("docs").join(name);
            Ok((name, fs::read_to_string(&path).with_context(|| path.display().to_string())?))
        };
        Ok(Typist { cluster, record, pages: PAGES.into_iter().map(read).collect::<Result<_>>()? })
    }

    fn page(&self, name: &str) -> Result<&str> {
        self.pages.get(name).map(String::as_str).with_context(|| format!("no page {name}"))
    }

    /// Checks that a page contains a text; line breaks do not matter.
    pub(super) fn page_contains(&self, page: &str, words: &str) -> Result<()> {
        let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(flat(self.page(page)?).contains(&flat(words)), "docs/{page} does not contain: {words}");
        Ok(())
    }

    /// The non-empty lines of a code block of a section.
    pub(super) fn block(&self, page: &str, section: &str, number: usize) -> Result<Vec<String>> {
        let text = self.page(page)?;
        let (_, text) = text
            .split_once(&format!("## {section}\n"))
            .with_context(|| format!("docs/{page}: no {section}"))?;
        let text = text.split("\n## ").next().unwrap_or(text);
        let block = text.split("```").nth(2 * number + 1);
        let block = block.with_context(|| format!("docs/{page}, {section}: no code block {number}"))?;
        Ok(block.lines().skip(1).filter(|line| !line.trim().is_empty()).map(str::to_owned).collect())
    }

    /// Runs a command of a page as root.
    pub(super) fn admin(
        &self,
        machine: &str,
        page: &str,
        command: &str,
        with: &[(&str, &str)],
    ) -> Result<Output> {
        let line = self.found(page, command, with)?;
        self.root(machine, &line)
    }

    /// Runs a command of a page as a researcher on the head node.
    pub(super) fn user(&self, page: &str, command: &str, with: &[(&str, &str)]) -> Result<Output> {
        let line = self.found(page, command, with)?;
        self.researcher(&line)
    }

    /// Runs a command that is not in a page, as root.
    pub(super) fn root(&self, machine: &str, line: &str) -> Result<Output> {
        self.types(&self.cluster.root().on(machine).within("/shared"), &format!("root@{machine}#"), line)
    }

    /// Runs a command that is not in a page, as a researcher on the head node.
    pub(super) fn researcher(&self, line: &str) -> Result<Output> {
        self.types(&self.cluster.alice(), "alice@ctl$", line)
    }

    fn types(&self, session: &Session<'_>, prompt: &str, line: &str) -> Result<Output> {
        let output = session.run(&["bash", "-c", line])?;
        self.record.typed(prompt, &output);
        Ok(output)
    }

    /// Finds a command in a page, alone on its line or between backticks (a comment may follow), and replaces names in it by those
    /// of this site.
    fn found(&self, page: &str, command: &str, with: &[(&str, &str)]) -> Result<String> {
        let alone = |line: &str| {
            line.trim_start()
                .strip_prefix(command)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with("  "))
        };
        let text = self.page(page)?;
        ensure!(
            text.lines().any(alone) || text.contains(&format!("`{command}`")),
            "docs/{page} has no such command: {command}"
        );
        for (theirs, _) in with {
            ensure!(command.contains(theirs), "'{command}' does not have '{theirs}'");
        }
        Ok(with.iter().fold(command.to_owned(), |line, (theirs, ours)| line.replace(theirs, ours)))
    }
}
