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
time, sent again.

Why: a lossy RoCE fabric or a bad optic shows here first. Small numbers are normal with adaptive routing, and a process
that is killed leaves some behind: nothing here drains, whatever a site writes into `fail`, unless its action allows it.

What counts is growth, never a lifetime: since the job began where there is a baseline of the same boot, else since
the oldest look within `window`. Of less than an hour no rate is made: so many must really have come. A counter that
went backwards is `unknown`; after a boot counting begins anew.

Fix: RoCE: look at PFC and ECN on the switch and at the interface's MTU; InfiniBand: look for the link that `ib-errors`
or the switch names.
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

    use crate::testing::look;

    #[test]
    fn timeouts_are_a_warning_and_reordering_a_note() {
        let job = |fault: &str| look(&format!("h100-sxm:{fault}@2")).after_the_job();
        assert_eq!(
            job("ib-timeouts").says(),
            "degraded: warn ib-transport@mlx5_2: local_ack_timeout_err +500 in 0 s; check fabric"
        );
        assert_eq!(job("ib-out-of-sequence").of("ib-transport"), [Severity::Note]);
        assert_eq!(job("ib-out-of-sequence").says(), "fit");
    }
}
