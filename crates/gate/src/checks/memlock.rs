use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct Memlock;

settings! {
    action = Drain;
    severity: Severity = Severity::Note, "the limit is below min_mib";
    min_mib: u64 = 1024, "MiB that a task must be able to lock";
}

impl Check for Memlock {
    const ABOUT: &'static str = "jobs may lock too little memory for RDMA";
    const EXPLAIN: &'static str = "
Reads `Max locked memory` of slurmd, which its jobs inherit, on machines whose profile has a fabric.

Why: RDMA locks its buffers. With the distribution's limit (8 MiB) NCCL ends with `ibv_reg_mr failed`, or falls
back to sockets.

It is only a note by default: a user may have a higher limit that Slurm passes to the job (`PropagateResourceLimits`).

Fix: `LimitMEMLOCK=infinity` in slurmd.service, restart slurmd; `PropagateResourceLimitsExcept=MEMLOCK` in slurm.conf.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let fabric = scene.profile().and_then(|profile| profile.fabric.hcas).unwrap_or(0);
        let Some(host) = scene.now.host.data().filter(|_| fabric > 0) else { return };
        let Some(bytes) = out.value("", "memlock", "/proc/PID/limits", &host.system.memlock) else { return };
        let mib = bytes >> 20;
        if mib < set.min_mib {
            let got = format!("{mib} MiB");
            out.add(
                Found::new(set.severity, Class::Site, "", format!("jobs may lock {got}"))
                    .fix("LimitMEMLOCK=infinity")
                    .row(
                        "Max locked memory of slurmd",
                        got,
                        format!("{} MiB", set.min_mib),
                        "/proc/PID/limits",
                    ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Reading;

    use super::*;
    use crate::testing::{Case, case};

    fn with(machine: &str, bytes: u64) -> Case {
        case(machine).host(|host| host.system.memlock = Reading::Known(bytes))
    }

    #[test]
    fn memlock_is_judged_only_on_machines_with_a_fabric() {
        assert_eq!(with("h100-sxm", 8 << 20).of("memlock"), [Severity::Note]);
        let strict = with("h100-sxm", 8 << 20).settings("[checks.memlock]\nseverity = \"warn\"");
        assert_eq!(strict.summary(), "degraded: warn memlock: jobs may lock 8 MiB; LimitMEMLOCK=infinity");
        assert!(with("h100-sxm", 1 << 30).of("memlock").is_empty());
        assert!(with("l40s", 8 << 20).of("memlock").is_empty());
    }
}
