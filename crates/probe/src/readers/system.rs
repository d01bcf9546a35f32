use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use railgate_fsutil::read;
use railgate_model::{Dimm, FileSystem, MemoryController, Nvme, Reading, Space, System};
use railgate_text::{printable, printable_bytes};

use super::{clock, processes};
use crate::extras::unescape;
use crate::sysfs;

/// Even a node with thousands of bind mounts is far below this.
const MOUNTINFO_BYTES: u64 = 8 * 1024 * 1024;

/// The file has one row per interrupt with a column per processor.
const INTERRUPTS_BYTES: u64 = 16 * 1024 * 1024;

/// A node has a few local file systems; only tests have more.
const MAX_FILE_SYSTEMS: usize = 64;

/// systemd creates one slice per kind of instance.
const MAX_SLICES: u32 = 64;

/// Maximum number of names in a sysfs directory that is read here.
const MAX_NAMES: usize = 4096;

/// Reads the state of the machine. No read here waits for a slow device.
pub(super) fn system(proc_root: &Path, sysfs_root: &Path) -> System {
    let cpus = sysfs_root.join("devices/system/cpu");
    let seen = processes::processes(proc_root);
    System {
        file_systems: sysfs::large(&proc_root.join("self/mountinfo"), MOUNTINFO_BYTES, |table| {
            Some(file_systems(table))
        }),
        nvmes: each(&sysfs_root.join("class/nvme"), "nvme", nvme),
        memory: each(&sysfs_root.join("devices/system/edac/mc"), "mc", controller),
        machine_checks: sysfs::large(&proc_root.join("interrupts"), INTERRUPTS_BYTES, machine_checks),
        cpus: sysfs::parsed(&cpus.join("online"), "a list of processors", count_of_list),
        governors: governors(&cpus.join("cpufreq")),
        processes: seen.processes,
        services: services(sysfs_root),
        clock: clock::clock(sysfs_root),
        modules: directory(&sysfs_root.join("module")),
        boot_args: sysfs::text(&proc_root.join("cmdline"))
            .map(|line| line.split_whitespace().map(str::to_owned).collect()),
        memlock: seen.slurmd.map_or(Reading::Unsupported, |pid| processes::memlock(proc_root, pid)),
    }
}

/// Whether a file system is local: on a block device, or in memory where jobs write to it.
fn is_local(fs_type: &str, path: &Path) -> bool {
    const DISK: [&str; 8] = ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "xfs", "zfs"];
    const MEMORY: [&str; 4] = ["/dev/shm", "/run", "/tmp", "/var/tmp"];
    DISK.contains(&fs_type) || fs_type == "tmpfs" && MEMORY.iter().any(|known| path == Path::new(known))
}

fn file_systems(mountinfo: &str) -> Vec<FileSystem> {
    let mut mounted: Vec<(&str, FileSystem)> = Vec::new();
    for (device, file_system) in mountinfo.lines().filter_map(file_system) {
        // A later mount at the same path hides the earlier one.
        mounted.retain(|(_, other)| other.path != file_system.path);
        mounted.push((device, file_system));
    }
    let mut devices = BTreeSet::new();
    mounted.retain(|(device, one)| is_local(&one.fs_type, &one.path) && devices.insert(*device));
    let mut found: Vec<FileSystem> = mounted.into_iter().map(|(_, one)| one).take(MAX_FILE_SYSTEMS).collect();
    for file_system in &mut found {
        file_system.space = match statvfs(&file_system.path) {
            Ok(answer) => Reading::Known(space(&answer)),
            Err(errno) => {
                Reading::Failed(format!("{}: statvfs: {}", file_system.path.display(), errno.desc()))
            }
        };
    }
    found
}

/// Parses `27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard`.
fn file_system(line: &str) -> Option<(&str, FileSystem)> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(2);
    let (device, _root) = (mount.next()?, mount.next()?);
    let path = PathBuf::from(unescape(mount.next()?));
    let has = |options: &str, option: &str| options.split(',').any(|word| word == option);
    let read_only = has(mount.next()?, "ro");
    let mut file_system = file_system.split(' ');
    let (fs_type, source) = (file_system.next()?, file_system.next()?);
    let options = file_system.next().unwrap_or_default();
    // With an admin's `-o ro`, both option lists have `ro`; if the kernel made the file system read-only after an
    // error, only the second one has it.
    let given_up =
        !read_only && (has(options, "ro") || has(options, "emergency_ro") || has(options, "shutdown"));
    let file_system = FileSystem {
        path,
        fs_type: printable(fs_type).into_owned(),
        source: printable_bytes(unescape(source).as_encoded_bytes()),
        read_only,
        given_up,
        space: Reading::Unsupported,
    };
    Some((device, file_system))
}

fn space(answer: &nix::sys::statvfs::Statvfs) -> Space {
    let mib = |blocks: u64| {
        u64::try_from((u128::from(blocks) * u128::from(answer.fragment_size())) >> 20).unwrap_or(u64::MAX)
    };
    Space {
        size_mib: mib(answer.blocks()),
        free_mib: mib(answer.blocks_available()),
        inodes: answer.files(),
        inodes_free: answer.files_available(),
    }
}

/// Reads all entries of the directory that are named with this prefix and a number.
fn each<T>(parent: &Path, leader: &str, read: impl Fn(&Path, &str) -> T) -> Reading<Vec<T>> {
    let is_one = |name: &&String| {
        name.strip_prefix(leader)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
    };
    directory(parent)
        .map(|names| names.iter().filter(is_one).map(|name| read(&parent.join(name), name)).collect())
}

fn directory(path: &Path) -> Reading<Vec<String>> {
    match read::names(path) {
        Ok(mut names) => {
            names.truncate(MAX_NAMES);
            Reading::Known(names)
        }
        Err(why) => sysfs::failure(&why),
    }
}

