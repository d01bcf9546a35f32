use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::Report;
use crate::scene::Scene;
use crate::settings::{names, settings};
use crate::wanted::{Kind, judge};

/// The check.
pub(crate) struct BootArgs;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "a required parameter is missing";
    required: Vec<String> = Vec::new(), limit names(), "besides those of the profile: [\"iommu=pt\"]";
}

const KIND: Kind = Kind {
    class: Class::Site,
    what: "boot parameter",
    absent: "not on the command line",
    fix: "fix GRUB; reboot",
    source: "/proc/cmdline",
};

impl Check for BootArgs {
    const ABOUT: &'static str = "the kernel was booted without a parameter that this machine needs";
    const EXPLAIN: &'static str = "
Reads `/proc/cmdline` for the words of `required` and of the profile (`[host] boot_args`), each as a whole
(`iommu=pt`), or its beginning with a trailing `*` (`hugepagesz=*`). By default no parameter is required.

Why: a node that was reinstalled with other parameters is slow or cannot use GPUDirect, and nothing else reports that.

Fix: add the parameter to the boot loader's configuration, reboot.
";
    const CLASS: Class = Class::Site;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        let of_type = scene.profile().map_or(&[][..], |profile| profile.host.boot_args.as_slice());
        let same = |known: &str, pattern: &str| railgate_model::fits_pattern(pattern, known);
        judge(&KIND, (set.severity, &set.required), of_type, &host.system.boot_args, same, out);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::case;

    #[test]
    fn arguments_match_as_whole_words_or_prefixes() {
        let wanting =
            |names: &str| case("h100-sxm").settings(&format!("[checks.boot-arg]\nrequired = {names}"));
        assert_eq!(wanting("[\"iommu=pt\", \"root=*\"]").summary(), "fit");
        assert_eq!(
            wanting("[\"iommu\"]").summary(),
            "degraded: warn boot-arg@iommu: not on the command line; fix GRUB; reboot"
        );
    }
}
