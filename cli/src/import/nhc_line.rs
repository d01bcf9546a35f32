//! One line of an NHC configuration: a mask of nodes, `||`, and a command of bash.

use glob::Pattern;
use railgate_slurm::hostlist;

/// Which nodes a line is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mask {
    /// All of them.
    All,
    /// These.
    Nodes(Vec<String>),
    /// Nobody but NHC can say: a regular expression, a negation, a glob without a list of nodes.
    NhcOnly,
}

/// What stands behind the `||`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// A check and its arguments, as bash would split them.
    Check(Vec<String>),
    /// A variable for NHC itself.
    Variable(String),
    /// Something that bash must work out: a variable, a substitution, a pipe.
    Bash(String),
}

/// A line of the file that says something.
#[derive(Clone, Debug)]
pub(super) struct Line {
    /// From 1.
    pub(super) number: usize,
    /// As it stands there.
    pub(super) text: String,
    pub(super) mask: Mask,
    pub(super) command: Command,
}

impl Line {
    /// `None` for a comment or an empty line.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub(super) fn read(number: usize, text: &str, nodes: &[String]) -> Result<Option<Line>, String> {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            return Ok(None);
        }
        if text.contains("{{") || text.contains("{%") {
            return Err(
                "a template's placeholder: import what your nodes really have, below /etc/nhc".to_owned()
            );
        }
        let Some((mask, command)) = text.split_once("||") else {
            return Err("expected MASK || CHECK".to_owned());
        };
        let mask = read_mask(mask.trim(), nodes)?;
        let command = read_command(command.trim())?;
        Ok(Some(Line { number, text: text.to_owned(), mask, command }))
    }
}

fn read_mask(mask: &str, nodes: &[String]) -> Result<Mask, String> {
    if mask.is_empty() {
        return Err("no mask of nodes before ||".to_owned());
    }
    if mask == "*" {
        return Ok(Mask::All);
    }
    if let Some(list) = mask.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
        let list = hostlist::expand(list).map_err(|why| format!("mask {mask}: {why}"))?;
        return Ok(Mask::Nodes(list));
    }
    if mask.starts_with(['!', '/']) || mask.contains(char::is_whitespace) {
        return Ok(Mask::NhcOnly);
    }
    if !mask.contains(['*', '?', '[']) {
        return Ok(Mask::Nodes(vec![mask.to_owned()]));
    }
    let pattern = Pattern::new(mask).map_err(|why| format!("mask {mask}: {why}"))?;
    let meant: Vec<String> = nodes.iter().filter(|node| pattern.matches(node)).cloned().collect();
    Ok(if meant.is_empty() { Mask::NhcOnly } else { Mask::Nodes(meant) })
}

fn read_command(command: &str) -> Result<Command, String> {
    if command.is_empty() {
        return Err("nothing after ||".to_owned());
    }
    let variable = command.strip_prefix("export ").unwrap_or(command);
    let name: String = variable.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    if !name.is_empty() && variable[name.len()..].starts_with('=') {
        return Ok(Command::Variable(command.to_owned()));
    }
    Ok(match words(command)? {
        Some(words) => Command::Check(words),
        None => Command::Bash(command.to_owned()),
    })
}

/// As bash splits them; `None` where it would do more than that.
fn words(text: &str) -> Result<Option<Vec<String>>, String> {
    let (mut words, mut word, mut begun) = (Vec::new(), String::new(), false);
    let mut signs = text.chars().peekable();
    while let Some(sign) = signs.next() {
        match sign {
            '\'' => {
                begun = true;
                loop {
                    match signs.next() {
                        Some('\'') => break,
                        Some(sign) => word.push(sign),
                        None => return Err("a quote without its end".to_owned()),
                    }
                }
            }
            '"' => {
                begun = true;
                loop {
                    match signs.next() {
                        Some('"') => break,
                        Some('$' | '`') => return Ok(None),
                        Some('\\') if matches!(signs.peek(), Some('"' | '\\' | '$' | '`')) => {
                            word.extend(signs.next())
                        }
                        Some(sign) => word.push(sign),
                        None => return Err("a quote without its end".to_owned()),
                    }
                }
            }
            '\\' => {
                begun = true;
                word.extend(signs.next());
            }
            '$' | '`' | '|' | '&' | ';' | '<' | '>' | '(' | ')' => return Ok(None),
            '#' if !begun => break,
            sign if sign.is_whitespace() => {
                if begun {
                    words.push(std::mem::take(&mut word));
                    begun = false;
                }
            }
            sign => {
                begun = true;
                word.push(sign);
            }
        }
    }
    if begun {
        words.push(word);
    }
    Ok(Some(words))
}

