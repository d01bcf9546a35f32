#![allow(unsafe_code, reason = "NVML is a C library; this file makes the calls that waiting for Xids takes")]

//! Waits for Xids, alone in a child or in one thread of the child that samples the GPUs.

use std::mem::{self, ManuallyDrop};
use std::path::Path;
use std::ptr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings as sys;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};
use railgate_child::Line;
use railgate_model::{PciAddress, XidEvent};

use super::device::{self, present};
use super::{chain, returns};

/// `nvmlEventTypeXidCriticalError`
const XID: u64 = 8;
/// Timeout of one wait, and so the delay of an end.
const PATIENCE_MS: u32 = 500;
const HEARTBEAT: Duration = Duration::from_secs(20);

/// Reports Xids until the other side asks for an end.
pub(crate) fn xids(library: &Path, line: &mut Line) -> Result<(), String> {
    let nvml = Nvml::builder()
        .lib_path(library.as_os_str())
        .init()
        .map_err(|why| format!("{}: {}", library.display(), chain(&why)))?;
    let nvml = ManuallyDrop::new(nvml);
    let waiting = Waiting::begin(nvml.lib())?;
    let mut said = Instant::now();
    while line.wait(Duration::ZERO) {
        let event = waiting.next()?;
        if event.is_some() || said.elapsed() >= HEARTBEAT {
            said = Instant::now();
            let events: Vec<XidEvent> = event.into_iter().collect();
            let text = serde_json::to_vec(&events).map_err(|why| why.to_string())?;
            line.say(&text).map_err(|why| why.to_string())?;
        }
    }
    Ok(())
}

/// The GPUs that report Xids, with their PCI addresses.
pub(super) struct Waiting<'l> {
    lib: &'l NvmlLib,
    set: sys::nvmlEventSet_t,
    gpus: Vec<Known>,
}

// SAFETY: set and handles are NVML's own, live as long as the process, and NVML takes them from every thread.
unsafe impl Send for Waiting<'_> {}

impl<'l> Waiting<'l> {
    /// Registers for events. All Xids after this call are reported.
    pub(super) fn begin(lib: &'l NvmlLib) -> Result<Self, String> {
        let create = present("nvmlEventSetCreate", &lib.nvmlEventSetCreate)?;
        present("nvmlEventSetWait_v2", &lib.nvmlEventSetWait_v2)?;
        let mut set = ptr::null_mut();
        // SAFETY: `set` outlives the call.
        let code = unsafe { create(&raw mut set) };
        if code != returns::SUCCESS {
            return Err(returns::text("nvmlEventSetCreate", code));
        }
        Ok(Waiting { lib, set, gpus: registered(lib, set)? })
    }

    /// Returns the next Xid, or `None` after half a second.
    pub(super) fn next(&self) -> Result<Option<XidEvent>, String> {
        let wait = present("nvmlEventSetWait_v2", &self.lib.nvmlEventSetWait_v2)?;
        // SAFETY: a plain C structure of numbers and a pointer, for which all zeroes is a value.
        let mut data: sys::nvmlEventData_t = unsafe { mem::zeroed() };
        // SAFETY: the set is NVML's own and `data` outlives the call.
        match unsafe { wait(self.set, &raw mut data, PATIENCE_MS) } {
            returns::SUCCESS if data.eventType & XID != 0 => Ok(Some(event(&self.gpus, &data))),
            returns::SUCCESS | returns::TIMEOUT => Ok(None),
            code => Err(returns::text("nvmlEventSetWait_v2", code)),
        }
    }
}

type Known = (nvmlDevice_t, Option<PciAddress>);

/// Registers every GPU that supports such events.
fn registered(lib: &NvmlLib, set: sys::nvmlEventSet_t) -> Result<Vec<Known>, String> {
    let register = present("nvmlDeviceRegisterEvents", &lib.nvmlDeviceRegisterEvents)?;
    let count = device::count(lib).known().copied().unwrap_or(0);
    let mut gpus = Vec::new();
    let mut problem = "no GPU".to_owned();
    for index in 0..count {
        let handle = match device::by_index(lib, index) {
            Ok(handle) => handle,
            Err(why) => {
                problem = why;
                continue;
            }
        };
        // SAFETY: handle and set are NVML's own.
        match unsafe { register(handle, XID, set) } {
            returns::SUCCESS => gpus.push((handle, device::address(lib, handle))),
            code => problem = returns::text("nvmlDeviceRegisterEvents", code),
        }
    }
    if gpus.is_empty() { Err(problem) } else { Ok(gpus) }
}

fn event(gpus: &[Known], data: &sys::nvmlEventData_t) -> XidEvent {
    let code = u32::try_from(data.eventData).unwrap_or(u32::MAX);
    let gpu = gpus.iter().find(|(handle, _)| *handle == data.device).and_then(|(_, at)| *at);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    XidEvent {
        code,
        gpu: gpu.map(|at| PciAddress { function: 0, ..at }),
        pid: None,
        time: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        seq: 0,
        text: format!("Xid {code}, reported by NVML"),
    }
}
