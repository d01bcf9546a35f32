#![allow(unsafe_code, reason = "adjtimex has no safe form")]

use std::io;
use std::path::Path;

use railgate_fsutil::read;
use railgate_model::{Clock, Reading};

use crate::sysfs;

/// Reads the state of the kernel's clock, and the PTP clocks. Does not change anything.
pub(super) fn clock(sysfs_root: &Path) -> Reading<Clock> {
    // SAFETY: all zeroes is a valid timex; `modes` of zero only asks.
    let mut state: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a timex of our own that outlives the call.
    let answer = unsafe { libc::adjtimex(&raw mut state) };
    if answer < 0 {
        return Reading::Failed(format!("adjtimex: {}", io::Error::last_os_error()));
    }
    let micros = |value: libc::c_long| u64::try_from(value).unwrap_or_default();
    Reading::Known(Clock {
        synchronised: state.status & libc::STA_UNSYNC == 0,
        error_us: micros(state.esterror),
        max_error_us: micros(state.maxerror),
        ptp: ptp(&sysfs_root.join("class/ptp")),
    })
}

fn ptp(clocks: &Path) -> Vec<String> {
    let names = read::names(clocks).unwrap_or_default();
    let named = |name: &String| {
        let kind = sysfs::attribute(&clocks.join(name).join("clock_name")).unwrap_or_default();
        format!("{name} {kind}").trim_end().to_owned()
    };
    names.iter().map(named).collect()
}
