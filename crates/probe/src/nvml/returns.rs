use std::borrow::Cow;

use railgate_model::{Access, Reading};

pub(super) const SUCCESS: u32 = 0;
pub(super) const INVALID_ARGUMENT: u32 = 2;
pub(super) const INSUFFICIENT_SIZE: u32 = 7;
const NOT_SUPPORTED: u32 = 3;
pub(super) const TIMEOUT: u32 = 10;
const GPU_IS_LOST: u32 = 15;
const RESET_REQUIRED: u32 = 16;
const ARGUMENT_VERSION_MISMATCH: u32 = 25;
const DEPRECATED: u32 = 26;
const GPU_NOT_FOUND: u32 = 28;
pub(super) const UNKNOWN: u32 = 999;

/// The meaning of a return code for the requested value.
pub(super) fn reading(symbol: &str, code: u32) -> Reading<()> {
    match code {
        SUCCESS => Reading::Known(()),
        NOT_SUPPORTED | ARGUMENT_VERSION_MISMATCH | DEPRECATED => Reading::Unsupported,
        _ => Reading::Failed(text(symbol, code)),
    }
}

/// The meaning of a return code for the whole GPU; `None` if it only concerns the value.
pub(super) fn access(symbol: &str, code: u32) -> Option<Access> {
    match code {
        GPU_IS_LOST | GPU_NOT_FOUND => Some(Access::Lost(text(symbol, code))),
        RESET_REQUIRED => Some(Access::ResetRequired(text(symbol, code))),
        _ => None,
    }
}

/// For example `nvmlDeviceGetUUID: GPU is lost (15)`.
pub(super) fn text(symbol: &str, code: u32) -> String {
    format!("{symbol}: {} ({code})", name(code))
}

fn name(code: u32) -> Cow<'static, str> {
    Cow::Borrowed(match code {
        SUCCESS => "success",
        1 => "NVML not initialised",
        INVALID_ARGUMENT => "invalid argument",
        NOT_SUPPORTED => "not supported",
        4 => "no permission",
        5 => "already initialised",
        6 => "not found",
        INSUFFICIENT_SIZE => "buffer too small",
        8 => "power cables not attached",
        9 => "driver not loaded",
        TIMEOUT => "timeout in the driver",
        11 => "interrupt problem",
        12 => "library not found",
        13 => "function not found",
        14 => "infoROM corrupted",
        GPU_IS_LOST => "GPU is lost",
        RESET_REQUIRED => "GPU requires a reset",
        17 => "blocked by the operating system",
        18 => "driver and library versions differ",
        19 => "in use",
        20 => "out of memory",
        21 => "no data",
        22 => "ECC not available to the virtual machine",
        23 => "out of resources",
        24 => "frequency not supported",
        ARGUMENT_VERSION_MISMATCH => "structure version not supported",
        DEPRECATED => "deprecated",
        27 => "not ready",
        GPU_NOT_FOUND => "GPU not found",
        29 => "invalid state",
        30 => "reset type not supported",
        UNKNOWN => "unknown error",
        _ => return Cow::Owned(format!("NVML error {code}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_not_supported_codes_count_as_unsupported() {
        for code in 1..40 {
            let unsupported = reading("f", code) == Reading::Unsupported;
            assert_eq!(unsupported, matches!(code, 3 | 25 | 26), "{code}");
        }
    }

    #[test]
    fn both_codes_for_a_lost_gpu_are_recognised() {
        assert_eq!(access("f", 15), Some(Access::Lost("f: GPU is lost (15)".to_owned())));
        assert_eq!(access("f", 28), Some(Access::Lost("f: GPU not found (28)".to_owned())));
        assert_eq!(access("f", 16), Some(Access::ResetRequired("f: GPU requires a reset (16)".to_owned())));
        assert_eq!(access("f", 3), None);
        assert_eq!(access("f", 999), None);
    }
}
