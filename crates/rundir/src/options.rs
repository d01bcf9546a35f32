use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A job's `--railgate-…` options, as forwarded by the submit host.
///
/// Slurm forwards them in the job's control environment, so scripts of slurmd and slurmctld see each name with the
/// prefix `SPANK_`. Any client can send any text there: root parses it only with these types, and then applies the
/// site's policy.
pub const CONTROL: [&str; 5] =
    [CONTROL_PROFILE, CONTROL_GATE, CONTROL_REQUEUE, CONTROL_PROFILER, CONTROL_HANG];
/// Contains a [`ProfileName`].
pub const CONTROL_PROFILE: &str = "RAILGATE_PROFILE";
/// Contains a [`GateChoice`].
pub const CONTROL_GATE: &str = "RAILGATE_GATE";
/// Contains a [`RequeueChoice`].
pub const CONTROL_REQUEUE: &str = "RAILGATE_REQUEUE";
/// Contains a [`ProfilerChoice`].
pub const CONTROL_PROFILER: &str = "RAILGATE_PROFILER";
/// Contains a [`HangChoice`].
pub const CONTROL_HANG: &str = "RAILGATE_HANG";

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
    /// As [`GateChoice::Quick`]; then the nodes of the job test each other before its batch script starts.
    Preflight,
}

impl GateChoice {
    /// Name, as users type it.
    pub fn as_str(self) -> &'static str {
        match self {
            GateChoice::Off => "off",
            GateChoice::Quick => "quick",
            GateChoice::Full => "full",
            GateChoice::Preflight => "preflight",
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
            "preflight" => Ok(GateChoice::Preflight),
            _ => Err(BadChoice("off, quick, full or preflight")),
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

/// `--railgate-hang`: what follows when the job hangs, and after which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangChoice {
    /// What follows.
    pub then: HangThen,
    /// How long the job hangs before its steps are ended; `None`: the site's time.
    pub after: Option<Duration>,
}

/// What follows a hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangThen {
    /// The report names it.
    Report,
    /// A line in the job's own output names it as well.
    Notify,
    /// The job's steps are ended.
    End,
}

/// Limits of `after=`: shorter times would end a job before its stacks are taken.
const HANG_AFTER: std::ops::RangeInclusive<u64> = 30..=86_400;

impl fmt::Display for HangChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.then {
            HangThen::Report => "report",
            HangThen::Notify => "notify",
            HangThen::End => "end",
        })?;
        self.after.map_or(Ok(()), |after| write!(f, ",after={}s", after.as_secs()))
    }
}

impl FromStr for HangChoice {
    type Err = BadChoice;

    fn from_str(text: &str) -> Result<Self, BadChoice> {
        const EXPECTED: BadChoice =
            BadChoice("report, notify, end, or end,after=10m (a number of s, m or h, 30s to 24h)");
        match text {
            "report" => return Ok(HangChoice { then: HangThen::Report, after: None }),
            "notify" => return Ok(HangChoice { then: HangThen::Notify, after: None }),
            "end" => return Ok(HangChoice { then: HangThen::End, after: None }),
            _ => {}
        }
        let time = text.strip_prefix("end,after=").ok_or(EXPECTED)?;
        let (number, unit) = time.split_at_checked(time.len().wrapping_sub(1)).ok_or(EXPECTED)?;
        let unit = match unit {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            _ => return Err(EXPECTED),
        };
        // `parse` alone would accept "+3".
        if number.len() > 6 || !number.bytes().all(|b| b.is_ascii_digit()) {
            return Err(EXPECTED);
        }
        let seconds = number.parse::<u64>().map_err(|_| EXPECTED)? * unit;
        let after = HANG_AFTER.contains(&seconds).then(|| Duration::from_secs(seconds));
        Ok(HangChoice { then: HangThen::End, after: Some(after.ok_or(EXPECTED)?) })
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
        for text in ["off", "quick", "full", "preflight"] {
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
        for text in ["report", "notify", "end", "end,after=600s"] {
            assert_eq!(text.parse::<HangChoice>().unwrap().to_string(), text);
        }
        assert_eq!("end,after=10m".parse::<HangChoice>().unwrap().to_string(), "end,after=600s");
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
        let hang =
            ["", "End", "end,", "end,after=", "end,after=s", "end,after=5", "end,after=+5m", "end,after=29s"];
        let more =
            ["end,after=25h", "end,after=9999999s", "report,after=5m", "end,after=5m,", "end,after=5é"];
        for text in hang.iter().chain(&more) {
            assert!(text.parse::<HangChoice>().is_err(), "{text:?}");
        }
        for text in ["", "../etc/passwd", "-x", "H100", "a b", "a\0", &"a".repeat(41)] {
            assert!(text.parse::<ProfileName>().is_err(), "{text:?}");
        }
    }
}