/// Options of a check, as bash's getopts reads them: letters that take a value stand in `valued`.
pub(super) fn options<'w>(words: &'w [String], valued: &str) -> (Vec<(char, &'w str)>, &'w [String]) {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(letters) =
        words.get(at).and_then(|word| word.strip_prefix('-')).filter(|rest| !rest.is_empty())
    {
        at += 1;
        for (index, letter) in letters.char_indices() {
            if valued.contains(letter) {
                let rest = &letters[index + letter.len_utf8()..];
                let value = if rest.is_empty() {
                    at += 1;
                    words.get(at - 1).map_or("", String::as_str)
                } else {
                    rest
                };
                found.push((letter, value));
                break;
            }
            found.push((letter, ""));
        }
    }
    (found, words.get(at..).unwrap_or_default())
}

/// A size as NHC writes it, in KiB: `32gb`, `1915071MB`, `5T`; a bare number is KiB.
pub(super) fn kib(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let factor: u64 = match unit.to_ascii_lowercase().trim_end_matches('b') {
        "" if unit.is_empty() => 1,
        "" => return Some(number / 1024),
        "k" => 1,
        "m" => 1 << 10,
        "g" => 1 << 20,
        "t" => 1 << 30,
        "p" => 1 << 40,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Command {
        Line::read(1, text, &[]).unwrap().unwrap().command
    }

    #[test]
    fn words_are_those_of_bash() {
        let wanted =
            ["check_fs_mount_rw", "-o", "/(^|,)vers=3(,|$)/", "-f", "/a b"].map(str::to_owned).to_vec();
        assert_eq!(
            check("* || check_fs_mount_rw -o '/(^|,)vers=3(,|$)/' -f /a\\ b  # why"),
            Command::Check(wanted)
        );
        assert!(matches!(check("* || check_ps_loadavg $((2*HW_CORES))"), Command::Bash(_)));
        assert!(matches!(check("* || export MARK_OFFLINE=0"), Command::Variable(_)));
        assert!(matches!(check("* || HOSTNAME=\"$HOSTNAME_S\""), Command::Variable(_)));
    }

    #[test]
    fn masks_are_lists_where_they_can_be() {
        let nodes = ["gn1", "gn2", "cpu1"].map(str::to_owned);
        let mask = |text: &str| read_mask(text, &nodes).unwrap();
        let list = |names: &[&str]| Mask::Nodes(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(mask("*"), Mask::All);
        assert_eq!(mask("{n[01-03],m5}"), list(&["n01", "n02", "n03", "m5"]));
        assert_eq!(mask("gn*"), list(&["gn1", "gn2"]));
        assert_eq!(mask("login"), list(&["login"]));
        for text in ["other*", "/^gn[0-9]+$/", "!gn1"] {
            assert_eq!(mask(text), Mask::NhcOnly, "{text}");
        }
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        for (text, why) in [
            ("check_hw_ib 100", "expected MASK || CHECK"),
            ("|| check_hw_ib 100", "no mask"),
            ("* ||", "nothing after"),
            ("* || check_cmd_status 'a", "a quote without"),
            ("{{ host }} || check_hw_ib 100", "placeholder"),
            ("{n[1-} || check_hw_ib 100", "mask {n[1-}"),
        ] {
            let said = Line::read(1, text, &[]).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
        assert!(Line::read(1, "  # text || x", &[]).unwrap().is_none());
    }

    #[test]
    fn sizes_and_options_are_nhcs() {
        let sizes = ["32gb", "1915071MB", "7", "1024b", "0kB", "5x", ""].map(kib);
        assert_eq!(sizes, [Some(32 << 20), Some(1_915_071 << 10), Some(7), Some(1), Some(0), None, None]);
        let words = ["-r", "-u", "root", "-dsshd", "ssh"].map(str::to_owned);
        assert_eq!(options(&words, "ud"), (vec![('r', ""), ('u', "root"), ('d', "sshd")], &words[4..]));
    }

    proptest::proptest! {
        #[test]
        fn no_line_is_too_strange(text in "\\PC{0,80}") {
            let _ = Line::read(1, &text, &["gn1".to_owned()]);
            let _ = Line::read(1, &format!("* || check_x {text}"), &[]);
            let _ = kib(&text);
        }
    }
}