fn nvme(path: &Path, name: &str) -> Nvme {
    let sensor = sensor(path);
    let degrees = |attribute: &str| match &sensor {
        Some(sensor) => sysfs::parsed(&sensor.join(attribute), "millidegrees", |text| {
            Some(text.parse::<f64>().ok().filter(|value| value.is_finite())? / 1000.0)
        }),
        None => Reading::Unsupported,
    };
    Nvme {
        name: name.to_owned(),
        model: sysfs::text(&path.join("model")),
        serial: sysfs::text(&path.join("serial")),
        firmware: sysfs::text(&path.join("firmware_rev")),
        state: sysfs::text(&path.join("state")),
        temperature_c: degrees("temp1_input"),
        critical_c: degrees("temp1_crit"),
        alarm: match &sensor {
            Some(sensor) => sysfs::parsed(&sensor.join("temp1_alarm"), "0 or 1", zero_or_one),
            None => Reading::Unsupported,
        },
        health: Reading::Unsupported,
    }
}

/// The hwmon directory of a controller: below it, or below its PCI device on older kernels.
fn sensor(path: &Path) -> Option<PathBuf> {
    [path.to_owned(), path.join("hwmon"), path.join("device/hwmon")].into_iter().find_map(|above| {
        let names = read::names(&above).ok()?;
        let name =
            names.into_iter().find(|name| name.strip_prefix("hwmon").is_some_and(|rest| !rest.is_empty()))?;
        Some(above.join(name))
    })
}

fn zero_or_one(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn number(path: &Path) -> Reading<u64> {
    sysfs::parsed(path, "a number", |text| text.parse().ok())
}

fn controller(path: &Path, name: &str) -> MemoryController {
    let names = read::names(path).unwrap_or_default();
    // The name of these directories depends on the driver.
    let is_dimm = |name: &&String| {
        ["dimm", "rank"].iter().any(|leader| {
            name.strip_prefix(leader)
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    MemoryController {
        name: name.to_owned(),
        corrected: number(&path.join("ce_count")),
        uncorrected: number(&path.join("ue_count")),
        dimms: names.iter().filter(is_dimm).map(|name| dimm(&path.join(name), name)).collect(),
    }
}

fn dimm(path: &Path, name: &str) -> Dimm {
    let label = sysfs::attribute(&path.join("dimm_label")).unwrap_or_default();
    Dimm {
        label: if label.is_empty() { name.to_owned() } else { label },
        size_mib: number(&path.join("size")),
        corrected: number(&path.join("dimm_ce_count")),
        uncorrected: number(&path.join("dimm_ue_count")),
    }
}

/// The sum of a row such as `MCE:  0  0  Machine check exceptions`, which has one number per processor. Only x86 has
/// it.
fn machine_checks(interrupts: &str) -> Option<u64> {
    let row = interrupts.lines().find_map(|line| line.trim_start().strip_prefix("MCE:"))?;
    Some(row.split_whitespace().map_while(|word| word.parse::<u64>().ok()).fold(0, u64::saturating_add))
}

/// The number of entries in a list: `0-3,8` gives 5.
fn count_of_list(list: &str) -> Option<u32> {
    list.split(',').try_fold(0_u32, |sum, range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        sum.checked_add(to.checked_sub(from)?.checked_add(1)?)
    })
}

fn governors(cpufreq: &Path) -> Reading<BTreeMap<String, u32>> {
    let each = each(cpufreq, "policy", |path, _| sysfs::text(&path.join("scaling_governor")));
    let policies = match each {
        Reading::Known(policies) if policies.is_empty() => return Reading::Unsupported,
        Reading::Known(policies) => policies,
        Reading::Unsupported => return Reading::Unsupported,
        Reading::Failed(why) => return Reading::Failed(why),
    };
    let mut counts = BTreeMap::new();
    for policy in policies {
        match policy {
            Reading::Known(governor) => *counts.entry(governor).or_default() += 1,
            Reading::Unsupported => {}
            Reading::Failed(why) => return Reading::Failed(why),
        }
    }
    Reading::Known(counts)
}

/// The services below `system.slice` that have a process, in the unified tree of cgroup v2 or in systemd's tree of v1.
fn services(sysfs_root: &Path) -> Reading<Vec<String>> {
    let trees =
        ["fs/cgroup/system.slice", "fs/cgroup/systemd/system.slice"].map(|tree| sysfs_root.join(tree));
    let Some(tree) = trees.into_iter().find(|tree| tree.is_dir()) else { return Reading::Unsupported };
    let mut running = Vec::new();
    let mut folders = vec![tree];
    // Instances are in slices of their own, for example system-getty.slice/getty@tty1.service.
    let mut left = MAX_SLICES;
    while let Some(folder) = folders.pop() {
        let names = match read::names(&folder) {
            Ok(names) => names,
            Err(why) => return Reading::Failed(why.to_string()),
        };
        for name in names.into_iter().take(MAX_NAMES) {
            let path = folder.join(&name);
            if name.ends_with(".slice") && left > 0 {
                left -= 1;
                folders.push(path);
            } else if let Some(service) = name.strip_suffix(".service")
                && has_process(&path)
            {
                running.push(printable(service).into_owned());
            }
        }
    }
    running.sort();
    Reading::Known(running)
}

fn has_process(group: &Path) -> bool {
    // In v2 this attribute includes descendants; v1 only has the list of processes.
    match sysfs::attribute(&group.join("cgroup.events")) {
        Ok(events) => events.contains("populated 1"),
        Err(_) => read::prefix(&group.join("cgroup.procs"), 64).is_ok_and(|list| !list.trim().is_empty()),
    }
}

#[cfg(test)]
mod tests;
