use serde::{Deserialize, Serialize};

use crate::{Port, Reading};

/// Further values of a device. Absent in snapshots of earlier releases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HcaDetails {
    /// `board_id`: the vendor's name of the firmware variant (PSID).
    pub board: Reading<String>,
    /// Network interfaces of the device, from `class/net`.
    pub interfaces: Vec<Interface>,
}

impl Default for HcaDetails {
    fn default() -> Self {
        HcaDetails { board: Reading::Unsupported, interfaces: Vec::new() }
    }
}

/// A network interface of an RDMA device: IPoIB, or the Ethernet interface of a RoCE port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Interface name, for example `ibp24s0` or `ens24np0`.
    pub name: String,
    /// `operstate`: `up`, `down`, `lowerlayerdown`, …
    pub state: Reading<String>,
    /// `mtu`, bytes.
    pub mtu: Reading<u32>,
    /// `dev_port`: index from 0 of the device's port to which the interface belongs.
    pub port: Reading<u32>,
}

/// Further values of a port. Absent in snapshots of earlier releases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortDetails {
    /// `pkeys/*` that are not zero, in the order of the table; InfiniBand only.
    pub pkeys: Reading<Vec<u16>>,
    /// `gids/*` that are not zero, with `gid_attrs`; RoCE only.
    pub gids: Reading<Vec<Gid>>,
}

impl Default for PortDetails {
    fn default() -> Self {
        PortDetails { pkeys: Reading::Unsupported, gids: Reading::Unsupported }
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gid {
    /// Index in the table, as in `NCCL_IB_GID_INDEX`.
    pub index: u32,
    /// `gids/N`: eight groups of four hexadecimal digits.
    pub gid: String,
    /// `gid_attrs/types/N`, for example `IB/RoCE v1` or `RoCE v2`.
    pub kind: Reading<String>,
    /// `gid_attrs/ndevs/N`.
    pub interface: Reading<String>,
}

impl Gid {
    /// Returns the IPv4 address that the GID contains (`::ffff:a.b.c.d`), if any.
    pub fn ipv4(&self) -> Option<std::net::Ipv4Addr> {
        self.gid.parse::<std::net::Ipv6Addr>().ok()?.to_ipv4_mapped()
    }
}

impl Port {
    /// Returns the number of lanes, from the kernel's text of the rate: 4 for `400 Gb/sec (4X NDR)`.
    pub fn lanes(&self) -> Option<u32> {
        let (_, inner) = self.rate_text.known()?.split_once('(')?;
        inner.split_once('X')?.0.trim().parse().ok()
    }
}

/// Returns the RDMA MTU in bytes that the kernel derives from the MTU of an Ethernet interface: the largest standard
/// size that leaves room for the RoCE headers. `None` if even the smallest does not fit.
pub fn roce_mtu(interface: u32) -> Option<u32> {
    // GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, CRC 4.
    const HEADERS: u32 = 96;
    let room = interface.checked_sub(HEADERS)?;
    [4096, 2048, 1024, 512, 256].into_iter().find(|step| *step <= room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rdma_mtu_is_the_largest_step_that_fits() {
        assert_eq!(
            [9000, 4200, 1500, 1100, 100].map(roce_mtu),
            [Some(4096), Some(4096), Some(1024), Some(512), None]
        );
    }

    #[test]
    fn a_gid_can_contain_an_ipv4_address() {
        let gid = |text: &str| Gid {
            index: 3,
            gid: text.to_owned(),
            kind: Reading::Unsupported,
            interface: Reading::Unsupported,
        };
        assert_eq!(gid("0000:0000:0000:0000:0000:ffff:0a4d:0001").ipv4().unwrap().to_string(), "10.77.0.1");
        assert_eq!(gid("fe80:0000:0000:0000:9a03:9bff:fe5e:8f2a").ipv4(), None);
        assert_eq!(gid("so").ipv4(), None);
    }
}
