//! Parses the lines of an NHC configuration as NHC does.
//!
//! NHC uses bash's `read`: a backslash at the end joins two lines, every other backslash is removed, and a last line
//! without a newline is never run.

/// A line for NHC, which may span several lines of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line<'t> {
    /// Line number of its start in the file, from 1.
    pub(crate) number: usize,
    /// Its bytes in the file, including newlines.
    pub(crate) raw: &'t [u8],
    /// Its text after bash's `read`.
    pub(crate) text: String,
    /// Whether it ends with a newline.
    pub(crate) ended: bool,
}

impl Line<'_> {
    /// Returns the number of lines in the file.
    pub(crate) fn height(&self) -> usize {
        self.raw.split_inclusive(|byte| *byte == b'\n').count()
    }

    /// Returns mask and command. Without `||`, NHC uses the whole line for both.
    pub(crate) fn parts(&self) -> (&str, &str) {
        let trim = |text| str::trim_matches(text, [' ', '\t']);
        let (mask, command) = self.text.split_once("||").unwrap_or((&self.text, &self.text));
        (trim(mask), trim(command))
    }
}

/// Returns all lines of a file.
pub(crate) fn lines(file: &[u8]) -> Vec<Line<'_>> {
    let (mut lines, mut rest, mut number) = (Vec::new(), file, 1);
    while !rest.is_empty() {
        let (mut read, mut length, mut ended) = (Vec::new(), rest.len(), false);
        let mut bytes = rest.iter().enumerate();
        while let Some((at, byte)) = bytes.next() {
            match byte {
                b'\n' => {
                    (length, ended) = (at + 1, true);
                    break;
                }
                b'\\' => read.extend(bytes.next().map(|(_, byte)| *byte).filter(|byte| *byte != b'\n')),
                0 => {}
                byte => read.push(*byte),
            }
        }
        let (raw, after) = rest.split_at(length);
        let line = Line { number, raw, text: String::from_utf8_lossy(&read).into_owned(), ended };
        (rest, number) = (after, number + line.height());
        lines.push(line);
    }
    lines
}

/// The words of a command, split as by bash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    /// Literal words.
    Plain(Vec<String>),
    /// Bash has to evaluate the line: a variable, a substitution, several commands.
    Computed,
    /// An unterminated quote: bash rejects the line.
    Broken,
}

impl Words {
    pub(crate) fn of(command: &str) -> Words {
        let (mut words, mut word) = (Vec::new(), None::<String>);
        let mut signs = command.chars().peekable();
        while let Some(sign) = signs.next() {
            match sign {
                '\'' | '"' => {
                    let word = word.get_or_insert_default();
                    loop {
                        match signs.next() {
                            None => return Words::Broken,
                            Some(end) if end == sign => break,
                            Some('$' | '`') if sign == '"' => return Words::Computed,
                            Some('\\') if sign == '"' => word.extend(signs.next()),
                            Some(inside) => word.push(inside),
                        }
                    }
                }
                '\\' => word.get_or_insert_default().extend(signs.next()),
                '$' | '`' | '|' | '&' | ';' | '<' | '>' | '(' | ')' => return Words::Computed,
                '#' if word.is_none() => break,
                blank if blank == ' ' || blank == '\t' => words.extend(word.take()),
                sign => word.get_or_insert_default().push(sign),
            }
        }
        words.extend(word);
        Words::Plain(words)
    }
}

/// Returns the commands that a line runs, without regard to quotes: the first word of each command.
pub(crate) fn commands(line: &str) -> impl Iterator<Item = &str> {
    line.split([';', '&', '|', '(', ')', '{', '}', '`', '\n']).filter_map(|command| {
        command.split_whitespace().find(|word| {
            let assigns = word.split_once('=').is_some_and(|(name, _)| is_name(name));
            !assigns && !["!", "then", "do", "else", "if", "while", "until", "time", "eval"].contains(word)
        })
    })
}

