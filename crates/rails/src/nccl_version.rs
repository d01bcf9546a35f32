use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// A release of NCCL, for example 2.28.9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NcclVersion {
    /// Major version: 2.
    pub major: u32,
    /// Minor version: 28.
    pub minor: u32,
    /// Patch version: 9.
    pub patch: u32,
}

impl NcclVersion {
    /// Creates a version, for example `new(2, 28, 9)`.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        NcclVersion { major, minor, patch }
    }
}

/// A text that is not a version of NCCL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a version of NCCL (2.28.9)")]
pub struct BadNcclVersion(String);

impl FromStr for NcclVersion {
    type Err = BadNcclVersion;

    /// Parses `2.28.9`, `2.28` (as 2.28.0), and `2.28.9-1` or `2.28.9+cuda13.0` as in packages and logs.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || BadNcclVersion(railgate_text::clip(text, 40));
        let plain = text.trim().split(['-', '+']).next().unwrap_or_default();
        let mut numbers = plain.split('.').map(|number| match number.len() {
            1..=3 => number.parse::<u32>().map_err(|_| bad()),
            _ => Err(bad()),
        });
        let mut next = || numbers.next().transpose();
        let (major, minor, patch) =
            (next()?.ok_or_else(bad)?, next()?.ok_or_else(bad)?, next()?.unwrap_or(0));
        if numbers.next().is_some() {
            return Err(bad());
        }
        Ok(NcclVersion { major, minor, patch })
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl Serialize for NcclVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_as_packages_and_logs_write_them() {
        let of = |text: &str| text.parse::<NcclVersion>();
        assert_eq!(of("2.28.9"), Ok(NcclVersion::new(2, 28, 9)));
        assert_eq!(of("2.28.9-1+cuda13.0"), Ok(NcclVersion::new(2, 28, 9)));
        assert_eq!(of("2.28"), Ok(NcclVersion::new(2, 28, 0)));
        for bad in ["", "2", "2.x.1", "2.28.9.1", "22809", "2..9", "2.-1.0"] {
            assert!(of(bad).is_err(), "{bad}");
        }
        assert!(NcclVersion::new(2, 9, 9) < NcclVersion::new(2, 28, 0));
        assert_eq!(NcclVersion::new(2, 28, 9).to_string(), "2.28.9");
    }
}
