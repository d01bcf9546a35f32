use std::io::{self, BufWriter, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

use crate::is_printable;

/// Size of the output buffer, bytes.
const PIECE: usize = 64 << 10;

/// Writes a value as JSON in pieces, with a newline at the end: the text can be larger than the value in memory. Levels
/// deeper than `indented` are on one line. Characters are escaped as in [`json_text`].
///
/// # Errors
/// Returns the error of `out`.
pub fn write_json<T: Serialize>(value: &T, indented: usize, out: &mut dyn Write) -> io::Result<()> {
    // Buffered here, so that the many small writes do not each go through `dyn`.
    let mut out = BufWriter::with_capacity(PIECE, out);
    value.serialize(&mut Serializer::with_formatter(&mut out, Shallow::new(indented)))?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Returns any value as indented JSON, without a newline at the end. Characters that are not printable are escaped as
/// `\uXXXX`, so a parser gets the original value.
///
/// # Errors
/// Returns an error if JSON cannot represent the value, for example a map with keys that are not strings.
pub fn json_text<T: Serialize>(value: &T) -> serde_json::Result<String> {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, Shallow::new(usize::MAX)))?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Indents levels up to this one, and escapes characters that are not printable.
struct Shallow {
    most: usize,
    depth: usize,
    pretty: PrettyFormatter<'static>,
}

impl Shallow {
    fn new(most: usize) -> Self {
        Shallow { most, depth: 0, pretty: PrettyFormatter::new() }
    }

    fn is_indented(&self) -> bool {
        self.depth <= self.most
    }
}

impl Formatter for Shallow {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        // The most common case.
        if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return out.write_all(text.as_bytes());
        }
        let mut rest = text;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| !is_printable(*c)) {
            let (before, after) = rest.split_at(at);
            out.write_all(before.as_bytes())?;
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = after.get(c.len_utf8()..).unwrap_or_default();
        }
        out.write_all(rest.as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        if self.is_indented() { self.pretty.begin_array(out) } else { CompactFormatter.begin_array(out) }
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if self.is_indented() {
            self.pretty.begin_array_value(out, first)
        } else {
            CompactFormatter.begin_array_value(out, first)
        }
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.is_indented() {
            self.pretty.end_array_value(out)
        } else {
            CompactFormatter.end_array_value(out)
        }
    }

    fn end_array<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        let written =
            if self.is_indented() { self.pretty.end_array(out) } else { CompactFormatter.end_array(out) };
        self.depth -= 1;
        written
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.depth += 1;
        if self.is_indented() { self.pretty.begin_object(out) } else { CompactFormatter.begin_object(out) }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if self.is_indented() {
            self.pretty.begin_object_key(out, first)
        } else {
            CompactFormatter.begin_object_key(out, first)
        }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.is_indented() {
            self.pretty.begin_object_value(out)
        } else {
            CompactFormatter.begin_object_value(out)
        }
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        if self.is_indented() {
            self.pretty.end_object_value(out)
        } else {
            CompactFormatter.end_object_value(out)
        }
    }

    fn end_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        let written =
            if self.is_indented() { self.pretty.end_object(out) } else { CompactFormatter.end_object(out) };
        self.depth -= 1;
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_parser_gets_the_original_value(key in any::<String>(), value in any::<String>()) {
            let value = serde_json::json!({ key: [value] });
            let text = json_text(&value).unwrap();
            prop_assert!(text.chars().all(|c| c == '\n' || is_printable(c)), "{text:?}");
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value.clone());
            let mut written = Vec::new();
            write_json(&value, 1, &mut written).unwrap();
            prop_assert!(written.ends_with(b"\n") && written.iter().all(|b| b.is_ascii_graphic() || b" \n".contains(b) || *b >= 0x80));
            prop_assert_eq!(serde_json::from_slice::<serde_json::Value>(&written).unwrap(), value);
        }
    }
}
