//! A message, and its text.

use std::collections::BTreeMap;
use std::fmt::Write;

use railgate_model::UnixMillis;
use railgate_text::shorten;
use serde::{Deserialize, Serialize};

use crate::condition::Priority;
use crate::day::UtcOffset;

/// Names of nodes in the text of one entry; the rest is a number.
const SHOWN_NODES: usize = 20;

/// What an entry reports about its condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// It began.
    New,
    /// It has further nodes or a higher priority, or it is back.
    Changed,
    /// It lasts.
    Repeated,
    /// It is over.
    Resolved,
    /// It began and is over, and this receiver was not notified before.
    Passed,
}

impl EntryKind {
    /// Whether the condition is over.
    pub fn is_over(self) -> bool {
        matches!(self, EntryKind::Resolved | EntryKind::Passed)
    }

    fn word(self) -> &'static str {
        match self {
            EntryKind::New => "NEW",
            EntryKind::Changed => "CHANGED",
            EntryKind::Repeated => "STILL",
            EntryKind::Resolved => "RESOLVED",
            EntryKind::Passed => "PASSED",
        }
    }
}

/// One condition in a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The conditions that the message reports.
    pub kind: EntryKind,
    /// Key of the condition.
    pub key: String,
    /// Priority.
    pub priority: Priority,
    /// One line.
    pub title: String,
    /// Further text; may be empty.
    pub details: String,
    /// The check that found it.
    pub check: Option<String>,
    /// Nodes, sorted.
    pub nodes: Vec<String>,
    /// Since when.
    pub since: UnixMillis,
    /// When it was over, if it is.
    pub ended: Option<UnixMillis>,
    /// The priority that the receiver knows it by, if that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_by: Option<Priority>,
}

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MessageKind {
    /// Conditions.
    Alerts,
    /// All open conditions, once a day.
    Digest,
    /// Railgate runs and has current data.
    Heartbeat,
    /// All conditions that the receiver was sent and that last, for one that keeps them in memory only.
    Refresh,
}

impl MessageKind {
    /// Name, as in the JSON of a webhook.
    pub fn name(self) -> &'static str {
        match self {
            MessageKind::Alerts => "alerts",
            MessageKind::Digest => "digest",
            MessageKind::Heartbeat => "heartbeat",
            MessageKind::Refresh => "refresh",
        }
    }

    /// Whether a message that is not accepted is sent again. Otherwise a new one follows after the interval.
    pub fn is_sent_again(self) -> bool {
        matches!(self, MessageKind::Alerts | MessageKind::Digest)
    }
}

/// A message to one receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Identifies it: a receiver that has accepted this id can drop a repeat.
    pub id: String,
    /// Name of the receiver.
    pub sink: String,
    /// Kind.
    pub kind: MessageKind,
    /// Name of the cluster.
    pub site: String,
    /// When it was made.
    pub time: UnixMillis,
    /// Conditions that last are to be regarded as open until then, if nothing further is sent.
    pub valid_until: UnixMillis,
    /// Distance of the site's time from UTC, for the text.
    pub utc_offset: UtcOffset,
    /// Conditions: by priority, then by key.
    pub entries: Vec<Entry>,
    /// For a digest: conditions since the last one that began, that were over, and that are silenced now.
    pub counts: [usize; 3],
    /// The receiver refused the last messages, perhaps because of their content: only numbers are sent.
    pub brief: bool,
}

impl Message {
    /// The highest priority of its conditions.
    pub fn priority(&self) -> Priority {
        self.entries.iter().map(|entry| entry.priority).max().unwrap_or_default()
    }

    /// The number of different nodes.
    pub fn nodes(&self) -> usize {
        let nodes: std::collections::BTreeSet<&String> =
            self.entries.iter().flat_map(|entry| &entry.nodes).collect();
        nodes.len()
    }

    /// One line, at most `most` characters.
    pub fn title(&self, most: usize) -> String {
        let site = if self.site.is_empty() { String::new() } else { format!(" {}", self.site) };
        let text = match self.kind {
            MessageKind::Heartbeat => format!("railgate{site}: heartbeat"),
            MessageKind::Refresh => format!("railgate{site}: {} open", self.entries.len()),
            MessageKind::Digest => {
                let [began, over, silenced] = self.counts;
                let open = self.entries.len();
                format!(
                    "railgate{site}: digest: {open} open, {began} began, {over} over, {silenced} silenced"
                )
            }
            MessageKind::Alerts => {
                let head = format!("[{}] railgate{site}:", self.priority());
                match self.entries.as_slice() {
                    [entry] if !self.brief => format!("{head} {} {}", entry.kind.word(), entry.title),
                    entries => {
                        let mut counts: BTreeMap<EntryKind, usize> = BTreeMap::new();
                        for entry in entries {
                            *counts.entry(entry.kind).or_default() += 1;
                        }
                        let counts: Vec<String> = counts
                            .iter()
                            .map(|(kind, count)| format!("{count} {}", kind.word().to_lowercase()))
                            .collect();
                        format!("{head} {}, {} nodes", counts.join(", "), self.nodes())
                    }
                }
            }
        };
        shorten(&text, most.saturating_sub(1))
    }

    /// Title and conditions as plain text, at most `most` bytes of UTF-8. What does not fit is counted at the end.
    pub fn text(&self, most: usize) -> String {
        self.mapped_text(most, &|text| text.to_owned())
    }

    /// As [`Message::text`], with `escape` applied to each part that contains foreign text. The limit counts the
    /// escaped text.
    pub fn mapped_text(&self, most: usize, escape: &dyn Fn(&str) -> String) -> String {
        let mut text = escape(&self.title(300));
        let time = self.utc_offset.show(self.time);
        let _ = write!(text, "\n{time}, id {}\n", self.id);
        if self.brief {
            text.push_str("Earlier messages were refused, so this one has only numbers. ");
            text.push_str("The fleet's page has the details.\n");
            return text;
        }
        let last_line = |count: usize| format!("… and {count} more on the fleet's page\n");
        let room = most.saturating_sub(last_line(self.entries.len()).len());
        for (index, entry) in self.entries.iter().enumerate() {
            let shown = escape(&self.entry_text(entry));
            if text.len() + shown.len() > room {
                text.push_str(&last_line(self.entries.len() - index));
                break;
            }
            text.push_str(&shown);
        }
        text
    }

    fn entry_text(&self, entry: &Entry) -> String {
        let Entry { kind, priority, title, .. } = entry;
        let mut text = format!("\n{} {priority} {title}\n", kind.word());
        let _ = write!(text, "  since {}", self.utc_offset.show(entry.since));
        if let Some(ended) = entry.ended {
            let _ = write!(text, ", over {}", self.utc_offset.show(ended));
        }
        text.push('\n');
        if !entry.nodes.is_empty() {
            let shown: Vec<&str> = entry.nodes.iter().take(SHOWN_NODES).map(String::as_str).collect();
            let nodes = if entry.nodes.len() == 1 { "node" } else { "nodes" };
            let _ = write!(text, "  {} {nodes}: {}", entry.nodes.len(), shown.join(", "));
            if entry.nodes.len() > SHOWN_NODES {
                let _ = write!(text, " and {} more", entry.nodes.len() - SHOWN_NODES);
            }
            text.push('\n');
        }
        if !entry.details.is_empty() {
            let _ = writeln!(text, "  {}", entry.details);
        }
        text
    }
}
