use railgate_model::{Class, PartName};

use crate::growth::{self, Limits, limits};
use crate::register::{Check, Scope};
use crate::report::Report;
use crate::scene::Scene;

/// The check.
pub(crate) struct IbCongestion;

limits! {
    note: [("port_xmit_discards", 10000), ("rx_discards_phy", 10000), ("out_of_buffer", 10000), ("np_ecn_marked_roce_packets", 1000000), ("np_cnp_sent", 1000000), ("rp_cnp_handled", 1000000)],
    warn: [],
    fail: [],
}

impl Check for IbCongestion {
    const ABOUT: &'static str = "a compute port dropped packets, or packets were marked for congestion (ECN)";
    const EXPLAIN: &'static str = "
Reads the congestion counters in `ports/*/counters` and `hw_counters` of the compute ports: dropped packets
(`port_xmit_discards`, `VL15_dropped`, `out_of_buffer`; in the periodic check also its interface's `rx_discards_phy`) and
ECN (`np_ecn_marked_roce_packets`, `np_cnp_sent`, `rp_cnp_handled`). `roce-pause` judges pauses (PFC).

Why: congestion comes from the traffic of several nodes; it explains a slow job and is no node's fault. So it is a `note` and
changes nothing, unless a site fills `warn`.

Judged is the increase, never the lifetime count: since the job began if there is a baseline of the same boot, otherwise since
the oldest check run within `window`. Less than an hour counts as a whole hour: the limit must really have been exceeded. A
counter that went backwards is `unknown`; after a boot, counting starts again.

Fix: check the fabric: PFC and ECN thresholds, a slow receiver, routing.
";
    const CLASS: Class = Class::Fabric;
    const PARTS: &'static [PartName] = &[PartName::Fabric, PartName::Pci, PartName::Host];
    const SCOPE: Scope = Scope::Fabric;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        growth::judge(scene, &set.limits(), "check fabric", out);
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Severity;

    use crate::testing::case;

    #[test]
    fn congestion_during_a_job_is_a_note() {
        for fault in ["ib-discards", "roce-discards", "roce-out-of-buffer", "roce-ecn"] {
            let job = case(&format!("h100-sxm:{fault}@2")).after_the_job();
            assert_eq!(
                (job.summary().as_str(), job.of("ib-congestion")),
                ("fit", vec![Severity::Note]),
                "{fault}"
            );
        }
        let warned = case("h100-sxm:ib-discards@2")
            .after_the_job()
            .settings("[checks.ib-congestion]\nwarn = { port_xmit_discards = 1000 }");
        assert!(
            warned.summary().starts_with("degraded: warn ib-congestion@mlx5_2: port_xmit_discards +70000")
        );
    }
}
