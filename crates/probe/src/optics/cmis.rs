use super::{Module, Monitor, Page, celsius, limits, milliwatts, text, word};

/// Byte (on page 01h) and bit in which a module advertises a feature: bytes 157, 158 and 160 of the standard. Values
/// that are not advertised are undefined.
type Advertised = (usize, u8);
const TX_FAULT_FLAG: Advertised = (29, 1);
const RX_LOS_FLAG: Advertised = (30, 2);
const BIAS_MONITOR: Advertised = (32, 1);
const RX_POWER_MONITOR: Advertised = (32, 4);

/// Decodes a module with up to eight lanes. Only lanes that exist and carry data are used. Upper halves are counted
/// from 0 here and from 128 in the standard.
pub(super) fn decode(
    lower: &Page,
    upper: &mut dyn FnMut(u8) -> Result<Page, String>,
) -> Result<Module, String> {
    /// MemoryModel (byte 2): the module has only lower memory and page 00h.
    const FLAT: u8 = 0x80;
    let names = upper(0)?;
    let name = [text(&names, 1), text(&names, 20), text(&names, 38)];
    let mut module = Module {
        name,
        // MediaInterfaceTechnology (00h:212): values from 10 on are copper. A passive cable has MediaType 3 (byte 85).
        copper: (10..=15).contains(&names[84]) || lower[85] == 3,
        temperature_c: None,
        receive_mw: None,
        bias_ma: None,
        alarms: Vec::new(),
        warnings: Vec::new(),
    };
    if module.copper || lower[2] & FLAT != 0 {
        return Ok(module);
    }
    let (advertised, thresholds, lanes) = (upper(1)?, upper(2)?, upper(0x11)?);
    let has = |(at, bit): Advertised| advertised[at] & bit != 0;
    // TxBiasCurrentScalingFactor (01h:160, bits 4-3), for both values and thresholds.
    let multiplier = match advertised[32] >> 3 & 3 {
        1 => 2.0,
        2 => 4.0,
        _ => 1.0,
    };
    let bias = |page: &[u8], at: usize| f64::from(word(page, at)) / 500.0 * multiplier;
    if word(lower, 14) != 0 {
        let values = vec![celsius(lower, 14)];
        module.temperature_c = Some(Monitor { values, limits: limits(&thresholds, 0, celsius) });
    }
    // MediaLaneUnsupported (00h:210): eight host lanes may use four optical lanes, and the others report no light.
    let used: Vec<usize> =
        (0..8).filter(|lane| names[82] & (1 << lane) == 0 && activated(&lanes, *lane)).collect();
    if !used.is_empty() && has(RX_POWER_MONITOR) {
        let values = used.iter().map(|lane| milliwatts(&lanes, 58 + 2 * lane)).collect();
        module.receive_mw = Some(Monitor { values, limits: limits(&thresholds, 64, milliwatts) });
    }
    if !used.is_empty() && has(BIAS_MONITOR) {
        let values = used.iter().map(|lane| bias(&lanes, 42 + 2 * lane)).collect();
        module.bias_ma = Some(Monitor { values, limits: limits(&thresholds, 56, bias) });
    }
    for (bit, word) in ["high", "low"].iter().enumerate() {
        if lower[9] & (1 << bit) != 0 {
            module.alarms.push(format!("temperature {word}"));
        }
        if lower[9] & (4 << bit) != 0 {
            module.warnings.push(format!("temperature {word}"));
        }
    }
    // Flags of the lanes on page 11h: bytes 135, 143 to 147 and 149 to 152 of the standard.
    const ALARMS: [(usize, &str, Advertised); 6] = [
        (7, "transmitter fault", TX_FAULT_FLAG),
        (15, "bias high", BIAS_MONITOR),
        (16, "bias low", BIAS_MONITOR),
        (19, "no light received", RX_LOS_FLAG),
        (21, "receive power high", RX_POWER_MONITOR),
        (22, "receive power low", RX_POWER_MONITOR),
    ];
    const WARNINGS: [(usize, &str, Advertised); 4] = [
        (17, "bias high", BIAS_MONITOR),
        (18, "bias low", BIAS_MONITOR),
        (23, "receive power high", RX_POWER_MONITOR),
        (24, "receive power low", RX_POWER_MONITOR),
    ];
    for lane in used {
        let said = |(at, what, by): &(usize, &str, Advertised)| {
            (has(*by) && lanes[*at] & (1 << lane) != 0).then(|| format!("{what} (lane {})", lane + 1))
        };
        module.alarms.extend(ALARMS.iter().filter_map(said));
        module.warnings.extend(WARNINGS.iter().filter_map(said));
    }
    Ok(module)
}

