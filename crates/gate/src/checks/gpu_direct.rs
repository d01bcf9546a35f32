use railgate_model::{Class, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct GpuDirect;

impl Check for GpuDirect {
    const ABOUT: &'static str = "GPUDirect RDMA is unavailable: the HCAs cannot reach the memory of the GPUs";
    const EXPLAIN: &'static str = "
Reads `/sys/module` and the kernel's release on machines with GPUs and a fabric: `nvidia_peermem` (or `nv_peer_mem`) is
loaded, or the kernel can share the memory by dma-buf (5.12 and later, with NVIDIA's open modules).

Why: without GPUDirect RDMA every byte goes through host memory, at a third of the bandwidth, and NCCL reports this only in
its debug output.

Fix: `modprobe nvidia_peermem`, and add the module to `/etc/modules-load.d/`. A job's report shows the nodes where GPUDirect
RDMA was unavailable or switched off.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus, PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let ports = scene.compute_ports();
        let Some(host) = scene.now.host.data() else { return };
        if ports.is_empty() || scene.all_gpus().is_empty() {
            return;
        }
        let Some(modules) = out.value("", "modules", "/sys/module", &host.system.modules) else { return };
        let module = |name: &str| modules.iter().any(|module| module == name);
        if module("nvidia_peermem") || module("nv_peer_mem") {
            return;
        }
        let Some(kernel) = out.value("", "kernel", "/proc/sys/kernel/osrelease", &host.kernel) else {
            return;
        };
        let Some(release) = release(kernel) else { return };
        if release < (5, 12) {
            let what = format!("no nvidia_peermem, and kernel {kernel} has no dma-buf for it");
            out.add(Found::new(set.severity, Class::Site, "", what).fix("modprobe nvidia_peermem").row(
                "GPUDirect RDMA",
                "unavailable",
                "nvidia_peermem, or a kernel from 5.12 on",
                "/sys/module",
            ));
        }
    }
}

/// Major and minor version of a kernel release: `5.14.0-503.el9` gives `(5, 14)`.
fn release(kernel: &str) -> Option<(u32, u32)> {
    let mut numbers = kernel.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::case;

    #[test]
    fn an_old_kernel_without_nvidia_peermem_warns() {
        assert_eq!(case("h100-sxm").summary(), "fit");
        assert_eq!(case("h100-sxm:module-missing").summary(), "fit", "dma-buf");
        let says = case("h100-sxm:gpu-direct-missing").summary();
        assert!(says.starts_with("degraded: warn gpu-direct: no nvidia_peermem"), "{says}");
        assert_eq!(case("rtx4090:gpu-direct-missing").summary(), "fit", "no fabric");
    }

    #[test]
    fn kernel_releases_are_parsed() {
        assert_eq!(release("6.1.0-32-amd64"), Some((6, 1)));
        assert_eq!(release("5.14.0-503.el9.x86_64"), Some((5, 14)));
        assert_eq!(release("next"), None);
    }
}
