use std::collections::BTreeMap;
use std::fmt::Write as _;

use railgate_model::{Host, PciAddress, PciDevice, Rail, RailMap, Reading, Snapshot};

use crate::config::{RailsConfig, TopologyFile};
use crate::map::{BY_PROFILE, BY_TREE};
use crate::nccl_devices::{as_nccl_finds_it, belong_together, cpu_mask, room_wanted};

/// NCCL's limit for the elements of a node (1024 before 2.21), including those that NCCL adds to the file.
const MAX_ELEMENTS: usize = 256;

/// The reason why no topology file can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTopology {
    /// There are no rails.
    #[error("no rails")]
    NoRails,
    /// The pairs of GPUs and HCAs are a guess, which NCCL would take for the truth.
    #[error("neither the PCI tree nor the machine profile tells which HCA belongs to which GPU")]
    Guessed,
    /// A value that the file needs could not be read.
    #[error("{0}")]
    Missing(String),
    /// The NUMA node of a device is unknown.
    #[error("NUMA node of {0} is not known")]
    NoNuma(String),
    /// The profile's wiring contradicts the machine.
    #[error("the machine profile wires {0}, and on the machine they are on different NUMA nodes")]
    Contradicted(String),
    /// NCCL cannot distinguish two HCAs.
    #[error("{0} and {1} share a PCI bus: NCCL takes them for one card (NCCL_IB_MERGE_VFS)")]
    Merged(String, String),
    /// The file would exceed the limit of NCCL's parser.
    #[error("{0} elements with those that NCCL adds, and it has room for {MAX_ELEMENTS}")]
    TooLarge(usize),
}

/// Returns whether NCCL needs a topology file: a virtual machine hides the PCI switches, and the profile has the
/// wiring. On bare metal, the real tree is better than any file.
pub fn topology_needed(map: &RailMap, snapshot: &Snapshot) -> bool {
    let virtualised = snapshot.host.data().is_some_and(|host| host.virtualised == Reading::Known(true));
    virtualised && map.method == BY_PROFILE && !map.rails.is_empty()
}

/// Returns whether the site wants a topology file on this node. [`topology`] determines whether one can be made.
pub fn topology_wanted(config: &RailsConfig, map: &RailMap, snapshot: &Snapshot) -> bool {
    match config.topology_file {
        TopologyFile::Never => false,
        TopologyFile::Auto => topology_needed(map, snapshot),
        TopologyFile::Always => !map.rails.is_empty(),
    }
}

/// As [`topology`], without the reason.
pub fn topology_xml(map: &RailMap, snapshot: &Snapshot) -> Option<String> {
    topology(map, snapshot).ok()
}

/// A virtual switch: a card and the GPUs that belong to it.
struct Switch {
    gpus: Vec<PciAddress>,
    hca: Option<Card>,
}

struct Card {
    address: PciAddress,
    class: u32,
    link: String,
}

