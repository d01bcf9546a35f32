use super::{Limits, Module, Monitor, Page, celsius, limits, milliwatts, text, word};

/// Decodes a module with four lanes. Upper halves are counted from 0 here and from 128 in the standard.
pub(super) fn decode(
    lower: &Page,
    upper: &mut dyn FnMut(u8) -> Result<Page, String>,
) -> Result<Module, String> {
    // Data_Not_Ready and Flat_mem in the status (byte 2).
    const NOT_READY: u8 = 1;
    const FLAT: u8 = 4;
    if lower[2] & NOT_READY != 0 {
        return Err("the module reports that its values are not ready".to_owned());
    }
    let names = upper(0)?;
    let name = [text(&names, 20), text(&names, 40), text(&names, 68)];
    // Transmitter technology (page 00h, byte 147, bits 7-4): values from 10 on are copper.
    let copper = names[19] >> 4 >= 10;
    if copper {
        return Ok(Module {
            name,
            copper,
            temperature_c: None,
            receive_mw: None,
            bias_ma: None,
            alarms: Vec::new(),
            warnings: Vec::new(),
        });
    }
    let thresholds = if lower[2] & FLAT == 0 { Some(upper(3)?) } else { None };
    let of = |at: usize, value: fn(&[u8], usize) -> f64| -> Option<Limits> {
        limits(thresholds.as_ref()?, at, value)
    };
    let lanes = |at: usize, value: fn(&[u8], usize) -> f64| -> Vec<f64> {
        (0..4).map(|lane| value(lower, at + 2 * lane)).collect()
    };
    let (mut alarms, mut warnings) = (Vec::new(), Vec::new());
    flags(lower, &mut alarms, &mut warnings);
    let temperature = celsius(lower, 22);
    // A module without a monitor reports zero and has no limits; with limits, zero means no light.
    let measured = |monitor: Monitor| {
        (monitor.limits.is_some() || monitor.values.iter().any(|value| *value > 0.0)).then_some(monitor)
    };
    Ok(Module {
        name,
        copper,
        temperature_c: (word(lower, 22) != 0)
            .then(|| Monitor { values: vec![temperature], limits: of(0, celsius) }),
        receive_mw: measured(Monitor { values: lanes(34, milliwatts), limits: of(48, milliwatts) }),
        bias_ma: measured(Monitor { values: lanes(42, bias), limits: of(56, bias) }),
        alarms,
        warnings,
    })
}

/// A bias current in units of 2 microamperes.
fn bias(page: &[u8], at: usize) -> f64 {
    f64::from(word(page, at)) / 500.0
}

