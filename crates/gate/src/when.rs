use railgate_node::UnixMillis;

/// `2026-01-05T08:00:00.250Z`. Checks know no clock and no time type: this is arithmetic.
pub(crate) fn iso(time: UnixMillis) -> String {
    let (seconds, millis) = (time / 1000, time % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{millis:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// The date so many days after 1 January 1970. Years begin in March here, so that the leap day is the last.
fn date(days: u64) -> (u64, u64, u64) {
    const CENTURIES: u64 = 146_097;
    let days = days + 719_468;
    let (era, day) = (days / CENTURIES, days % CENTURIES);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let of_month = day - (153 * month + 2) / 5 + 1;
    let (month, year) = if month < 10 { (month + 3, year) } else { (month - 9, year + 1) };
    (era * 400 + year, month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (time, want) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (1_709_251_200_000, "2024-03-01T00:00:00.000Z"),
            (1_767_600_000_250, "2026-01-05T08:00:00.250Z"),
            (4_107_542_399_000, "2100-02-28T23:59:59.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(iso(time), want);
        }
        assert!(iso(u64::MAX).ends_with('Z'));
    }
}
