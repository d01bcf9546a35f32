use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::Report;
use crate::scene::Scene;
use crate::settings::{names, settings};
use crate::wanted::{Kind, judge};

/// The check.
pub(crate) struct Services;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "a required service is not running";
    required: Vec<String> = Vec::new(), limit names(), "besides those of the profile: [\"chronyd\", \"nvidia-fabricmanager\"]";
}

const KIND: Kind = Kind {
    class: Class::Node,
    what: "service",
    absent: "not running",
    fix: "start it",
    source: "/sys/fs/cgroup/system.slice",
};

impl Check for Services {
    const ABOUT: &'static str = "a service that this machine needs has no process";
    const EXPLAIN: &'static str = "
Reads systemd's part of the cgroup tree: whether each service of `required` and of the profile (`[host] services`) has a
process. It does not call systemd or D-Bus, which hang when the machine does. By default no service is required.

Why: a node without its fabric manager, authentication or time service accepts jobs, and the jobs fail.

Fix: `systemctl status NAME`, `journalctl -u NAME`, `systemctl start NAME`.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        let of_type = scene.profile().map_or(&[][..], |profile| profile.host.services.as_slice());
        let same = |known: &str, name: &str| known == name.strip_suffix(".service").unwrap_or(name);
        judge(&KIND, (set.severity, &set.required), of_type, &host.system.services, same, out);
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Reading, Severity};

    use crate::testing::case;

    const WANTED: &str = "[checks.service]\nrequired = [\"chronyd.service\", \"munge\"]";

    #[test]
    fn a_required_service_that_does_not_run_warns() {
        assert_eq!(case("h100-sxm").settings(WANTED).summary(), "fit");
        let gone = case("h100-sxm").host(|host| {
            let Reading::Known(services) = &mut host.system.services else { panic!() };
            services.retain(|name| name != "munge" && name != "sshd");
        });
        assert_eq!(gone.settings(WANTED).summary(), "degraded: warn service@munge: not running; start it");
        let by_type = case("h100-sxm").with(|case| {
            case.profile.as_mut().unwrap().host.services = vec!["lctl".to_owned()];
        });
        assert_eq!(by_type.summary(), "degraded: warn service@lctl: not running; start it");
    }

    #[test]
    fn without_a_list_of_services_a_required_service_is_unknown() {
        for unread in [Reading::Unsupported, Reading::Failed("EIO".to_owned())] {
            let case = case("h100-sxm").host(|host| host.system.services = unread);
            assert_eq!(case.summary(), "fit", "no service is required");
            assert_eq!(case.settings(WANTED).of("service"), [Severity::Unknown]);
        }
    }
}
