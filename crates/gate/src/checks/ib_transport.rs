use railgate_model::{Class, PartName};

use crate::growth::{self, Limits, limits};
use crate::register::{Check, Scope};
use crate::report::Report;
use crate::scene::Scene;

/// The check.
pub(crate) struct IbTransport;

limits! {
    note: [("out_of_sequence", 10000), ("rnr_nak_retry_err", 1000), ("implied_nak_seq_err", 1000)],
    warn: [("packet_seq_err", 10000), ("local_ack_timeout_err", 100), ("roce_adp_retrans_to", 1000), ("roce_adp_retrans", 100000)],
    fail: [],
}

impl Check for IbTransport {
    const ABOUT: &'static str = "the RDMA transport of a compute port lost or repeated packets";
    const EXPLAIN: &'static str = "
Reads the transport's counters in `ports/*/hw_counters` of the compute ports: packets out of order, not acknowledged in
time, or sent again.

Why: a lossy RoCE fabric or a bad transceiver shows here first. Small numbers are normal with adaptive routing, and a process
that is killed leaves some. So nothing here drains by default: only limits in `fail` can, if the action of the class allows it.

Judged is the increase, never the lifetime count: since the job began if there is a baseline of the same boot, otherwise since
the oldest check run within `window`. Less than an hour counts as a whole hour: the limit must really have been exceeded. A
counter that went backwards is `unknown`; after a boot, counting starts again.

Fix: RoCE: check PFC and ECN on the switch and the interface's MTU; InfiniBand: check the link that `ib-errors` or the switch
names.
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
    fn timeouts_warn_and_reordering_is_a_note() {
        let job = |fault: &str| case(&format!("h100-sxm:{fault}@2")).after_the_job();
        assert_eq!(
            job("ib-timeouts").summary(),
            "degraded: warn ib-transport@mlx5_2: local_ack_timeout_err +500 in 0 s; check fabric"
        );
        assert_eq!(job("ib-out-of-sequence").of("ib-transport"), [Severity::Note]);
        assert_eq!(job("ib-out-of-sequence").summary(), "fit");
    }
}
