use crate::is_printable;

/// Escapes every character of a TOML string that is not printable as `\uXXXX`, so a parser gets the same values and no
/// value starts a line. In a comment, which has no escapes, such a character becomes `?`.
pub fn toml_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (piece, after) = match c {
            '#' => rest.split_at(rest.find('\n').unwrap_or(rest.len())),
            '"' | '\'' => rest.split_at(string_end(rest, c)),
            _ => rest.split_at(c.len_utf8()),
        };
        match c {
            '"' | '\'' if !piece.chars().all(is_printable) => basic(piece, c, &mut out),
            // Between values, these are white space.
            '\t' | '\r' => out.push(' '),
            _ => out.extend(piece.chars().map(|c| if c == '\n' { c } else { crate::shown(c) })),
        }
        rest = after;
    }
    out
}

/// Length in bytes of the string at the start of `text`.
fn string_end(text: &str, quote: char) -> usize {
    let triple = if quote == '"' { "\"\"\"" } else { "'''" };
    let (delimiter, from) = if text.starts_with(triple) { (triple, 3) } else { (&triple[..1], 1) };
    let mut at = from;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with(delimiter) {
            // Up to two quotes can precede the three that end the string.
            let more =
                if from == 3 { rest.chars().skip(3).take(2).take_while(|c| *c == quote).count() } else { 0 };
            return at + from + more;
        }
        let escaped = quote == '"' && rest.starts_with('\\');
        let chars = if escaped { 2 } else { 1 };
        at += rest.chars().take(chars).map(char::len_utf8).sum::<usize>();
    }
    text.len()
}

/// Converts a string of any kind to one on a single line, with escapes.
fn basic(piece: &str, quote: char, out: &mut String) {
    let long = piece.len() >= 6 && piece.starts_with(if quote == '"' { "\"\"\"" } else { "'''" });
    let ends = if long { 3 } else { 1 };
    let inner = piece.get(ends..piece.len().saturating_sub(ends)).unwrap_or_default();
    // A line break directly after the opening quotes is not part of the value.
    let inner = inner.strip_prefix('\n').filter(|_| long).unwrap_or(inner);
    let mut rest = inner.chars().peekable();
    out.push('"');
    while let Some(c) = rest.next() {
        match c {
            // A literal string has no escapes, so these characters stand for themselves.
            '\\' | '"' if quote == '\'' => out.extend(['\\', c]),
            // At the end of a line, it removes the line break and the following white space.
            '\\' if rest.peek().is_some_and(|next| next.is_whitespace()) => {
                while rest.next_if(|next| next.is_whitespace()).is_some() {}
            }
            '\\' => out.extend(['\\', rest.next().map_or('\\', crate::shown)]),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            c if is_printable(c) => out.push(c),
            c if u32::from(c) <= 0xffff => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_kind_of_string_keeps_its_value() {
        let turned = "a\u{202e}b\u{9b}";
        for (text, value) in [
            (format!("v = \"{turned}\\n\\\"\"\n"), format!("{turned}\n\"")),
            (format!("v = '{turned}\\ \"'\n"), format!("{turned}\\ \"")),
            (format!("v = \"\"\"\n{turned}\n\"\"\"\"\"\n"), format!("{turned}\n\"\"")),
            (format!("v = '''\n{turned}\n\\'''''\n"), format!("{turned}\n\\''")),
            ("v = \"\"\"a \"b\"\nFORGED = 1 \\\n   c\"\"\"\n".to_owned(), "a \"b\"\nFORGED = 1 c".to_owned()),
            (format!("v = \"\" # {turned}\n"), String::new()),
            (format!("v = '' # '{turned}\n"), String::new()),
        ] {
            let read = |text: &str| text.parse::<toml::Table>().unwrap()["v"].as_str().unwrap().to_owned();
            assert_eq!(read(&text), value);
            let shown = toml_text(&text);
            assert_eq!(read(&shown), value, "{shown}");
            assert!(shown.chars().all(|c| c == '\n' || is_printable(c)), "{shown:?}");
            assert_eq!(shown.lines().count(), 1, "{shown}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_table_keeps_its_values(key in any::<String>(), one in any::<String>(), two in any::<String>()) {
            let table: toml::Table = [(key, toml::Value::Array(vec![one.into(), two.into()]))].into_iter().collect();
            let shown = toml_text(&toml::to_string(&table).unwrap());
            prop_assert!(shown.chars().all(|c| c == '\n' || is_printable(c)), "{shown:?}");
            prop_assert_eq!(shown.parse::<toml::Table>().unwrap(), table);
        }

        #[test]
        fn text_that_is_not_toml_becomes_printable(text in "[\"'#\\\\\n\u{202e}\u{1b}a=]{0,60}") {
            prop_assert!(toml_text(&text).chars().all(|c| c == '\n' || is_printable(c)));
        }
    }
}