/// Flags in bytes 3 (loss of signal, received lanes in the low half), 4 (faults), 6 (temperature), 9 and 10 (receive
/// power), 11 and 12 (bias): high alarm, low alarm, high warning, low warning, from bit 7 or 3 downwards.
fn flags(lower: &Page, alarms: &mut Vec<String>, warnings: &mut Vec<String>) {
    for lane in 0..4 {
        if lower[3] & (1 << lane) != 0 {
            alarms.push(format!("no light received (lane {})", lane + 1));
        }
        if lower[4] & (1 << lane) != 0 {
            alarms.push(format!("transmitter fault (lane {})", lane + 1));
        }
    }
    let mut four = |flags: u8, what: &str, of: &str| {
        let words = ["high", "low", "high", "low"];
        for (nth, word) in words.iter().enumerate() {
            if flags & (8 >> nth) != 0 {
                let list = if nth < 2 { &mut *alarms } else { &mut *warnings };
                list.push(format!("{what} {word}{of}"));
            }
        }
    };
    four(lower[6] >> 4, "temperature", "");
    for (at, what) in [(9, "receive power"), (11, "bias")] {
        for lane in 0..4 {
            let byte = lower[at + lane / 2];
            let nibble = if lane % 2 == 0 { byte >> 4 } else { byte & 15 };
            four(nibble, what, &format!(" (lane {})", lane + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(page: &mut Page, at: usize, values: &[u16]) {
        for (nth, value) in values.iter().enumerate() {
            page[at + 2 * nth..at + 2 * nth + 2].copy_from_slice(&value.to_be_bytes());
        }
    }

    fn pages() -> (Page, Page, Page) {
        let (mut lower, mut names, mut thresholds) = ([0; 128], [b' '; 128], [0; 128]);
        lower[0] = 0x11;
        put(&mut lower, 22, &[0x2d80]);
        put(&mut lower, 34, &[10_000, 9_000, 8_000, 10_500]);
        put(&mut lower, 42, &[3_500; 4]);
        names[19] = 0x00;
        names[20..28].copy_from_slice(b"Mellanox");
        names[40..51].copy_from_slice(b"MMA1B00-E10");
        names[68..78].copy_from_slice(b"MT2019FT01");
        put(&mut thresholds, 0, &[0x5000, 0xf600, 0x4b00, 0xfb00]);
        put(&mut thresholds, 48, &[34_673, 467, 17_378, 933]);
        put(&mut thresholds, 56, &[5_000, 1_000, 4_750, 1_250]);
        (lower, names, thresholds)
    }

    fn decoded(lower: &Page, names: &Page, thresholds: &Page) -> Result<Module, String> {
        decode(lower, &mut |page| Ok(if page == 0 { *names } else { *thresholds }))
    }

    #[test]
    fn a_healthy_module_has_values_and_no_flags() {
        let (lower, names, thresholds) = pages();
        let module = decoded(&lower, &names, &thresholds).unwrap();
        assert_eq!(module.name, ["Mellanox", "MMA1B00-E10", "MT2019FT01"]);
        let temperature = module.temperature_c.unwrap();
        assert_eq!((temperature.values[0], temperature.limits.unwrap().high_alarm), (45.5, 80.0));
        assert_eq!(temperature.limits.unwrap().low_alarm, -10.0);
        let receive = module.receive_mw.unwrap();
        assert_eq!(receive.values, [1.0, 0.9, 0.8, 1.05]);
        assert_eq!(receive.limits.unwrap().low_warning, 0.0933);
        assert_eq!(module.bias_ma.unwrap().values, [7.0; 4]);
        assert!(module.alarms.is_empty() && module.warnings.is_empty());
    }

    #[test]
    fn flags_are_described_in_words() {
        let (mut lower, names, thresholds) = pages();
        lower[3] = 0b0000_0010;
        lower[6] = 0b1010_0000;
        lower[9] = 0b0000_0100;
        let module = decoded(&lower, &names, &thresholds).unwrap();
        assert_eq!(
            module.alarms,
            ["no light received (lane 2)", "temperature high", "receive power low (lane 2)"]
        );
        assert_eq!(module.warnings, ["temperature high"]);
    }

    #[test]
    fn a_zero_without_limits_is_no_value() {
        let (mut lower, names, mut thresholds) = pages();
        put(&mut lower, 34, &[0; 4]);
        let dark = decoded(&lower, &names, &thresholds).unwrap();
        assert_eq!(dark.receive_mw.unwrap().values, [0.0; 4]);
        thresholds[48..56].fill(0);
        let blind = decoded(&lower, &names, &thresholds).unwrap();
        assert!(blind.receive_mw.is_none() && blind.bias_ma.is_some());
    }

    #[test]
    fn copper_has_no_monitors_and_flat_memory_no_limits() {
        let (mut lower, mut names, thresholds) = pages();
        lower[2] = 4;
        let flat =
            decode(&lower, &mut |page| if page == 0 { Ok(names) } else { Err("no such page".to_owned()) });
        assert_eq!(flat.unwrap().receive_mw.unwrap().limits, None);
        names[19] = 0xa0;
        let copper = decoded(&lower, &names, &thresholds).unwrap();
        assert!(copper.copper && copper.receive_mw.is_none() && copper.temperature_c.is_none());
        lower[2] = 1;
        assert!(decoded(&lower, &names, &thresholds).unwrap_err().contains("not ready"));
    }
}
