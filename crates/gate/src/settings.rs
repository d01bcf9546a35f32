//! Settings of checks. From one list, [`settings!`] defines the typed table, its defaults, its limits and its
//! documentation.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use humantime::format_duration;
use railgate_model::{Action, Class, Phase, Severity};

/// The settings of a check.
pub(crate) trait Table: Default + 'static {
    /// The key `action`.
    fn action(&self) -> Action;

    /// The keys with the values of this table, as a page shows them.
    fn rows(&self) -> Vec<Row>;

    /// The settings that are out of range, each as `key: problem`.
    fn problems(&self) -> Vec<String>;
}

/// A key as a page shows it.
pub(crate) struct Row {
    /// Its name.
    pub(crate) key: &'static str,
    /// Its value in TOML; `None` if it has none.
    pub(crate) value: Option<String>,
    /// A valid value, shown if the key has none by default.
    pub(crate) example: &'static str,
    /// The valid values, if the type or a limit gives them.
    pub(crate) allowed: String,
    /// The meaning of the key.
    pub(crate) text: &'static str,
}

/// Makes `Settings`, the table of a check:
///
/// ```text
/// settings! {
///     action = Drain, "a warning never drains";       // the text may be missing
///     severity: Severity = Severity::Warn, "a full file system";
///     free_percent: f64 = 5.0, limit within(0.0..=100.0), "…";
/// }
/// ```
///
/// `action = Drain only "report, notify"` names the useful actions if not all are. Attributes before a key are passed
/// to serde.
macro_rules! settings {
    (
        action = $action:ident $(only $actions:literal)? $(, $remark:literal)?;
        $( $(#[$attr:meta])* $name:ident : $type:ty = $default:expr $(, limit $limit:expr)?, $text:literal; )*
    ) => {
        /// The table of the check in `[gate.checks]`.
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Settings {
            /// The strongest action of a finding.
            pub action: ::railgate_model::Action,
            $(
                #[doc = $text]
                $(#[$attr])*
                pub $name: $type,
            )*
        }

        impl Default for Settings {
            fn default() -> Self {
                Settings { action: ::railgate_model::Action::$action, $($name: $default,)* }
            }
        }

        impl $crate::settings::Table for Settings {
            fn action(&self) -> ::railgate_model::Action {
                self.action
            }

            fn rows(&self) -> Vec<$crate::settings::Row> {
                vec![
                    $crate::settings::row("action", &self.action, $crate::settings::actions(&[$($actions)?]), concat!("", $($remark)?)),
                    $( $crate::settings::row(
                        stringify!($name),
                        &self.$name,
                        $crate::settings::shown::<$type>(&[$($limit)?]),
                        $text,
                    ), )*
                ]
            }

            fn problems(&self) -> Vec<String> {
                let all: &[Vec<String>] = &[$( $( $limit.problems(stringify!($name), &self.$name), )? )*];
                all.concat()
            }
        }
    };
}

pub(crate) use settings;

/// Builds a row of the page.
pub(crate) fn row<T: Value>(key: &'static str, value: &T, allowed: String, text: &'static str) -> Row {
    Row { key, value: value.toml(), example: T::EXAMPLE, allowed, text }
}

/// The useful actions of a check; all of them if `named` is empty.
pub(crate) fn actions(named: &[&str]) -> String {
    named.first().copied().unwrap_or(Action::CHOICES).to_owned()
}

/// The valid values of a key, from its limit or otherwise from its type.
pub(crate) fn shown<T: Value>(limit: &[Limit<T>]) -> String {
    limit.first().map_or_else(|| T::CHOICES.to_owned(), |limit| limit.allowed.clone())
}

/// A block of TOML for a page: the rows, each with its valid values and meaning in a comment. If a row is too long, the
/// comment is on a line before it.
pub(crate) fn block(id: &str, rows: &[Row]) -> String {
    const SHORT: usize = 44;
    let line = |row: &Row| format!("{} = {}", row.key, row.value.as_deref().unwrap_or(row.example));
    let short = |row: &&Row| row.value.is_some() && line(row).len() <= SHORT;
    let column = rows.iter().filter(short).map(|row| line(row).len()).max().unwrap_or(0) + 4;
    let mut block = format!("```toml\n[gate.checks.{id}]\n");
    for row in rows {
        let line = line(row);
        let about: Vec<&str> =
            [row.allowed.as_str(), row.text].into_iter().filter(|text| !text.is_empty()).collect();
        let about = about.join("; ");
        let _ = if row.value.is_none() {
            writeln!(block, "# {line}    {about}")
        } else if about.is_empty() {
            writeln!(block, "{line}")
        } else if short(&row) {
            writeln!(block, "{line:column$}# {about}")
        } else {
            writeln!(block, "# {about}\n{}", wrapped(&line))
        };
    }
    block + "```"
}

/// Breaks a list that is too long for one line after its first entry.
fn wrapped(line: &str) -> String {
    const WIDTH: usize = 110;
    let Some((before, _)) = line.split_once('[').filter(|_| line.len() > WIDTH) else {
        return line.to_owned();
    };
    let indent = " ".repeat(before.len() + 1);
    let mut lines = vec![String::new()];
    for word in line.split_inclusive(", ") {
        if lines.last().is_some_and(|last| last.len() + word.trim_end().len() > WIDTH) {
            lines.push(indent.clone());
        }
        if let Some(last) = lines.last_mut() {
            last.push_str(word);
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// The type of a key.
pub(crate) trait Value {
    /// The valid values of every key of this type; empty if the value makes them clear.
    const CHOICES: &'static str = "";

    /// An example in TOML, for a key that has no default.
    const EXAMPLE: &'static str = "";

    /// The value in TOML; `None` if it has none.
    fn toml(&self) -> Option<String>;

    /// The value as part of a sentence.
    fn text(&self) -> String {
        self.toml().unwrap_or_default()
    }
}

macro_rules! plain_values {
    ($($type:ty),*) => { $(
        impl Value for $type {
            fn toml(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )* };
}
plain_values!(u8, u32, u64, bool);

fn quoted(text: impl Display) -> Option<String> {
    Some(format!("\"{text}\""))
}

impl Value for f64 {
    fn toml(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for Action {
    const CHOICES: &'static str = "off, shadow, report, notify, drain";

    fn toml(&self) -> Option<String> {
        quoted(match self {
            Action::Off => "off",
            Action::Shadow => "shadow",
            Action::Report => "report",
            Action::Notify => "notify",
            Action::Drain => "drain",
        })
    }
}

impl Value for Severity {
    const CHOICES: &'static str = "note, unknown, warn, fail";
    const EXAMPLE: &'static str = "\"warn\"";

    fn toml(&self) -> Option<String> {
        quoted(self)
    }
}

impl Value for Class {
    fn toml(&self) -> Option<String> {
        quoted(self)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Value for Phase {
    fn toml(&self) -> Option<String> {
        quoted(self)
    }
}

impl Value for Duration {
    fn toml(&self) -> Option<String> {
        quoted(format_duration(*self))
    }

    fn text(&self) -> String {
        format_duration(*self).to_string()
    }
}

impl Value for String {
    fn toml(&self) -> Option<String> {
        quoted(self)
    }
}

impl Value for PathBuf {
    fn toml(&self) -> Option<String> {
        quoted(self.display())
    }
}

impl<T: Value> Value for Option<T> {
    const CHOICES: &'static str = T::CHOICES;
    const EXAMPLE: &'static str = T::EXAMPLE;

    fn toml(&self) -> Option<String> {
        self.as_ref().and_then(Value::toml)
    }
}

impl<T: Value> Value for Vec<T> {
    fn toml(&self) -> Option<String> {
        let values: Vec<String> = self.iter().filter_map(Value::toml).collect();
        Some(format!("[{}]", values.join(", ")))
    }
}

/// Keys are bare words, also in the defaults.
impl<T: Value> Value for BTreeMap<String, T> {
    fn toml(&self) -> Option<String> {
        let entries: Vec<String> =
            self.iter().filter_map(|(key, value)| Some(format!("{key} = {}", value.toml()?))).collect();
        Some(if entries.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", entries.join(", ")) })
    }
}

type ProblemsFn<T> = Box<dyn Fn(&str, &T) -> Vec<String>>;

/// The limits of a key's value.
pub(crate) struct Limit<T> {
    allowed: String,
    wrong: ProblemsFn<T>,
}

impl<T> Limit<T> {
    /// Creates a limit. `allowed` describes the valid values; `wrong` returns the problems of a value
    /// as `key: problem`.
    pub(crate) fn new(allowed: impl Into<String>, wrong: impl Fn(&str, &T) -> Vec<String> + 'static) -> Self {
        Limit { allowed: allowed.into(), wrong: Box::new(wrong) }
    }

    /// As [`Limit::new`], for at most one problem.
    pub(crate) fn one(allowed: impl Into<String>, why: impl Fn(&T) -> Option<String> + 'static) -> Self {
        Limit::new(allowed, move |key, value| {
            why(value).map(|why| format!("{key}: {why}")).into_iter().collect()
        })
    }

    /// Returns the problems of the value of this key.
    pub(crate) fn problems(&self, key: &str, value: &T) -> Vec<String> {
        (self.wrong)(key, value)
    }
}

/// A range, both ends included.
pub(crate) fn within<T: Value + PartialOrd + 'static>(range: RangeInclusive<T>) -> Limit<T> {
    let (low, high) = (range.start().text(), range.end().text());
    Limit::one(format!("{low} to {high}"), move |value: &T| {
        (!range.contains(value)).then(|| format!("{} is not within {low} to {high}", value.text()))
    })
}

/// A range of durations in seconds, both ends included.
pub(crate) fn seconds(range: RangeInclusive<u64>) -> Limit<Duration> {
    let text = |seconds: u64| Duration::from_secs(seconds).text().replace("days", "d");
    let (low, high) = (text(*range.start()), text(*range.end()));
    Limit::one(format!("{low} to {high}"), move |value: &Duration| {
        let wrong = !range.contains(&value.as_secs());
        wrong.then(|| format!("{} is not between {low} and {high}", value.text()))
    })
}

/// An upper limit, included.
pub(crate) fn at_most<T: Value + PartialOrd + 'static>(most: T) -> Limit<T> {
    Limit::one(format!("at most {}", most.text()), move |value: &T| {
        (*value > most).then(|| format!("{} is more than {}", value.text(), most.text()))
    })
}

/// A lower limit, included.
pub(crate) fn at_least<T: Value + PartialOrd + 'static>(least: T) -> Limit<T> {
    Limit::one(format!("at least {}", least.text()), move |value: &T| {
        (*value < least).then(|| format!("{} is less than {}", value.text(), least.text()))
    })
}

/// A finite number that is not negative; `what` names it, for example a size or a rate.
pub(crate) fn amount(what: &'static str) -> Limit<f64> {
    Limit::one("0 or more", move |value: &f64| {
        (!value.is_finite() || *value < 0.0).then(|| format!("{value} is no {what}"))
    })
}

fn not_absolute(path: &Path) -> Option<String> {
    (!path.is_absolute()).then(|| format!("'{}' is not an absolute path", path.display()))
}

/// An absolute path.
pub(crate) fn absolute() -> Limit<PathBuf> {
    Limit::one("", |path: &PathBuf| not_absolute(path))
}

/// Absolute paths.
pub(crate) fn all_absolute() -> Limit<Vec<PathBuf>> {
    Limit::new("", |key, paths: &Vec<PathBuf>| {
        paths.iter().filter_map(|path| Some(format!("{key}: {}", not_absolute(path)?))).collect()
    })
}

/// One of two classes.
pub(crate) fn either(one: Class, other: Class) -> Limit<Class> {
    Limit::one(format!("{one}, {other}"), move |class: &Class| {
        (*class != one && *class != other).then(|| format!("'{class}' is neither '{one}' nor '{other}'"))
    })
}

/// Names that satisfy `right`; `why` describes the problem of one that does not.
pub(crate) fn keys<T: 'static>(
    right: fn(&str) -> bool,
    why: fn(&str) -> String,
) -> Limit<BTreeMap<String, T>> {
    Limit::new("", move |key, map: &BTreeMap<String, T>| {
        map.keys().filter(|name| !right(name)).map(|name| format!("{key}: {}", why(name))).collect()
    })
}

/// Whether a text is a code in the form in which programs print it: "013" would never match the code 13.
pub(crate) fn is_code(text: &str) -> bool {
    text.parse::<u32>().is_ok_and(|number| number.to_string() == text)
}

/// Splits at each space: `"a b"` becomes two words.
pub(crate) fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Names without white space.
pub(crate) fn names() -> Limit<Vec<String>> {
    let odd = |name: &&String| name.is_empty() || name.contains(char::is_whitespace);
    Limit::new("", move |key, names: &Vec<String>| {
        names.iter().filter(odd).map(|name| format!("{key}: '{name}' is not a name")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(unreachable_pub, reason = "the macro makes the tables of a public type")]
    mod sample {
        use super::*;

        settings! {
            action = Notify, "class site only reports";
            share: f64 = 5.0, limit within(0.0..=100.0), "percent";
            #[serde(with = "railgate_model::duration_text")]
            grace: Duration = Duration::from_secs(300), limit at_most(Duration::from_secs(3600)), "after boot";
            #[serde(skip_serializing_if = "Option::is_none")]
            fatal: Option<Severity> = None, "unset: by the table";
            users: Vec<String> = words("/tmp* /var/tmp* /home* /scratch*"), limit names(), "of users";
            most: BTreeMap<String, u64> = BTreeMap::from([("symbol_error".to_owned(), 1)]), "per hour";
            paths: Vec<PathBuf> = Vec::new(), limit all_absolute(), "what must be there";
        }
    }

    #[test]
    fn the_page_shows_defaults_limits_and_meanings() {
        let page = block("sample", &sample::Settings::default().rows());
        let expected = r#"```toml
[gate.checks.sample]
action = "notify"              # off, shadow, report, notify, drain; class site only reports
share = 5.0                    # 0 to 100; percent
grace = "5m"                   # at most 1h; after boot
# fatal = "warn"    note, unknown, warn, fail; unset: by the table
# of users
users = ["/tmp*", "/var/tmp*", "/home*", "/scratch*"]
most = { symbol_error = 1 }    # per hour
paths = []                     # what must be there
```"#;
        assert_eq!(page, expected);
    }

    #[test]
    fn problems_name_their_key_and_follow_the_order_of_the_table() {
        let table = "paths = ['x', '/y']\nshare = nan\ngrace = '2h'\nusers = ['a b']";
        let set: sample::Settings = toml::from_str(table).unwrap();
        let expected = [
            "share: NaN is not within 0 to 100",
            "grace: 2h is more than 1h",
            "users: 'a b' is not a name",
            "paths: 'x' is not an absolute path",
        ];
        assert_eq!(set.problems(), expected);
        assert_eq!(sample::Settings::default().problems(), Vec::<String>::new());
        assert!(toml::from_str::<sample::Settings>("shares = 1.0").is_err(), "unknown keys are refused");
    }
}
