use railgate_model::{Class, Gpu, PartName, Reading, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct GpuNvlink;

settings! {
    action = Drain;
    unsupported: Severity = Severity::Warn, "the profile has NVLinks, and the driver reports none";
}

impl Check for GpuNvlink {
    const ABOUT: &'static str = "an NVLink of a GPU is down";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetNvLinkState` of every link and compares the number of links that are up with the profile's
`gpus.nvlinks_up`. Without such a number only a link that was up before the job and is down after it counts.

Why: NCCL falls back to slower paths or fails at start; one slow GPU slows the whole group.

Fix: reset all GPUs of the node or reboot; check that the fabric manager runs; a link that stays down is for RMA (GPU,
baseboard or NVSwitch).

If a GPU reports \"not supported\" for all links, that is not a fault unless the profile has NVLinks; then it is `unsupported`
(default `\"warn\"`: a cloud machine with a single GPU of a board looks like this and is healthy). The same holds in a virtual
machine for a GPU with all its links down. Within `boot_grace` of `ib-port` after boot a link that is down is `unknown`: the
fabric manager may still be training it. With MIG on nothing is judged.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let wanted = scene.profile().and_then(|profile| profile.gpus.nvlinks_up);
        for gpu in scene.answering().filter(|gpu| gpu.mig.known() != Some(&true)) {
            let before = scene.before(gpu);
            match wanted {
                Some(0) => {}
                Some(wanted) => against_profile(scene, gpu, wanted as usize, set, out),
                None => against_before(gpu, before, out),
            }
        }
    }
}

const SOURCE: &str = "nvmlDeviceGetNvLinkState";

fn against_profile(scene: &Scene<'_>, gpu: &Gpu, wanted: usize, set: &Settings, out: &mut Report<'_>) {
    let part = gpu.index.to_string();
    let up = gpu.nvlinks.iter().filter(|link| link.up == Reading::Known(true)).count();
    if up >= wanted {
        return;
    }
    let down: Vec<u32> =
        gpu.nvlinks.iter().filter(|link| link.up == Reading::Known(false)).map(|link| link.link).collect();
    let failed = gpu.nvlinks.iter().find_map(|link| match &link.up {
        Reading::Failed(why) => Some((link.link, why)),
        _ => None,
    });
    let unread = gpu.nvlinks.iter().filter(|link| matches!(link.up, Reading::Failed(_))).count();
    let row = |found: Found| {
        found.row(format!("gpu {} NVLinks up", gpu.index), up.to_string(), wanted.to_string(), SOURCE)
    };
    if up + unread >= wanted {
        let (link, why) = failed.map_or((0, "no reason"), |(link, why)| (link, why.as_str()));
        let what = format!("{unread} NVLinks unreadable, link {link}: {why}");
        out.add(row(Found::unknown(Class::Node, part, what).fix("check driver")));
    } else if down.is_empty() {
        // A link that the driver does not list is not counted as down: the machine may lack it by design.
        let what = match up + unread {
            0 => format!("NVLink not supported, the profile has {wanted}"),
            there => format!("{there} of {wanted} NVLinks, others not supported"),
        };
        out.add(row(
            Found::new(set.unsupported, Class::Site, part, what).fix("check profile, fabric manager")
        ));
    } else {
        let what = format!("{up} of {wanted} NVLinks up, down: {}", list(&down));
        let found = match up {
            // If a hypervisor passes a GPU through without its switches, the GPU has links and all of them are down.
            0 if scene.virtualised() != Some(false) => {
                Found::new(set.unsupported, Class::Site, part, what).fix("check profile, fabric manager")
            }
            _ if scene.just_booted() => {
                Found::fail(Class::Node, part, what).fix("check again").only_unknown("node just booted")
            }
            _ => Found::fail(Class::Node, part, what).fix("reset GPUs"),
        };
        out.add(row(found));
    }
}

