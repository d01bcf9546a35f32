pub(super) mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nvidia_ml::LOADS;
use railgate_model::{
    Fabric, Gid, Hca, Host, Interface, LinkLayer, Pci, PciAddress, PciDevice, PhysState, Port, PortState,
    Reading,
};

/// Port counters of the RDMA core; the driver provides the others.
const CORE_COUNTERS: [&str; 21] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
];

/// Counters that grow when a program moves data ([`move_bytes`]).
const TRAFFIC: [&str; 2] = ["port_xmit_data", "port_rcv_data"];

/// Adds `bytes` to the sent and to the received data of a port, as if a program had transferred them. `dir` is the hardware's
/// folder as the program sees it.
///
/// # Errors
/// The port has no such counters, or they cannot be written.
pub fn move_bytes(dir: &Path, hca: &str, port: u32, bytes: u64) -> io::Result<()> {
    let counters = dir.join(format!("sysfs/class/infiniband/{hca}/ports/{port}/counters"));
    for name in TRAFFIC {
        let path = counters.join(name);
        let before: u64 = fs::read_to_string(&path)?.trim().parse().map_err(io::Error::other)?;
        // The counters' unit is four bytes. The file is replaced in one step, and prepared elsewhere, for concurrent readers.
        let next = dir.join(LOADS).join(format!("{hca}.{port}.{name}"));
        fs::write(&next, format!("{}\n", before + bytes / 4))?;
        fs::rename(&next, &path)?;
    }
    Ok(())
}

/// Whether a counter file was written by a program ([`move_bytes`]), recognised by its owner. Its value is not in the snapshot
/// and is kept.
fn is_of_a_program(path: &Path) -> bool {
    let owner = |path: &Path| fs::metadata(path).ok().map(|meta| meta.uid());
    let hardware = path.parent().and_then(owner);
    owner(path).is_some_and(|program| Some(program) != hardware)
}

