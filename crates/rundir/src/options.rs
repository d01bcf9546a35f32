use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A job's `--railgate-…` options, as the submit host passes them on.
///
/// Slurm carries them in the job's control environment, so scripts of slurmd and slurmctld see each name
/// with `SPANK_` in front. Any client may send any text there: root reads it through these types alone and
/// lets the site's policy bound what comes out.
pub const CONTROL: [&str; 4] = [CONTROL_PROFILE, CONTROL_GATE, CONTROL_REQUEUE, CONTROL_PROFILER];
/// Holds [`ProfileName`].
pub const CONTROL_PROFILE: &str = "RAILGATE_PROFILE";
/// Holds [`GateChoice`].
pub const CONTROL_GATE: &str = "RAILGATE_GATE";
/// Holds [`RequeueChoice`].
pub const CONTROL_REQUEUE: &str = "RAILGATE_REQUEUE";
/// Holds [`ProfilerChoice`].
pub const CONTROL_PROFILER: &str = "RAILGATE_PROFILER";

/// Holds [`OpenMode::as_str`](crate::OpenMode::as_str).
pub const CONTROL_OPEN_MODE: &str = "RAILGATE_OPEN_MODE";

/// More restarts than this is a typing error.
const MOST_RESTARTS: u32 = 100;

/// The value of an option is none that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct BadChoice(pub &'static str);

/// `--railgate-gate`: how thoroughly a node is checked before the job starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GateChoice {
    /// Not at all.
    Off,
    /// What can be read in passing.
    #[default]
    Quick,
    /// Everything.
    Full,
}

impl GateChoice {
    /// As users write it.
    pub fn as_str(self) -> &'static str {
        match self {
            GateChoice::Off => "off",
            GateChoice::Quick => "quick",
            GateChoice::Full => "full",
        }
    }
}

impl fmt::Display for GateChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for GateChoice {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Self, BadChoice> {
        match text {
            "off" => Ok(GateChoice::Off),
            "quick" => Ok(GateChoice::Quick),
            "full" => Ok(GateChoice::Full),
            _ => Err(BadChoice("off, quick or full")),
        }
    }
}

/// `--railgate-profiler`: whether NCCL's collectives are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfilerChoice {
    /// Not even where the site would.
    Off,
    /// Where the plugin is installed and the site leaves it to its users.
    On,
}

impl fmt::Display for ProfilerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProfilerChoice::Off => "off",
            ProfilerChoice::On => "on",
        })
    }
}

impl FromStr for ProfilerChoice {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Self, BadChoice> {
        match text {
            "off" => Ok(ProfilerChoice::Off),
            "on" => Ok(ProfilerChoice::On),
            _ => Err(BadChoice("on or off")),
        }
    }
}

/// `--railgate-requeue`: whether the job comes back after a node failed under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequeueChoice {
    /// As often as the site allows.
    Auto,
    /// Not by railgate.
    #[default]
    Never,
    /// At most so many times, and never more often than the site allows.
    Times(u32),
}

impl RequeueChoice {
    /// How many restarts it allows where the site allows `site`.
    pub fn at_most(self, site: u32) -> u32 {
        match self {
            RequeueChoice::Auto => site,
            RequeueChoice::Never => 0,
            RequeueChoice::Times(times) => times.min(site),
        }
    }
}

impl Serialize for RequeueChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RequeueChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|why| serde::de::Error::custom(format!("'{text}': {why}")))
    }
}

impl fmt::Display for RequeueChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RequeueChoice::Auto => f.write_str("auto"),
            RequeueChoice::Never => f.write_str("never"),
            RequeueChoice::Times(times) => write!(f, "{times}"),
        }
    }
}

impl FromStr for RequeueChoice {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Self, BadChoice> {
        const EXPECTED: BadChoice = BadChoice("auto, never or a number of restarts from 0 to 100");
        match text {
            "auto" => return Ok(RequeueChoice::Auto),
            "never" | "0" => return Ok(RequeueChoice::Never),
            _ => {}
        }
        // `parse` alone would take "+3".
        if text.len() > 3 || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(EXPECTED);
        }
        match text.parse() {
            Ok(0) => Ok(RequeueChoice::Never),
            Ok(times) if times <= MOST_RESTARTS => Ok(RequeueChoice::Times(times)),
            _ => Err(EXPECTED),
        }
    }
}

/// `--railgate-profile`: a set of NCCL settings that the site offers by name. Which there are is known on the
/// nodes only; here it is a name and nothing that could be a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileName(String);

impl ProfileName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ProfileName {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Self, BadChoice> {
        let fits = (1..=40).contains(&text.len())
            && text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if fits {
            Ok(ProfileName(text.to_owned()))
        } else {
            Err(BadChoice("a name such as debug: lower-case letters, digits and '-'"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_read_back_what_they_print() {
        for text in ["off", "quick", "full"] {
            assert_eq!(text.parse::<GateChoice>().unwrap().to_string(), text);
        }
        for text in ["off", "on"] {
            assert_eq!(text.parse::<ProfilerChoice>().unwrap().to_string(), text);
        }
        assert!("ON".parse::<ProfilerChoice>().is_err() && "sample".parse::<ProfilerChoice>().is_err());
        for text in ["auto", "never", "1", "100"] {
            assert_eq!(text.parse::<RequeueChoice>().unwrap().to_string(), text);
        }
        assert_eq!("0".parse(), Ok(RequeueChoice::Never));
        assert_eq!("h100-sxm".parse::<ProfileName>().unwrap().as_str(), "h100-sxm");
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "Quick", "quick ", "off\n", "on"] {
            assert!(text.parse::<GateChoice>().is_err(), "{text:?}");
        }
        for text in ["", "+3", "-1", "101", "3 ", "0x1", "99999999999999999999", "always"] {
            assert!(text.parse::<RequeueChoice>().is_err(), "{text:?}");
        }
        for text in ["", "../etc/passwd", "-x", "H100", "a b", "a\0", &"a".repeat(41)] {
            assert!(text.parse::<ProfileName>().is_err(), "{text:?}");
        }
    }
}
