use std::collections::BTreeMap;
use std::fmt::Write as _;

use railgate_node::{Host, PciAddress, Profile, RailMap, Reading, Snapshot};

use crate::distance::device;
use crate::map::BY_PROFILE;

/// Why no topology file can be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTopology {
    /// A part of the snapshot that it is made from was not read.
    #[error("{0}")]
    Missing(String),
    /// A device cannot be placed.
    #[error("NUMA node of {0} is not known")]
    NoNuma(String),
}

/// NCCL needs a topology file here: a virtual machine hides the switches, and the profile knows the wiring.
/// On bare metal the real tree is better than any file.
pub fn topology_needed(map: &RailMap, snapshot: &Snapshot) -> bool {
    let virtualised = snapshot.host.data().is_some_and(|host| host.virtualised == Reading::Known(true));
    virtualised && map.method == BY_PROFILE && !map.rails.is_empty()
}

/// One switch of a rail: its GPUs and its HCA.
struct Switch {
    gpus: Vec<(PciAddress, String)>,
    hca: Option<(PciAddress, u32, String)>,
}

/// A topology file for NCCL: one made-up PCI switch for each rail, with the rail's GPUs and its HCA below it.
///
/// NCCL's own parser is strict, so this is: one space between attributes, lower-case bus ids, no tabs, no
/// XML declaration. Only what NCCL cannot find out by itself is written; it keeps whatever a file says.
///
/// # Errors
/// Where the CPU, a PCI address or a NUMA node is not known: NCCL would refuse the file, or believe it.
pub fn topology_xml(map: &RailMap, snapshot: &Snapshot, profile: &Profile) -> Result<String, NoTopology> {
    let host = snapshot.host.data().ok_or_else(|| {
        NoTopology::Missing(format!("host: {}", snapshot.host.missing().unwrap_or_default()))
    })?;
    let Reading::Known((vendor, family, model)) = &host.cpu else {
        return Err(NoTopology::Missing(format!("cpu: {}", host.cpu.clone().map(|_| ""))));
    };
    let mut nodes: BTreeMap<u32, Vec<Switch>> = BTreeMap::new();
    let mut placed: BTreeMap<usize, (u32, usize)> = BTreeMap::new();
    for (index, rail) in map.rails.iter().enumerate() {
        let subject = format!("{}:{}", rail.hca, rail.port);
        let Reading::Known(address) = &rail.pci else {
            return Err(NoTopology::Missing(format!("PCI address of {subject}: {}", rail.pci)));
        };
        let numa = numa_of(host, &rail.numa_node, &subject)?;
        let class = device(snapshot, Some(address)).map_or(0x02_0700, |device| device.class);
        let switches = nodes.entry(numa).or_default();
        placed.insert(index, (numa, switches.len()));
        let link = link_of(snapshot, address, profile);
        switches.push(Switch { gpus: Vec::new(), hca: Some((*address, class, link)) });
    }
    for gpu in &map.gpus {
        let subject = format!("GPU {}", gpu.index);
        let Reading::Known(address) = &gpu.pci else {
            return Err(NoTopology::Missing(format!("PCI address of {subject}: {}", gpu.pci)));
        };
        let link = link_of(snapshot, address, profile);
        let place = gpu.rail.and_then(|rail| placed.get(&rail)).copied();
        let switch = match place.and_then(|(numa, at)| nodes.get_mut(&numa)?.get_mut(at)) {
            Some(switch) => switch,
            None => {
                let numa = numa_of(host, &gpu.numa_node, &subject)?;
                let switches = nodes.entry(numa).or_default();
                switches.push(Switch { gpus: Vec::new(), hca: None });
                let last = switches.len() - 1;
                &mut switches[last]
            }
        };
        switch.gpus.push((*address, link));
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
            "  <cpu numaid=\"{numa}\"{affinity} arch=\"x86_64\" vendor=\"{}\" familyid=\"{family}\" modelid=\"{model}\">",
            attribute(vendor)
        );
        for switch in switches {
            number += 1;
            // Domain ffff is nobody's; 31 devices of function 0 on each made-up bus.
            let link =
                switch.hca.as_ref().map(|(_, _, link)| link).or(switch.gpus.first().map(|(_, link)| link));
            let _ = writeln!(
                xml,
                "    <pci busid=\"ffff:{:02x}:{:02x}.0\" class=\"0x060400\" {} vendor=\"0x0000\" device=\"0x0000\" \
                 subsystem_vendor=\"0x0000\" subsystem_device=\"0x0000\">",
                0xff - (number - 1) / 31,
                (number - 1) % 31 + 1,
                link.map_or("", String::as_str),
            );
            for (address, link) in &switch.gpus {
                let _ = writeln!(xml, "      <pci busid=\"{address}\" class=\"0x030200\" {link}/>");
            }
            if let Some((address, class, link)) = &switch.hca {
                // NCCL looks its HCAs up with device and function set to zero (ports and virtual functions merge).
                let merged = PciAddress { device: 0, function: 0, ..*address };
                let _ = writeln!(xml, "      <pci busid=\"{merged}\" class=\"0x{class:06x}\" {link}/>");
            }
            xml.push_str("    </pci>\n");
        }
        xml.push_str("  </cpu>\n");
    }
    xml.push_str("</system>\n");
    Ok(xml)
}

fn attribute(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_alphanumeric()).take(64).collect()
}

fn numa_of(host: &Host, reading: &Reading<u32>, subject: &str) -> Result<u32, NoTopology> {
    match (reading, host.numa_cpus.as_slice()) {
        (Reading::Known(node), _) => Ok(*node),
        // A machine with one node need not say which.
        (_, [(only, _)]) => Ok(*only),
        _ => Err(NoTopology::NoNuma(subject.to_owned())),
    }
}

/// What NCCL takes for the link's bandwidth; left out it would assume 12 GB/s.
fn link_of(snapshot: &Snapshot, address: &PciAddress, profile: &Profile) -> String {
    let known = device(snapshot, Some(address)).and_then(|device| device.link.known().cloned());
    let (speed, width) = match known {
        Some(link) if link.max_speed_gts > 0.0 && link.max_width > 0 => (link.max_speed_gts, link.max_width),
        _ => (
            match profile.gpus.pcie_gen {
                Some(3) => 8.0,
                Some(4) => 16.0,
                Some(6) => 64.0,
                _ => 32.0,
            },
            profile.gpus.pcie_width.unwrap_or(16),
        ),
    };
    format!("link_speed=\"{speed:.1} GT/s PCIe\" link_width=\"{width}\"")
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
        assert!(topology_needed(&rail_map(&flat, &wired_profile()), &flat));
        assert!(!topology_needed(&rail_map(&flat, &profile()), &flat));
        let bare = machine();
        assert!(!topology_needed(&rail_map(&bare, &wired_profile()), &bare));
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
        let map = rail_map(&flat, &wired_profile());
        let xml = topology_xml(&map, &flat, &wired_profile()).unwrap();
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
        let map = rail_map(&flat, &wired_profile());
        let error = topology_xml(&map, &flat, &wired_profile()).unwrap_err();
        assert!(error.to_string().contains("no /proc/cpuinfo"), "{error}");
    }
}
