//! Times of day, at a fixed distance from UTC.

use std::fmt;

use railgate_model::UnixMillis;
use serde::{Deserialize, Serialize};

const MINUTE: UnixMillis = 60_000;
const DAY_MINUTES: u32 = 24 * 60;
const DAY: UnixMillis = DAY_MINUTES as u64 * MINUTE;

/// A time of day, `07:30`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DayTime {
    /// Minutes since midnight, 0 to 1439.
    minutes: u32,
}

/// A part of each day, `22:00-07:00`. The end may be on the next day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct QuietHours {
    from: DayTime,
    to: DayTime,
}

/// Distance of the site's time from UTC, `+08:00`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UtcOffset {
    /// Minutes east of UTC, -840 to 840.
    minutes: i32,
}

/// `HH:MM` as minutes.
fn clock(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str, below| {
        let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|number| digits && *number < below)
    };
    Some(number(hours, 24)? * 60 + number(minutes, 60)?)
}

impl TryFrom<String> for DayTime {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let minutes = clock(&text).ok_or_else(|| format!("'{text}' is not a time of day like 07:30"))?;
        Ok(DayTime { minutes })
    }
}

impl TryFrom<String> for QuietHours {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts = text.split_once('-').and_then(|(from, to)| Some((clock(from)?, clock(to)?)));
        match parts {
            Some((from, to)) if from != to => {
                Ok(QuietHours { from: DayTime { minutes: from }, to: DayTime { minutes: to } })
            }
            _ => Err(format!("'{text}' is not a part of a day like 22:00-07:00")),
        }
    }
}

impl TryFrom<String> for UtcOffset {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let minutes = match (text.strip_prefix('+'), text.strip_prefix('-')) {
            (Some(east), _) => clock(east).and_then(|minutes| i32::try_from(minutes).ok()),
            (_, Some(west)) => clock(west).and_then(|minutes| i32::try_from(minutes).ok()).map(|west| -west),
            _ => None,
        };
        let minutes = minutes.filter(|minutes| minutes.abs() <= 14 * 60);
        minutes
            .map(|minutes| UtcOffset { minutes })
            .ok_or_else(|| format!("'{text}' is not a distance from UTC like +08:00"))
    }
}

impl fmt::Display for DayTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.minutes / 60, self.minutes % 60)
    }
}

impl fmt::Display for QuietHours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.from, self.to)
    }
}

impl fmt::Display for UtcOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.minutes < 0 { '-' } else { '+' };
        write!(f, "{sign}{:02}:{:02}", self.minutes.abs() / 60, self.minutes.abs() % 60)
    }
}

impl From<DayTime> for String {
    fn from(time: DayTime) -> String {
        time.to_string()
    }
}

impl From<QuietHours> for String {
    fn from(hours: QuietHours) -> String {
        hours.to_string()
    }
}

impl From<UtcOffset> for String {
    fn from(offset: UtcOffset) -> String {
        offset.to_string()
    }
}

impl UtcOffset {
    /// Milliseconds since the epoch as the site's clock shows them.
    fn local(self, now: UnixMillis) -> UnixMillis {
        now.saturating_add_signed(i64::from(self.minutes) * 60_000)
    }

    /// Minutes since the site's midnight.
    fn minutes_of_day(self, now: UnixMillis) -> u32 {
        u32::try_from(self.local(now) % DAY / MINUTE).unwrap_or_default()
    }

    /// The time as the site's clock shows it, for example `2026-01-05 08:00 +08:00`.
    pub fn show(self, time: UnixMillis) -> String {
        let Some(text) = railgate_model::rfc3339(self.local(time)) else { return "-".to_owned() };
        let zone = if self.minutes == 0 { "UTC".to_owned() } else { self.to_string() };
        let minute: String = text.chars().take(16).map(|c| if c == 'T' { ' ' } else { c }).collect();
        format!("{minute} {zone}")
    }
}

impl QuietHours {
    /// Whether they apply now.
    pub(crate) fn cover(self, now: UnixMillis, offset: UtcOffset) -> bool {
        let minutes = offset.minutes_of_day(now);
        let (from, to) = (self.from.minutes, self.to.minutes);
        if from < to { (from..to).contains(&minutes) } else { minutes >= from || minutes < to }
    }
}

impl DayTime {
    /// The last time up to now at which a clock of the site showed it.
    pub(crate) fn last(self, now: UnixMillis, offset: UtcOffset) -> UnixMillis {
        let past = offset.local(now) % DAY;
        let want = u64::from(self.minutes) * MINUTE;
        now.saturating_sub((past + DAY - want) % DAY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(text: &str) -> QuietHours {
        QuietHours::try_from(text.to_owned()).unwrap()
    }

    fn offset(text: &str) -> UtcOffset {
        UtcOffset::try_from(text.to_owned()).unwrap()
    }

    /// 2026-01-05 00:00 UTC.
    const MIDNIGHT: UnixMillis = 1_767_571_200_000;

    #[test]
    fn quiet_hours_may_pass_midnight_and_their_end_is_not_quiet() {
        for (quiet, zone, at, want) in [
            ("22:00-07:00", "+00:00", 22 * 60, true),
            ("22:00-07:00", "+00:00", 22 * 60 - 1, false),
            ("22:00-07:00", "+00:00", 6 * 60 + 59, true),
            ("22:00-07:00", "+00:00", 7 * 60, false),
            ("12:00-13:00", "+00:00", 12 * 60 + 30, true),
            ("12:00-13:00", "+00:00", 13 * 60, false),
            ("22:00-07:00", "+08:00", 14 * 60, true),
            ("22:00-07:00", "-05:30", 3 * 60 + 29, false),
            ("22:00-07:00", "-05:30", 3 * 60 + 30, true),
        ] {
            assert_eq!(hours(quiet).cover(MIDNIGHT + at * MINUTE, offset(zone)), want, "{quiet} {zone} {at}");
        }
    }

    #[test]
    fn the_last_time_of_day_is_today_or_yesterday() {
        let nine = DayTime::try_from("09:00".to_owned()).unwrap();
        let hour = 60 * MINUTE;
        for (zone, now, want) in [
            ("+00:00", 9 * hour, 9 * hour),
            ("+00:00", 10 * hour, 9 * hour),
            ("+00:00", 33 * hour - 1, 9 * hour),
            ("+08:00", 2 * hour, hour),
        ] {
            assert_eq!(nine.last(MIDNIGHT + now, offset(zone)), MIDNIGHT + want, "{zone} {now}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["7:30", "24:00", "07:60", "0730", "", "+7:30", "07:3a"] {
            assert!(DayTime::try_from(text.to_owned()).is_err(), "{text}");
        }
        for text in ["22:00", "22:00-22:00", "22:00-7:00", "22:00 - 07:00"] {
            assert!(QuietHours::try_from(text.to_owned()).is_err(), "{text}");
        }
        for text in ["08:00", "+15:00", "+08", "Z", "+14:01"] {
            assert!(UtcOffset::try_from(text.to_owned()).is_err(), "{text}");
        }
        assert_eq!(offset("-05:30").to_string(), "-05:30");
        assert_eq!(hours("22:00-07:00").to_string(), "22:00-07:00");
        assert_eq!(offset("+08:00").show(MIDNIGHT), "2026-01-05 08:00 +08:00");
    }
}
