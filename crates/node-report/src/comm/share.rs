use serde::{Deserialize, Serialize};

/// Share of jobs that get the NCCL profiler plugin: `"off"`, `"all"`, or a percentage, `"25%"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Share(u8);

impl Share {
    /// Whether a job gets the plugin; returns the same on every node.
    pub fn takes(self, job: u32) -> bool {
        // Neighbouring ids, for example of a job array, are spread over the range (Knuth's multiplicative
        // hash).
        let place = (u64::from(job.wrapping_mul(2_654_435_761)) * 100) >> 32;
        place < u64::from(self.0)
    }
}

impl TryFrom<String> for Share {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let percent = match text.as_str() {
            "off" => Some(0),
            "all" => Some(100),
            other => {
                other.strip_suffix('%').and_then(|number| number.parse().ok()).filter(|part| *part <= 100)
            }
        };
        percent.map(Share).ok_or_else(|| format!("'{text}' is none of off, all and a percentage such as 25%"))
    }
}

impl From<Share> for String {
    fn from(share: Share) -> String {
        match share.0 {
            0 => "off".to_owned(),
            100 => "all".to_owned(),
            percent => format!("{percent}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_jobs_are_about_the_configured_percentage() {
        for (text, least, most) in [("off", 0, 0), ("all", 1000, 1000), ("25%", 200, 300), ("0%", 0, 0)] {
            let share = Share::try_from(text.to_owned()).unwrap();
            let taken = (5000..6000).filter(|job| share.takes(*job)).count();
            assert!((least..=most).contains(&taken), "{text}: {taken}");
        }
        assert_eq!(String::from(Share::try_from("25%".to_owned()).unwrap()), "25%");
        for text in ["", "on", "101%", "-1%", "25", "2.5%"] {
            assert!(Share::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
