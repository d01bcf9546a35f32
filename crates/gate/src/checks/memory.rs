use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{settings, within};

/// The check.
pub(crate) struct MemorySize;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "less memory or fewer modules than the profile";
    tolerance_percent: f64 = 3.0, limit within(0.0..=50.0), "percent that may be missing: the kernel reserves some memory";
}

impl Check for MemorySize {
    const ABOUT: &'static str = "the machine has less memory than the profile";
    const EXPLAIN: &'static str = "
Reads `MemTotal` and the memory modules that the memory controllers name (EDAC), and compares them with the profile
(`[host] memory_gib`, `dimms`). A value that the profile does not have is not judged.

Why: the firmware silently leaves out a module that failed its training at boot, and jobs that asked for all memory die of
it.

Fix: reseat or replace the module that the BMC's log names.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let (Some(host), Some(profile)) = (scene.now.host.data(), scene.profile()) else { return };
        if let Some(want) = profile.host.memory_gib
            && let Some(mib) = out.value("", "MemTotal", "/proc/meminfo", &host.memory_mib)
        {
            let got = *mib as f64 / 1024.0;
            if got < f64::from(want) * (1.0 - set.tolerance_percent / 100.0) {
                let (got, want) = (format!("{got:.0} GiB"), format!("{want} GiB"));
                out.add(
                    Found::new(set.severity, Class::Node, "", format!("{got} of {want}"))
                        .fix("replace DIMM")
                        .row("MemTotal", got, want, "/proc/meminfo"),
                );
            }
        }
        let edac = "/sys/devices/system/edac/mc";
        if let Some(want) = profile.host.dimms
            && let Some(controllers) = out.value("", "memory modules", edac, &host.system.memory)
        {
            let got: usize = controllers.iter().map(|controller| controller.dimms.len()).sum();
            if u32::try_from(got).is_ok_and(|got| got < want) {
                out.add(
                    Found::new(set.severity, Class::Node, "dimm", format!("{got} of {want} modules"))
                        .fix("replace DIMM")
                        .row("memory modules", got.to_string(), want.to_string(), edac),
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Reading;

    use super::*;
    use crate::testing::{Case, case};

    fn of(gib: u32, dimms: u32) -> Case {
        case("h100-sxm").with(|case| {
            let host = &mut case.profile.as_mut().unwrap().host;
            (host.memory_gib, host.dimms) = (Some(gib), Some(dimms));
        })
    }

    #[test]
    fn memory_reserved_by_the_kernel_is_not_missing() {
        assert_eq!(of(2048, 16).summary(), "fit", "2015 GiB is what 2048 look like");
        let short = of(2048, 16).host(|host| host.memory_mib = Reading::Known(1_932_768));
        assert_eq!(short.summary(), "degraded: warn memory: 1887 GiB of 2048 GiB; replace DIMM");
    }

    #[test]
    fn a_wrong_number_of_dimms_warns() {
        assert_eq!(of(2048, 32).summary(), "degraded: warn memory@dimm: 16 of 32 modules; replace DIMM");
        let uncounted = of(2048, 32).host(|host| host.system.memory = Reading::Unsupported);
        assert_eq!(uncounted.summary(), "fit", "no driver counts them");
        let unread = of(2048, 16).host(|host| host.memory_mib = Reading::Failed("no MemTotal".to_owned()));
        assert_eq!(unread.of("memory"), [Severity::Unknown]);
    }
}
