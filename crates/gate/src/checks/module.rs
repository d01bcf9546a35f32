use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::Report;
use crate::scene::Scene;
use crate::settings::{names, settings};
use crate::wanted::{Kind, judge};

/// The check.
pub(crate) struct Modules;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "a required module is missing";
    required: Vec<String> = Vec::new(), limit names(), "besides those of the profile: [\"nvidia_peermem\", \"lustre\"]";
}

const KIND: Kind = Kind {
    class: Class::Site,
    what: "kernel module",
    absent: "not loaded",
    fix: "modprobe it",
    source: "/sys/module",
};

impl Check for Modules {
    const ABOUT: &'static str = "a kernel module that this machine needs is not loaded";
    const EXPLAIN: &'static str = "
Reads `/sys/module` (modules that are loaded or built in) for the names of `required` and of the profile
(`[host] modules`). By default no module is required.

Why: without its module a device, a network or a file system is missing: for example `nvidia_peermem`, `ib_ipoib`, `lustre`.

Fix: `modprobe NAME`, and `/etc/modules-load.d/` for the next boot; rebuild a module that does not fit the kernel.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        let of_type = scene.profile().map_or(&[][..], |profile| profile.host.modules.as_slice());
        // The file is named nvidia-peermem.ko, the module nvidia_peermem.
        let same = |known: &str, name: &str| known == name.replace('-', "_");
        judge(&KIND, (set.severity, &set.required), of_type, &host.system.modules, same, out);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::case;

    #[test]
    fn hyphens_and_underscores_in_names_are_equal() {
        let wanting =
            |names: &str| case("h100-sxm").settings(&format!("[checks.module]\nrequired = {names}"));
        assert_eq!(wanting("[\"nvidia-peermem\", \"ib_core\"]").summary(), "fit");
        assert_eq!(
            wanting("[\"lustre\"]").summary(),
            "degraded: warn module@lustre: not loaded; modprobe it"
        );
    }

    #[test]
    fn settings_out_of_range() {
        let config: crate::GateConfig = toml::from_str("[checks.module]\nrequired = [\"a b\"]").unwrap();
        assert_eq!(config.problems(), ["gate.checks.module.required: 'a b' is not a name"]);
    }
}
