use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::NcclVersion;

/// A range of NCCL releases, for example `>=2.28.7`, `<2.30.7`, or both with a comma. Without bounds it contains all
/// releases, including unknown ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NcclRange {
    /// First release in the range.
    pub from: Option<NcclVersion>,
    /// First release after the range.
    pub below: Option<NcclVersion>,
}

/// A text that is not a range of releases.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a range of NCCL releases ('>=2.28.7', '<2.30.7', or both with a comma)")]
pub struct BadNcclRange(String);

impl NcclRange {
    /// Every release, including unknown ones.
    pub const ALL: NcclRange = NcclRange { from: None, below: None };

    /// Returns the range of this release and all later ones.
    pub const fn since(from: NcclVersion) -> Self {
        NcclRange { from: Some(from), below: None }
    }

    /// Returns whether there is no bound, so that a value can be set without knowing the release.
    pub fn is_all(&self) -> bool {
        *self == NcclRange::ALL
    }

    /// Returns whether a release is in the range.
    pub fn has(&self, version: NcclVersion) -> bool {
        self.from.is_none_or(|from| version >= from) && self.below.is_none_or(|below| version < below)
    }
}

impl FromStr for NcclRange {
    type Err = BadNcclRange;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadNcclRange(railgate_text::clip(text, 60));
        let mut range = NcclRange::ALL;
        for part in text.split(',') {
            let part = part.trim();
            let (place, version) = match (part.strip_prefix(">="), part.strip_prefix('<')) {
                (Some(version), _) => (&mut range.from, version),
                (_, Some(version)) => (&mut range.below, version),
                (None, None) => return Err(bad()),
            };
            let version: NcclVersion = version.trim().parse().map_err(|_| bad())?;
            // NCCL gives its release to plugins in three bytes.
            if [version.major, version.minor, version.patch].iter().any(|number| *number > 255) {
                return Err(bad());
            }
            if place.replace(version).is_some() {
                return Err(bad());
            }
        }
        match range {
            NcclRange { from: Some(from), below: Some(below) } if from >= below => Err(bad()),
            range => Ok(range),
        }
    }
}

impl fmt::Display for NcclRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.from, self.below) {
            (Some(from), Some(below)) => write!(f, ">={from},<{below}"),
            (Some(from), None) => write!(f, ">={from}"),
            (None, Some(below)) => write!(f, "<{below}"),
            (None, None) => f.write_str("all"),
        }
    }
}

impl Serialize for NcclRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NcclRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_survive_a_round_trip() {
        let of = |text: &str| text.parse::<NcclRange>();
        for text in [">=2.28.7", "<2.30.7", ">=2.29.2,<2.30.7"] {
            assert_eq!(of(text).unwrap().to_string(), text);
        }
        assert_eq!(of("< 2.30 , >=2.29").unwrap().to_string(), ">=2.29.0,<2.30.0");
        for bad in ["", "2.28.7", "=2.28.7", ">=2.28.7,", "<2.28,<2.29", ">=2.30,<2.29", ">=2.300.1", "all"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_upper_bound_is_excluded() {
        let range: NcclRange = ">=2.29.2,<2.30.7".parse().unwrap();
        let has = |patch: (u32, u32)| range.has(NcclVersion::new(2, patch.0, patch.1));
        assert!(has((29, 2)) && has((30, 6)) && !has((30, 7)) && !has((28, 9)));
        assert!(NcclRange::ALL.has(NcclVersion::new(2, 4, 8)) && NcclRange::ALL.is_all());
    }
}
