use serde::{Deserialize, Serialize};

/// The health that a drive reports about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriveHealth {
    /// Critical warning bits of the NVMe specification: 1 spare low, 2 temperature, 4 unreliable, 8 read-only, 16 cache
    /// backup failed.
    pub critical_warning: u8,
    /// Remaining spare blocks, per cent.
    pub spare_percent: u8,
    /// Threshold below which the drive warns about its spare blocks, per cent.
    pub spare_threshold_percent: u8,
    /// Used share of the rated life, per cent; can exceed 100.
    pub used_percent: u8,
    /// Data that could not be read back, over the drive's life.
    pub media_errors: u64,
}
