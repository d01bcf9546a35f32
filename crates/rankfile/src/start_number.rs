/// Variable with the number of the start: a launcher may start a step several times inside one attempt of the job, and
/// counts from 0.
pub const START_VARIABLE: &str = "RAILGATE_START";
/// Start numbers are below this. A user can write the variable and the file.
pub const MOST_STARTS: u32 = 1_000_000;

/// The number of the start, from the value of [`START_VARIABLE`]. Anything but a decimal number below [`MOST_STARTS`] is 0,
/// as is a variable that is not set.
pub fn start_number(value: &[u8]) -> u32 {
    let digits =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    digits.and_then(|text| text.parse().ok()).filter(|number| *number < MOST_STARTS).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_small_decimal_number_counts() {
        for (value, number) in [("0", 0), ("1", 1), ("007", 7), ("999999", 999_999)] {
            assert_eq!(start_number(value.as_bytes()), number, "{value}");
        }
        for value in ["", "-1", "+1", " 1", "1\n", "1e3", "0x1", "1000000", "99999999999999999999999", "²"] {
            assert_eq!(start_number(value.as_bytes()), 0, "{value}");
        }
        assert_eq!(start_number(b"\xff1"), 0);
    }
}
