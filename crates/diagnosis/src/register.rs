use std::time::Duration;

use humantime::format_duration;
use railgate_model::duration_text;
use serde::{Deserialize, Serialize, Serializer};

use super::facts::Facts;

/// A diagnosis rule: its documentation, and the function that applies it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rule {
    /// Kebab-case; `rule` in a report's JSON and the name of the table `[report.rules.<id>]`.
    pub id: &'static str,
    /// One line: what the rule reports.
    pub about: &'static str,
    /// Where the cause lies; `class` in a report's JSON.
    pub class: Class,
    /// Which measurements the rule reads, and how it decides.
    #[serde(serialize_with = "one_line")]
    pub evidence: &'static str,
    /// Why the finding matters.
    #[serde(serialize_with = "one_line")]
    pub why: &'static str,
    /// Other causes of the same measurements, and how to distinguish them.
    #[serde(serialize_with = "one_line")]
    pub look_alikes: &'static str,
    /// How to fix it; used for findings without a fix of their own.
    pub fix: &'static str,
    /// Keys that a site can set in `[report.rules.<id>]`.
    pub thresholds: &'static [Threshold],
    #[serde(skip)]
    pub line: Line,
    #[serde(skip)]
    pub(crate) over: Over,
    #[serde(skip)]
    pub(crate) explains: Explains,
    #[serde(skip)]
    pub(crate) find: fn(&Facts<'_>) -> Vec<Found>,
}

/// What a finding explains of the time in which GPUs are without a kernel. The rule `host-bound` is silent if most of it is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Explains {
    Nothing,
    /// All of it.
    Idle,
    /// As much of it as the finding costs, which may be a small part: small kernels, saves of which most fill whole samples.
    ItsCosts,
}

/// For JSON: joins the lines of long texts.
fn one_line<S: Serializer>(text: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&text.replace('\n', " "))
}

/// Where the cause of a finding lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A node or a GPU.
    Hardware,
    /// The program, its input or its settings.
    Application,
    /// The measurements do not decide it.
    Unknown,
}

impl Class {
    /// Name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Hardware => "hardware",
            Class::Application => "application",
            Class::Unknown => "unknown",
        }
    }
}

/// The line of the first screen that shows a rule's findings, besides `VERDICT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// No other line.
    Verdict,
    /// `SLOW`: it names a straggler.
    Slow,
    /// `RAILS`
    Rails,
}

/// The time whose figures a rule gets, and of which its findings state what is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// The time in which the job trained, as far as phases are known: start-up and waiting until the end are no loss of speed.
    Training,
    /// The whole run.
    AllTime,
}

/// One finding of a rule. `analyse` adds what is the same for all findings of the rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Found {
    /// `high`, `medium`, `low`.
    pub(super) confidence: &'static str,
    /// As [`super::Diagnosis::costs`].
    pub(super) costs: Option<f64>,
    /// As [`super::Diagnosis::part`].
    pub(super) part: String,
    /// As [`super::Diagnosis::since`].
    pub(super) since: Option<railgate_model::UnixMillis>,
    /// As [`super::Diagnosis::what`].
    pub(super) what: String,
    /// Replaces the rule's fix.
    pub(super) fix: Option<&'static str>,
}

impl Found {
    pub(super) fn new(confidence: &'static str, part: String, what: String) -> Self {
        Found { confidence, costs: None, part, since: None, what, fix: None }
    }
}

/// A number of the configuration, in the unit of its [`Threshold`].
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Number(f64);

impl Number {
    pub(super) const fn new(value: f64) -> Self {
        Number(value)
    }

    pub(super) fn get(self) -> f64 {
        self.0
    }

    /// A percentage as a fraction, 0 to 1.
    pub(super) fn share(self) -> f64 {
        self.0 / 100.0
    }
}

/// A time of the configuration: `"2m"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Time(#[serde(with = "duration_text")] Duration);

impl Time {
    pub(super) const fn new(seconds: u64) -> Self {
        Time(Duration::from_secs(seconds))
    }

    pub(super) fn seconds(self) -> f64 {
        self.0.as_secs_f64()
    }

    pub(super) fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The value of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// In the threshold's unit.
    Number(Number),
    /// As text: `"2m"`.
    Time(Time),
}

