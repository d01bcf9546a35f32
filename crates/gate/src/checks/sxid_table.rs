//! What each SXid of an NVSwitch means, as data (fabric manager guide).

/// The fabric is lost until the node is booted, whatever the job does.
const ALWAYS_FATAL: &[u32] = &[
    10003, 12020, 22003, 22011, 23001, 23002, 23003, 23004, 23005, 23006, 23007, 23008, 23009, 23010, 23011,
    23012, 23013, 23014, 23015, 23016, 23017,
];

/// A link between switch and GPU failed: what a GPU that falls off the bus leaves behind on the other side.
pub(super) const LINK_FAULT: u32 = 20034;

/// In a few words, where it is known.
const NAMES: &[(u32, &str)] = &[
    (10003, "host error"),
    (11004, "ingress: wrong routing"),
    (12020, "egress: sequence error"),
    (20001, "link replays"),
    (20009, "link error rate"),
    (20034, "link fault"),
    (22003, "switch needs recovery"),
    (22011, "uncontained error"),
];

pub(super) fn always_fatal(code: u32) -> bool {
    ALWAYS_FATAL.binary_search(&code).is_ok()
}

pub(super) fn name(code: u32) -> Option<&'static str> {
    NAMES.binary_search_by_key(&code, |(known, _)| *known).ok().map(|at| NAMES[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_sorted() {
        assert!(ALWAYS_FATAL.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
        assert!(always_fatal(23017) && !always_fatal(LINK_FAULT) && name(LINK_FAULT).is_some());
    }
}
