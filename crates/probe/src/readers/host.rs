use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use railgate_fsutil::{ReadError, read};
use railgate_model::{Host, Reading};

use crate::sysfs;

/// Size of the first processor's block of `cpuinfo`; the whole file has one block per processor.
const CPUINFO_BYTES: u64 = 16 * 1024;

/// The routing table of a node has a few lines.
const ROUTES_BYTES: u64 = 1024 * 1024;

/// Reads the host part below the proc and sysfs roots. [`Host::mounts`] stays empty, since each mount is probed by a
/// child of its own.
pub fn host_read(proc_root: &Path, sysfs_root: &Path) -> Host {
    let cpuinfo = read::prefix(&proc_root.join("cpuinfo"), CPUINFO_BYTES);
    let cpuinfo = cpuinfo.as_ref();
    Host {
        hostname: Reading::from_result(sysfs::attribute(&proc_root.join("sys/kernel/hostname"))),
        kernel: Reading::from_result(sysfs::attribute(&proc_root.join("sys/kernel/osrelease"))),
        boot_time: boot_time(&proc_root.join("stat")),
        memory_mib: memory_mib(&proc_root.join("meminfo")),
        virtualised: from_cpuinfo(cpuinfo, virtualised),
        numa_cpus: numa_cpus(&sysfs_root.join("devices/system/node")),
        cpu: from_cpuinfo(cpuinfo, cpu),
        addresses: addresses(),
        default_interface: default_interface(proc_root),
        mounts: Vec::new(),
        system: super::system::system(proc_root, sysfs_root),
    }
}

/// Reads the boot id of the kernel.
///
/// # Errors
/// Returns an error if the file cannot be read or is empty.
pub fn boot_id_read(proc_root: &Path) -> Result<String, ReadError> {
    let path = proc_root.join("sys/kernel/random/boot_id");
    let id = sysfs::attribute(&path)?;
    if id.is_empty() { Err(ReadError::odd(&path, "", "a boot id")) } else { Ok(id) }
}

fn boot_time(stat: &Path) -> Reading<u64> {
    // `btime` comes after one line per processor and a very long line of interrupts.
    let text = match read::whole(stat, ROUTES_BYTES) {
        Ok(text) => text,
        Err(error) => return Reading::Failed(error.to_string()),
    };
    let btime = text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok());
    btime.map_or_else(|| Reading::Failed(format!("{}: no btime", stat.display())), Reading::Known)
}

fn memory_mib(meminfo: &Path) -> Reading<u64> {
    read::prefix(meminfo, 4096)
        .map(|text| {
            text.lines()
                .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok())
        })
        .map_or_else(
            |error| Reading::Failed(error.to_string()),
            |kib: Option<u64>| match kib {
                Some(kib) => Reading::Known(kib / 1024),
                None => Reading::Failed(format!("{}: no MemTotal", meminfo.display())),
            },
        )
}

/// Other processors than x86 have neither flags nor a vendor in this file.
fn from_cpuinfo<T>(cpuinfo: Result<&String, &ReadError>, find: impl FnOnce(&str) -> Option<T>) -> Reading<T> {
    match cpuinfo {
        Ok(text) => find(text).map_or(Reading::Unsupported, Reading::Known),
        Err(error) => Reading::Failed(error.to_string()),
    }
}

fn cpuinfo_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == name).then(|| value.trim())
    })
}

fn virtualised(cpuinfo: &str) -> Option<bool> {
    Some(cpuinfo_field(cpuinfo, "flags")?.split(' ').any(|flag| flag == "hypervisor"))
}

fn cpu(cpuinfo: &str) -> Option<(String, u32, u32)> {
    let vendor = cpuinfo_field(cpuinfo, "vendor_id")?;
    let family = cpuinfo_field(cpuinfo, "cpu family")?.parse().ok()?;
    let model = cpuinfo_field(cpuinfo, "model")?.parse().ok()?;
    Some((railgate_text::printable(vendor).into_owned(), family, model))
}

fn numa_cpus(nodes: &Path) -> Vec<(u32, String)> {
    let names = read::names(nodes).unwrap_or_default();
    names
        .iter()
        .filter_map(|name| {
            let number = name.strip_prefix("node")?.parse().ok()?;
            let cpus = sysfs::attribute(&nodes.join(name).join("cpulist")).ok()?;
            Some((number, cpus))
        })
        .collect()
}

