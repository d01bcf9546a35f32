use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Reading;

/// A PCI address, displayed as `dddd:bb:dd.f` in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// Domain. NVML prints eight digits, the kernel four (more on some VMs).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// The text is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a PCI address (want dddd:bb:dd.f)")]
pub struct NotAnAddress(String);

impl FromStr for PciAddress {
    type Err = NotAnAddress;

    /// Accepts the spelling of the kernel, of NVML (`00000000:1B:00.0`) and of Xid records (`0000:1b:00`, without
    /// function).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || NotAnAddress(text.to_owned());
        let (place, function) = match text.split_once('.') {
            Some((place, function)) => (place, u8::from_str_radix(function, 16).map_err(|_| bad())?),
            None => (text, 0),
        };
        let mut fields = place.split(':');
        let mut next = || fields.next().ok_or_else(bad);
        let (domain, bus, device) = (next()?, next()?, next()?);
        if fields.next().is_some() || domain.len() > 8 || function > 7 {
            return Err(bad());
        }
        Ok(PciAddress {
            domain: u32::from_str_radix(domain, 16).map_err(|_| bad())?,
            bus: u8::from_str_radix(bus, 16).map_err(|_| bad())?,
            device: u8::from_str_radix(device, 16).map_err(|_| bad())?,
            function,
        })
    }
}

impl TryFrom<String> for PciAddress {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

/// The GPUs, NVSwitches, network controllers and the bridges above them (`/sys/bus/pci/devices`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pci {
    /// Sorted by address.
    pub devices: Vec<PciDevice>,
}

impl Pci {
    /// Returns the function at an address, if it is listed.
    pub fn device(&self, address: PciAddress) -> Option<&PciDevice> {
        self.devices.iter().find(|device| device.address == address)
    }
}

impl PciDevice {
    /// Whether it is an NVIDIA GPU: a VGA or 3D controller.
    pub fn is_nvidia_gpu(&self) -> bool {
        const NVIDIA: u32 = 0x10de;
        self.vendor == NVIDIA && matches!(self.class >> 8, 0x0300 | 0x0302)
    }
}

/// One PCI function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PciDevice {
    /// Its address.
    pub address: PciAddress,
    /// `vendor`: 0x10de NVIDIA, 0x15b3 Mellanox.
    pub vendor: u32,
    /// `device`.
    pub device: u32,
    /// `class`, 24 bits: 0x030200 GPU, 0x020700 InfiniBand, 0x020000 Ethernet, 0x060400 bridge, 0x068000 NVSwitch.
    pub class: u32,
    /// `numa_node`; the kernel's -1 is `Unsupported`.
    pub numa_node: Reading<u32>,
    /// Bridges from the root port down to the parent of the device. Empty if it is directly at the root complex.
    pub bridges: Vec<PciAddress>,
    /// Root complex, for example `pci0000:00`.
    pub root: String,
    /// `current_link_*` and `max_link_*`.
    pub link: Reading<PciLink>,
    /// ACS control register of a bridge (`config`). Bits 2 and 3 redirect requests and completions between its devices
    /// through the host.
    #[serde(default = "unread")]
    pub acs: Reading<u16>,
}

fn unread() -> Reading<u16> {
    Reading::Unsupported
}

/// PCIe link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PciLink {
    /// Current speed, GT/s.
    pub speed_gts: f64,
    /// Maximum speed, GT/s.
    pub max_speed_gts: f64,
    /// Current number of lanes.
    pub width: u32,
    /// Maximum number of lanes.
    pub max_width: u32,
}
