use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A job's `--railgate-…` options, as forwarded by the submit host.
///
/// Slurm forwards them in the job's control environment, so scripts of slurmd and slurmctld see each name with the
/// prefix `SPANK_`. Any client can send any text there: root parses it only with these types, and then applies the
/// site's policy.
pub const CONTROL: [&str; 4] = [CONTROL_PROFILE, CONTROL_GATE, CONTROL_REQUEUE, CONTROL_PROFILER];
/// Contains a [`ProfileName`].
pub const CONTROL_PROFILE: &str = "RAILGATE_PROFILE";
/// Contains a [`GateChoice`].
pub const CONTROL_GATE: &str = "RAILGATE_GATE";
/// Contains a [`RequeueChoice`].
pub const CONTROL_REQUEUE: &str = "RAILGATE_REQUEUE";
/// Contains a [`ProfilerChoice`].
pub const CONTROL_PROFILER: &str = "RAILGATE_PROFILER";

/// Contains [`OpenMode::as_str`](crate::OpenMode::as_str).
pub const CONTROL_OPEN_MODE: &str = "RAILGATE_OPEN_MODE";

/// Most restarts that a user can request; more is a typing error.
const MOST_RESTARTS: u32 = 100;

/// An option's value is invalid; the text describes the valid ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub struct BadChoice(pub &'static str);

/// `--railgate-gate`: how thoroughly a node is checked before the job starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GateChoice {
    /// No checks.
    Off,
    /// Only checks that take no noticeable time.
    #[default]
    Quick,
    /// All checks.
    Full,
}

impl GateChoice {
    /// Name, as users type it.
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
    /// Off, even where the site enables it by default.
    Off,
    /// On, where the plugin is installed and the site permits the option.
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

/// `--railgate-requeue`: whether the job is requeued after a node failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequeueChoice {
    /// As often as the site permits.
    Auto,
    /// Never by railgate.
    #[default]
    Never,
    /// At most this often, and not more often than the site permits.
    Times(u32),
}

impl RequeueChoice {
    /// Number of permitted restarts if the site permits `site`.
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
        // `parse` alone would accept "+3".
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

/// `--railgate-profile`: the name of a set of NCCL settings that the site offers. The valid names are known only on
/// the nodes; this type only ensures that it is a name and cannot be a path.
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
    fn choices_survive_a_round_trip() {
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
    fn invalid_values_are_refused() {
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