/// Returns a topology file for NCCL, with one virtual PCI switch for the card of each rail, above the card and the
/// rail's GPUs. It describes the whole node; NCCL uses the part that the GPUs of a job need.
///
/// The output follows NCCL's strict parser: one space between attributes, lower-case bus ids, no tabs, no XML
/// declaration. Only values that NCCL cannot determine are written, because NCCL keeps every value in a file.
///
/// # Errors
/// Returns [`NoTopology`] if the CPU, a PCI address or a NUMA node is unknown, the wiring is a guess, or the file would
/// be too large for NCCL.
pub fn topology(map: &RailMap, snapshot: &Snapshot) -> Result<String, NoTopology> {
    if map.rails.is_empty() {
        return Err(NoTopology::NoRails);
    }
    if map.method != BY_PROFILE && map.method != BY_TREE {
        return Err(NoTopology::Guessed);
    }
    let host = snapshot.host.data().ok_or_else(|| {
        NoTopology::Missing(format!("host: {}", snapshot.host.missing().unwrap_or_default()))
    })?;
    let Reading::Known((vendor, family, model)) = &host.cpu else {
        return Err(NoTopology::Missing(format!("cpu: {}", host.cpu.clone().map(|_| ""))));
    };
    let nodes = switches(map, snapshot, host)?;
    let count = |switch: &Switch| 1 + switch.gpus.len() + usize::from(switch.hca.is_some());
    let elements =
        1 + nodes.len() + nodes.values().flat_map(|switches| switches.iter().map(count)).sum::<usize>();
    let elements = elements + room_wanted(map.gpus.len(), map.rails.len());
    if elements > MAX_ELEMENTS {
        return Err(NoTopology::TooLarge(elements));
    }

    let mut xml = String::from("<system version=\"1\">\n");
    let mut number = 0_u32;
    for (numa, switches) in &nodes {
        let cpus = host.numa_cpus.iter().find(|(node, _)| node == numa).map(|(_, list)| list.as_str());
        let affinity =
            cpus.and_then(cpu_mask).map(|mask| format!(" affinity=\"{mask}\"")).unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = writeln!(
            xml,
            "  <cpu numaid=\"{numa}\"{affinity} arch=\"x86_64\" vendor=\"{}\" familyid=\"{family}\" \
             modelid=\"{model}\">",
            word(vendor)
        );
        for switch in switches {
            // Domain ffff does not occur on real machines; a bus has the devices 1 to 31.
            let (bus, slot) = (0xff - number / 31, number % 31 + 1);
            number += 1;
            let link = match (&switch.hca, switch.gpus.first()) {
                (Some(card), _) => card.link.clone(),
                (None, Some(gpu)) => link_of(snapshot, gpu, None),
                (None, None) => continue,
            };
            let _ = writeln!(
                xml,
                "    <pci busid=\"ffff:{bus:02x}:{slot:02x}.0\" class=\"0x060400\" {link} vendor=\"0x0000\" \
                 device=\"0x0000\" subsystem_vendor=\"0x0000\" subsystem_device=\"0x0000\">"
            );
            for gpu in &switch.gpus {
                let link = link_of(snapshot, gpu, switch.hca.as_ref().map(|card| card.link.as_str()));
                let _ = writeln!(xml, "      <pci busid=\"{gpu}\" class=\"0x030200\" {link}/>");
            }
            if let Some(Card { address, class, link }) = &switch.hca {
                let _ = writeln!(xml, "      <pci busid=\"{address}\" class=\"0x{class:06x}\" {link}/>");
            }
            xml.push_str("    </pci>\n");
        }
        xml.push_str("  </cpu>\n");
    }
    xml.push_str("</system>\n");
    Ok(xml)
}

/// The switches of each NUMA node.
fn switches(
    map: &RailMap,
    snapshot: &Snapshot,
    host: &Host,
) -> Result<BTreeMap<u32, Vec<Switch>>, NoTopology> {
    let mut nodes: BTreeMap<u32, Vec<Switch>> = BTreeMap::new();
    let mut placed: Vec<(u32, usize)> = Vec::new();
    for rail in &map.rails {
        let subject = format!("{}:{}", rail.hca, rail.port);
        let Reading::Known(real) = &rail.pci else {
            return Err(NoTopology::Missing(format!("PCI address of {subject}: {}", rail.pci)));
        };
        let address = as_nccl_finds_it(real);
        let same = nodes.iter().find_map(|(numa, switches)| {
            let at = switches.iter().position(|s| s.hca.as_ref().is_some_and(|c| c.address == address))?;
            Some((*numa, at))
        });
        if let Some(place) = same {
            let first = map.rails.iter().zip(&placed).find(|(_, at)| **at == place).map(|(rail, _)| rail);
            if first.is_some_and(|first| first.pci.known().is_some_and(|first| first.device != real.device)) {
                let first = first.map(|rail| format!("{}:{}", rail.hca, rail.port)).unwrap_or_default();
                return Err(NoTopology::Merged(first, subject));
            }
            placed.push(place);
            continue;
        }
        let numa = numa_of(host, &rail.numa_node, &subject)?;
        let class = device(snapshot, *real).map_or(0x02_0700, |device| device.class);
        let link = link_of(snapshot, real, Some(&link_for(rail)));
        let switches = nodes.entry(numa).or_default();
        placed.push((numa, switches.len()));
        let hca = Some(Card { address, class, link });
        switches.push(Switch { gpus: Vec::new(), hca });
    }
    for gpu in &map.gpus {
        let subject = format!("GPU {}", gpu.index);
        let Reading::Known(address) = &gpu.pci else {
            return Err(NoTopology::Missing(format!("PCI address of {subject}: {}", gpu.pci)));
        };
        let place = gpu.rail.and_then(|rail| placed.get(rail)).copied();
        if let (BY_PROFILE, Some((numa, _)), Reading::Known(own), Some(rail)) =
            (map.method.as_str(), place, &gpu.numa_node, gpu.rail)
            && numa != *own
        {
            return Err(NoTopology::Contradicted(format!("{subject} to {}", map.rails[rail].hca)));
        }
        match place
            .filter(|_| belong_together(map, gpu))
            .and_then(|(numa, at)| nodes.get_mut(&numa)?.get_mut(at))
        {
            Some(switch) => switch.gpus.push(*address),
            None => {
                let numa = numa_of(host, &gpu.numa_node, &subject)?;
                nodes.entry(numa).or_default().push(Switch { gpus: vec![*address], hca: None });
            }
        }
    }
    Ok(nodes)
}

