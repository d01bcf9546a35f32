//! Parses the output of `ibnetdiscover`.

use std::collections::HashMap;

use serde::Serialize;

/// Maximum size of the text, bytes. A fabric of ten thousand nodes with eight HCAs each needs about 30 MB.
pub const MAX_TEXT: usize = 64 << 20;

/// Maximum number of switches, HCAs and routers together. A subnet has 48 Ki unicast LIDs.
const MAX_DEVICES: usize = 65_536;

/// Maximum length of a name, characters. Names in the fabric have up to 64 bytes; those of a name map can be longer.
const MAX_NAME: usize = 128;

/// The type of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A switch.
    Switch,
    /// A channel adapter: an HCA, or the aggregation node of a switch.
    Hca,
    /// A router.
    Router,
}

/// A switch, an HCA or a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its type.
    pub kind: Kind,
    /// Node GUID.
    pub guid: u64,
    /// Node description from a neighbour's line, otherwise from the device's own record; printable, possibly empty.
    /// With `--node-name-map`, only neighbours' lines have the mapped name of an HCA.
    pub name: String,
    /// Whether the text has a record of the device, rather than only a line of a neighbour.
    pub recorded: bool,
}

/// One end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct End {
    /// Index into [`Fabric::devices`].
    pub device: usize,
    /// Port number, from 1.
    pub port: u8,
}

/// A cable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Both ends, ordered by device.
    pub ends: [End; 2],
    /// Rate in Mb/s by the name of the link (4xNDR is 400,000); `None` if the text lacks it.
    pub mbps: Option<u32>,
}

/// The devices and cables in an `ibnetdiscover` output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fabric {
    /// In the order of the text.
    pub devices: Vec<Device>,
    /// Each cable once.
    pub links: Vec<Link>,
    /// Number of errors that `ibnetdiscover` reported; devices that did not respond are missing in the text.
    pub errors: usize,
}

impl Fabric {
    /// Returns devices that only appear in lines of their neighbours. `ibnetdiscover` writes a record for each device,
    /// switches first, so such a text is truncated or filtered and lacks cables.
    pub fn unrecorded(&self) -> impl Iterator<Item = (usize, &Device)> {
        self.devices.iter().enumerate().filter(|(_, device)| !device.recorded)
    }
}

/// The text is not an output of `ibnetdiscover`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadDiscovery {
    /// A line does not follow the format.
    #[error("line {line}: {what}: '{text}'")]
    Line {
        /// Line number from 1.
        line: usize,
        /// The problem.
        what: &'static str,
        /// Start of the line.
        text: String,
    },
    /// There is more of something than a subnet can have.
    #[error("{0}")]
    TooLarge(&'static str),
    /// The text names no device.
    #[error("names no switch and no HCA: is this output of ibnetdiscover?")]
    Empty,
}

/// Parses the output of `ibnetdiscover`, with or without `--full`, `--show` and `--grouping`. Lines before the first
/// device can be anything (a prompt, errors of a run that continued); later lines must have the right format.
///
/// # Errors
/// Returns [`BadDiscovery`] for a line with another format, a port with two cables, a text without a device, and more
/// devices than a subnet can have.
pub fn parse(text: &str) -> Result<Fabric, BadDiscovery> {
    if text.len() > MAX_TEXT {
        return Err(BadDiscovery::TooLarge("more than 64 MiB of text"));
    }
    let mut reader = Reader::default();
    let mut stray: Option<BadDiscovery> = None;
    for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        let bad = |what| BadDiscovery::Line { line: at + 1, what, text: printable(line, 60) };
        match reader.line(line) {
            Ok(()) => {}
            Err(Wrong::Stray(what)) if reader.fabric.devices.is_empty() => {
                stray.get_or_insert_with(|| bad(what));
            }
            Err(Wrong::Stray(what) | Wrong::Line(what)) => return Err(bad(what)),
            Err(Wrong::TooLarge(what)) => return Err(BadDiscovery::TooLarge(what)),
        }
    }
    if reader.fabric.devices.is_empty() {
        return Err(stray.unwrap_or(BadDiscovery::Empty));
    }
    Ok(reader.fabric)
}

