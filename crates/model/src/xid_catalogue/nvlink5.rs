use super::facts::{Bucket, Nvlink5Row, Origin, Pattern, Reach};
use super::generated::NVLINK5;

/// A line of an NVLink 5 error (Xid 144 to 150):
/// `149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 …)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvlink5Line<'a> {
    /// Xid.
    pub code: u32,
    /// The unit of the link that reports the error, for example `NETIR_LINK_EVT`.
    pub unit: &'a str,
    /// `Fatal` rather than `Nonfatal`.
    pub fatal: bool,
    /// Link number; `None` for the whole GPU (`Link -1`).
    pub link: Option<u32>,
    /// First number in parentheses.
    pub intr_info: Option<u32>,
    /// Second number in parentheses.
    pub error_status: Option<u32>,
}

/// The catalogue's row for one NVLink 5 error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvlink5 {
    /// Xid.
    pub code: u32,
    /// Name of the unit, in the spelling of the line or of the newest driver.
    pub unit: &'static str,
    /// Error of the unit: bits 20 to 25 of the first number.
    pub subcode: u32,
    /// Extent of the error.
    pub reach: Reach,
    /// Usual origin.
    pub origin: Origin,
    /// Immediate action.
    pub immediate: Bucket,
    /// Investigatory action.
    pub investigatory: Bucket,
    /// Whether `immediate` is the catalogue's second action, because the further bits are set.
    pub promoted: bool,
}

/// Parses an NVLink 5 record. Returns `None` for other codes and unknown wordings. Parses from the end, because a
/// process name can precede the sentence.
pub fn nvlink5_line(code: u32, text: &str) -> Option<Nvlink5Line<'_>> {
    if !(144..=150).contains(&code) {
        return None;
    }
    let (sentence, numbers) = text.trim_end().strip_suffix(')')?.rsplit_once('(')?;
    // `NETIR_LINK_EVT Fatal XC0 i0 Link 01`, word by word from the end.
    let mut words = sentence.split_whitespace().rev();
    let link = words.next()?.parse().ok();
    (words.next()? == "Link").then_some(())?;
    words.next()?.strip_prefix('i')?;
    words.next()?.strip_prefix("XC")?;
    let fatal = match words.next()? {
        "Fatal" => true,
        "Nonfatal" | "Non-fatal" | "NonFatal" => false,
        _ => return None,
    };
    let unit = words.next()?;
    let mut numbers = numbers
        .split_whitespace()
        .map(|number| number.strip_prefix("0x").and_then(|hex| u32::from_str_radix(hex, 16).ok()));
    let (intr_info, error_status) = (numbers.next().flatten(), numbers.next().flatten());
    Some(Nvlink5Line { code, unit, fatal, link, intr_info, error_status })
}

/// Returns the catalogue's row for the two numbers of a line; `None` if it has no such row.
///
/// `intrInfo` has another layout since driver 575. Name of the unit and bits agree in only one of the two layouts, so the line
/// alone determines the layout.
pub fn nvlink5(code: u32, unit: &str, intr_info: u32, error_status: u32) -> Option<Nvlink5> {
    NVLINK5.iter().find_map(|row| row.read(code, unit, intr_info, error_status))
}

impl Nvlink5Line<'_> {
    /// Returns the catalogue's row for this line; `None` if there is none, or if the line was truncated.
    pub fn decode(&self) -> Option<Nvlink5> {
        nvlink5(self.code, self.unit, self.intr_info?, self.error_status?)
    }

    /// Returns the error of the unit: bits 20 to 25 of the first number.
    pub fn subcode(&self) -> Option<u32> {
        self.intr_info.map(subcode)
    }
}

fn subcode(intr_info: u32) -> u32 {
    intr_info >> 20 & 0x3f
}

impl Nvlink5Row {
    fn read(&self, code: u32, unit: &str, intr_info: u32, error_status: u32) -> Option<Nvlink5> {
        let of_unit = |name: &str| unit == name || name.split(' ').next_back() == Some(unit);
        let known = |name: &'static str, plain: Pattern, further: Option<Pattern>| {
            let promoted = further.is_some_and(|further| further.matches(intr_info));
            (of_unit(name) && (promoted || plain.matches(intr_info))).then_some((name, promoted))
        };
        if code != self.code || !(self.statuses.is_empty() || self.statuses.contains(&error_status)) {
            return None;
        }
        let (unit, promoted) = known(self.unit_v2, self.v2, self.promotion.map(|promotion| promotion.v2))
            .or_else(|| known(self.unit_v1, self.v1, self.promotion.map(|promotion| promotion.v1)))?;
        let immediate = match self.promotion {
            Some(promotion) if promoted => promotion.immediate,
            _ => self.immediate,
        };
        let (reach, origin, investigatory) = (self.reach, self.origin, self.investigatory);
        let subcode = subcode(intr_info);
        Some(Nvlink5 { code, unit, subcode, reach, origin, immediate, investigatory, promoted })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(code: u32, text: &str) -> (&str, bool, Option<u32>, Option<u32>, Option<Bucket>) {
        let line = nvlink5_line(code, text).unwrap();
        (line.unit, line.fatal, line.link, line.subcode(), line.decode().map(|row| row.immediate))
    }

    /// Lines of GB200 nodes, as quoted in the tests of leptonai/gpud and NVIDIA/NVSentinel.
    #[test]
    fn a_line_is_parsed_and_decoded() {
        let line =
            "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)";
        assert_eq!(read(149, line), ("NETIR_LINK_EVT", true, Some(1), Some(33), Some(Bucket::ResetGpu)));
        let line = "NVRM: Xid (PCI:0008:01:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x0)";
        assert_eq!(read(145, line), ("RLW_SRC_TRACK", false, Some(12), Some(0), Some(Bucket::Xid154Eval)));
        let line =
            "NVRM: Xid (PCI:0008:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000)";
        assert_eq!(read(149, line), ("NETIR", true, None, Some(0), Some(Bucket::ResetGpu)));
        let named = "NVRM: Xid (PCI:0008:01:00): 145, pid=1, name=A Fatal XC0 i0, RLW_SRC_TRACK   Nonfatal XC1 i0 Link 17 (0x00000007 0x00000002)";
        assert_eq!(
            read(145, named),
            ("RLW_SRC_TRACK", false, Some(17), Some(0), Some(Bucket::Ignore)),
            "a process name is not fatal"
        );
        assert_eq!(nvlink5_line(145, "NVRM: Xid (PCI:0008:01:00): 145, with another wording"), None);
        assert_eq!(nvlink5_line(79, line), None);
    }

    #[test]
    fn numbers_of_another_unit_are_not_decoded() {
        assert!(nvlink5(149, "NETIR_LINK_EVT", 0x0000_01c6, 0).is_some());
        assert_eq!(nvlink5(149, "NETIR_BER_EVENT", 0x0000_01c6, 0), None, "the unit's bits are another's");
        assert_eq!(nvlink5(145, "NETIR_LINK_EVT", 0x0000_01c6, 0), None, "another Xid");
        assert_eq!(nvlink5(149, "NETIR_LINK_EVT", 0x03f0_01c6, 0), None, "no such subcode");
        assert_eq!(nvlink5(144, "SAW_MVB", 0x0000_0021, 0x0000_0040), None, "no such error status");
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(
            code in 140_u32..155,
            text in "([a-zA-Z(]{0,5} |Fatal |Link |\\(0x[0-9a-f]{0,12} ?){0,9}\\)?",
        ) {
            let _ = nvlink5_line(code, &text).map(|line| line.decode());
        }
    }
}
