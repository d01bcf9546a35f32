use railgate_model::{Class, Gpu, PartName, Phase, Reading, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuMemory;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "memory is in use, and no process is visible";
    max_mib: u64 = 2048, "MiB in use without a visible process; more is a finding";
}

impl Check for GpuMemory {
    const ABOUT: &'static str = "GPU memory is in use before a job although no process is visible";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetMemoryInfo_v2` (what the driver keeps for itself is not counted) and NVML's lists of processes. Before
a job, memory in use on a GPU without any process counts; not with MIG on, and not where the lists could not be read.

Why: the next job dies with out-of-memory. Either a process has ended and the driver did not release its memory, or NVML
cannot see the process that holds it.

Fix: reset the GPU when it is idle; if it happens again, look for containers with a driver of their own.
";
    const CLASS: Class = Class::Node;
    const PHASES: &'static [Phase] = &[Phase::Prolog];
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        if scene.unclear().is_some() {
            return;
        }
        for gpu in scene.answering().filter(|gpu| alone(gpu)) {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} memory");
            let Some(memory) = out.value(&part, &what, SOURCE, &gpu.memory) else { continue };
            if memory.used_mib > set.max_mib {
                let text = format!("{} MiB in use, no process visible", memory.used_mib);
                out.add(Found::new(set.severity, Class::Node, part, text).fix("reset GPU").row(
                    what,
                    format!("{} MiB", memory.used_mib),
                    format!("at most {} MiB without a process", set.max_mib),
                    SOURCE,
                ));
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetMemoryInfo_v2";

fn alone(gpu: &Gpu) -> bool {
    gpu.mig.known() != Some(&true) && gpu.processes == Reading::Known(Vec::new())
}

#[cfg(test)]
mod tests {
    use railgate_model::{Phase, Reading};

    use crate::testing::case;

    #[test]
    fn used_memory_without_a_process_warns_before_a_job() {
        let held = case("h100-sxm:gpu-memory-held@3");
        assert_eq!(
            held.summary(),
            "degraded: warn gpu-memory@3: 30720 MiB in use, no process visible; reset GPU"
        );
        assert_eq!(case("h100-sxm:gpu-memory-held@3").phase(Phase::Periodic).summary(), "fit");
        assert_eq!(case("h100-sxm:gpu-memory-held@3").holding(&[1]).summary(), "fit");
    }

    #[test]
    fn without_a_process_list_used_memory_is_not_judged() {
        let blind = case("h100-sxm:gpu-memory-held@3").gpu(3, |gpu| gpu.processes = Reading::Unsupported);
        assert!(blind.of("gpu-memory").is_empty());
        let leftover = case("h100-sxm:gpu-process-leftover@3");
        assert!(leftover.of("gpu-memory").is_empty(), "gpu-processes says whose it is");
        let mig = case("h100-sxm:gpu-memory-held@3").gpu(3, |gpu| gpu.mig = Reading::Known(true));
        assert!(mig.of("gpu-memory").is_empty());
    }
}