fn addresses() -> Vec<(String, String)> {
    let Ok(interfaces) = getifaddrs() else { return Vec::new() };
    let mut addresses: Vec<(String, String)> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => IpAddr::from(v4.ip()),
                (None, Some(v6)) => IpAddr::from(v6.ip()),
                (None, None) => return None,
            };
            (!ip.is_loopback()).then(|| (interface.interface_name, ip.to_string()))
        })
        .collect();
    addresses.sort();
    addresses
}

fn default_interface(proc_root: &Path) -> Reading<String> {
    let v4 = proc_root.join("net/route");
    let found = match read::whole(&v4, ROUTES_BYTES) {
        Ok(table) => default_v4(&table),
        Err(error) => return Reading::Failed(error.to_string()),
    };
    // A kernel without IPv6 has no such file.
    let found =
        found.or_else(|| default_v6(&read::whole(&proc_root.join("net/ipv6_route"), ROUTES_BYTES).ok()?));
    found.map_or(Reading::Unsupported, Reading::Known)
}

/// Columns: interface, destination, gateway, flags, reference count, use, metric, mask.
fn default_v4(table: &str) -> Option<String> {
    const UP: u32 = 1;
    let routes = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, "00000000", _, flags, _, _, metric, "00000000", ..] = fields.as_slice() else {
            return None;
        };
        let up = sysfs::hex(flags)? & UP == UP;
        up.then_some((metric.parse::<u32>().ok()?, (*interface).to_owned()))
    });
    routes.min_by_key(|(metric, _)| *metric).map(|(_, interface)| interface)
}

/// Columns: destination, its prefix length, source, its prefix length, next hop, metric, reference count, use, flags,
/// interface.
fn default_v6(table: &str) -> Option<String> {
    let routes = table.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [destination, "00", _, _, _, metric, _, _, _, interface] = fields.as_slice() else { return None };
        // The kernel's unreachable default route is on lo.
        let default = destination.bytes().all(|b| b == b'0') && *interface != "lo";
        default.then_some((sysfs::hex(metric)?, (*interface).to_owned()))
    });
    routes.min_by_key(|(metric, _)| *metric).map(|(_, interface)| interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_route_with_the_lowest_metric_is_used() {
        let head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n";
        let table = format!(
            "{head}ib0\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\t0\t0\t0\n\
             bond0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0\n\
             eth0\t00000000\t0100000A\t0002\t0\t0\t0\t00000000\t0\t0\t0\n\
             eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
        );
        assert_eq!(default_v4(&table), Some("bond0".into()));
        assert_eq!(default_v4(head), None);
    }

    #[test]
    fn an_ipv6_only_node_has_its_default_route() {
        let zero = "00000000000000000000000000000000";
        let table = format!(
            "{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n\
             {zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n"
        );
        assert_eq!(default_v6(&table), Some("eth0".into()));
    }

    #[test]
    fn processor_type_and_hypervisor_flag_are_parsed() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n\
                    model name\t: Xeon\nflags\t\t: fpu hypervisor lahf_lm\n";
        assert_eq!(cpu(text), Some(("GenuineIntel".into(), 6, 143)));
        assert_eq!(virtualised(text), Some(true));
        assert_eq!(cpu("processor\t: 0\nCPU implementer\t: 0x41\n"), None);
    }

    #[test]
    fn this_machine_is_read() {
        let host = host_read(Path::new("/proc"), Path::new("/sys"));
        assert!(host.hostname.known().is_some_and(|name| !name.is_empty()));
        assert!(host.boot_time.known().is_some_and(|seconds| *seconds > 1_500_000_000));
        assert!(host.memory_mib.known().is_some_and(|mib| *mib > 100));
        assert_eq!(boot_id_read(Path::new("/proc")).unwrap().len(), 36);
    }

    #[test]
    fn a_missing_proc_tree_gives_failed_readings() {
        let host = host_read(Path::new("/no/such"), Path::new("/no/such"));
        assert!(matches!(host.cpu, Reading::Failed(_)));
        assert!(matches!(host.hostname, Reading::Failed(_)));
    }
}
