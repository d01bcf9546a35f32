//! Values of a template: the options of its `#SBATCH` lines, and variables of the form `NAME="${NAME:-value}"`.

use railgate_text::did_you_mean;

use super::values;

/// Options of sbatch that can be set even if the template lacks them.
pub(super) const ADDED: [&str; 14] = [
    "account",
    "constraint",
    "dependency",
    "exclude",
    "licenses",
    "mail-type",
    "mail-user",
    "mem",
    "nodelist",
    "partition",
    "qos",
    "railgate-profile",
    "reservation",
    "switches",
];

/// Splits a `#SBATCH` line into the option's name, its value and the rest of the line.
fn option(line: &str) -> Option<(&str, &str, &str)> {
    let words = line.strip_prefix("#SBATCH --")?;
    let end = words.find(" #").unwrap_or(words.len());
    let (words, comment) = words.split_at(end);
    let (name, value) = words.trim_end().split_once('=').unwrap_or((words.trim_end(), ""));
    Some((name, value, comment.trim_start()))
}

/// Byte range of a variable's default: from after `${NAME:-` to before the closing `}"` at the end of a line.
fn variable(text: &str, name: &str) -> Option<(usize, usize)> {
    let head = format!("\n{name}=\"${{{name}:-");
    let start = text.find(&head)? + head.len();
    Some((start, start + text[start..].find("}\"\n")?))
}

fn is_variable(key: &str) -> bool {
    key.starts_with(|c: char| c.is_ascii_uppercase())
        && key.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// The values that can be filled in, in the order of the script. An option that occurs twice is that of the first
/// component of a heterogeneous job.
pub(super) fn keys(text: &str) -> Vec<(String, String)> {
    let mut keys: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let name = line.split_once('=').map(|(name, _)| name).filter(|name| is_variable(name));
        let found = match (option(line), name) {
            (Some((name, value, _)), _) => Some((name, value.to_owned())),
            (None, Some(name)) => variable(text, name).map(|(start, end)| {
                let value = text[start..end].replace("\\\n", " ");
                (name, value.split_whitespace().collect::<Vec<_>>().join(" "))
            }),
            (None, None) => None,
        };
        if let Some((name, value)) = found
            && !keys.iter().any(|(known, _)| known == name)
        {
            keys.push((name.to_owned(), value));
        }
    }
    keys
}

/// The script with one value filled in.
///
/// # Errors
/// The template has no such key, or the value is invalid there; the message explains what to do.
pub(super) fn set(text: &str, key: &str, value: &str) -> Result<String, String> {
    if !value.chars().all(railgate_text::is_printable) {
        return Err("control characters and line ends cannot be filled in".to_owned());
    }
    if is_variable(key) { set_variable(text, key, value) } else { set_option(text, key, value) }
}

fn set_variable(text: &str, key: &str, value: &str) -> Result<String, String> {
    let Some((start, end)) = variable(text, key) else { return Err(unknown(text, key)) };
    let now = &text[start..end];
    if now.bytes().all(|byte| byte.is_ascii_digit()) && !now.is_empty() && value.parse::<u32>().is_err() {
        return Err(format!("expected a number, as in {key}={now}"));
    }
    if matches!(now, "yes" | "no") && !matches!(value, "yes" | "no") {
        return Err(format!("expected yes or no, as in {key}={now}"));
    }
    let opened = value.matches('(').count() == value.matches(')').count();
    if value.contains("${") || (value.contains("$(") && !opened) {
        return Err(
            "a value with ${, or with $( that nothing closes, must be written into the script by hand"
                .to_owned(),
        );
    }
    if let Some(sign) = value.chars().find(|sign| "\"`\\}".contains(*sign)) {
        return Err(format!("a value with {sign} must be written into the script by hand"));
    }
    Ok(format!("{}{value}{}", &text[..start], &text[end..]))
}