impl Value {
    /// The value in TOML syntax.
    pub fn toml(&self) -> String {
        match self {
            Value::Number(number) => format!("{:?}", number.0),
            Value::Time(_) => format!("\"{self}\""),
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Value::Number(number) => write!(f, "{}", number.0),
            Value::Time(time) => write!(f, "{}", format_duration(time.0)),
        }
    }
}

/// A key of `[report.rules.<id>]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Threshold {
    /// Its name.
    pub key: &'static str,
    /// `%`, `GB/s`, `steps`, `time`.
    pub unit: &'static str,
    /// Value without a configuration.
    pub default: Value,
    /// Smallest accepted value.
    pub low: Value,
    /// Largest accepted value.
    pub high: Value,
    /// What the threshold is compared with.
    pub meaning: &'static str,
}

/// Configuration table of a rule.
pub(crate) trait Table {
    /// Its keys.
    const KEYS: &'static [Threshold];

    /// The values in force, in the order of the keys.
    fn values(&self) -> Vec<Value>;
}

/// For serde: tables of rules without thresholds are omitted.
pub(super) fn has_no_keys<T: Table>(_: &T) -> bool {
    T::KEYS.is_empty()
}

/// Values of a table that are out of range, as `report.rules.<id>.<key>: <why>`.
pub(super) fn problems<T: Table>(id: &str, table: &T) -> Vec<String> {
    let pairs = T::KEYS.iter().zip(table.values());
    let wrong = pairs.filter(|(key, value)| !(key.low..=key.high).contains(value));
    let said = wrong.map(|(key, value)| {
        format!("report.rules.{id}.{}: {value} is not within {} to {}", key.key, key.low, key.high)
    });
    said.collect()
}

/// Generates a rule's `Settings` (the table `[report.rules.<id>]`) and its documentation from one row per key:
/// key, type, default and range, unit, meaning. A `Time` is given in seconds.
macro_rules! thresholds {
    ($($key:ident: $kind:ident($default:literal), $low:literal to $high:literal, $unit:literal, $meaning:literal;)*) => {
        /// The rule's table in the configuration.
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Settings {
            $(
                #[doc = $meaning]
                pub $key: $crate::register::$kind,
            )*
        }

        impl Settings {
            pub(crate) const DEFAULT: Self =
                Settings { $($key: $crate::register::$kind::new($default),)* };
        }

        impl Default for Settings {
            fn default() -> Self {
                Settings::DEFAULT
            }
        }

        impl $crate::register::Table for Settings {
            const KEYS: &'static [$crate::register::Threshold] = {
                #[allow(unused_imports, reason = "a rule may have no thresholds")]
                use $crate::register::{Number, Threshold, Time, Value};
                &[$(
                    Threshold {
                        key: stringify!($key),
                        unit: $unit,
                        default: Value::$kind($kind::new($default)),
                        low: Value::$kind($kind::new($low)),
                        high: Value::$kind($kind::new($high)),
                        meaning: $meaning,
                    },
                )*]
            };

            fn values(&self) -> Vec<$crate::register::Value> {
                vec![$($crate::register::Value::$kind(self.$key),)*]
            }
        }
    };
}

/// Generates the typed table `[report.rules]` and the register from one row per rule. A row is the file name of
/// the rule; its id has `-` in place of `_`.
macro_rules! register {
    ($($rule:ident,)+) => {
        /// `[report.rules]`: a table for each rule. Unknown ids and keys are refused with a list of the known
        /// ones.
        #[derive(Clone, Debug, PartialEq, ::serde::Serialize, ::serde::Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct Rules {
            $(
                #[doc = concat!("Of the rule in `", stringify!($rule), ".rs`.")]
                #[serde(skip_serializing_if = "crate::register::has_no_keys")]
                pub $rule: $rule::Settings,
            )+
        }

        impl Rules {
            /// Values without a configuration.
            pub const DEFAULT: Self = Rules { $($rule: $rule::Settings::DEFAULT,)+ };

            /// Values out of range, one line each.
            pub fn problems(&self) -> Vec<String> {
                [$($crate::register::problems($rule::RULE.id, &self.$rule),)+].concat()
            }
        }

        impl Default for Rules {
            fn default() -> Self {
                Rules::DEFAULT
            }
        }

        /// All rules, in order of the report.
        pub static RULES: &[$crate::register::Rule] = &[$($rule::RULE,)+];
    };
}

pub(crate) use {register, thresholds};