/// Removes characters that an attribute value cannot contain.
fn word(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).take(64).collect()
}

fn numa_of(host: &Host, reading: &Reading<u32>, subject: &str) -> Result<u32, NoTopology> {
    match (reading, host.numa_cpus.as_slice()) {
        (Reading::Known(node), _) => Ok(*node),
        // On a machine with one NUMA node, devices need not give it.
        (_, [(only, _)]) => Ok(*only),
        _ => Err(NoTopology::NoNuma(subject.to_owned())),
    }
}

/// The link that a port of this rate needs. A virtual machine often does not show the real one, and NCCL would assume
/// 12 GB/s.
fn link_for(rail: &Rail) -> String {
    let speed = match rail.rate_gbps.known() {
        Some(rate) if *rate > 400.0 => "64.0",
        Some(rate) if *rate <= 100.0 => "8.0",
        Some(rate) if *rate <= 200.0 => "16.0",
        _ => "32.0",
    };
    format!("link_speed=\"{speed} GT/s PCIe\" link_width=\"16\"")
}

fn device(snapshot: &Snapshot, address: PciAddress) -> Option<&PciDevice> {
    snapshot.pci.data()?.device(address)
}

/// The maximum link of a device, as attributes; `instead` if the machine does not show it.
fn link_of(snapshot: &Snapshot, address: &PciAddress, instead: Option<&str>) -> String {
    // NCCL recognises these spellings and treats any other value as PCIe 3.0.
    const SPEEDS: &[f64] = &[2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
    let known = device(snapshot, *address).and_then(|device| device.link.known().cloned());
    let speed = |link: &railgate_model::PciLink| {
        SPEEDS.iter().find(|s| (**s - link.max_speed_gts).abs() < 0.1).copied()
    };
    match known.as_ref().and_then(|link| Some((speed(link)?, link.max_width))) {
        Some((speed, width)) if (1..=32).contains(&width) => {
            format!("link_speed=\"{speed:.1} GT/s PCIe\" link_width=\"{width}\"")
        }
        _ => instead.unwrap_or("link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Part, Port};

    use super::*;
    use crate::rail_map;
    use crate::testing::{flat_machine, machine, profile, switches, wired_profile};

    #[test]
    fn a_file_is_needed_only_if_the_tree_is_hidden() {
        let flat = flat_machine();
        assert!(topology_needed(&rail_map(&flat, &wired_profile()), &flat));
        assert!(!topology_needed(&rail_map(&flat, &profile()), &flat));
        let bare = machine();
        assert!(!topology_needed(&rail_map(&bare, &wired_profile()), &bare));
    }

    /// An element as NCCL parses it: name, attributes in order, depth.
    type Element = (String, Vec<(String, String)>, usize);

    /// Parses with the grammar of NCCL: only spaces and line ends between elements; a name, then exactly one space
    /// before each `key="value"`; no declaration; every element closed by its own name.
    fn elements(xml: &str) -> Result<Vec<Element>, String> {
        let (mut found, mut open, mut rest) = (Vec::<Element>::new(), Vec::<String>::new(), xml);
        loop {
            rest = rest.trim_start_matches([' ', '\n', '\r']);
            if rest.is_empty() {
                return if open.is_empty() { Ok(found) } else { Err(format!("{open:?} not closed")) };
            }
            rest = rest.strip_prefix('<').ok_or_else(|| format!("expecting '<' at {rest:.20}"))?;
            let name_of = |text: &str| -> Result<String, String> {
                let end = text.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(text.len());
                if end == 0 { Err(format!("no name at {text:.20}")) } else { Ok(text[..end].to_owned()) }
            };
            if let Some(closing) = rest.strip_prefix('/') {
                let name = name_of(closing)?;
                rest = closing[name.len()..].strip_prefix('>').ok_or("expecting '>'")?;
                if open.pop().as_ref() != Some(&name) {
                    return Err(format!("{name} closed, and not open"));
                }
                continue;
            }
            let name = name_of(rest)?;
            rest = &rest[name.len()..];
            let mut attributes = Vec::new();
            while let Some(attribute) = rest.strip_prefix(' ') {
                let (key, after) = attribute.split_once("=\"").ok_or("no value")?;
                let (value, after) = after.split_once('"').ok_or("value not closed")?;
                let plain = |c: char| c.is_ascii_lowercase() || c == '_';
                if key.is_empty() || !key.chars().all(plain) || value.len() > 254 || value.contains('\n') {
                    return Err(format!("attribute {key}={value}"));
                }
                attributes.push((key.to_owned(), value.to_owned()));
                rest = after;
            }
            if attributes.len() > 16 {
                return Err(format!("{name} has {} attributes", attributes.len()));
            }
            found.push((name.clone(), attributes, open.len()));
            rest = match rest.strip_prefix("/>") {
                Some(after) => after,
                None => {
                    open.push(name);
                    rest.strip_prefix('>').ok_or_else(|| format!("expecting '>' at {rest:.20}"))?
                }
            };
        }
    }

    fn attribute<'a>(element: &'a Element, key: &str) -> &'a str {
        element.1.iter().find(|(have, _)| have == key).map_or("", |(_, value)| value.as_str())
    }

    fn busids(xml: &str, class: &str) -> Vec<(String, usize)> {
        let found = elements(xml).unwrap();
        let of_class = found.iter().filter(|element| attribute(element, "class") == class);
        of_class.map(|element| (attribute(element, "busid").to_owned(), element.2)).collect()
    }

    #[test]
    fn the_test_grammar_rejects_what_nccl_rejects() {
        for bad in [
            "<?xml version=\"1\"?><system/>",
            "\t<system/>",
            "<system  version=\"1\"/>",
            "<system version='1'/>",
            "<system\nversion=\"1\"/>",
            "<system><cpu></system></cpu>",
            "<system>",
            "<system version=\"1\" />",
        ] {
            assert!(elements(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_file_follows_the_grammar_of_nccl() {
        let flat = flat_machine();
        let map = rail_map(&flat, &wired_profile());
        let xml = topology(&map, &flat).unwrap();
        let all = elements(&xml).unwrap();
        assert!(all.len() <= MAX_ELEMENTS);
        assert_eq!((all[0].0.as_str(), attribute(&all[0], "version")), ("system", "1"));
        let cpus: Vec<_> = all.iter().filter(|element| element.0 == "cpu").collect();
        assert_eq!(cpus.len(), 1);
        assert_eq!(attribute(cpus[0], "affinity"), "0000ffff");
        assert_eq!(attribute(cpus[0], "vendor"), "GenuineIntel");
        let mut seen = std::collections::BTreeSet::new();
        for element in all.iter().filter(|element| element.0 == "pci") {
            let busid = attribute(element, "busid");
            assert!(seen.insert(busid.to_owned()), "{busid} twice");
            assert_eq!(busid.parse::<PciAddress>().unwrap().to_string(), busid, "lower case, whole");
            for key in ["class", "link_speed", "link_width"] {
                assert!(!attribute(element, key).is_empty(), "{busid} has no {key}");
            }
            assert_ne!(attribute(element, "vendor"), "0x1000", "NCCL flattens switches of this vendor");
        }
        assert_eq!(busids(&xml, "0x060400").len(), 4);
        assert_eq!(busids(&xml, "0x030200").len(), 4);
        // GPU k is beside the HCA to which the profile wires it.
        let leaves: Vec<_> = all.iter().filter(|element| element.2 == 3).collect();
        for (pair, k) in leaves.chunks(2).zip(0..) {
            assert_eq!(attribute(pair[0], "busid"), format!("{:04x}:00:00.0", k + 1));
            assert_eq!(attribute(pair[1], "busid"), format!("{:04x}:00:00.0", 0x104 - k));
            assert_eq!(attribute(pair[1], "link_speed"), "32.0 GT/s PCIe");
        }
        assert!(topology_xml(&map, &flat).is_some());
    }

    #[test]
    fn the_file_does_not_depend_on_the_job() {
        let flat = flat_machine();
        let map = rail_map(&flat, &wired_profile());
        assert_eq!(topology(&map, &flat), topology(&rail_map(&flat, &wired_profile()), &flat));
    }

    #[test]
    fn two_gpus_and_both_ports_of_a_card_share_one_switch() {
        let mut bare = switches(4, 2, 1);
        if let Part::Read { data, .. } = &mut bare.fabric {
            for hca in &mut data.hcas {
                let second = Port { number: 2, ..hca.ports[0].clone() };
                hca.ports.push(second);
            }
        }
        let map = rail_map(&bare, None);
        assert_eq!(map.rails.len(), 8);
        let xml = topology(&map, &bare).unwrap();
        assert_eq!(busids(&xml, "0x060400").len(), 4);
        assert_eq!(busids(&xml, "0x030200").len(), 8);
        assert_eq!(busids(&xml, "0x020700").len(), 4);
        assert_eq!(elements(&xml).unwrap().iter().filter(|element| element.0 == "cpu").count(), 2);
    }

    #[test]
    fn cards_that_nccl_would_merge_are_an_error() {
        let mut flat = flat_machine();
        if let (Part::Read { data: fabric, .. }, Part::Read { data: pci, .. }) =
            (&mut flat.fabric, &mut flat.pci)
        {
            for (slot, hca) in fabric.hcas.iter_mut().enumerate() {
                let old = *hca.pci.known().unwrap();
                let new: PciAddress = format!("0000:00:{:02x}.0", slot + 5).parse().unwrap();
                hca.pci = Reading::Known(new);
                pci.devices.iter_mut().filter(|device| device.address == old).for_each(|d| d.address = new);
            }
        }
        let map = rail_map(&flat, &wired_profile());
        assert_eq!(map.rails.len(), 4);
        assert!(matches!(topology(&map, &flat), Err(NoTopology::Merged(..))));
    }

    #[test]
    fn guessed_pairs_are_an_error() {
        let flat = flat_machine();
        assert_eq!(topology(&rail_map(&flat, None), &flat), Err(NoTopology::Guessed));
        let mut bare = machine();
        if let Part::Read { data, .. } = &mut bare.fabric {
            data.hcas.clear();
        }
        assert_eq!(topology(&rail_map(&bare, None), &bare), Err(NoTopology::NoRails));
    }

    #[test]
    fn the_error_names_the_unknown_value() {
        let mut flat = flat_machine();
        if let Part::Read { data, .. } = &mut flat.host {
            data.cpu = Reading::Failed("no /proc/cpuinfo".to_owned());
        }
        let map = rail_map(&flat, &wired_profile());
        let error = topology(&map, &flat).unwrap_err();
        assert!(error.to_string().contains("no /proc/cpuinfo"), "{error}");
    }
}