/// DPState (11h:128 to 131), four bits per host lane: 4 is DPActivated.
fn activated(lanes: &Page, lane: usize) -> bool {
    let byte = lanes[lane / 2];
    let state = if lane.is_multiple_of(2) { byte & 15 } else { byte >> 4 };
    state == 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(page: &mut Page, at: usize, values: &[u16]) {
        for (nth, value) in values.iter().enumerate() {
            page[at + 2 * nth..at + 2 * nth + 2].copy_from_slice(&value.to_be_bytes());
        }
    }

    /// Lower page, and pages 00h, 01h, 02h and 11h.
    fn pages() -> [Page; 5] {
        let [mut lower, mut names, mut advertised, mut thresholds, mut lanes] = [[0; 128]; 5];
        lower[0] = 0x19;
        put(&mut lower, 14, &[0x3200]);
        names[1..7].copy_from_slice(b"NVIDIA");
        names[20..35].copy_from_slice(b"MMS4X00-NM     ");
        names[38..48].copy_from_slice(b"MT2306FT07");
        advertised[29..31].copy_from_slice(&[1, 2]);
        advertised[32] = 1 << 3 | 4 | 1;
        put(&mut thresholds, 0, &[0x4b00, 0xfb00, 0x4600, 0x0000]);
        put(&mut thresholds, 56, &[30_000, 5_000, 25_000, 7_500]);
        put(&mut thresholds, 64, &[35_481, 646, 28_184, 1_023]);
        lanes[0..2].copy_from_slice(&[0x44, 0x44]);
        put(&mut lanes, 42, &[10_000; 8]);
        put(&mut lanes, 58, &[12_000, 11_000, 13_000, 12_000, 0, 0, 0, 0]);
        [lower, names, advertised, thresholds, lanes]
    }

    fn decoded(pages: &[Page; 5]) -> Result<Module, String> {
        decode(&pages[0], &mut |page| match page {
            0..=2 => Ok(pages[usize::from(page) + 1]),
            0x11 => Ok(pages[4]),
            _ => Err("no such page".to_owned()),
        })
    }

    #[test]
    fn lanes_without_data_are_ignored() {
        let mut pages = pages();
        pages[4][22] = 0b1111_0001;
        pages[4][24] = 0b0000_0010;
        let module = decoded(&pages).unwrap();
        assert_eq!(module.name, ["NVIDIA", "MMS4X00-NM", "MT2306FT07"]);
        assert_eq!(module.temperature_c.unwrap().values, [50.0]);
        assert_eq!(module.receive_mw.unwrap().values, [1.2, 1.1, 1.3, 1.2]);
        let bias = module.bias_ma.unwrap();
        assert_eq!((bias.values[0], bias.limits.unwrap().high_alarm), (40.0, 120.0));
        assert_eq!(module.alarms, ["receive power low (lane 1)"]);
        assert_eq!(module.warnings, ["receive power low (lane 2)"]);
    }

    #[test]
    fn copper_and_flat_memory_have_no_monitors() {
        let mut pages = pages();
        pages[1][84] = 0x0a;
        assert!(decoded(&pages).unwrap().copper);
        pages[1][84] = 0;
        pages[0][2] = 0x80;
        let flat = decode(&pages[0], &mut |page| {
            if page == 0 { Ok(pages[1]) } else { Err("beyond flat memory".to_owned()) }
        });
        let flat = flat.unwrap();
        assert!(!flat.copper && flat.receive_mw.is_none());
    }

    #[test]
    fn unsupported_lanes_are_ignored() {
        let mut pages = pages();
        pages[4][0..4].copy_from_slice(&[0x44; 4]);
        assert_eq!(decoded(&pages).unwrap().receive_mw.unwrap().values.len(), 8);
        pages[1][82] = 0xf0;
        pages[4][19] = 0xf0;
        let module = decoded(&pages).unwrap();
        assert_eq!(module.receive_mw.unwrap().values, [1.2, 1.1, 1.3, 1.2]);
        assert!(module.alarms.is_empty());
    }

    #[test]
    fn values_that_are_not_advertised_are_ignored() {
        let mut pages = pages();
        pages[4][7..25].fill(0xff);
        let module = decoded(&pages).unwrap();
        assert_eq!((module.alarms.len(), module.warnings.len()), (24, 16));
        pages[2][29..33].fill(0);
        let module = decoded(&pages).unwrap();
        assert_eq!((module.receive_mw, module.bias_ma), (None, None));
        assert!(module.alarms.is_empty() && module.warnings.is_empty());
    }

    #[test]
    fn a_temperature_flag_is_reported() {
        let mut pages = pages();
        pages[0][9] = 0b0101;
        let module = decoded(&pages).unwrap();
        assert_eq!((module.alarms.len(), module.warnings), (1, vec!["temperature high".to_owned()]));
    }
}
