//! Our field in a job's AdminComment: `railgate: requeued, n2 gpu-lost@3;`. Everything else in the comment belongs to
//! others and is kept byte for byte.

use crate::client::MAX_ADMIN_COMMENT;

const FIELD: &str = "railgate:";

/// Longest text of our field, bytes.
const MAX_TEXT: usize = 300;

/// Returns the comment with our field set to `text`; `None` if it would become longer than [`MAX_ADMIN_COMMENT`].
pub(crate) fn with_field(comment: &str, text: &str) -> Option<String> {
    // A semicolon ends the field.
    let text: String = text
        .chars()
        .map(|c| match c {
            ';' => ',',
            c => railgate_text::ascii(c),
        })
        .take(MAX_TEXT)
        .collect();
    let field = format!("{FIELD} {};", text.trim());
    let changed = match place(comment) {
        Some((start, end)) => format!("{}{field}{}", &comment[..start], &comment[end..]),
        None if comment.is_empty() => field,
        None => format!("{comment} {field}"),
    };
    (changed.len() <= MAX_ADMIN_COMMENT).then_some(changed)
}

/// Byte range of our field: at the beginning or after a blank, up to its semicolon.
fn place(comment: &str) -> Option<(usize, usize)> {
    let start = comment
        .match_indices(FIELD)
        .map(|(at, _)| at)
        .find(|&at| at == 0 || comment.as_bytes().get(at - 1) == Some(&b' '))?;
    let end = comment[start..].find(';').map_or(comment.len(), |at| start + at + 1);
    Some((start, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_of_others_is_kept_byte_for_byte() {
        for (before, after) in [
            ("", "railgate: held;"),
            ("JS1:abc==", "JS1:abc== railgate: held;"),
            ("a railgate: requeued; b", "a railgate: held; b"),
            ("railgate: requeued; {\"x\": 1; }", "railgate: held; {\"x\": 1; }"),
            ("see-railgate: no", "see-railgate: no railgate: held;"),
        ] {
            assert_eq!(with_field(before, "held").unwrap(), after, "{before}");
        }
        assert_eq!(with_field("", "a;b\nc").unwrap(), "railgate: a,b?c;");
        assert_eq!(with_field(&"x".repeat(MAX_ADMIN_COMMENT), "held"), None);
    }

    proptest! {
        #[test]
        fn setting_the_field_twice_is_idempotent(comment in "(railgate:|;| |[a-zé]){0,20}", text in ".{0,40}") {
            let once = with_field(&comment, &text).unwrap();
            prop_assert_eq!(with_field(&once, &text).unwrap(), once.clone());
            if !comment.contains(FIELD) {
                prop_assert!(once.starts_with(&comment));
            }
        }
    }
}