enum Wrong {
    /// The line does not have the format; allowed before the first device.
    Stray(&'static str),
    Line(&'static str),
    TooLarge(&'static str),
}

#[derive(Default)]
struct Reader {
    fabric: Fabric,
    devices: HashMap<(Kind, u64), usize>,
    /// Ends that have a cable, with the index of the link.
    ends: HashMap<End, usize>,
    current: Option<(usize, u8)>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), Wrong> {
        let mut words = line.split_ascii_whitespace();
        let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        match first {
            "Switch" | "Ca" | "Rt" | "Router" if second.starts_with(':') => Err(Wrong::Line(
                "a list of devices without cables, as -l, -H, -S and -R write it; want ibnetdiscover without them",
            )),
            "SW" | "CA" | "RT" if second.parse::<u32>().is_ok() => {
                Err(Wrong::Line("a ports report, as -p writes it; want ibnetdiscover without -p"))
            }
            "Switch" | "Ca" | "Rt" | "Router" => self.device(line),
            _ if numbered(first) => self.cable(line),
            "" | "Chassis" | "Non-Chassis" | "Hostname:" => Ok(()),
            _ if first.starts_with(['#', '(']) => Ok(()),
            // --show
            "DR" if second == "path" => Ok(()),
            // Standard error in the same file.
            _ if first.starts_with("ibwarn:") || first.starts_with("src/") => {
                self.fabric.errors += 1;
                Ok(())
            }
            // Lines with vendid=, devid=, sysimgguid=, switchguid=, caguid= or rtguid=.
            _ if first
                .split_once('=')
                .is_some_and(|(key, _)| key.bytes().all(|b| b.is_ascii_lowercase())) =>
            {
                self.current = None;
                Ok(())
            }
            // A shell prompt.
            _ if first.contains('@') && !line.contains('"') => Ok(()),
            _ => Err(Wrong::Stray("neither a device nor a port")),
        }
    }

    /// Parses `Switch 64 "S-000000000020000f" # "leaf-8b" base port 0 lid 0 lmc 0`.
    fn device(&mut self, line: &str) -> Result<(), Wrong> {
        let rest =
            line.split_once(|c: char| c.is_ascii_whitespace()).map_or("", |(_, rest)| rest).trim_start();
        let (ports, rest) = rest.split_once('"').ok_or(Wrong::Line("a device without an id"))?;
        let ports: u8 = ports.trim().parse().map_err(|_| Wrong::Line("a number of ports beyond 255"))?;
        let (id, rest) = rest.split_once('"').ok_or(Wrong::Line("an id without its closing quote"))?;
        let key = device_id(id).ok_or(Wrong::Line("an id that is not a GUID"))?;
        let name = rest.split_once('#').and_then(|(_, rest)| quoted(rest)).unwrap_or_default();
        let device = self.known(key)?;
        if let Some(slot) = self.fabric.devices.get_mut(device) {
            slot.recorded = true;
            if slot.name.is_empty() {
                slot.name = printable(name, MAX_NAME);
            }
        }
        self.current = Some((device, ports));
        Ok(())
    }

    /// Parses the line of a cable: `[1] "H-000000000010020e"[1](10020f)  # "gn33 mlx5_7" lid 0 4xNDR` at a switch,
    /// `[1](10020f)  "S-000000000020000f"[1] # lid 0 lmc 0 "leaf-8b" lid 0 4xNDR` at an HCA.
    fn cable(&mut self, line: &str) -> Result<(), Wrong> {
        let (device, ports) = self.current.ok_or(Wrong::Line("a port before any device"))?;
        let (port, rest) = bracket(line).ok_or(Wrong::Line("a port number that cannot be"))?;
        if port > ports {
            return Err(Wrong::Line("a port beyond the device's last"));
        }
        let (_, rest) = rest.split_once('"').ok_or(Wrong::Line("a port without its peer"))?;
        let (id, rest) = rest.split_once('"').ok_or(Wrong::Line("an id without its closing quote"))?;
        let key = device_id(id).ok_or(Wrong::Line("a peer's id that is not a GUID"))?;
        let (peer_port, rest) = bracket(rest).ok_or(Wrong::Line("a peer's port number that cannot be"))?;
        let peer = self.known(key)?;
        let said = rest.split_once('#').map_or("", |(_, said)| said);
        if let Some(slot) = self.fabric.devices.get_mut(peer)
            && slot.name.is_empty()
        {
            slot.name = printable(quoted(said).unwrap_or_default(), MAX_NAME);
        }
        // A name can contain any text, so the rate is searched after it.
        let mbps = said.rsplit('"').next().and_then(|tail| tail.split_ascii_whitespace().find_map(rate));
        let mut ends = [End { device, port }, End { device: peer, port: peer_port }];
        ends.sort_unstable();
        if ends[0] == ends[1] {
            // A loopback plug.
            return Ok(());
        }
        match (self.ends.get(&ends[0]), self.ends.get(&ends[1])) {
            (None, None) => {
                self.ends.insert(ends[0], self.fabric.links.len());
                self.ends.insert(ends[1], self.fabric.links.len());
                self.fabric.links.push(Link { ends, mbps });
                Ok(())
            }
            (Some(one), Some(other)) if one == other => {
                if let Some(link) = self.fabric.links.get_mut(*one) {
                    link.mbps = link.mbps.or(mbps);
                }
                Ok(())
            }
            _ => Err(Wrong::Line("a port with two cables")),
        }
    }

    /// Returns the index of a device, which can be mentioned before its own record.
    fn known(&mut self, (kind, guid): (Kind, u64)) -> Result<usize, Wrong> {
        if let Some(at) = self.devices.get(&(kind, guid)) {
            return Ok(*at);
        }
        let at = self.fabric.devices.len();
        if at == MAX_DEVICES {
            return Err(Wrong::TooLarge("more devices than a subnet can have"));
        }
        self.fabric.devices.push(Device { kind, guid, name: String::new(), recorded: false });
        self.devices.insert((kind, guid), at);
        Ok(at)
    }
}

/// Parses for example `S-0002c903001b5a0e`.
fn device_id(text: &str) -> Option<(Kind, u64)> {
    let (kind, guid) = text.split_once('-')?;
    let kind = match kind {
        "S" => Kind::Switch,
        "H" => Kind::Hca,
        "R" => Kind::Router,
        _ => return None,
    };
    if !guid.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    Some((kind, u64::from_str_radix(guid, 16).ok()?))
}

/// Whether a word starts with a port number: `[12]`, also `[12](2c90300293e1f)` and `[12][ext 3]`. `[root@gn1 ~]#` is a
/// prompt.
fn numbered(word: &str) -> bool {
    word.strip_prefix('[').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit() || c == '-'))
}

