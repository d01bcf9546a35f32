use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

use railgate_fsutil::{ReadError, read};
use railgate_model::{Pci, PciAddress, PciDevice, PciLink, Reading};

use crate::sysfs;

/// Reads `bus/pci/devices` below the sysfs root. Keeps display and network controllers, NVSwitches, and all bridges
/// above them.
///
/// # Errors
/// Returns an error if the directory cannot be listed, or if a device in it cannot be parsed.
pub fn pci_read(sysfs_root: &Path) -> Result<Pci, ReadError> {
    let all = sysfs_root.join("bus/pci/devices");
    let mut devices = Vec::new();
    for name in read::names(&all)? {
        match device(&all.join(&name), &name) {
            Ok(device) => devices.push(device),
            // Unplugged between listing and reading.
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(error),
        }
    }
    let above: BTreeSet<PciAddress> = devices
        .iter()
        .filter(|device| is_endpoint(device))
        .flat_map(|device| device.bridges.clone())
        .collect();
    devices.retain(|device| is_endpoint(device) || above.contains(&device.address));
    devices.sort_by_key(|device| device.address);
    Ok(Pci { devices })
}

fn is_endpoint(device: &PciDevice) -> bool {
    matches!(device.class >> 16, 0x02 | 0x03) || (device.vendor == 0x10de && device.class >> 8 == 0x0680)
}

fn device(at: &Path, name: &str) -> Result<PciDevice, ReadError> {
    let address = name.parse().map_err(|_| ReadError::odd(at, name, "a PCI address"))?;
    let number = |attribute: &str| {
        let path = at.join(attribute);
        let text = sysfs::attribute(&path)?;
        sysfs::hex(&text).ok_or_else(|| ReadError::odd(&path, &text, "a hexadecimal number"))
    };
    let (root, bridges) = place(at)?;
    let class = number("class")?;
    Ok(PciDevice {
        address,
        vendor: number("vendor")?,
        device: number("device")?,
        class,
        numa_node: sysfs::numa_node(&at.join("numa_node")),
        bridges,
        root,
        link: link(at),
        acs: if class >> 8 == 0x0604 { acs(at) } else { Reading::Unsupported },
    })
}

/// Root complex and bridges of a device, from the text of its link:
/// `../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0`. For a root complex below another one (VMD,
/// Hyper-V), the last `pciDDDD:BB` counts.
fn place(at: &Path) -> Result<(String, Vec<PciAddress>), ReadError> {
    let target = fs::read_link(at).map_err(|source| ReadError::io(at, source))?;
    let mut root = None;
    let mut path = Vec::new();
    for component in target.components() {
        let component = component.as_os_str().to_string_lossy();
        if let Some(rest) = component.strip_prefix("pci")
            && rest.contains(':')
        {
            root = Some(component.into_owned());
            path.clear();
        } else if let Ok(address) = component.parse() {
            path.push(address);
        }
    }
    // The last component is the device itself.
    path.pop();
    let root = root.ok_or_else(|| ReadError::odd(at, &target.to_string_lossy(), "a place in a PCI tree"))?;
    Ok((root, path))
}

/// Reads the PCIe link. Functions without a PCIe capability have none of these files. A device that has fallen off the
/// bus reads as all ones, which the kernel prints as `Unknown`.
fn link(at: &Path) -> Reading<PciLink> {
    let speed = |name: &str| sysfs::parsed(&at.join(name), "a link speed", speed_gts);
    let width = |name: &str| sysfs::parsed(&at.join(name), "a link width", |text| text.parse::<u32>().ok());
    let now = (speed("current_link_speed"), width("current_link_width"));
    let most = (speed("max_link_speed"), width("max_link_width"));
    match (now, most) {
        (
            (Reading::Known(Some(speed_gts)), Reading::Known(width)),
            (Reading::Known(Some(max_speed_gts)), Reading::Known(max_width)),
        ) => Reading::Known(PciLink { speed_gts, max_speed_gts, width, max_width }),
        // A virtual function or an emulated port: it has no link.
        ((Reading::Known(None), _), (Reading::Known(None), _)) => Reading::Unsupported,
        ((Reading::Unsupported, _), (Reading::Unsupported, _)) => Reading::Unsupported,
        ((Reading::Known(None), _), _) => {
            Reading::Failed(format!("{}: Unknown", at.join("current_link_speed").display()))
        }
        ((now_speed, now_width), (max_speed, max_width)) => {
            let whys = [reason(now_speed), reason(now_width), reason(max_speed), reason(max_width)];
            Reading::Failed(
                whys.into_iter()
                    .flatten()
                    .next()
                    .unwrap_or_else(|| format!("{}: no PCIe link", at.display())),
            )
        }
    }
}

