//! Makes foreign text fit for terminals, logs and JSON. Foreign text comes from users, programs, the kernel or firmware.
//!
//! It is never printed unchanged: it could clear the screen, rename the window, change the direction of the text after
//! it, or start a new line that imitates railgate's own. Every crate uses this one for it:
//!
//! - [`printable`], [`Printable`], [`clip`], [`shorten`]: one line;
//! - [`ascii`], [`ascii_bytes`]: for fields and files that must be ASCII;
//! - [`Lines`]: output of several lines, where foreign text cannot start a line;
//! - [`json_text`], [`write_json`], [`toml_text()`]: formats with escapes, which keep the value.
//!
//! A character that is not printable becomes `?`, as in the output of `ls`. `?` has one byte and one column: the text
//! does not outgrow the limit of a field (a drain reason, a comment), columns and carets stay aligned, and terminals
//! and logs in any encoding can show it. The original text is in `--format json`, as `\uXXXX`.

mod json;
mod lines;
mod natural;
mod near;
mod toml_text;

use std::borrow::Cow;
use std::fmt::{self, Write as _};

pub use json::{json_text, write_json};
pub use lines::Lines;
pub use natural::natural;
pub use near::{did_you_mean, nearest};
pub use toml_text::toml_text;

/// Returns whether a character is printable. Control characters (C0, DEL, C1) are not, nor are invisible characters
/// that reverse, break or hide the text around them: Unicode's `Default_Ignorable_Code_Point` (bidirectional controls,
/// zero-width characters, soft hyphens, variation selectors, fillers, tags), line and paragraph separators, interlinear
/// annotations.
pub fn is_printable(c: char) -> bool {
    match c {
        ' '..='~' => true,
        c if c.is_control() => false,
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'..='\u{1160}'
        | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}' => false,
        _ => true,
    }
}

/// Returns the character, or `?` if it is not printable.
pub fn shown(c: char) -> char {
    if is_printable(c) { c } else { '?' }
}

/// Returns foreign text as one line with the same number of characters.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(text.chars().map(shown).collect())
    }
}

/// As [`printable`], for bytes: those that are not UTF-8 become U+FFFD.
pub fn printable_bytes(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(shown).collect()
}

/// Returns the first `most` characters as one line, without surrounding blanks: for a field with a limit.
pub fn clip(text: &str, most: usize) -> String {
    text.trim().chars().take(most).map(shown).collect()
}

/// As [`printable`], truncated after `most` characters, with `…` in place of the rest.
pub fn shorten(text: &str, most: usize) -> String {
    let mut chars = text.chars();
    let mut out: String = chars.by_ref().take(most).map(shown).collect();
    if chars.next().is_some() {
        out.push('…');
    }
    out
}

/// Returns the character if it is printable ASCII, otherwise `?`: for Slurm fields, and files that other programs read.
pub fn ascii(c: char) -> char {
    if matches!(c, ' '..='~') { c } else { '?' }
}

/// Returns the first `most` bytes as printable ASCII, with `?` for each other byte.
pub fn ascii_bytes(bytes: &[u8], most: usize) -> String {
    bytes.iter().take(most).map(|&byte| ascii(char::from(byte))).collect()
}

/// Foreign text as one line in a format string, without an allocation:
/// `format!("{}: {why}", Printable(path.display()))`.
#[derive(Clone, Copy, Debug)]
pub struct Printable<T>(pub T);

impl<T: fmt::Display> fmt::Display for Printable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Only { to: f, document: false }, "{}", self.0)
    }
}

/// Passes only printable characters; for a document, newlines and tabs as well.
struct Only<'a, W: ?Sized> {
    to: &'a mut W,
    document: bool,
}

impl<W: fmt::Write + ?Sized> fmt::Write for Only<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let passes = |c: char| is_printable(c) || (self.document && matches!(c, '\n' | '\t'));
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| !passes(*c)) {
            let (before, after) = rest.split_at(at);
            self.to.write_str(before)?;
            self.to.write_char('?')?;
            rest = after.get(c.len_utf8()..).unwrap_or_default();
        }
        self.to.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Characters that must not reach a terminal, one of each kind.
    const HOSTILE: &str = "a\x1b[31m\x1b]0;x\x07\r\n\t\0\x7f\u{85}\u{9b}31m\u{61c}\u{200b}\u{200f}\u{202e}\u{2028}\u{2029}\
                           \u{2060}\u{2066}\u{feff}\u{fffb}\u{e0041}\u{ad}\u{fe0f}z";

    #[test]
    fn control_and_invisible_characters_become_question_marks() {
        let plain = printable(HOSTILE);
        assert_eq!(plain, "a?[31m?]0;x????????31m?????????????z");
        assert_eq!(plain.chars().count(), HOSTILE.chars().count());
        assert_eq!(Printable(HOSTILE).to_string(), plain);
        assert_eq!(printable_bytes(HOSTILE.as_bytes()), plain);
        assert_eq!(printable_bytes(b"a\xff\x1bb"), "a\u{fffd}?b");
        for kept in ["é 漢 🚀 ا \u{fffd}", "a b", ""] {
            assert!(matches!(printable(kept), Cow::Borrowed(same) if same == kept));
        }
    }

    #[test]
    fn text_is_truncated_to_the_limit_of_a_field() {
        assert_eq!((clip(" a\nbc ", 3), clip("äöü", 2)), ("a?b".to_owned(), "äö".to_owned()));
        assert_eq!(ascii_bytes("aä\x1b b~".as_bytes(), 6), "a??? b");
        assert_eq!((shorten("äöü", 2), shorten("äö", 2)), ("äö…".to_owned(), "äö".to_owned()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_function_gives_the_same_line(text in any::<String>()) {
            let plain = printable(&text);
            prop_assert!(plain.chars().all(is_printable));
            prop_assert_eq!(Printable(&text).to_string(), plain.as_ref());
            prop_assert_eq!(printable_bytes(text.as_bytes()), plain.as_ref());
            prop_assert_eq!(shorten(&text, usize::MAX), plain.as_ref());
            prop_assert!(plain.len() <= text.len());
        }
    }
}
