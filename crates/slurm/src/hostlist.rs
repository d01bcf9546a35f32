//! Parses and prints Slurm's host lists: `gpu[001-016,20],login`.

use std::collections::BTreeMap;

/// Most names in one list. Slurm's own limit is 64 Ki.
pub const MAX_HOSTS: usize = 65_536;

/// Longest list text that is read, bytes.
const MAX_TEXT: usize = 1 << 20;

/// Most digits of a number in a range; more would not fit in a `u64`. A longer number is part of the name.
const MAX_DIGITS: usize = 18;

/// A host list that cannot be expanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadHostlist {
    /// The text violates the grammar.
    #[error("host list '{list}': {what}")]
    Syntax {
        /// The invalid entry.
        list: String,
        /// The problem.
        what: &'static str,
    },
    /// The list has more than [`MAX_HOSTS`] names, or its text is over 1 MiB.
    #[error("host list has more than {MAX_HOSTS} names")]
    TooLarge,
}

/// Expands a list to its names, in order. A name that occurs twice keeps its first position.
///
/// An entry is text with any number of brackets (`r[1-2]n[01-16]-ib`); a bracket contains numbers and ranges. The
/// digits of a range's low end determine the padding. `(null)` and the empty text have no names.
///
/// # Errors
/// [`BadHostlist`] for a text that violates the grammar, has characters that no host name has, or has too many names.
///
/// # Example
/// ```
/// use railgate_slurm::hostlist::{compress, expand};
///
/// let names = expand("gpu[009-011],login")?;
/// assert_eq!(names, ["gpu009", "gpu010", "gpu011", "login"]);
/// assert_eq!(compress(&names), "login,gpu[009-011]");
/// # Ok::<(), railgate_slurm::hostlist::BadHostlist>(())
/// ```
pub fn expand(list: &str) -> Result<Vec<String>, BadHostlist> {
    if list.len() > MAX_TEXT {
        return Err(BadHostlist::TooLarge);
    }
    let list = list.trim();
    let mut names = Vec::new();
    if list.is_empty() || list == "(null)" {
        return Ok(names);
    }
    let mut seen = std::collections::HashSet::new();
    for entry in entries(list)? {
        for name in expand_entry(entry)? {
            if seen.insert(name.clone()) {
                if names.len() == MAX_HOSTS {
                    return Err(BadHostlist::TooLarge);
                }
                names.push(name);
            }
        }
    }
    Ok(names)
}

/// The shortest list of these names, without duplicates: names without a number first, then the others by prefix.
pub fn compress<S: AsRef<str>>(names: &[S]) -> String {
    // Names that differ only in their last number share a bracket.
    let mut groups: BTreeMap<(&str, &str), Vec<(u64, &str)>> = BTreeMap::new();
    let mut plain: Vec<&str> = Vec::new();
    for name in names {
        let name = name.as_ref();
        match last_number(name) {
            Some((prefix, digits, suffix)) => match digits.parse() {
                Ok(number) => groups.entry((prefix, suffix)).or_default().push((number, digits)),
                Err(_) => plain.push(name),
            },
            None => plain.push(name),
        }
    }
    plain.sort_unstable();
    plain.dedup();
    let mut out: Vec<String> = plain.into_iter().map(str::to_owned).collect();
    for ((prefix, suffix), mut numbers) in groups {
        numbers.sort_unstable();
        numbers.dedup();
        let ranges = ranges(&numbers);
        out.push(if numbers.len() == 1 {
            format!("{prefix}{}{suffix}", ranges.join(","))
        } else {
            format!("{prefix}[{}]{suffix}", ranges.join(","))
        });
    }
    out.join(",")
}

/// Splits at commas outside of brackets.
fn entries(list: &str) -> Result<Vec<&str>, BadHostlist> {
    let wrong = |what| BadHostlist::Syntax { list: shown(list), what };
    let (mut found, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if inside => return Err(wrong("a bracket inside a bracket")),
            b'[' => inside = true,
            b']' if !inside => return Err(wrong("a closing bracket without an opening one")),
            b']' => inside = false,
            b',' if !inside => {
                found.push(&list[start..at]);
                start = at + 1;
            }
            b',' | b'-' | b'_' | b'.' => {}
            byte if byte.is_ascii_alphanumeric() => {}
            _ => return Err(wrong("a character that no host name has")),
        }
    }
    if inside {
        return Err(wrong("a bracket that is not closed"));
    }
    found.push(&list[start..]);
    if found.iter().any(|entry| entry.is_empty()) {
        return Err(wrong("an empty entry"));
    }
    Ok(found)
}

fn expand_entry(entry: &str) -> Result<Vec<String>, BadHostlist> {
    let mut names = vec![String::new()];
    let mut rest = entry;
    while let Some((text, after)) = rest.split_once('[') {
        // `entries` has verified that every bracket is closed.
        let (inside, after) = after.split_once(']').unwrap_or((after, ""));
        let numbers = numbers(entry, inside)?;
        if names.len().saturating_mul(numbers.len()) > MAX_HOSTS {
            return Err(BadHostlist::TooLarge);
        }
        names = names
            .iter()
            .flat_map(|name| numbers.iter().map(move |number| format!("{name}{text}{number}")))
            .collect();
        rest = after;
    }
    for name in &mut names {
        name.push_str(rest);
    }
    Ok(names)
}

