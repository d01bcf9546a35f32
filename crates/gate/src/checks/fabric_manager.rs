use std::path::PathBuf;

use railgate_model::{Class, Extra, PartName, Phase, Severity};

use crate::plan::Need;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{absolute, settings};

/// The check.
pub(crate) struct FabricManager;

settings! {
    action = Notify, "class site only reports";
    severity: Severity = Severity::Warn, "fabric manager and driver have different versions";
    program: PathBuf = PathBuf::from("/usr/bin/nv-fabricmanager"), limit absolute(), "runs with --version";
}

impl Check for FabricManager {
    const ABOUT: &'static str = "the installed fabric manager has another version than the driver";
    const EXPLAIN: &'static str = "
Reads the output of `program --version` and compares it with the driver's version, on machines whose GPUs are part of an
NVLink fabric. If there is no such program (machines without NVSwitches, fabric managers that run elsewhere), nothing is
judged.

Why: a fabric manager refuses to start with a driver of another version. After an update the old one keeps running, so the
fault shows only when it restarts: then no GPU of the machine can be used.

Fix: install the fabric manager of the driver's release, and pin both packages to one version.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const NEEDS: &'static [Need<Settings>] =
        &[Need::extra(|set, _, _| Some(Extra::FabricManager(set.program.clone())))];
    const SCOPE: Scope = Scope::Gpus;
    const PHASES: &'static [Phase] = &[Phase::Periodic];
    const COST: &'static str = "one start of a program that prints its version";
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let (Some(reading), Some(gpus)) = (&scene.now.extras.fabric_manager, scene.now.gpus.data()) else {
            return;
        };
        if !scene.all_gpus().iter().any(|gpu| gpu.details.fabric.known().is_some()) {
            return;
        }
        let source = format!("{} --version", set.program.display());
        let Some(version) = out.value("", "fabric manager", &source, reading) else { return };
        let Some(driver) = gpus.driver.known().filter(|driver| *driver != version) else { return };
        let what = format!("fabric manager {version}, driver {driver}");
        let found = Found::new(set.severity, Class::Site, "", what).fix("install the driver's");
        out.add(found.row("fabric manager", version, driver, source));
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Phase, Reading, Severity};

    use crate::testing::{Case, case};

    fn periodic(node: &str) -> Case {
        case(node).phase(Phase::Periodic).with(|case| case.job = None)
    }

    #[test]
    fn a_version_that_differs_from_the_driver_warns() {
        let other = periodic("h100-sxm:fabric-manager-other");
        let says = "fabric manager 535.183.01, driver 580.159.04; install the driver's";
        assert_eq!(other.summary(), format!("degraded: warn fabric-manager: {says}"));
        assert_eq!(case("h100-sxm:fabric-manager-other").of("fabric-manager"), [], "not before a job");
    }

    #[test]
    fn no_fabric_manager_is_fit_and_a_failed_query_unknown() {
        let with = |reading| periodic("h100-sxm").with(|case| case.now.extras.fabric_manager = Some(reading));
        assert_eq!(with(Reading::Unsupported).summary(), "fit");
        let silent = with(Reading::Failed("/usr/bin/nv-fabricmanager: no answer in 10 ms".to_owned()));
        assert_eq!(silent.of("fabric-manager"), [Severity::Unknown]);
        let cards = periodic("l40s")
            .with(|case| case.now.extras.fabric_manager = Some(Reading::Known("535.183.01".to_owned())));
        assert_eq!(cards.summary(), "fit", "no GPU is part of a fabric");
    }
}
