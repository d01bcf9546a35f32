use railgate_fleet::{Cause, Grade};

use Cause::{Gpu, Host, Network, Nvlink, Other, Power, Software, Storage, Thermal};
use Grade::{Hearsay, Proof, Sign};

/// For each check: the part that failed, and the grade of a drain with this reason. Proof:
/// the part is gone, or a test by root failed on it. Hearsay: a job can cause it, or it is not a fault of the node.
pub const CAUSES: &[(&str, Cause, Grade)] = &[
    ("gpu-lost", Gpu, Proof),
    ("gpu-recovery-action", Gpu, Proof),
    ("gpu-xid", Gpu, Sign),
    ("gpu-sxid", Nvlink, Sign),
    ("gpu-ecc", Gpu, Proof),
    ("gpu-remap", Gpu, Proof),
    ("gpu-count", Gpu, Proof),
    ("gpu-fabric", Nvlink, Sign),
    ("gpu-nvlink", Nvlink, Sign),
    ("gpu-peers", Nvlink, Sign),
    ("gpu-pcie", Host, Sign),
    ("gpu-retired-pages", Gpu, Proof),
    ("gpu-self-test", Gpu, Proof),
    ("gpu-throttle", Thermal, Sign),
    ("gpu-temperature", Thermal, Sign),
    ("gpu-link-errors", Nvlink, Sign),
    ("ib-count", Network, Proof),
    ("ib-port", Network, Sign),
    ("ib-rate", Network, Sign),
    ("rdma-self-test", Network, Proof),
    ("ib-flap", Network, Sign),
    ("ib-layer", Network, Sign),
    ("ib-errors", Network, Sign),
    ("optic", Network, Sign),
    ("ib-width", Network, Sign),
    ("ib-lid", Network, Sign),
    ("ib-pkey", Network, Sign),
    ("roce-gid", Network, Sign),
    ("roce-mtu", Network, Sign),
    ("ib-interface", Network, Sign),
    ("ib-firmware", Network, Sign),
    ("ib-slot", Network, Sign),
    ("ib-distance", Network, Sign),
    ("gpu-direct", Software, Sign),
    ("roce-pause", Network, Hearsay),
    ("ib-transport", Network, Hearsay),
    ("ib-congestion", Network, Hearsay),
    ("ib-trend", Network, Sign),
    ("mounts", Storage, Sign),
    ("part-silent", Software, Sign),
    ("gpu-processes", Software, Hearsay),
    ("gpu-memory", Gpu, Hearsay),
    ("gpu-identity", Gpu, Sign),
    ("gpu-mig", Software, Sign),
    ("gpu-power", Power, Sign),
    ("gpu-clocks", Software, Sign),
    ("gpu-acs", Host, Sign),
    ("gpu-versions", Software, Sign),
    ("fabric-manager", Software, Sign),
    ("gpu-persistence", Software, Sign),
    ("site", Other, Sign),
    ("read-only", Storage, Sign),
    ("nvme", Storage, Sign),
    ("dimm", Host, Sign),
    ("memory", Host, Proof),
    ("cpu", Host, Sign),
    ("tasks", Software, Hearsay),
    ("service", Software, Sign),
    ("kmsg", Host, Sign),
    ("kmsg-forged", Software, Hearsay),
    ("disk", Storage, Hearsay),
    ("shm", Storage, Hearsay),
    ("module", Software, Sign),
    ("boot-arg", Software, Sign),
    ("memlock", Software, Sign),
    ("clock", Software, Sign),
    ("topology-file", Software, Sign),
    ("kernel-log", Software, Sign),
    // The provider will take the machine away: no fault of the node.
    ("cloud-maintenance", Other, Hearsay),
];

/// Returns the failed part and the grade for a check id, for example `gpu-lost` or `site-raid`. A check of a later release is [`Cause::Other`] and hearsay.
pub fn cause(check: &str) -> (Cause, Grade) {
    // All checks of a site share one row.
    let row = if check.starts_with("site-") { "site" } else { check };
    let found = CAUSES.iter().find(|(known, ..)| *known == row);
    found.map_or((Other, Hearsay), |(_, cause, grade)| (*cause, *grade))
}

/// Check and part of a subject: `gpu-lost@3`.
pub(crate) fn check_of(subject: &str) -> &str {
    subject.split('@').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_of_the_gate_has_one_row() {
        let checks: Vec<&str> = railgate_gate::CHECKS.iter().map(|check| check.id).collect();
        let missing: Vec<&&str> =
            checks.iter().filter(|id| !CAUSES.iter().any(|(known, ..)| known == *id)).collect();
        assert!(missing.is_empty(), "CAUSES has no row for {missing:?}");
        let gone: Vec<&str> = CAUSES.iter().map(|(id, ..)| *id).filter(|id| !checks.contains(id)).collect();
        assert!(gone.is_empty(), "CAUSES has rows for {gone:?}, which are no checks");
        assert_eq!(CAUSES.len(), checks.len(), "a check has two rows");
    }

    #[test]
    fn checks_of_a_site_share_a_row_and_unknown_ones_prove_nothing() {
        assert_eq!(cause("site-raid"), (Other, Sign));
        assert_eq!(cause("check-of-tomorrow"), (Other, Hearsay));
    }
}
