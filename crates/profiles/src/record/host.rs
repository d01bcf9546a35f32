use std::collections::BTreeSet;

use railgate_model::{Gpu, Reading, Snapshot};

use super::{Recorded, number};

/// Services that a GPU node may need; others are the site's own.
const SERVICES: [&str; 10] = [
    "chrony",
    "chronyd",
    "munge",
    "nvidia-fabricmanager",
    "nvidia-imex",
    "nvidia-persistenced",
    "ntpd",
    "openibd",
    "slurmd",
    "systemd-timesyncd",
];

/// Kernel modules that GPUs or fabric need.
const MODULES: [&str; 8] =
    ["gdrdrv", "ib_uverbs", "mlx5_core", "mlx5_ib", "nvidia", "nvidia_peermem", "nvidia_uvm", "rdma_ucm"];

/// Kernel arguments that affect how devices access memory.
const BOOT_ARGS: [&str; 8] = [
    "amd_iommu",
    "default_hugepagesz",
    "hugepagesz",
    "intel_iommu",
    "iommu",
    "numa_balancing",
    "pci",
    "transparent_hugepage",
];

/// Records the properties of the host.
pub(super) fn host(snapshot: &Snapshot, into: &mut Recorded) {
    let Some(found) = snapshot.host.data() else {
        let why = snapshot.host.missing().unwrap_or_default();
        into.unknown.push(("host".to_owned(), why));
        return;
    };
    let Recorded { profile, unknown, notes } = into;
    let (host, system) = (&mut profile.host, &found.system);
    let mut value = |key: &str, reading: Reading<u64>| match reading {
        Reading::Known(value) => Some(value),
        Reading::Unsupported => {
            unknown.push((format!("host.{key}"), "the machine has no such value".to_owned()));
            None
        }
        Reading::Failed(why) => {
            unknown.push((format!("host.{key}"), why));
            None
        }
    };
    let whole_gib = found.memory_mib.clone().map(|mib| mib / 1024);
    host.memory_gib = value("memory_gib", whole_gib).and_then(number).filter(|gib| *gib > 0);
    let dimms =
        |all: &Vec<railgate_model::MemoryController>| all.iter().map(|one| one.dimms.len() as u64).sum();
    host.dimms = value("dimms", system.memory.clone().map(|all| dimms(&all)))
        .and_then(number)
        .filter(|dimms| *dimms > 0);
    host.cpus = value("cpus", system.cpus.clone().map(u64::from)).and_then(number);
    host.nvmes = value("nvmes", system.nvmes.clone().map(|all| all.len() as u64)).and_then(number);
    match system.governors.known().map(|all| all.keys().collect::<Vec<_>>()).as_deref() {
        Some([one]) => host.governor = Some((*one).clone()),
        Some(_) => unknown.push(("host.governor".to_owned(), "the processors differ".to_owned())),
        None => unknown.push(("host.governor".to_owned(), system.governors.clone().map(|_| "").to_string())),
    }
    let of = |names: &Reading<Vec<String>>, wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
        names.known().into_iter().flatten().filter(|name| wanted(name)).cloned().collect()
    };
    host.services = of(&system.services, &|name| SERVICES.contains(&name));
    host.modules = of(&system.modules, &|name| MODULES.contains(&name));
    let key = |word: &str| word.split_once('=').map_or(String::new(), |(key, _)| key.to_owned());
    host.boot_args = of(&system.boot_args, &|word| BOOT_ARGS.contains(&key(word).as_str()));
    notes.push(
        "versions, firmware, services, modules and boot_args are those of this node: delete values that differ on other nodes"
            .to_owned(),
    );
}

/// The distinct versions of all GPUs.
pub(super) fn versions(gpus: &[&Gpu], which: impl Fn(&Gpu) -> &Reading<String>) -> Vec<String> {
    let all: BTreeSet<&String> = gpus.iter().filter_map(|gpu| which(gpu).known()).collect();
    all.into_iter().cloned().collect()
}
