//! The known checks of NHC 1.4.3, Azure's azurehpc-health-checks and NVIDIA's DeepOps.

use crate::line::options;

/// A check that continues to run under NHC.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) name: &'static str,
    /// railgate's checks of the same part. None of them gives the same verdict in every state.
    pub(crate) near: &'static str,
    acts: Acts,
    fact: Fact,
}

/// Whether a check can change the node.
#[derive(Debug)]
enum Acts {
    Never,
    /// With one of these letters; the first field is the check's getopts string.
    Options(&'static str, &'static str),
    /// With this word.
    Word(&'static str),
    Always,
}

/// The value that a check expects. Two lines that expect different values contradict each other.
#[derive(Debug)]
enum Fact {
    None,
    /// One value for the node.
    Node,
    /// One value for each value of this argument, counted from 0.
    Argument(usize),
}

const MOUNT: Acts = Acts::Options(":0rE:F:O:e:f:o:s:t:", "reE");
const USAGE: Acts = Acts::Options(":0Kfalskr:u:m:e:", "Kkre");

const fn check(name: &'static str, near: &'static str, acts: Acts, fact: Fact) -> Known {
    Known { name, near, acts, fact }
}

/// The known checks.
pub(crate) const KNOWN: &[Known] = &[
    check("check_hw_cpuinfo", "cpu", Acts::Never, Fact::Node),
    check("check_hw_physmem", "memory", Acts::Never, Fact::Node),
    check("check_hw_swap", "", Acts::Never, Fact::Node),
    check("check_hw_mem", "", Acts::Never, Fact::Node),
    check("check_hw_physmem_free", "", Acts::Never, Fact::None),
    check("check_hw_swap_free", "", Acts::Never, Fact::None),
    check("check_hw_mem_free", "", Acts::Never, Fact::None),
    check("check_hw_ib", "ib-port, ib-rate, ib-count", Acts::Never, Fact::Argument(1)),
    check("check_hw_eth", "ib-interface", Acts::Never, Fact::None),
    check("check_hw_mcelog", "dimm", Acts::Never, Fact::None),
    check("check_fs_mount", "mounts", MOUNT, Fact::None),
    check("check_fs_mount_rw", "mounts, read-only", MOUNT, Fact::None),
    check("check_fs_mount_ro", "", MOUNT, Fact::None),
    check("check_fs_size", "", Acts::Never, Fact::Argument(0)),
    check("check_fs_free", "disk", Acts::Never, Fact::None),
    check("check_fs_used", "disk", Acts::Never, Fact::None),
    check("check_fs_inodes", "", Acts::Never, Fact::Argument(0)),
    check("check_fs_ifree", "disk", Acts::Never, Fact::None),
    check("check_fs_iused", "disk", Acts::Never, Fact::None),
    check("check_file_test", "", Acts::Never, Fact::None),
    check("check_file_stat", "", Acts::Never, Fact::None),
    check("check_file_contents", "", Acts::Never, Fact::None),
    check("check_cmd_output", "", Acts::Never, Fact::None),
    check("check_cmd_status", "", Acts::Never, Fact::None),
    check("check_cmd_dmesg", "kmsg, gpu-xid", Acts::Never, Fact::None),
    check("check_dmi_data_match", "", Acts::Never, Fact::None),
    check("check_dmi_raw_data_match", "", Acts::Never, Fact::None),
    check("check_net_ping", "", Acts::Never, Fact::None),
    check("check_net_socket", "", Acts::Options(":!0ad:l:n:p:r:s:t:u:e:E:", "eE"), Fact::None),
    check("check_nv_healthmon", "the gpu- checks", Acts::Never, Fact::None),
    check("check_nvsmi_healthmon", "the gpu- checks", Acts::Never, Fact::None),
    check("check_ps_service", "service", Acts::Options(":0E:SVcd:e:fkm:rsu:v", "ESceksr"), Fact::None),
    check("check_ps_daemon", "service", Acts::Never, Fact::None),
    check("check_ps_blacklist", "", Acts::Never, Fact::None),
    check("check_ps_loadavg", "", Acts::Never, Fact::None),
    check("check_ps_unauth_users", "gpu-processes", Acts::Word("kill"), Fact::None),
    check("check_ps_userproc_lineage", "gpu-processes", Acts::Word("kill"), Fact::None),
    check("check_ps_kswapd", "", Acts::Never, Fact::None),
    check("check_ps_cpu", "", USAGE, Fact::None),
    check("check_ps_mem", "", USAGE, Fact::None),
    check("check_ps_physmem", "", USAGE, Fact::None),
    check("check_ps_time", "", USAGE, Fact::None),
    // Checks of Azure, and checks with the same names in other collections.
    check("check_gpu_count", "gpu-count", Acts::Never, Fact::Node),
    check("check_nvme_count", "nvme", Acts::Never, Fact::Node),
    check("check_gpu_xid", "gpu-xid", Acts::Never, Fact::None),
    check("check_xid_errors", "gpu-xid", Acts::Never, Fact::None),
    check("check_gpu_ecc", "gpu-ecc, gpu-remap", Acts::Never, Fact::None),
    check("check_gpu_clock_throttling", "gpu-throttle", Acts::Never, Fact::None),
    check("check_app_gpu_clocks", "gpu-clocks", Acts::Always, Fact::None),
    check("check_gpu_persistence", "gpu-persistence", Acts::Always, Fact::None),
    check("check_vbios_version", "gpu-versions", Acts::Never, Fact::None),
    check("check_nvlink_status", "gpu-nvlink, gpu-fabric", Acts::Never, Fact::None),
    check("check_hw_topology", "ib-distance, topology-file", Acts::Never, Fact::None),
    check("check_ib_link_flapping", "ib-flap", Acts::Never, Fact::None),
    check("check_gpu_xgmi", "", Acts::Never, Fact::None),
    // Checks of DeepOps.
    check("check_nv_gpu_count", "gpu-count", Acts::Never, Fact::Node),
    check("check_nv_drv_version", "gpu-versions", Acts::Never, Fact::Node),
    check("check_nv_pcie_link_width", "gpu-pcie", Acts::Never, Fact::Node),
    check("check_nv_retired_pages", "gpu-retired-pages, gpu-remap", Acts::Never, Fact::None),
    check("check_num_nvme_devices", "nvme", Acts::Never, Fact::Node),
    check("check_num_nvme_devs", "nvme", Acts::Never, Fact::Node),
    check("check_ipoib_up", "ib-interface", Acts::Never, Fact::None),
    check("check_ib_link_ber", "ib-errors, optic", Acts::Never, Fact::None),
];

const LOAD: &str = "a load test, which slows jobs on the node and on its neighbours; run it when the node is empty: \
                    templates soak and nccl-tests, or --railgate-gate=full";
const MYRINET: &str = "Myrinet GM has no driver for kernels that railgate runs on";
const MOAB: &str = "it asks Moab or TORQUE, and this node belongs to Slurm";

/// Checks that are not imported, with the reasons.
const LEFT: &[(&str, &str)] = &[
    ("check_gpu_bw", LOAD),
    ("check_cuda_bw", LOAD),
    ("check_rocm_gpu_bw", LOAD),
    ("check_ib_bw", LOAD),
    ("check_ib_bw_gdr", LOAD),
    ("check_ib_bw_loop_gdr", LOAD),
    ("check_ib_bw_non_gdr", LOAD),
    ("check_nccl_allreduce", LOAD),
    ("check_nccl_allreduce_ib_loopback", LOAD),
    ("check_rccl_allreduce", LOAD),
    ("check_rccl_allreduce_ib_loopback", LOAD),
    ("check_cpu_stream", LOAD),
    ("check_nv_dcgmi_diag", LOAD),
    ("check_hw_gm", MYRINET),
    ("check_moab_sched", MOAB),
    ("check_moab_rm", MOAB),
    ("check_moab_torque", MOAB),
];

/// Returns why a check is not imported; `None` if it is.
pub(crate) fn left(name: &str) -> Option<&'static str> {
    LEFT.iter().find(|(left, _)| *left == name).map(|(_, why)| *why)
}

