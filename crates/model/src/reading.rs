use serde::{Deserialize, Serialize};

/// A value that was read from the machine, or the reason why there is none.
///
/// In JSON: `{"known": 5}`, `"unsupported"`, `{"failed": "GPU is lost"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reading<T> {
    /// The value.
    Known(T),
    /// The machine has no such value. Not a fault unless the profile expects one.
    Unsupported,
    /// The read failed; the text gives the reason.
    Failed(String),
}

impl<T> Reading<T> {
    /// Returns the value, if it is known.
    pub fn known(&self) -> Option<&T> {
        match self {
            Reading::Known(value) => Some(value),
            Reading::Unsupported | Reading::Failed(_) => None,
        }
    }

    /// Converts the value with a function.
    pub fn map<U>(self, with: impl FnOnce(T) -> U) -> Reading<U> {
        match self {
            Reading::Known(value) => Reading::Known(with(value)),
            Reading::Unsupported => Reading::Unsupported,
            Reading::Failed(why) => Reading::Failed(why),
        }
    }

    /// Returns both values if both are known, otherwise the reason why the first missing one is missing.
    pub fn zip<U>(self, other: Reading<U>) -> Reading<(T, U)> {
        match (self, other) {
            (Reading::Known(one), Reading::Known(two)) => Reading::Known((one, two)),
            (Reading::Unsupported, _) | (Reading::Known(_), Reading::Unsupported) => Reading::Unsupported,
            (Reading::Failed(why), _) | (Reading::Known(_), Reading::Failed(why)) => Reading::Failed(why),
        }
    }

    /// Converts a result; an error becomes the reason.
    pub fn from_result<E: std::fmt::Display>(result: Result<T, E>) -> Self {
        match result {
            Ok(value) => Reading::Known(value),
            Err(why) => Reading::Failed(why.to_string()),
        }
    }
}

impl<T: std::fmt::Display> std::fmt::Display for Reading<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Reading::Known(value) => value.fmt(f),
            Reading::Unsupported => f.write_str("not supported"),
            Reading::Failed(why) => write!(f, "unknown ({why})"),
        }
    }
}