/// Parses `[12]` and returns the rest. Port 0 is internal to a switch and has no cable.
fn bracket(text: &str) -> Option<(u8, &str)> {
    let (number, rest) = text.strip_prefix('[')?.split_once(']')?;
    let port: u8 = number.parse().ok()?;
    (port != 0 && port != u8::MAX).then_some((port, rest))
}

/// The text from the first quote to the last, since a name can contain quotes.
fn quoted(text: &str) -> Option<&str> {
    let (first, last) = (text.find('"')?, text.rfind('"')?);
    text.get(first + 1..last)
}

/// The rate of for example `4xHDR` in Mb/s.
fn rate(word: &str) -> Option<u32> {
    let (lanes, speed) = word.split_once('x')?;
    let lanes: u32 = lanes.parse().ok().filter(|lanes| (1..=12).contains(lanes))?;
    let lane = match speed {
        "SDR" => 2_500,
        "DDR" => 5_000,
        "QDR" | "FDR10" => 10_000,
        "FDR" => 14_000,
        "EDR" => 25_000,
        "HDR" => 50_000,
        "NDR" => 100_000,
        "XDR" => 200_000,
        _ => return None,
    };
    Some(lanes * lane)
}

/// Converts text to one printable line, truncated to `most` characters.
fn printable(text: &str, most: usize) -> String {
    text.trim().chars().map(railgate_text::ascii).take(most).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: &str = "#\n# Topology file: generated on Sat Nov 21 03:22:07 2026\n#\n\
vendid=0x0\nswitchguid=0x20000f(20000f)\n\
Switch\t64 \"S-000000000020000f\"\t\t# \"leaf-8b\" base port 0 lid 0 lmc 0\n\
[1]\t\"H-000000000010020e\"[1](10020f) \t\t# \"gn33 mlx5_7\" lid 0 4xNDR\n\
[2]\t\"H-0000000000100300\"[2](100301) \t\t# \"say \"hi\" lid 7 1xSDR\" lid 0 4xHDR\n\n\
vendid=0x0\ncaguid=0x10020e\n\
Ca\t1 \"H-000000000010020e\"\t\t# \"gn33 mlx5_7\"\n\
[1](10020f) \t\"S-000000000020000f\"[1]\t\t# lid 0 lmc 0 \"leaf-8b\" lid 0 4xNDR\n";

    #[test]
    fn both_records_of_a_cable_are_one_link() {
        let fabric = parse(SMALL).unwrap();
        let names: Vec<&str> = fabric.devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["leaf-8b", "gn33 mlx5_7", "say \"hi\" lid 7 1xSDR"]);
        assert_eq!(fabric.links.len(), 2);
        assert_eq!(fabric.links[0].mbps, Some(400_000));
        assert_eq!(fabric.links[1].mbps, Some(200_000));
        assert_eq!(fabric.links[1].ends, [End { device: 0, port: 2 }, End { device: 2, port: 2 }]);
    }

    #[test]
    fn a_line_with_another_format_is_an_error_with_its_number() {
        let wrong = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(wrong(""), "names no switch and no HCA: is this output of ibnetdiscover?");
        assert_eq!(wrong("hello"), "line 1: neither a device nor a port: 'hello'");
        assert_eq!(wrong("Switch 300 \"S-1\""), "line 1: a number of ports beyond 255: 'Switch 300 \"S-1\"'");
        assert_eq!(wrong("[1] \"S-1\"[1]"), "line 1: a port before any device: '[1] \"S-1\"[1]'");
        let lines = |more: &str| wrong(&format!("Switch 8 \"S-1\"\n{more}"));
        assert!(lines("[9] \"S-2\"[1]").contains("a port beyond the device's last"));
        assert!(lines("[1] \"S-2\"[99999999999999999999]").contains("a peer's port number that cannot be"));
        assert!(lines("[1] \"S-2\"[1]\n[1] \"S-3\"[1]").starts_with("line 3: a port with two cables"));
        assert!(
            lines("[1] \"S-00000000000000002\u{7}\"[1]")
                .contains("not a GUID: '[1] \"S-00000000000000002?\"")
        );
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "(Switch|Ca|\\[|\\]|[SHR]-|[0-9a-f]{1,3}|\"|#| |\n|=|.){0,80}") {
            let _ = parse(&text);
        }

        /// A damaged copy gives an error or a fabric with at most as many links as lines.
        #[test]
        fn a_damaged_text_has_no_additional_links(cut in 0..SMALL.len(), byte in 32u8..127) {
            let mut bytes = SMALL.as_bytes().to_vec();
            bytes[cut] = byte;
            let text = String::from_utf8(bytes).unwrap();
            if let Ok(fabric) = parse(&text) {
                prop_assert!(fabric.links.len() <= 3 && fabric.devices.len() <= 5);
            }
        }
    }
}