impl Known {
    pub(crate) fn find(name: &str) -> Option<&'static Known> {
        KNOWN.iter().find(|known| known.name == name)
    }

    /// Returns whether the line, with these arguments, changes the node: restarts a service, kills a process, mounts a
    /// file system.
    pub(crate) fn acts(&self, arguments: &[String]) -> bool {
        match self.acts {
            Acts::Never => false,
            Acts::Always => true,
            Acts::Word(word) => arguments.iter().any(|argument| argument == word),
            Acts::Options(spec, letters) => {
                options(arguments, spec).contains(|letter| letters.contains(letter))
            }
        }
    }

    /// Returns the value that the line expects; two lines with the same key and other arguments contradict each other.
    pub(crate) fn fact(&self, arguments: &[String]) -> Option<String> {
        match self.fact {
            Fact::None => None,
            Fact::Node => Some(self.name.to_owned()),
            Fact::Argument(index) => arguments.get(index).map(|argument| format!("{} {argument}", self.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acts(line: &str) -> bool {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Known::find(&words[0]).unwrap().acts(&words[1..])
    }

    #[test]
    fn lines_that_change_the_node_are_known() {
        for line in [
            "check_ps_service -S sshd",
            "check_ps_service -u root -k sshd",
            "check_fs_mount_rw -rf /home",
            "check_ps_cpu -k 90",
            "check_ps_unauth_users log kill",
            "check_gpu_persistence",
            "check_net_socket -e reboot -p tcp",
        ] {
            assert!(acts(line), "{line}");
        }
        for line in [
            "check_ps_service -u root sshd",
            "check_ps_service -d -k sshd",
            "check_fs_mount_rw -f /r",
            "check_fs_mount_rw /home -r",
            "check_ps_cpu 90",
            "check_ps_unauth_users log syslog",
        ] {
            assert!(!acts(line), "{line}");
        }
    }

    #[test]
    fn each_check_is_in_one_table_only() {
        let mut names: Vec<_> =
            KNOWN.iter().map(|known| known.name).chain(LEFT.iter().map(|left| left.0)).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }

    #[test]
    fn the_checks_of_railgate_exist() {
        for word in KNOWN.iter().flat_map(|known| known.near.split(", ")).filter(|word| !word.is_empty()) {
            let exists = railgate_gate::CHECKS.iter().any(|check| check.id == word);
            assert!(exists || word == "the gpu- checks", "{word}");
        }
    }
}