/// Expands one bracket, with padding.
fn numbers(entry: &str, inside: &str) -> Result<Vec<String>, BadHostlist> {
    let wrong = |what| BadHostlist::Syntax { list: shown(entry), what };
    let mut found = Vec::new();
    for range in inside.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let number = |digits: &str| {
            if digits.is_empty() || digits.len() > MAX_DIGITS || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(wrong("a bracket may only contain numbers and ranges"));
            }
            digits.parse::<u64>().map_err(|_| wrong("a bracket may only contain numbers and ranges"))
        };
        let (first, last) = (number(low)?, number(high)?);
        if last < first {
            return Err(wrong("a range with its end before its start"));
        }
        let room = (MAX_HOSTS - found.len()) as u64;
        if last - first >= room {
            return Err(BadHostlist::TooLarge);
        }
        let width = low.len();
        found.extend((first..=last).map(|n| format!("{n:0width$}")));
    }
    Ok(found)
}

/// Splits at the last number: `rack2-n07-ib` gives `rack2-n`, `07`, `-ib`.
fn last_number(name: &str) -> Option<(&str, &str, &str)> {
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let start = name[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| {
        // In a text that is not a host name, the character before the digits may be longer than a byte.
        at + name[at..].chars().next().map_or(1, char::len_utf8)
    });
    (end - start <= MAX_DIGITS).then(|| (&name[..start], &name[start..end], &name[end..]))
}

/// Ranges of sorted numbers with their digits, for example `3`, `007-012`.
fn ranges(numbers: &[(u64, &str)]) -> Vec<String> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < numbers.len() {
        let (first, digits) = numbers[at];
        // The low end determines the padding, so a range extends only while its expansion gives the same digits.
        let width = digits.len();
        let mut end = at;
        while let Some(&(next, text)) = numbers.get(end + 1) {
            let offset = (end + 1 - at) as u64;
            if first.checked_add(offset) != Some(next) || format!("{next:0width$}") != text {
                break;
            }
            end += 1;
        }
        out.push(if end == at { digits.to_owned() } else { format!("{digits}-{}", numbers[end].1) });
        at = end + 1;
    }
    out
}

/// The list, cut for an error message.
fn shown(list: &str) -> String {
    railgate_text::clip(list, 80)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_as_slurm_writes_them_are_expanded() {
        let cases = [
            ("n1", vec!["n1"]),
            ("n[1-3]", vec!["n1", "n2", "n3"]),
            ("n[1,3],m07", vec!["n1", "n3", "m07"]),
            ("gpu[08-11]", vec!["gpu08", "gpu09", "gpu10", "gpu11"]),
            ("r[1-2]n[1-2]-ib", vec!["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
            ("a[9-10]", vec!["a9", "a10"]),
            ("n1,n1,n2", vec!["n1", "n2"]),
            ("(null)", vec![]),
            ("", vec![]),
        ];
        for (list, names) in cases {
            assert_eq!(expand(list).unwrap(), names, "{list}");
        }
    }

    #[test]
    fn invalid_lists_are_refused() {
        for list in
            ["n[1-3", "n1]", "n[[1]]", "n[]", "n[1-]", "n[-3]", "n[3-1]", "n[a-b]", "n1,,n2", "n;rm", "n 1"]
        {
            assert!(matches!(expand(list), Err(BadHostlist::Syntax { .. })), "{list}");
        }
        for list in ["n[0-65536]", "n[0-999][0-999]", "n[0-9],m[0-65530]", "n[0-999999999999999999]"] {
            assert_eq!(expand(list), Err(BadHostlist::TooLarge), "{list}");
        }
        assert_eq!(expand("n[1-65536]").unwrap().len(), MAX_HOSTS);
    }

    #[test]
    fn names_share_a_bracket() {
        assert_eq!(compress(&["n3", "n1", "n2", "n1"]), "n[1-3]");
        assert_eq!(compress(&["gpu09", "gpu10", "gpu9"]), "gpu[09,9-10]");
        assert_eq!(compress(&["r1n01-ib", "r1n02-ib", "login"]), "login,r1n[01-02]-ib");
        assert_eq!(compress::<&str>(&[]), "");
    }

    proptest! {
        #[test]
        fn compressed_names_expand_to_the_same_names(
            names in prop::collection::btree_set("[a-c]{1,2}[0-9]{0,4}(-[a-b])?[0-9]{0,3}[a-b]?", 0..60)
        ) {
            let list: Vec<&String> = names.iter().collect();
            let back: BTreeSet<String> = expand(&compress(&list)).unwrap().into_iter().collect();
            prop_assert_eq!(back, names);
        }

        #[test]
        fn arbitrary_text_neither_panics_nor_exceeds_the_limit(text in "[nm0-9,\\[\\]\\-é ]{0,40}") {
            if let Ok(names) = expand(&text) {
                prop_assert!(names.len() <= MAX_HOSTS);
                prop_assert!(expand(&compress(&names)).is_ok());
            }
        }
    }
}
