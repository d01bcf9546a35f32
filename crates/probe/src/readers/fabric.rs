use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use railgate_fsutil::{ReadError, read};
use railgate_model::{Fabric, Hca, LinkLayer, PciAddress, PhysState, Port, PortState, Reading};

use super::fabric_details::{hca_details, port_details};
use crate::sysfs;

/// Reads `class/infiniband` below the sysfs root.
///
/// A machine without the directory has no RDMA device, which is not an error.
///
/// # Errors
/// Returns an error if the root is not a sysfs tree, or if a directory in it cannot be listed.
pub fn fabric_read(sysfs_root: &Path) -> Result<Fabric, ReadError> {
    let class = sysfs_root.join("class");
    let devices = class.join("infiniband");
    let names = match read::names(&devices) {
        Ok(names) => names,
        Err(error) if error.is_absent() => {
            // The directory may be absent because no driver is loaded, or because the root is not a sysfs tree.
            fs::metadata(&class).map_err(|source| ReadError::io(&class, source))?;
            Vec::new()
        }
        Err(error) => return Err(error),
    };
    let mut hcas = Vec::new();
    for name in names {
        hcas.push(hca(&devices.join(&name), name, sysfs_root)?);
    }
    Ok(Fabric { hcas })
}

fn hca(at: &Path, name: String, sysfs_root: &Path) -> Result<Hca, ReadError> {
    let device = at.join("device");
    let mut ports = Vec::new();
    for port in listing(&at.join("ports"))? {
        if let Ok(number) = port.parse() {
            ports.push(read_port(&at.join("ports").join(&port), number)?);
        }
    }
    let mut netdevs = listing(&device.join("net"))?;
    // A software device is on top of a network interface, and its `parent` attribute names it.
    if let Ok(parent) = sysfs::attribute(&at.join("parent"))
        && netdevs.is_empty()
        && !parent.contains('/')
    {
        netdevs.push(parent);
    }
    Ok(Hca {
        details: hca_details(at, &netdevs, sysfs_root),
        name,
        pci: pci_of(&device),
        node_guid: sysfs::text(&at.join("node_guid")),
        firmware: sysfs::text(&at.join("fw_ver")),
        hca_type: sysfs::text(&at.join("hca_type")),
        numa_node: sysfs::numa_node(&device.join("numa_node")),
        netdevs,
        ports,
    })
}

/// Software devices (rxe, siw) have no `device` link.
fn pci_of(device: &Path) -> Reading<PciAddress> {
    let target = match fs::read_link(device) {
        Ok(target) => target,
        Err(source) => return sysfs::failure(&ReadError::io(device, source)),
    };
    let last = target.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    Reading::from_result(last.parse().map_err(|_| ReadError::odd(device, &last, "a PCI address")))
}

fn read_port(at: &Path, number: u32) -> Result<Port, ReadError> {
    let rate_text = sysfs::text(&at.join("rate"));
    let rate_gbps = match &rate_text {
        Reading::Known(text) => match gbps(text) {
            Some(rate) => Reading::Known(rate),
            None => Reading::Failed(ReadError::odd(&at.join("rate"), text, "a rate in Gb/sec").to_string()),
        },
        Reading::Unsupported => Reading::Unsupported,
        Reading::Failed(why) => Reading::Failed(why.clone()),
    };
    let mut counters = BTreeMap::new();
    for folder in ["counters", "hw_counters"] {
        for name in listing(&at.join(folder))? {
            // `lifespan` is the time for which the driver caches the values, not a counter.
            if name != "lifespan" {
                let value = counter(&at.join(folder).join(&name));
                counters.entry(name).or_insert(value);
            }
        }
    }
    let link_layer = sysfs::text(&at.join("link_layer")).map(link_layer);
    Ok(Port {
        number,
        details: port_details(at, &link_layer),
        link_layer,
        state: sysfs::text(&at.join("state")).map(port_state),
        phys_state: sysfs::text(&at.join("phys_state")).map(phys_state),
        rate_gbps,
        rate_text,
        lid: sysfs::parsed(&at.join("lid"), "a LID", sysfs::hex),
        sm_lid: sysfs::parsed(&at.join("sm_lid"), "a LID", sysfs::hex),
        counters,
    })
}

/// Reads a counter. Drivers return EINVAL for a counter that the device lacks; newer kernels print `N/A (no PMA)`.
pub(crate) fn counter(path: &Path) -> Reading<u64> {
    match sysfs::attribute(path) {
        Ok(text) if text.starts_with("N/A") => Reading::Unsupported,
        Ok(text) => Reading::from_result(text.parse().map_err(|_| ReadError::odd(path, &text, "a number"))),
        Err(error) if error.errno() == Some(libc::EINVAL) => Reading::Unsupported,
        Err(error) => sysfs::failure(&error),
    }
}

/// Lists a directory. An absent one counts as empty: drivers omit directories that do not apply to a device.
fn listing(directory: &Path) -> Result<Vec<String>, ReadError> {
    match read::names(directory) {
        Err(error) if error.is_absent() => Ok(Vec::new()),
        other => other,
    }
}

/// The rate in `400 Gb/sec (4X NDR)`.
fn gbps(text: &str) -> Option<f64> {
    let (number, rest) = text.split_once(' ')?;
    let rate: f64 = number.parse().ok()?;
    (rest.starts_with("Gb/sec") && rate.is_finite() && rate >= 0.0).then_some(rate)
}

/// The number in `4: ACTIVE`.
fn leading_number(text: &str) -> Option<u32> {
    text.split_once(':').and_then(|(number, _)| number.trim().parse().ok())
}

fn link_layer(text: String) -> LinkLayer {
    match text.as_str() {
        "InfiniBand" => LinkLayer::InfiniBand,
        "Ethernet" => LinkLayer::Ethernet,
        _ => LinkLayer::Other(text),
    }
}

fn port_state(text: String) -> PortState {
    match leading_number(&text) {
        Some(1) => PortState::Down,
        Some(2) => PortState::Init,
        Some(3) => PortState::Armed,
        Some(4) => PortState::Active,
        _ => PortState::Other(text),
    }
}

fn phys_state(text: String) -> PhysState {
    match leading_number(&text) {
        Some(5) => PhysState::LinkUp,
        Some(2) => PhysState::Polling,
        Some(3) => PhysState::Disabled,
        _ => PhysState::Other(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_and_rate_texts_are_parsed() {
        assert_eq!(gbps("400 Gb/sec (4X NDR)"), Some(400.0));
        assert_eq!(gbps("2.5 Gb/sec (1X SDR)"), Some(2.5));
        assert_eq!(gbps("400"), None);
        assert_eq!(gbps("nan Gb/sec"), None);
        assert_eq!(port_state("4: ACTIVE".into()), PortState::Active);
        assert_eq!(port_state("5: ACTIVE_DEFER".into()), PortState::Other("5: ACTIVE_DEFER".into()));
        assert_eq!(phys_state("2: Polling".into()), PhysState::Polling);
        assert_eq!(phys_state("<unknown>".into()), PhysState::Other("<unknown>".into()));
    }

    #[test]
    fn without_a_driver_there_are_no_devices_and_without_sysfs_it_fails() {
        let dir = tempfile::tempdir().unwrap();
        assert!(fabric_read(dir.path()).is_err());
        fs::create_dir(dir.path().join("class")).unwrap();
        assert_eq!(fabric_read(dir.path()).unwrap(), Fabric { hcas: Vec::new() });
    }
}
