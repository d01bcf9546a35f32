//! The NVML readings that change with the faults that an Xid reports.

use crate::agreement::Counterpart::{self, Answer, NvLink, RecoveryAction, RowRemap, UncorrectedEcc};

/// One of them must agree before the record of a code drains a node; empty where NVML has none.
pub(super) fn counterparts(code: u32) -> &'static [Counterpart] {
    match code {
        48 | 94 | 95 | 140 | 171 | 172 => &[UncorrectedEcc, RecoveryAction],
        // NVML has no reading of the auxiliary power.
        54 => &[],
        // Where the remap failed for good, gpu-remap says RMA.
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
    fn nvml_has_a_reading_for_every_failure_but_auxiliary_power() {
        let fails = all().filter(|row| row.judgement.severity == Severity::Fail);
        let without: Vec<u32> =
            fails.map(|row| row.code).filter(|code| counterparts(*code).is_empty()).collect();
        assert_eq!(without, [54]);
    }
}
