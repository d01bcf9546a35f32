use serde::{Deserialize, Serialize};

/// The health that a drive reports about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveHealth {
    /// Its critical warnings, the specification's bits: 1 spare low, 2 temperature, 4 unreliable, 8 read-only,
    /// 16 backup of its cache failed.
    pub critical_warning: u8,
    /// Spare blocks that are left, percent.
    pub spare_percent: u8,
    /// Where the drive begins to warn of that.
    pub spare_threshold_percent: u8,
    /// How much of its rated life is used, percent; may go beyond 100.
    pub used_percent: u8,
    /// Data that it could not give back, over its life.
    pub media_errors: u64,
}
