use super::facts::{Bucket, Nvlink5Row, Origin, Pattern, Reach};
use super::generated::NVLINK5;

/// A line of an NVLink 5 error (Xid 144 to 150): `149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 …)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvlink5Line<'a> {
    /// Xid.
    pub code: u32,
    /// The part of the link that reports it: `NETIR_LINK_EVT`.
    pub unit: &'a str,
    /// `Fatal`, as against `Nonfatal`.
    pub fatal: bool,
    /// Number of the link; `None` for the whole GPU (`Link -1`).
    pub link: Option<u32>,
    /// First number in parentheses.
    pub intr_info: Option<u32>,
    /// Second number in parentheses.
    pub error_status: Option<u32>,
}

/// What the catalogue says of one NVLink 5 error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvlink5 {
    /// Xid.
    pub code: u32,
    /// The unit, by the name that the line or the newest driver has.
    pub unit: &'static str,
    /// Which error of the unit: bits 20 to 25 of the first number.
    pub subcode: u32,
    /// How far it reaches.
    pub reach: Reach,
    /// Where it usually comes from.
    pub origin: Origin,
    /// What to do at once.
    pub immediate: Bucket,
    /// What to investigate.
    pub investigatory: Bucket,
    /// `immediate` is the catalogue's second action, for a line that has the further bits.
    pub promoted: bool,
}

/// `None` for other codes, and for lines with another wording. Read from the end: a process name may stand before the sentence.
pub fn nvlink5_line(code: u32, text: &str) -> Option<Nvlink5Line<'_>> {
    if !(144..=150).contains(&code) {
        return None;
    }
    let (sentence, numbers) = text.trim_end().strip_suffix(')')?.rsplit_once('(')?;
    // `NETIR_LINK_EVT Fatal XC0 i0 Link 01`, backwards.
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

/// The catalogue's row for the two numbers of a line; `None` where it has none for them.
///
/// `intrInfo` has another layout since driver 575. The unit's name and bits belong together in both, so the line alone tells
/// which one it is.
pub fn nvlink5(code: u32, unit: &str, intr_info: u32, error_status: u32) -> Option<Nvlink5> {
    NVLINK5.iter().find_map(|row| row.read(code, unit, intr_info, error_status))
}

impl Nvlink5Line<'_> {
    /// The catalogue's row for it; `None` where it has none, or the line was cut.
    pub fn decode(&self) -> Option<Nvlink5> {
        nvlink5(self.code, self.unit, self.intr_info?, self.error_status?)
    }

    /// Which error of the unit: bits 20 to 25 of the first number.
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
