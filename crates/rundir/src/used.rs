use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Most lines of a file that are read, since a job wrote it.
const MOST_LINES: usize = 256;
/// Longest value, bytes; longer ones are cut.
const MOST_VALUE: usize = 1024;
const HEAD: &str = "railgate-env-used 1";

/// The origin of a variable's value in a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Winner {
    /// Set by railgate.
    Railgate,
    /// Set by the user, and not changed.
    User,
    /// Set by the user, and overridden by the admin's policy; railgate's value is in the next line.
    Overruled,
    /// Set by a container image, which replaced the earlier value.
    Image,
}

/// One variable in the first task of a step on this node. The job can write it, so it is only displayed and proves
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// Origin of the value.
    pub winner: Winner,
    /// Name of the variable.
    pub name: String,
    /// The value in printable ASCII; other bytes became `?`, and it is cut to 1024 bytes.
    pub value: String,
}

impl Winner {
    fn as_str(self) -> &'static str {
        match self {
            Winner::Railgate => "railgate",
            Winner::User => "user",
            Winner::Overruled => "overruled",
            Winner::Image => "image",
        }
    }
}

impl Used {
    /// One variable; the value is cut and cleaned.
    pub fn new(winner: Winner, name: &str, value: &[u8]) -> Self {
        Used { winner, name: name.to_owned(), value: railgate_text::ascii_bytes(value, MOST_VALUE) }
    }

    /// Formats the file's text: a first line, then `railgate NAME=VALUE`, `user NAME=VALUE`, `overruled NAME=VALUE`
    /// or `image NAME=VALUE`.
    pub fn to_text(all: &[Used]) -> String {
        let mut text = String::from(HEAD);
        text.push('\n');
        for used in all.iter().take(MOST_LINES) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{} {}={}", used.winner.as_str(), used.name, used.value);
        }
        text
    }

    /// Parses a file. Invalid lines are left out.
    pub fn parse(bytes: &[u8]) -> Vec<Used> {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return Vec::new();
        }
        lines.take(MOST_LINES).filter_map(line).collect()
    }
}

fn line(text: &str) -> Option<Used> {
    let (word, rest) = text.split_once(' ')?;
    let winner = [Winner::Railgate, Winner::User, Winner::Overruled, Winner::Image]
        .into_iter()
        .find(|w| w.as_str() == word)?;
    let (name, value) = rest.split_once('=')?;
    (name.len() <= 128 && crate::task_env::name_ok(name)).then(|| Used::new(winner, name, value.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_survive_a_round_trip() {
        let all = [
            Used::new(Winner::Overruled, "X", b"a=b c"),
            Used::new(Winner::Railgate, "X", b"1"),
            Used::new(Winner::User, "NCCL_IB_HCA", b""),
        ];
        assert_eq!(Used::parse(Used::to_text(&all).as_bytes()), all);
    }

    #[test]
    fn a_hostile_file_gives_clean_values_or_none() {
        let used = Used::new(Winner::User, "X", b"\x1b[31m\nforged\0\xff");
        assert_eq!(used.value, "?[31m?forged??");
        assert!(Used::parse(b"").is_empty());
        assert!(Used::parse(b"something else\nuser X=1\n").is_empty());
        let mut file = b"railgate-env-used 1\nroot X=1\nuser a b=1\nuser X\nuser Y=\x07\xff\n".to_vec();
        assert_eq!(Used::parse(&file), [Used::new(Winner::User, "Y", b"?\xef\xbf\xbd")]);
        file.extend(b"user Z=1\n".repeat(100_000));
        assert_eq!(Used::parse(&file).len(), MOST_LINES - 3);
    }
}
