//! Reads the memory of transceiver modules through ethtool's netlink family.
//!
//! The two layouts in use (SFF-8636 for QSFP28 and QSFP56, CMIS for QSFP-DD and OSFP) are decoded by pure functions
//! over pages of 128 bytes. Copper cables have no monitors, and identify themselves as copper.

mod cmis;
mod netlink;
mod sff8636;

use std::time::Duration;

use railgate_model::{Limits, Module, Monitor, Optic, Part, Reading};

use crate::answer;

pub(crate) const TASK: &str = "node-optics";

/// A page of module memory: 128 bytes, half of the visible 256.
pub(crate) type Page = [u8; 128];

/// Decodes a module from its lower page; `upper` reads the upper half of a page.
///
/// # Errors
/// Returns an error if a page cannot be read, or if the module type is not supported.
pub(crate) fn decode(
    lower: &Page,
    upper: &mut dyn FnMut(u8) -> Result<Page, String>,
) -> Result<Module, String> {
    match lower[0] {
        0x0c | 0x0d | 0x11 => sff8636::decode(lower, upper),
        0x18 | 0x19 | 0x1e => cmis::decode(lower, upper),
        other => Err(format!("unsupported module type 0x{other:02x}")),
    }
}

/// Decodes a module from a memory dump: its lower page, then any number of upper pages from 00h on, 128 bytes each
/// (`ethtool -m DEVICE raw on` writes the first ones).
///
/// # Errors
/// Returns an error if a needed page is beyond the end of the dump, or if the module type is not supported.
pub fn module_of_dump(memory: &[u8]) -> Result<Module, String> {
    let page = |nth: usize| -> Result<Page, String> {
        let bytes = memory.get(nth * 128..(nth + 1) * 128).and_then(|bytes| bytes.try_into().ok());
        bytes.ok_or_else(|| format!("the dump ends after {} bytes", memory.len()))
    };
    let lower = page(0)?;
    decode(&lower, &mut |upper| page(usize::from(upper) + 1))
}

/// Reads the modules of these devices (RDMA device and interface) of this machine, within the deadline.
pub(crate) fn optics(devices: &[(String, String)], deadline: Duration) -> Part<Vec<Optic>> {
    answer::asked(TASK, &devices, deadline)
}

pub(crate) fn task(input: &[u8]) -> Result<Vec<u8>, String> {
    let devices: Vec<(String, String)> =
        serde_json::from_slice(input).map_err(|why| format!("input: {why}"))?;
    let ethtool = netlink::Ethtool::open()?;
    let optic = |(device, interface): (String, String)| Optic {
        module: ethtool.as_ref().map_or(Reading::Unsupported, |ethtool| ethtool.module(&interface)),
        device,
        interface,
    };
    let optics: Vec<Optic> = devices.into_iter().map(optic).collect();
    serde_json::to_vec(&optics).map_err(|why| format!("reply: {why}"))
}

/// A 16-bit value, most significant byte first.
fn word(page: &[u8], at: usize) -> u16 {
    let byte = |at: usize| page.get(at).copied().unwrap_or_default();
    u16::from_be_bytes([byte(at), byte(at + 1)])
}

/// A temperature in units of 1/256 degrees, signed.
fn celsius(page: &[u8], at: usize) -> f64 {
    f64::from(i16::from_be_bytes(word(page, at).to_be_bytes())) / 256.0
}

/// A power in units of 0.1 microwatts.
fn milliwatts(page: &[u8], at: usize) -> f64 {
    f64::from(word(page, at)) / 10_000.0
}

/// High alarm, low alarm, high warning, low warning, two bytes each. All zeros mean that there are none.
fn limits(page: &[u8], at: usize, value: impl Fn(&[u8], usize) -> f64) -> Option<Limits> {
    let set = (at..at + 8).any(|at| page.get(at).is_some_and(|byte| *byte != 0));
    let nth = |nth: usize| value(page, at + 2 * nth);
    set.then(|| Limits { high_alarm: nth(0), low_alarm: nth(1), high_warning: nth(2), low_warning: nth(3) })
}

/// A name in ASCII, padded with blanks (or, against the standard, with zeros).
fn text(page: &[u8], at: usize) -> String {
    let bytes = page.get(at..at + 16).unwrap_or_default();
    let clean = |byte: &u8| match byte {
        0 | b' ' => ' ',
        graphic if graphic.is_ascii_graphic() => char::from(*graphic),
        _ => '?',
    };
    bytes.iter().map(clean).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_dump_with_missing_pages_is_an_error() {
        let mut memory = vec![0; 256];
        memory[0] = 0x11;
        memory[2] = 4;
        memory[128 + 20..128 + 28].copy_from_slice(b"Mellanox");
        assert_eq!(module_of_dump(&memory).unwrap().name[0], "Mellanox");
        // A module with paged memory has its limits on a page that is missing here.
        memory[2] = 0;
        assert_eq!(module_of_dump(&memory).unwrap_err(), "the dump ends after 256 bytes");
        assert!(module_of_dump(&[]).is_err());
    }

    /// Inputs that fuzzing found.
    #[test]
    fn the_fuzzing_corpus_is_decoded_without_panic() {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/optic");
        let modules = std::fs::read_dir(seeds)
            .unwrap()
            .filter_map(|seed| module_of_dump(&std::fs::read(seed.unwrap().path()).unwrap()).ok());
        assert!(modules.count() >= 3);
    }

    proptest! {
        #[test]
        fn any_module_memory_is_decoded_or_rejected(
            kind in prop::sample::select(vec![0x0c_u8, 0x0d, 0x11, 0x18, 0x19, 0x1e, 0x03]),
            lower in prop::collection::vec(any::<u8>(), 128),
            upper in prop::collection::vec(any::<u8>(), 128),
            fails in any::<u8>(),
        ) {
            let mut lower: Page = lower.try_into().unwrap();
            lower[0] = kind;
            let upper: Page = upper.try_into().unwrap();
            let mut read = |page: u8| if page == fails { Err("i2c".to_owned()) } else { Ok(upper) };
            if let Ok(module) = decode(&lower, &mut read) {
                for monitor in [&module.temperature_c, &module.receive_mw, &module.bias_ma].into_iter().flatten() {
                    prop_assert!(monitor.values.len() <= 8);
                    prop_assert!(monitor.values.iter().all(|value| value.is_finite()));
                }
                prop_assert!(!module.copper || module.receive_mw.is_none());
                prop_assert!(module.name.iter().all(|name| name.is_ascii() && name.len() <= 16));
            }
        }
    }
}
