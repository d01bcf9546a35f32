use std::collections::BTreeMap;

use railgate_model::{Class, Gpu, PartName, Reading};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::graded::Settings;

/// The check.
pub(crate) struct GpuPeers;

impl Check for GpuPeers {
    const ABOUT: &'static str = "two GPUs cannot read each other's memory";
    const EXPLAIN: &'static str = "
Reads `nvmlDeviceGetP2PStatus` for every pair of the job's GPUs. A pair is judged if both GPUs have NVLinks and the
profile lists them (`gpus.nvlinks_up`), or if the pair had access before the job. For GPUs without NVLink it depends on the
board: they are not judged. With MIG on nothing is judged.

Why: without this access NCCL copies through the host's memory, many times slower.

Fix: reset all GPUs, check the fabric manager, or reboot.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let wanted = scene.profile().and_then(|profile| profile.gpus.nvlinks_up).is_some_and(|up| up > 0);
        let judged: Vec<&Gpu> = scene.answering().filter(|gpu| gpu.mig.known() != Some(&true)).collect();
        let linked = |gpu: &Gpu| gpu.nvlinks.iter().any(|link| link.up == Reading::Known(true));
        let mut blocked = Vec::new();
        for gpu in &judged {
            let before = scene.before(gpu);
            for peer in &gpu.details.peers {
                let Some(other) = judged.iter().find(|other| other.index == peer.index) else { continue };
                let could = before.is_some_and(|before| {
                    before.details.peers.iter().any(|old| old.index == peer.index && old.status == YES)
                });
                let Reading::Known(why @ 1..=5) = peer.status else { continue };
                if could || wanted && linked(gpu) && linked(other) {
                    blocked.push((gpu.index, peer.index, why));
                }
            }
        }
        let mut pairs_of: BTreeMap<u32, u32> = BTreeMap::new();
        for (one, other, _) in &blocked {
            *pairs_of.entry(*one).or_default() += 1;
            *pairs_of.entry(*other).or_default() += 1;
        }
        // The GPU in most of the pairs is the likeliest cause; among equals, the one with the lowest index.
        let worst = pairs_of.iter().max_by_key(|(index, pairs)| (**pairs, std::cmp::Reverse(**index)));
        let (Some((worst, _)), Some((one, other, why))) = (worst, blocked.first()) else { return };
        let text = match blocked.len() {
            1 => format!("no peer access {one}-{other}"),
            many => format!("no peer access {one}-{other} and {} more pairs", many - 1),
        };
        let list: Vec<String> = blocked.iter().map(|(one, other, _)| format!("{one}-{other}")).collect();
        out.add(Found::new(set.severity, Class::Node, worst.to_string(), text).fix("reset GPUs").row(
            "pairs without peer access",
            list.join(" "),
            "none",
            format!("{SOURCE}: status {why}"),
        ));
    }
}

const YES: Reading<u32> = Reading::Known(0);
const SOURCE: &str = "nvmlDeviceGetP2PStatus";

#[cfg(test)]
mod tests {
    use railgate_model::Reading;

    use crate::testing::case;

    #[test]
    fn the_finding_names_the_gpu_in_most_pairs() {
        let blocked = case("h100-sxm:gpu-peers-blocked@3");
        assert_eq!(
            blocked.summary(),
            "degraded: warn gpu-peers@3: no peer access 0-3 and 6 more pairs; reset GPUs"
        );
        assert_eq!(blocked.holding(&[0, 1]).summary(), "fit");
    }

    #[test]
    fn cards_without_nvlink_are_judged_only_if_peer_access_worked_before() {
        assert_eq!(case("l40s:gpu-peers-blocked@3").summary(), "fit");
        let fell = case("l40s").after_the_job().with(|case| {
            let before = crate::testing::read(&mut case.before.as_mut().unwrap().gpus);
            before.gpus[0].details.peers[0].status = Reading::Known(0);
        });
        assert_eq!(fell.summary(), "degraded: warn gpu-peers@0: no peer access 0-1; reset GPUs");
        let unknown = case("h100-sxm").gpu(0, |gpu| gpu.details.peers[0].status = Reading::Known(6));
        assert_eq!(unknown.summary(), "fit");
    }
}