/// Returns the variables that a line sets, if it does nothing else: `export A=1 B=2`.
pub(crate) fn assignments(command: &str) -> Option<Vec<(&str, &str)>> {
    let words = command.strip_prefix("export ").unwrap_or(command).trim();
    let pairs = words.split_whitespace().map(|word| word.split_once('=').filter(|(name, _)| is_name(name)));
    pairs.collect::<Option<Vec<_>>>().filter(|pairs| !pairs.is_empty())
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns the letters that bash's getopts finds. `spec` is NHC's option string, where `:` follows a letter with a
/// value.
pub(crate) fn options(words: &[String], spec: &str) -> String {
    let takes_value = |letter: char| spec.split_once(letter).is_some_and(|(_, rest)| rest.starts_with(':'));
    let mut found = String::new();
    let mut words = words.iter();
    while let Some(letters) =
        words.next().and_then(|word| word.strip_prefix('-')).filter(|rest| !rest.is_empty())
    {
        if letters == "-" {
            break;
        }
        for (at, letter) in letters.char_indices() {
            found.push(letter);
            if takes_value(letter) {
                if letters.len() == at + letter.len_utf8() {
                    words.next();
                }
                break;
            }
        }
    }
    found
}

/// Returns whether NHC accepts a range mask such as `{n[1-4],n7}`. If not, it skips the line on every node.
pub(crate) fn is_range(inside: &str) -> bool {
    let name = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    let tail = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '.');
    let number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
    inside.split(',').filter(|group| !group.is_empty()).all(|group| match group.split_once('[') {
        Some((head, rest)) => rest.split_once(']').is_some_and(|(range, end)| {
            !head.is_empty()
                && name(head)
                && tail(end)
                && range.split_once('-').is_some_and(|(low, high)| number(low) && number(high))
        }),
        // A single node: a digit after the first character, and a domain only after that.
        None => group.char_indices().any(|(at, c)| {
            at > 0
                && c.is_ascii_digit()
                && group.get(..at).is_some_and(name)
                && group.get(at + 1..).is_some_and(tail)
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &str) -> Vec<(usize, String, bool)> {
        lines(file.as_bytes()).into_iter().map(|line| (line.number, line.text, line.ended)).collect()
    }

    #[test]
    fn lines_are_joined_and_unescaped_as_by_bash() {
        let file = "* || check_x a\\\n b\n# c \\\n* || swallowed\n\n* || y '/\\bz/'\n* || last";
        let wanted = [
            (1, "* || check_x a b", true),
            (3, "# c * || swallowed", true),
            (5, "", true),
            (6, "* || y '/bz/'", true),
            (7, "* || last", false),
        ];
        assert_eq!(read(file), wanted.map(|(number, text, ended)| (number, text.to_owned(), ended)));
        let whole: Vec<u8> = lines(file.as_bytes()).into_iter().flat_map(|line| line.raw.to_vec()).collect();
        assert_eq!(whole, file.as_bytes());
    }

    #[test]
    fn without_a_separator_the_line_is_both_mask_and_command() {
        let parts = |text: &str| {
            let lines = lines(text.as_bytes());
            let (mask, command) = lines[0].parts();
            (mask.to_owned(), command.to_owned())
        };
        let pair = |mask: &str, command: &str| (mask.to_owned(), command.to_owned());
        assert_eq!(parts("\t* ||\tcheck_x || y \n"), pair("*", "check_x || y"));
        assert_eq!(parts("check_hw_eth lo\n"), pair("check_hw_eth lo", "check_hw_eth lo"));
        assert_eq!(parts("* ||\n"), pair("*", ""));
    }

    #[test]
    fn words_are_split_as_by_bash() {
        let plain = |words: &[&str]| Words::Plain(words.iter().map(|word| (*word).to_owned()).collect());
        assert_eq!(
            Words::of("x -o '/(^|,)rw/' -f /a\\ b  # why"),
            plain(&["x", "-o", "/(^|,)rw/", "-f", "/a b"])
        );
        assert_eq!(Words::of("x \"a b\" '' c#d"), plain(&["x", "a b", "", "c#d"]));
        assert_eq!(Words::of("x $((2*HW_CORES))"), Words::Computed);
        assert_eq!(Words::of("x \"$y\""), Words::Computed);
        assert_eq!(Words::of("x 'a"), Words::Broken);
    }

    #[test]
    fn every_command_of_a_line_is_found() {
        let names = |line| commands(line).collect::<Vec<_>>();
        assert_eq!(
            names("[[ -e /x ]] && FOO=1 check_gpu_bw 4 || ! check_y"),
            ["[[", "check_gpu_bw", "check_y"]
        );
        assert_eq!(names("if a; then b; fi"), ["a", "b", "fi"]);
    }

    #[test]
    fn only_lines_with_nothing_but_assignments_are_settings() {
        assert_eq!(assignments("export MARK_OFFLINE=0"), Some(vec![("MARK_OFFLINE", "0")]));
        assert_eq!(assignments("A=1 B=2"), Some(vec![("A", "1"), ("B", "2")]));
        for other in ["check_x", "A=1 check_x", "export", ""] {
            assert_eq!(assignments(other), None, "{other}");
        }
    }

    #[test]
    fn options_are_found_as_by_getopts() {
        let found = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            options(&words, ":0E:SVcd:e:fkm:rsu:v")
        };
        assert_eq!(found("-u root -s sshd"), "us");
        assert_eq!(found("-rdsshd ssh -k"), "rd");
        assert_eq!(found("-d -k sshd"), "d");
        assert_eq!(found("-0v -- -k"), "0v");
        assert_eq!(found("sshd"), "");
    }

    #[test]
    fn range_masks_are_accepted_as_by_nhc() {
        for good in ["n1", "n[1-4]", "n[01-20],m7", "gpu-a1.cluster", "n[1-2]-ib"] {
            assert!(is_range(good), "{good}");
        }
        for bad in ["login", "n[1-", "n[1-4,7]", "n[1]", "n*", "[1-4]", "1"] {
            assert!(!is_range(bad), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_file_causes_a_panic(file in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let whole: Vec<u8> = lines(&file).into_iter().flat_map(|line| line.raw.to_vec()).collect();
            proptest::prop_assert_eq!(whole, file);
        }

        #[test]
        fn no_command_causes_a_panic(command in "\\PC{0,80}") {
            let _ = Words::of(&command);
            let _ = commands(&command).count();
            let _ = assignments(&command);
            let _ = is_range(&command);
            let _ = options(&command.split(' ').map(str::to_owned).collect::<Vec<_>>(), ":a:b");
        }
    }
}
