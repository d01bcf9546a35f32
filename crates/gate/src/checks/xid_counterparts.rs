//! The NVML readings that change with the faults that an Xid reports.

use crate::agreement::Counterpart::{self, Answer, NvLink, RecoveryAction, RowRemap, UncorrectedEcc};

/// NVML readings for an Xid. One of them must confirm the record before it can drain a node. Empty if NVML has no such
/// reading.
pub(super) fn counterparts(code: u32) -> &'static [Counterpart] {
    match code {
        48 | 94 | 95 | 140 | 171 | 172 => &[UncorrectedEcc, RecoveryAction],
        // NVML has no reading of the auxiliary power supply.
        54 => &[],
        // If the remap failed permanently, `gpu-remap` asks for an RMA.
        64 | 156 | 157 => &[RowRemap, RecoveryAction],
        74 | 136 | 144..=150 | 155 => &[NvLink, RecoveryAction],
        79 => &[Answer],
        _ => &[RecoveryAction],
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Severity;
    use railgate_model::xid_catalogue::all;

    use super::*;

    #[test]
    fn every_failing_xid_but_auxiliary_power_has_an_nvml_reading() {
        let fails = all().filter(|row| row.judgement.severity == Severity::Fail);
        let without: Vec<u32> =
            fails.map(|row| row.code).filter(|code| counterparts(*code).is_empty()).collect();
        assert_eq!(without, [54]);
    }
}