fn set_option(text: &str, key: &str, value: &str) -> Result<String, String> {
    if value.contains(['"', '\'', '\\']) {
        return Err("a value with quotes or backslashes must be written into the script by hand".to_owned());
    }
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = |wanted: &dyn Fn(&str) -> bool| {
        text.lines().position(|line| option(line).is_some_and(|(name, _, _)| wanted(name)))
    };
    let index = at(&|name| name == key);
    if index.is_some() || ADDED.contains(&key) {
        let now = index.and_then(|index| option(&lines[index])).map(|(_, now, _)| now);
        values::check(key, value, now)?;
    }
    let value = if value.contains([' ', '#']) { format!("\"{value}\"") } else { value.to_owned() };
    let setting =
        if value.is_empty() { format!("#SBATCH --{key}") } else { format!("#SBATCH --{key}={value}") };
    if let Some(index) = index {
        let comment = option(&lines[index]).map_or("", |(_, _, comment)| comment).to_owned();
        lines[index] = format!("{setting:<39} {comment}").trim_end().to_owned();
    } else if ADDED.contains(&key) {
        // Before the first line, so that it belongs to the first component of a heterogeneous job.
        let first = at(&|_| true).unwrap_or(1);
        lines.insert(first, setting);
    } else {
        return Err(unknown(text, key));
    }
    Ok(lines.join("\n") + "\n")
}

fn unknown(text: &str, key: &str) -> String {
    let keys: Vec<String> = keys(text).into_iter().map(|(key, _)| key).collect();
    let meant = did_you_mean(key, keys.iter().map(String::as_str).chain(ADDED));
    format!(
        "this template has no such key{meant} (it has {}; lines for {} can be added)",
        keys.join(", "),
        ADDED.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "#!/bin/bash\n# About.\n\n#SBATCH --job-name=train                # CHANGE\n\
                          #SBATCH --nodes=2\n#SBATCH --exclusive\n\nTRAIN=\"${TRAIN:-torchrun \\\n    a.py}\"\n\
                          DIR=\"${DIR:-$PWD/${X}/y}\"\nLATER=3\n";

    #[test]
    fn options_and_variables_with_defaults_are_keys() {
        let keys = keys(SCRIPT);
        let keys: Vec<(&str, &str)> = keys.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let wanted = [
            ("job-name", "train"),
            ("nodes", "2"),
            ("exclusive", ""),
            ("TRAIN", "torchrun a.py"),
            ("DIR", "$PWD/${X}/y"),
        ];
        assert_eq!(keys, wanted);
    }

    #[test]
    fn a_value_is_replaced_and_the_comment_kept() {
        let filled = set(SCRIPT, "job-name", "seven").unwrap();
        assert!(filled.contains("\n#SBATCH --job-name=seven                # CHANGE\n"), "{filled}");
        let filled = set(SCRIPT, "TRAIN", "python b.py $HOME").unwrap();
        assert!(filled.contains("\nTRAIN=\"${TRAIN:-python b.py $HOME}\"\nDIR="), "{filled}");
        assert_eq!(set(SCRIPT, "nodes", "2").unwrap(), SCRIPT);
    }

    #[test]
    fn added_sbatch_lines_come_first() {
        let filled = set(SCRIPT, "partition", "h100").unwrap();
        assert!(filled.contains("\n\n#SBATCH --partition=h100\n#SBATCH --job-name"), "{filled}");
        assert!(set(SCRIPT, "constraint", "a b").unwrap().contains("--constraint=\"a b\"\n"));
    }

    #[test]
    fn unknown_keys_and_invalid_values_are_refused() {
        for (key, value) in [
            ("node", "4"),
            ("LATER", "4"),
            ("OTHER", "4"),
            ("nodes", "4\n#SBATCH --uid=0"),
            ("TRAIN", "a\"; rm -rf ~; \""),
            ("TRAIN", "a}\"; b"),
            ("DIR", "`id`"),
            ("DIR", "$(id"),
            ("DIR", "${HOME"),
            ("job-name", ""),
            ("job-name", "it's"),
            ("partition", ""),
            ("exclusive", "yes"),
            ("", "x"),
        ] {
            assert!(set(SCRIPT, key, value).is_err(), "{key}={value}");
        }
        let why = set(SCRIPT, "node", "4").unwrap_err();
        assert!(why.contains("did you mean 'nodes'?") && why.contains("it has job-name, nodes,"), "{why}");
    }

    proptest::proptest! {
        #[test]
        fn a_filled_in_value_is_read_back(value in "[a-zA-Z0-9/$:_.=-]{1,40}") {
            for key in ["job-name", "TRAIN"] {
                let filled = set(SCRIPT, key, &value).unwrap();
                proptest::prop_assert!(keys(&filled).contains(&(key.to_owned(), value.clone())));
            }
        }
    }
}
