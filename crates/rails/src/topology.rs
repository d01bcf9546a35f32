use std::collections::BTreeMap;
use std::fmt::Write as _;

use railgate_node::{Host, PciAddress, Rail, RailMap, Reading, Snapshot};

use crate::config::{RailsConfig, TopologyFile};
use crate::distance::device;
use crate::map::{BY_PROFILE, BY_TREE};

/// NCCL's parser takes no more elements from a node's file (1024 before 2.21).
const MAX_ELEMENTS: usize = 256;

/// Why no topology file can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTopology {
    /// There is nothing to place.
    #[error("no rails")]
    NoRails,
    /// Which HCA belongs to which GPU is a guess, and NCCL would believe it.
    #[error("neither the PCI tree nor the machine profile tells which HCA belongs to which GPU")]
    Guessed,
    /// Something that it is made from was not read.
    #[error("{0}")]
    Missing(String),
    /// A device cannot be placed.
    #[error("NUMA node of {0} is not known")]
    NoNuma(String),
    /// NCCL cannot tell two HCAs apart.
    #[error("{0} and {1} share a PCI bus: NCCL takes them for one card (NCCL_IB_MERGE_VFS)")]
    Merged(String, String),
    /// More than NCCL's parser holds.
    #[error("{0} elements, NCCL's parser takes {MAX_ELEMENTS}")]
    TooLarge(usize),
}

/// A virtual machine hides the PCI switches, and the profile knows the wiring: NCCL needs a topology file.
/// On bare metal the real tree is better than any file.
pub fn topology_needed(map: &RailMap, snapshot: &Snapshot) -> bool {
    let virtualised = snapshot.host.data().is_some_and(|host| host.virtualised == Reading::Known(true));
    virtualised && map.method == BY_PROFILE && !map.rails.is_empty()
}

/// The site wants NCCL to have a topology file on this node. Whether one can be made [`topology`] says.
pub fn topology_wanted(config: &RailsConfig, map: &RailMap, snapshot: &Snapshot) -> bool {
    match config.topology_file {
        TopologyFile::Never => false,
        TopologyFile::Auto => topology_needed(map, snapshot),
        TopologyFile::Always => !map.rails.is_empty(),
    }
}

/// [`topology`] without the reason.
pub fn topology_xml(map: &RailMap, snapshot: &Snapshot) -> Option<String> {
    topology(map, snapshot).ok()
}

/// One made-up switch: a card and the GPUs that belong to it.
struct Switch {
    gpus: Vec<PciAddress>,
    hca: Option<Card>,
}

struct Card {
    address: PciAddress,
    class: u32,
    link: String,
}

/// A topology file for NCCL: one made-up PCI switch for each rail's card, with the rail's GPUs and the card
/// below it. It holds the whole node; NCCL takes what a job's GPUs need.
///
/// NCCL's own parser is strict, so this is: one space between attributes, lower-case bus ids, no tabs, no
/// XML declaration. Only what NCCL cannot find out by itself is written, for it keeps whatever a file says.
///
/// # Errors
/// Where the CPU, a PCI address or a NUMA node is not known, or NCCL could not hold the file: it would
/// refuse it, or believe it.
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
            // Domain ffff is nobody's; a bus has devices 1 to 31 to give.
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

/// By NUMA node.
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
        // NCCL looks its HCAs up with device and function set to zero (ports and virtual functions merge).
        let address = PciAddress { device: 0, function: 0, ..*real };
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
        let class = device(snapshot, Some(real)).map_or(0x02_0700, |device| device.class);
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
        match place.and_then(|(numa, at)| nodes.get_mut(&numa)?.get_mut(at)) {
            Some(switch) => switch.gpus.push(*address),
            None => {
                let numa = numa_of(host, &gpu.numa_node, &subject)?;
                nodes.entry(numa).or_default().push(Switch { gpus: vec![*address], hca: None });
            }
        }
    }
    Ok(nodes)
}

/// What may stand in an attribute without a thought.
fn word(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).take(64).collect()
}

fn numa_of(host: &Host, reading: &Reading<u32>, subject: &str) -> Result<u32, NoTopology> {
    match (reading, host.numa_cpus.as_slice()) {
        (Reading::Known(node), _) => Ok(*node),
        // A machine with one node need not say which.
        (_, [(only, _)]) => Ok(*only),
        _ => Err(NoTopology::NoNuma(subject.to_owned())),
    }
}

/// The link that a port of this rate needs: a virtual machine often does not show the real one, and NCCL
/// would take 12 GB/s for it.
fn link_for(rail: &Rail) -> String {
    let speed = match rail.rate_gbps.known() {
        Some(rate) if *rate > 400.0 => "64.0",
        Some(rate) if *rate <= 100.0 => "8.0",
        Some(rate) if *rate <= 200.0 => "16.0",
        _ => "32.0",
    };
    format!("link_speed=\"{speed} GT/s PCIe\" link_width=\"16\"")
}

