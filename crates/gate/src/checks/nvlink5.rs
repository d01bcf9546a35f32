//! The words of an NVLink 5 event (Xid 144 to 150).

/// What one line says: `149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 …)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// The part of the link that speaks: `NETIR_LINK_EVT`.
    pub(super) unit: &'a str,
    pub(super) fatal: bool,
    pub(super) link: Option<u32>,
    /// Bits 20 to 25 of the first number: which error of that unit.
    pub(super) subcode: Option<u32>,
}

/// `None` for other codes, and for lines in other words. Read from the end: a process name may stand before the sentence.
pub(super) fn event(code: u32, text: &str) -> Option<Event<'_>> {
    if !(144..=150).contains(&code) {
        return None;
    }
    let (said, numbers) = text.trim_end().strip_suffix(')')?.rsplit_once('(')?;
    // `NETIR_LINK_EVT Fatal XC0 i0 Link 01`, backwards.
    let mut words = said.split_whitespace().rev();
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
    let first = numbers.split_whitespace().next().and_then(|number| number.strip_prefix("0x"));
    let number = first.and_then(|hex| u32::from_str_radix(hex, 16).ok());
    Some(Event { unit, fatal, link, subcode: number.map(|number| number >> 20 & 0x3f) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_drivers_words() {
        let line =
            "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)";
        let want = Event { unit: "NETIR_LINK_EVT", fatal: true, link: Some(1), subcode: Some(0x21) };
        assert_eq!(event(149, line), Some(want));
        let line = "NVRM: Xid (PCI:0008:01:00): 145, RLW_SRC_TRACK   Nonfatal XC1 i0 Link 17 (0x00000002)";
        let want = Event { unit: "RLW_SRC_TRACK", fatal: false, link: Some(17), subcode: Some(0) };
        assert_eq!(event(145, line), Some(want));
        assert_eq!(event(145, "NVRM: Xid (PCI:0008:01:00): 145, in words of tomorrow"), None);
        assert_eq!(event(79, line), None);
        let named = "NVRM: Xid (PCI:0008:01:00): 145, pid=1, name=A Fatal XC0 i0, RLW_SRC_TRACK   Nonfatal XC1 i0 Link 17 (0x00000002)";
        assert_eq!(event(145, named), Some(want), "a process name is not fatal");
    }

    proptest! {
        #[test]
        fn any_text_is_survived(code in 140_u32..155, text in "([a-zA-Z(]{0,5} |Fatal |Link |\\(0x[0-9a-f]{0,12} ?){0,9}") {
            let _ = event(code, &text);
        }
    }
}