fn against_before(gpu: &Gpu, before: Option<&Gpu>, out: &mut Report<'_>) {
    let Some(before) = before else { return };
    let was_up = |number: u32| {
        before.nvlinks.iter().any(|link| link.link == number && link.up == Reading::Known(true))
    };
    let fallen: Vec<u32> = gpu
        .nvlinks
        .iter()
        .filter(|link| link.up == Reading::Known(false) && was_up(link.link))
        .map(|link| link.link)
        .collect();
    if !fallen.is_empty() {
        out.add(
            Found::fail(Class::Node, gpu.index.to_string(), format!("NVLink {} went down", list(&fallen)))
                .fix("reset GPUs")
                .row(
                    format!("gpu {} NVLinks", gpu.index),
                    format!("{} down", list(&fallen)),
                    "up as before the job",
                    SOURCE,
                ),
        );
    }
}

fn list(links: &[u32]) -> String {
    let links: Vec<String> = links.iter().map(u32::to_string).collect();
    if links.is_empty() { "not listed".to_owned() } else { links.join(",") }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Gpu, Reading, Severity};

    use crate::testing::case;

    fn set(gpu: &mut Gpu, links: std::ops::Range<usize>, up: Reading<bool>) {
        for link in &mut gpu.nvlinks[links] {
            link.up = up.clone();
        }
    }

    #[test]
    fn a_single_link_that_is_down_fails() {
        let down = case("h100-sxm").gpu(3, |gpu| set(gpu, 4..6, Reading::Known(false)));
        assert_eq!(down.summary(), "unfit: fail gpu-nvlink@3: 16 of 18 NVLinks up, down: 4,5; reset GPUs");
        assert_eq!(down.holding(&[0, 1]).summary(), "fit");
    }

    #[test]
    fn unreadable_links_are_unknown_unless_too_few_can_be_up() {
        let unread = || case("h100-sxm").gpu(3, |gpu| set(gpu, 4..6, Reading::Failed("999".to_owned())));
        assert_eq!(unread().of("gpu-nvlink"), [Severity::Unknown]);
        let down = unread().gpu(3, |gpu| set(gpu, 0..1, Reading::Known(false)));
        assert_eq!(down.of("gpu-nvlink"), [Severity::Fail]);
    }

    #[test]
    fn unsupported_links_count_only_if_the_profile_expects_links() {
        let single = |id: &str| case(id).gpu(3, |gpu| gpu.nvlinks.clear());
        assert_eq!(single("l40s").summary(), "fit");
        assert_eq!(single("generic").summary(), "fit");
        assert!(
            single("h200-sxm").summary().starts_with("degraded: warn gpu-nvlink@3: NVLink not supported")
        );
        let all = case("h200-sxm").gpu(3, |gpu| set(gpu, 0..18, Reading::Unsupported));
        assert_eq!(all.of("gpu-nvlink"), [Severity::Warn]);
    }

    #[test]
    fn a_passed_through_gpu_and_a_link_in_training_do_not_fail() {
        let dead = |from: usize| case("h100-sxm").gpu(3, |gpu| set(gpu, from..18, Reading::Known(false)));
        let lent = |from| dead(from).host(|host| host.virtualised = Reading::Known(true));
        assert_eq!(lent(0).of("gpu-nvlink"), [Severity::Warn]);
        assert_eq!(lent(4).of("gpu-nvlink"), [Severity::Fail], "some of its links are up");
        assert_eq!(dead(0).of("gpu-nvlink"), [Severity::Fail]);
        let booted = dead(0).with(|case| {
            let now = case.now.taken / 1000;
            crate::testing::read(&mut case.now.host).boot_time = Reading::Known(now - 60);
        });
        assert_eq!(booted.of("gpu-nvlink"), [Severity::Unknown]);
    }

    #[test]
    fn without_an_expected_count_a_link_that_went_down_during_the_job_counts() {
        let fell = |profile| {
            case("h100-sxm")
                .after_the_job()
                .gpu(3, |gpu| set(gpu, 7..8, Reading::Known(false)))
                .with(|case| case.profile = profile)
        };
        assert!(fell(None).summary().starts_with("unfit: fail gpu-nvlink@3: NVLink 7 went down"));
    }

    #[test]
    fn with_mig_links_are_not_judged() {
        let mig = case("h100-sxm").gpu(3, |gpu| {
            set(gpu, 0..18, Reading::Known(false));
            gpu.mig = Reading::Known(true);
        });
        assert_eq!(mig.summary(), "fit");
    }
}