/// Reads the ACS control register of a bridge. Without root, the kernel only returns the first 64 bytes of the
/// configuration space; then the register is unknown, as for a bridge without the capability.
fn acs(at: &Path) -> Reading<u16> {
    match fs::read(at.join("config")) {
        Ok(config) => acs_control(&config).map_or(Reading::Unsupported, Reading::Known),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Reading::Unsupported,
        Err(error) => Reading::Failed(format!("{}: {error}", at.join("config").display())),
    }
}

/// Extended capabilities are a linked list that starts at 0x100. ACS has id 13; its control register has offset 6.
fn acs_control(config: &[u8]) -> Option<u16> {
    const ACS: u32 = 0x000d;
    // Limits the number of entries, because a broken list can be circular.
    const MOST: usize = (4096 - 256) / 8;
    let mut at = 0x100;
    for _ in 0..MOST {
        let head = u32::from_le_bytes(config.get(at..at + 4)?.try_into().ok()?);
        if head == 0 || head == u32::MAX {
            return None;
        }
        if head & 0xffff == ACS {
            return Some(u16::from_le_bytes(config.get(at + 6..at + 8)?.try_into().ok()?));
        }
        at = usize::try_from(head >> 20).ok()? & !3;
        if at < 0x100 {
            return None;
        }
    }
    None
}

fn reason<T>(reading: Reading<T>) -> Option<String> {
    match reading {
        Reading::Failed(why) => Some(why),
        _ => None,
    }
}

/// The speed in `32.0 GT/s PCIe`, `8 GT/s` (older kernels) or `Unknown`.
fn speed_gts(text: &str) -> Option<Option<f64>> {
    if text.starts_with("Unknown") {
        return Some(None);
    }
    let (number, rest) = text.split_once(' ')?;
    let speed: f64 = number.parse().ok()?;
    (rest.starts_with("GT/s") && speed.is_finite() && speed > 0.0).then_some(Some(speed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_speeds_are_parsed() {
        assert_eq!(speed_gts("32.0 GT/s PCIe"), Some(Some(32.0)));
        assert_eq!(speed_gts("8 GT/s"), Some(Some(8.0)));
        assert_eq!(speed_gts("Unknown"), Some(None));
        assert_eq!(speed_gts("Unknown speed"), Some(None));
        assert_eq!(speed_gts("32.0 furlongs"), None);
    }

    #[test]
    fn the_acs_register_is_found_in_the_capability_list() {
        let mut config = vec![0_u8; 4096];
        config[0x100..0x104].copy_from_slice(&0x1480_0001_u32.to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&0x0001_000d_u32.to_le_bytes());
        config[0x14e] = 0x1d;
        assert_eq!(acs_control(&config), Some(0x1d));
        // A circular list, one that leaves the space, no list, and the part that unprivileged users can read.
        config[0x148..0x14c].copy_from_slice(&0x1480_0002_u32.to_le_bytes());
        assert_eq!(acs_control(&config), None);
        config[0x148..0x14c].copy_from_slice(&0xffc0_0002_u32.to_le_bytes());
        assert_eq!(acs_control(&config), None);
        assert_eq!(acs_control(&[0; 4096]), None);
        assert_eq!(acs_control(&config[..64]), None);
        assert_eq!(acs_control(&[0xff; 4096]), None);
    }

    #[test]
    fn the_innermost_root_complex_counts() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("10000:e1:00.0");
        let target = "../../../devices/pci0000:00/0000:00:0e.0/pci10000:e0/10000:e0:01.0/10000:e1:00.0";
        std::os::unix::fs::symlink(target, &at).unwrap();
        let (root, bridges) = place(&at).unwrap();
        assert_eq!(root, "pci10000:e0");
        assert_eq!(bridges, ["10000:e0:01.0".parse().unwrap()]);
    }
}