/// A sysfs tree on disk: as in the kernel's, real directories below `devices` and links everywhere else.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(super) fn new(root: PathBuf) -> Result<Self> {
        for dir in ["class/infiniband", "class/net", "bus/pci/devices", "devices/system/node", ".new"] {
            fs::create_dir_all(root.join(dir)).with_context(|| root.join(dir).display().to_string())?;
        }
        Ok(Tree { root })
    }

    /// Updates the tree to this state. Files that are already right are not touched; each change of a file is atomic.
    pub(super) fn write(&self, pci: &Pci, fabric: &Fabric, host: &Host) -> Result<()> {
        for device in &pci.devices {
            self.pci_device(device).with_context(|| device.address.to_string())?;
        }
        for hca in &fabric.hcas {
            self.hca(hca, pci).with_context(|| hca.name.clone())?;
        }
        self.forget("class/infiniband", fabric.hcas.iter().map(|hca| hca.name.clone()).collect())?;
        self.forget("class/net", fabric.hcas.iter().flat_map(|hca| hca.netdevs.clone()).collect())?;
        self.forget(
            "bus/pci/devices",
            pci.devices.iter().map(|device| device.address.to_string()).collect(),
        )?;
        for (node, cpus) in &host.numa_cpus {
            let dir = self.root.join(format!("devices/system/node/node{node}"));
            self.put(&dir.join("cpulist"), Some(cpus.clone()))?;
        }
        self.system(&host.system)
    }

    fn pci_device(&self, device: &PciDevice) -> Result<()> {
        let below = place(device);
        let dir = self.root.join(&below);
        self.put(&dir.join("vendor"), Some(format!("0x{:04x}", device.vendor)))?;
        self.put(&dir.join("device"), Some(format!("0x{:04x}", device.device)))?;
        self.put(&dir.join("class"), Some(format!("0x{:06x}", device.class)))?;
        self.put(&dir.join("numa_node"), Some(numa_node(&device.numa_node)))?;
        let [speed, width, max_speed, max_width] = match &device.link {
            Reading::Known(link) => [
                Some(speed(link.speed_gts)),
                Some(link.width.to_string()),
                Some(speed(link.max_speed_gts)),
                Some(link.max_width.to_string()),
            ],
            Reading::Unsupported => [const { None }; 4],
            // Reads of a lost PCI device return all ones.
            Reading::Failed(_) => {
                [Some("Unknown".to_owned()), Some("63".to_owned()), Some(speed(32.0)), Some("16".to_owned())]
            }
        };
        self.put(&dir.join("current_link_speed"), speed)?;
        self.put(&dir.join("current_link_width"), width)?;
        self.put(&dir.join("max_link_speed"), max_speed)?;
        self.put(&dir.join("max_link_width"), max_width)?;
        self.put_bytes(&dir.join("config"), device.acs.known().map(|control| configuration(*control)))?;
        let link = self.root.join("bus/pci/devices").join(device.address.to_string());
        self.link(&link, &Path::new("../../..").join(&below))
    }

    fn hca(&self, hca: &Hca, pci: &Pci) -> Result<()> {
        let parent = hca.pci.known().and_then(|at| pci.devices.iter().find(|device| device.address == *at));
        // Software devices have no parent on a bus.
        let below = match parent {
            Some(device) => place(device).join("infiniband").join(&hca.name),
            None => Path::new("devices/virtual/infiniband").join(&hca.name),
        };
        let dir = self.root.join(&below);
        self.put(&dir.join("node_guid"), text(&hca.node_guid))?;
        self.put(&dir.join("fw_ver"), text(&hca.firmware))?;
        self.put(&dir.join("hca_type"), text(&hca.hca_type))?;
        self.put(&dir.join("board_id"), text(&hca.details.board))?;
        if let Some(device) = parent {
            self.link(&dir.join("device"), &Path::new("../../../").join(device.address.to_string()))?;
            let net = self.root.join(place(device)).join("net");
            fs::create_dir_all(&net)?;
            for entry in fs::read_dir(&net)? {
                let entry = entry?;
                if !hca.netdevs.iter().any(|netdev| entry.file_name() == netdev.as_str()) {
                    fs::remove_dir_all(entry.path())?;
                }
            }
            for netdev in &hca.netdevs {
                fs::create_dir_all(net.join(netdev))?;
            }
            for interface in &hca.details.interfaces {
                self.interface(&place(device).join("net").join(&interface.name), interface)?;
            }
        }
        for port in &hca.ports {
            self.port(&dir.join("ports").join(port.number.to_string()), port)?;
        }
        let link = self.root.join("class/infiniband").join(&hca.name);
        self.link(&link, &Path::new("../..").join(&below))
    }

    fn port(&self, dir: &Path, port: &Port) -> Result<()> {
        self.put(&dir.join("link_layer"), text(&port.link_layer.clone().map(link_layer)))?;
        self.put(&dir.join("state"), text(&port.state.clone().map(state)))?;
        self.put(&dir.join("phys_state"), text(&port.phys_state.clone().map(phys_state)))?;
        self.put(&dir.join("rate"), text(&port.rate_text))?;
        self.put(&dir.join("lid"), text(&port.lid.clone().map(|lid| format!("0x{lid:x}"))))?;
        self.put(&dir.join("sm_lid"), text(&port.sm_lid.clone().map(|lid| format!("0x{lid:x}"))))?;
        for (name, value) in &port.counters {
            let core = CORE_COUNTERS.contains(&name.as_str());
            let folder = if core { "counters" } else { "hw_counters" };
            let value = match value {
                Reading::Known(value) => Some(value.to_string()),
                Reading::Unsupported => Some("N/A (no PMA)".to_owned()),
                Reading::Failed(_) => Some("?".to_owned()),
            };
            let path = dir.join(folder).join(name);
            if !TRAFFIC.contains(&name.as_str()) || !is_of_a_program(&path) {
                self.put(&path, value)?;
            }
        }
        // Programs of the tests write the counters themselves (`move_bytes`).
        let counters = dir.join("counters");
        if counters.exists() {
            fs::set_permissions(counters, fs::Permissions::from_mode(0o777))?;
        }
        self.put(&dir.join("hw_counters/lifespan"), Some("10".to_owned()))?;
        let keys = |keys: Vec<u16>| (0..).zip(keys.iter().map(|key| format!("0x{key:04x}"))).collect();
        self.table(&dir.join("pkeys"), &port.details.pkeys.clone().map(keys))?;
        let gids = |of: fn(&Gid) -> Option<String>| {
            let rows = |gids: Vec<Gid>| gids.iter().filter_map(|gid| Some((gid.index, of(gid)?))).collect();
            port.details.gids.clone().map(rows)
        };
        self.table(&dir.join("gids"), &gids(|gid| Some(gid.gid.clone())))?;
        self.table(&dir.join("gid_attrs/types"), &gids(|gid| text(&gid.kind)))?;
        self.table(&dir.join("gid_attrs/ndevs"), &gids(|gid| text(&gid.interface)))
    }

    fn interface(&self, below: &Path, interface: &Interface) -> Result<()> {
        let dir = self.root.join(below);
        self.put(&dir.join("operstate"), text(&interface.state))?;
        self.put(&dir.join("mtu"), text(&interface.mtu.clone().map(|mtu| mtu.to_string())))?;
        self.put(&dir.join("dev_port"), text(&interface.port.clone().map(|port| port.to_string())))?;
        self.link(&self.root.join("class/net").join(&interface.name), &Path::new("../..").join(below))
    }

    /// A folder with one numbered file for each row, without empty rows.
    fn table(&self, dir: &Path, rows: &Reading<BTreeMap<u32, String>>) -> Result<()> {
        let rows = match rows {
            Reading::Known(rows) => rows.clone(),
            Reading::Unsupported if !dir.exists() => return Ok(()),
            Reading::Unsupported => return Ok(fs::remove_dir_all(dir)?),
            Reading::Failed(_) => BTreeMap::from([(0, "?".to_owned())]),
        };
        fs::create_dir_all(dir)?;
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            if !name
                .to_str()
                .and_then(|name| name.parse().ok())
                .is_some_and(|place| rows.contains_key(&place))
            {
                fs::remove_file(dir.join(name))?;
            }
        }
        for (place, text) in &rows {
            self.put(&dir.join(place.to_string()), Some(text.clone()))?;
        }
        Ok(())
    }

    /// Writes one attribute; `None` removes it.
    fn put(&self, path: &Path, text: Option<String>) -> Result<()> {
        self.put_bytes(path, text.map(|text| (text + "\n").into_bytes()))
    }

    fn put_bytes(&self, path: &Path, bytes: Option<Vec<u8>>) -> Result<()> {
        let at = || path.display().to_string();
        let Some(bytes) = bytes else {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).with_context(at),
                _ => Ok(()),
            };
        };
        if fs::read(path).is_ok_and(|now| now == bytes) {
            return Ok(());
        }
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).with_context(at)?;
        }
        // Prepared in another folder: a reader that lists the attribute's folder would see it.
        let next = self.root.join(".new/attribute");
        fs::write(&next, bytes).and_then(|()| fs::rename(&next, path)).with_context(at)
    }

    fn link(&self, path: &Path, target: &Path) -> Result<()> {
        if fs::read_link(path).is_ok_and(|now| now == target) {
            return Ok(());
        }
        let next = self.root.join(".new/link");
        symlink(target, &next)
            .and_then(|()| fs::rename(&next, path))
            .with_context(|| path.display().to_string())
    }

    /// Removes the links whose names are not in `keep` and the folders they point to, as a driver does when it releases a device.
    fn forget(&self, folder: &str, keep: BTreeSet<String>) -> Result<()> {
        for entry in fs::read_dir(self.root.join(folder))? {
            let entry = entry?;
            if !keep.contains(entry.file_name().to_string_lossy().as_ref()) {
                if folder.starts_with("class/")
                    && let Ok(target) = entry.path().canonicalize()
                {
                    fs::remove_dir_all(target)?;
                }
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Path of a device, for example `devices/pci0000:15/0000:15:01.0/…/0000:18:00.0`.
fn place(device: &PciDevice) -> PathBuf {
    let mut path = Path::new("devices").join(&device.root);
    path.extend(device.bridges.iter().map(PciAddress::to_string));
    path.push(device.address.to_string());
    path
}

/// A PCI configuration space whose only extended capability is ACS.
fn configuration(acs_control: u16) -> Vec<u8> {
    let mut space = vec![0; 4096];
    space[0x100..0x104].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
    space[0x106..0x108].copy_from_slice(&acs_control.to_le_bytes());
    space
}

fn numa_node(reading: &Reading<u32>) -> String {
    reading.known().map_or_else(|| "-1".to_owned(), u32::to_string)
}

/// As in sysfs, for example `32.0 GT/s PCIe`.
fn speed(gts: f64) -> String {
    format!("{gts:.1} GT/s PCIe")
}

/// The content of an attribute: none for an unsupported reading, unparsable text for a failed one.
fn text(reading: &Reading<String>) -> Option<String> {
    match reading {
        Reading::Known(text) => Some(text.clone()),
        Reading::Unsupported => None,
        Reading::Failed(_) => Some("?".to_owned()),
    }
}

fn link_layer(layer: LinkLayer) -> String {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand".to_owned(),
        LinkLayer::Ethernet => "Ethernet".to_owned(),
        LinkLayer::Other(text) => text,
    }
}

fn state(state: PortState) -> String {
    match state {
        PortState::Down => "1: DOWN".to_owned(),
        PortState::Init => "2: INIT".to_owned(),
        PortState::Armed => "3: ARMED".to_owned(),
        PortState::Active => "4: ACTIVE".to_owned(),
        PortState::Other(text) => text,
    }
}

fn phys_state(state: PhysState) -> String {
    match state {
        PhysState::Polling => "2: Polling".to_owned(),
        PhysState::Disabled => "3: Disabled".to_owned(),
        PhysState::LinkUp => "5: LinkUp".to_owned(),
        PhysState::Other(text) => text,
    }
}