/// The link of a device at its best, as attributes; `instead` where the machine does not show it.
fn link_of(snapshot: &Snapshot, address: &PciAddress, instead: Option<&str>) -> String {
    // NCCL knows these spellings and takes anything else for the third generation.
    const SPEEDS: &[f64] = &[2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
    let known = device(snapshot, Some(address)).and_then(|device| device.link.known().cloned());
    let speed = |link: &railgate_node::PciLink| {
        SPEEDS.iter().find(|s| (**s - link.max_speed_gts).abs() < 0.1).copied()
    };
    match known.as_ref().and_then(|link| Some((speed(link)?, link.max_width))) {
        Some((speed, width)) if (1..=32).contains(&width) => {
            format!("link_speed=\"{speed:.1} GT/s PCIe\" link_width=\"{width}\"")
        }
        _ => instead.unwrap_or("link_speed=\"32.0 GT/s PCIe\" link_width=\"16\"").to_owned(),
    }
}

/// `0-31,64-95` as the kernel's `cpumap`: groups of 32 bits, most significant first. `None` for what is no
/// list, has no CPU, or is too long for one attribute of NCCL's parser.
fn cpu_mask(list: &str) -> Option<String> {
    const MAX_CPUS: u32 = 896;
    let mut groups: Vec<u32> = Vec::new();
    for range in list.trim().split(',').filter(|range| !range.is_empty()) {
        let (from, to) = match range.split_once('-') {
            Some((from, to)) => (from.trim().parse().ok()?, to.trim().parse().ok()?),
            None => {
                let only: u32 = range.trim().parse().ok()?;
                (only, only)
            }
        };
        if from > to || to >= MAX_CPUS {
            return None;
        }
        for cpu in from..=to {
            let group = (cpu / 32) as usize;
            if groups.len() <= group {
                groups.resize(group + 1, 0);
            }
            groups[group] |= 1 << (cpu % 32);
        }
    }
    let text: Vec<String> = groups.iter().rev().map(|group| format!("{group:08x}")).collect();
    (!text.is_empty()).then(|| text.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rail_map;
    use crate::testing::{flat_machine, machine, profile, wired_profile};

    #[test]
    fn masks_are_the_kernels() {
        assert_eq!(cpu_mask("0-3"), Some("0000000f".to_owned()));
        assert_eq!(cpu_mask("0-31,64-65\n"), Some("00000003,00000000,ffffffff".to_owned()));
        assert_eq!(cpu_mask(""), None);
        assert_eq!(cpu_mask("3-1"), None);
        assert_eq!(cpu_mask("0-99999"), None);
    }

    #[test]
    fn a_file_is_needed_only_where_the_tree_is_hidden() {
        let flat = flat_machine();
        assert!(topology_needed(&rail_map(&flat, Some(&wired_profile())), &flat));
        assert!(!topology_needed(&rail_map(&flat, Some(&profile())), &flat));
        let bare = machine();
        assert!(!topology_needed(&rail_map(&bare, Some(&wired_profile())), &bare));
    }

    /// What NCCL's parser accepts between two `<`: a name, then ` key="value"` with one space each.
    fn well_formed(tag: &str) -> bool {
        let body = tag.trim_end_matches('/');
        if let Some(name) = body.strip_prefix('/') {
            return name.chars().all(|c| c.is_ascii_lowercase());
        }
        let name_end = body.find(' ').unwrap_or(body.len());
        let (name, mut rest) = body.split_at(name_end);
        while let Some(attribute) = rest.strip_prefix(' ') {
            let Some((key, value)) = attribute.split_once("=\"") else { return false };
            let Some((value, after)) = value.split_once('"') else { return false };
            if key.is_empty() || !key.chars().all(|c| c.is_ascii_lowercase() || c == '_') || value.len() > 254
            {
                return false;
            }
            rest = after;
        }
        rest.is_empty() && name.chars().all(|c| c.is_ascii_lowercase())
    }

    #[test]
    fn the_file_is_what_nccls_parser_accepts() {
        let flat = flat_machine();
        let map = rail_map(&flat, Some(&wired_profile()));
        let xml = topology(&map, &flat).unwrap();
        assert!(xml.starts_with("<system version=\"1\">\n") && !xml.contains('\t') && !xml.contains("<?"));
        let mut depth = 0_i32;
        for piece in xml.split('<').skip(1) {
            let (tag, after) = piece.split_once('>').unwrap();
            assert!(well_formed(tag), "{tag}");
            assert!(after.chars().all(|c| c == ' ' || c == '\n'), "{after:?}");
            depth += if tag.starts_with('/') { -1 } else { i32::from(!tag.ends_with('/')) };
        }
        assert_eq!(depth, 0);
        assert_eq!(xml.matches("class=\"0x060400\"").count(), 4);
        assert_eq!(xml.matches("class=\"0x030200\"").count(), 4);
        assert!(xml.contains("busid=\"0101:00:00.0\" class=\"0x020700\""));
        assert_eq!(xml.matches("<cpu numaid=").count(), 1);
        assert!(xml.contains("affinity=\"0000ffff\""));
    }

    #[test]
    fn what_is_not_known_is_named() {
        let mut flat = flat_machine();
        if let railgate_node::Part::Read { data, .. } = &mut flat.host {
            data.cpu = Reading::Failed("no /proc/cpuinfo".to_owned());
        }
        let map = rail_map(&flat, Some(&wired_profile()));
        let error = topology(&map, &flat).unwrap_err();
        assert!(error.to_string().contains("no /proc/cpuinfo"), "{error}");
    }
}
