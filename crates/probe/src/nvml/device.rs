#![allow(unsafe_code, reason = "NVML is a C library; this file makes its calls and nothing else")]

/// Name and function pointer of one NVML symbol.
macro_rules! symbol {
    ($lib:expr, $name:ident) => {
        (stringify!($name), &$lib.$name)
    };
}

mod details;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_uint};
use std::fmt::Display;
use std::{mem, ptr};

use nvml_wrapper_sys::bindings as sys;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t};
use railgate_model::{
    Access, EccCounts, Gpu, GpuDetails, GpuProcess, MemoryUse, NvLink, PciAddress, Reading, RecoveryAction,
    RowRemap,
};
use railgate_text::printable_bytes;

use super::returns;

/// Maximum number of links of a GPU, up to Blackwell.
const MAX_NVLINKS: u32 = 18;
/// Buffer size for texts. The longest ones are UUIDs with 96 characters.
const TEXT: usize = 128;
/// `scopeId` of a field for all links together.
const ALL_LINKS: u32 = u32::MAX;
const MIB: u64 = 1 << 20;

type Return = sys::nvmlReturn_t;
type Text = unsafe extern "C" fn(*mut c_char, c_uint) -> Return;

/// `nvmlDeviceGetCount_v2`.
pub(super) fn count(lib: &NvmlLib) -> Reading<u32> {
    let mut count = 0;
    let call = match present("nvmlDeviceGetCount_v2", &lib.nvmlDeviceGetCount_v2) {
        Ok(call) => call,
        Err(why) => return Reading::Failed(why),
    };
    // SAFETY: `count` outlives the call.
    let code = unsafe { call(&raw mut count) };
    returns::reading("nvmlDeviceGetCount_v2", code).map(|()| count)
}

/// Reads a text about the system. `_lib` keeps the library loaded while `symbol` is called.
pub(super) fn system_text<E: Display>(
    _lib: &NvmlLib,
    name: &str,
    symbol: &Result<Text, E>,
) -> Reading<String> {
    let call = match present(name, symbol) {
        Ok(call) => call,
        Err(why) => return Reading::Failed(why),
    };
    text(name, |buffer, length| {
        // SAFETY: the buffer has `length` bytes.
        unsafe { call(buffer, length) }
    })
}

const HANDLE: &str = "nvmlDeviceGetHandleByIndex_v2";

/// Returns the handle of a GPU.
pub(super) fn by_index(lib: &NvmlLib, index: u32) -> Result<nvmlDevice_t, String> {
    let call = present(HANDLE, &lib.nvmlDeviceGetHandleByIndex_v2)?;
    let mut handle = ptr::null_mut();
    // SAFETY: `handle` outlives the call.
    match unsafe { call(index, &raw mut handle) } {
        returns::SUCCESS => Ok(handle),
        code => Err(returns::text(HANDLE, code)),
    }
}

/// Returns the PCI address of a GPU, if NVML reports it.
pub(super) fn address(lib: &NvmlLib, handle: nvmlDevice_t) -> Option<PciAddress> {
    Device { lib, handle, access: RefCell::new(Access::Ok) }.pci().known().copied()
}

/// Reads all values of one GPU; `count` is the number of GPUs.
pub(super) fn read(lib: &NvmlLib, index: u32, count: u32, nvlink_errors: bool) -> Gpu {
    let call = match present(HANDLE, &lib.nvmlDeviceGetHandleByIndex_v2) {
        Ok(call) => call,
        Err(why) => return Gpu::silent(index, Access::Failed(why.clone()), &why),
    };
    let mut handle = ptr::null_mut();
    // SAFETY: `handle` outlives the call.
    let code = unsafe { call(index, &raw mut handle) };
    if code != returns::SUCCESS {
        let why = returns::text(HANDLE, code);
        let access = returns::access(HANDLE, code).unwrap_or_else(|| Access::Failed(why.clone()));
        return Gpu::silent(index, access, &why);
    }
    Device { lib, handle, access: RefCell::new(Access::Ok) }.read(index, count, nvlink_errors)
}

/// Returns the function, or the reason why it is missing: the library of an old driver lacks newer symbols.
pub(super) fn present<F: Copy, E: Display>(name: &str, symbol: &Result<F, E>) -> Result<F, String> {
    symbol.as_ref().copied().map_err(|_| format!("{name}: not in this driver's NVML"))
}

fn text(name: &str, call: impl FnOnce(*mut c_char, c_uint) -> Return) -> Reading<String> {
    let mut buffer = [0_u8; TEXT];
    // One byte less than the buffer, so that the text is terminated even if the library does not terminate it.
    let length = c_uint::try_from(TEXT - 1).unwrap_or_default();
    let code = call(buffer.as_mut_ptr().cast(), length);
    returns::reading(name, code).map(|()| until_nul(&buffer))
}

pub(super) fn until_nul(buffer: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(buffer).unwrap_or_default();
    printable_bytes(text.to_bytes().trim_ascii())
}

type Symbol<'a, F, E> = (&'static str, &'a Result<F, E>);
type Out<T> = unsafe extern "C" fn(nvmlDevice_t, *mut T) -> Return;
type OutOf<T> = unsafe extern "C" fn(nvmlDevice_t, c_uint, *mut T) -> Return;
type OutTwo<T> = unsafe extern "C" fn(nvmlDevice_t, *mut T, *mut T) -> Return;
type OutText = unsafe extern "C" fn(nvmlDevice_t, *mut c_char, c_uint) -> Return;
type List = unsafe extern "C" fn(nvmlDevice_t, *mut c_uint, *mut sys::nvmlProcessInfo_t) -> Return;

/// A GPU with a handle, used by one thread.
struct Device<'a> {
    lib: &'a NvmlLib,
    handle: nvmlDevice_t,
    /// Set to a worse state by any call that reports one.
    access: RefCell<Access>,
}

impl Device<'_> {
    fn read(self, index: u32, count: u32, nvlink_errors: bool) -> Gpu {
        let lib = self.lib;
        // The identity comes first, because it is needed if later calls fail.
        let pci = self.pci();
        let uuid = self.text(symbol!(lib, nvmlDeviceGetUUID));
        let serial = self.text(symbol!(lib, nvmlDeviceGetSerial));
        let name = self.text(symbol!(lib, nvmlDeviceGetName));
        let minor = self.out(symbol!(lib, nvmlDeviceGetMinorNumber));
        let vbios = self.text(symbol!(lib, nvmlDeviceGetVbiosVersion));
        let [recovery_action, nvlink_tx_kib, nvlink_rx_kib] = self.fields([
            (sys::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0),
            (sys::field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
            (sys::field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
        ]);
        let mut gpu = Gpu {
            index,
            access: Access::Ok,
            pci,
            uuid,
            serial,
            name,
            minor,
            vbios,
            recovery_action: recovery_action.map(recovery),
            ecc_enabled: self.out_two(symbol!(lib, nvmlDeviceGetEccMode)).map(|(now, _)| now != 0),
            ecc: EccCounts {
                volatile_uncorrected: self.ecc(true, false),
                aggregate_uncorrected: self.ecc(true, true),
                volatile_corrected: self.ecc(false, false),
            },
            row_remap: self.row_remap(),
            nvlinks: self.nvlinks(),
            processes: self.processes(),
            memory: self.memory(),
            temperature_c: self.out_of(symbol!(lib, nvmlDeviceGetTemperature), 0),
            power_w: self.out(symbol!(lib, nvmlDeviceGetPowerUsage)).map(milli),
            power_limit_w: self.out(symbol!(lib, nvmlDeviceGetEnforcedPowerLimit)).map(milli),
            energy_j: self.out(symbol!(lib, nvmlDeviceGetTotalEnergyConsumption)).map(millijoules),
            sm_clock_mhz: self
                .out_of(symbol!(lib, nvmlDeviceGetClockInfo), sys::nvmlClockType_enum_NVML_CLOCK_SM),
            throttle_reasons: self.out(symbol!(lib, nvmlDeviceGetCurrentClocksThrottleReasons)),
            pcie_gen: self.out(symbol!(lib, nvmlDeviceGetCurrPcieLinkGeneration)),
            pcie_width: self.out(symbol!(lib, nvmlDeviceGetCurrPcieLinkWidth)),
            pcie_replays: self.out::<u32, _>(symbol!(lib, nvmlDeviceGetPcieReplayCounter)).map(u64::from),
            nvlink_tx_kib,
            nvlink_rx_kib,
            persistence: self.out::<u32, _>(symbol!(lib, nvmlDeviceGetPersistenceMode)).map(|on| on != 0),
            mig: self.out_two(symbol!(lib, nvmlDeviceGetMigMode)).map(|(now, _)| now != 0),
            details: GpuDetails::default(),
        };
        let counted: &[NvLink] = if nvlink_errors { &gpu.nvlinks } else { &[] };
        gpu.details = self.details(index, count, counted);
        gpu.access = self.access.into_inner();
        gpu
    }

    /// Calls a function unless the GPU is lost: each further call to a lost GPU would wait for the driver's timeout.
    fn ask<F: Copy, E: Display, T>(
        &self,
        (name, symbol): Symbol<'_, F, E>,
        call: impl FnOnce(F) -> (Return, T),
    ) -> Reading<T> {
        if let Access::Lost(why) = &*self.access.borrow() {
            return Reading::Failed(why.clone());
        }
        let function = match present(name, symbol) {
            Ok(function) => function,
            Err(why) => return Reading::Failed(why),
        };
        let (code, value) = call(function);
        self.note(name, code);
        returns::reading(name, code).map(|()| value)
    }

    fn note(&self, name: &str, code: Return) {
        let Some(worse) = returns::access(name, code) else { return };
        let mut access = self.access.borrow_mut();
        if *access == Access::Ok || matches!(worse, Access::Lost(_)) {
            *access = worse;
        }
    }

    fn out<T: Default, E: Display>(&self, symbol: Symbol<'_, Out<T>, E>) -> Reading<T> {
        self.ask(symbol, |call| {
            let mut value = T::default();
            // SAFETY: the handle is NVML's own and `value` outlives the call.
            (unsafe { call(self.handle, &raw mut value) }, value)
        })
    }

    fn out_of<T: Default, E: Display>(&self, symbol: Symbol<'_, OutOf<T>, E>, of: c_uint) -> Reading<T> {
        self.ask(symbol, |call| {
            let mut value = T::default();
            // SAFETY: as in `out`.
            (unsafe { call(self.handle, of, &raw mut value) }, value)
        })
    }

    fn out_two<E: Display>(&self, symbol: Symbol<'_, OutTwo<c_uint>, E>) -> Reading<(u32, u32)> {
        self.ask(symbol, |call| {
            let (mut first, mut second) = (0, 0);
            // SAFETY: as in `out`.
            (unsafe { call(self.handle, &raw mut first, &raw mut second) }, (first, second))
        })
    }

    fn text<E: Display>(&self, symbol: Symbol<'_, OutText, E>) -> Reading<String> {
        let (name, _) = symbol;
        let mut code = returns::SUCCESS;
        let reading = self.ask(symbol, |call| {
            let value = text(name, |buffer, length| {
                // SAFETY: the handle is NVML's own and the buffer has `length` bytes.
                code = unsafe { call(self.handle, buffer, length) };
                code
            });
            (code, value)
        });
        match reading {
            Reading::Known(value) => value,
            Reading::Unsupported => Reading::Unsupported,
            Reading::Failed(why) => Reading::Failed(why),
        }
    }

    fn pci(&self) -> Reading<PciAddress> {
        let info = self.ask(symbol!(self.lib, nvmlDeviceGetPciInfo_v3), |call| {
            // SAFETY: a plain C structure of numbers and characters, for which all zeroes is a value.
            let mut info: sys::nvmlPciInfo_t = unsafe { mem::zeroed() };
            // SAFETY: as in `out`.
            (unsafe { call(self.handle, &raw mut info) }, info)
        });
        match info {
            Reading::Known(info) => {
                let text: Vec<u8> = info.busId.iter().map(|c| c.cast_unsigned()).collect();
                Reading::from_result(until_nul(&text).parse())
            }
            Reading::Unsupported => Reading::Unsupported,
            Reading::Failed(why) => Reading::Failed(why),
        }
    }

    fn ecc(&self, uncorrected: bool, aggregate: bool) -> Reading<u64> {
        self.ask(symbol!(self.lib, nvmlDeviceGetTotalEccErrors), |call| {
            let mut count = 0;
            // SAFETY: as in `out`.
            let code = unsafe { call(self.handle, uncorrected.into(), aggregate.into(), &raw mut count) };
            (code, count)
        })
    }

    fn row_remap(&self) -> Reading<RowRemap> {
        self.ask(symbol!(self.lib, nvmlDeviceGetRemappedRows), |call| {
            let [mut correctable, mut uncorrectable, mut pending, mut failed] = [0; 4];
            // SAFETY: as in `out`.
            let code = unsafe {
                call(
                    self.handle,
                    &raw mut correctable,
                    &raw mut uncorrectable,
                    &raw mut pending,
                    &raw mut failed,
                )
            };
            (code, RowRemap { correctable, uncorrectable, pending: pending != 0, failed: failed != 0 })
        })
    }

    /// Reads one entry per link of the GPU. Beyond its last link, NVML returns an invalid argument.
    fn nvlinks(&self) -> Vec<NvLink> {
        let mut links = Vec::new();
        for link in 0..MAX_NVLINKS {
            let mut beyond = false;
            let up = self.ask(symbol!(self.lib, nvmlDeviceGetNvLinkState), |call| {
                let mut state = 0;
                // SAFETY: as in `out`.
                let code = unsafe { call(self.handle, link, &raw mut state) };
                beyond = code == returns::INVALID_ARGUMENT;
                (code, state != 0)
            });
            if beyond {
                break;
            }
            links.push(NvLink { link, up });
        }
        let last = links.iter().rposition(|link| link.up != Reading::Unsupported);
        if let Some(last) = last {
            links.truncate(last + 1);
        }
        links
    }

    fn memory(&self) -> Reading<MemoryUse> {
        self.ask(symbol!(self.lib, nvmlDeviceGetMemoryInfo_v2), |call| {
            let mut memory = sys::nvmlMemory_v2_t {
                version: version::<sys::nvmlMemory_v2_t>(2),
                total: 0,
                reserved: 0,
                free: 0,
                used: 0,
            };
            // SAFETY: as in `out`; the structure has its version.
            let code = unsafe { call(self.handle, &raw mut memory) };
            (code, MemoryUse { total_mib: memory.total / MIB, used_mib: memory.used / MIB })
        })
    }

    /// Reads several fields in one call, each with its scope.
    fn fields<const N: usize>(&self, wanted: [(u32, u32); N]) -> [Reading<u64>; N] {
        let mut values = self.field_list(&wanted).into_iter();
        wanted.map(|_| values.next().unwrap_or(Reading::Unsupported))
    }

    /// Reads any number of fields in one call.
    fn field_list(&self, wanted: &[(u32, u32)]) -> Vec<Reading<u64>> {
        const NAME: &str = "nvmlDeviceGetFieldValues";
        let values = self.ask(symbol!(self.lib, nvmlDeviceGetFieldValues), |call| {
            let empty = |(field, scope): &(u32, u32)| sys::nvmlFieldValue_t {
                fieldId: *field,
                scopeId: *scope,
                timestamp: 0,
                latencyUsec: 0,
                valueType: 0,
                nvmlReturn: 0,
                value: sys::nvmlValue_t { ullVal: 0 },
            };
            let mut values: Vec<_> = wanted.iter().map(empty).collect();
            let count = i32::try_from(values.len()).unwrap_or_default();
            // SAFETY: `values` has at least `count` entries and outlives the call.
            (unsafe { call(self.handle, count, values.as_mut_ptr()) }, values)
        });
        let values = match values {
            Reading::Known(values) => values,
            Reading::Unsupported => return vec![Reading::Unsupported; wanted.len()],
            Reading::Failed(why) => return vec![Reading::Failed(why); wanted.len()],
        };
        let read = |value: &sys::nvmlFieldValue_t| {
            self.note(NAME, value.nvmlReturn);
            match value.nvmlReturn {
                // The field is newer than the driver.
                returns::INVALID_ARGUMENT => Reading::Unsupported,
                code => match returns::reading(NAME, code) {
                    Reading::Known(()) => field_value(value),
                    Reading::Unsupported => Reading::Unsupported,
                    Reading::Failed(why) => Reading::Failed(format!("field {}: {why}", value.fieldId)),
                },
            }
        };
        values.iter().map(read).collect()
    }

    fn processes(&self) -> Reading<Vec<GpuProcess>> {
        let lib = self.lib;
        let compute = self.process_list(symbol!(lib, nvmlDeviceGetComputeRunningProcesses_v3));
        let graphics = self.process_list(symbol!(lib, nvmlDeviceGetGraphicsRunningProcesses_v3));
        let (mut all, graphics) = match (compute, graphics) {
            (Reading::Known(compute), Reading::Known(graphics)) => (compute, graphics),
            // A partial list would hide processes, but a GPU without graphics has no graphics processes.
            (compute, Reading::Unsupported) => return compute,
            (Reading::Failed(why), _) | (_, Reading::Failed(why)) => return Reading::Failed(why),
            (Reading::Unsupported, graphics) => return graphics,
        };
        for process in graphics {
            if all.iter().all(|known| known.pid != process.pid) {
                all.push(process);
            }
        }
        all.sort_by_key(|process| process.pid);
        Reading::Known(all)
    }

    fn process_list<E: Display>(&self, symbol: Symbol<'_, List, E>) -> Reading<Vec<GpuProcess>> {
        let (name, function) = symbol;
        let mut room = 64;
        // Processes can start in between, so the buffer can be too small again.
        for _ in 0..5 {
            let mut found = 0;
            let mut code = returns::SUCCESS;
            let empty =
                sys::nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };
            let mut infos = vec![empty; room];
            let list = self.ask((name, function), |call| {
                found = c_uint::try_from(room).unwrap_or_default();
                // SAFETY: `infos` has room for `found` entries; NVML writes no more than that.
                code = unsafe { call(self.handle, &raw mut found, infos.as_mut_ptr()) };
                (code, ())
            });
            let found = usize::try_from(found).unwrap_or_default();
            if code == returns::INSUFFICIENT_SIZE {
                room = found.clamp(room, 1 << 16) + 64;
                continue;
            }
            return list.map(|()| infos.iter().take(found).map(process).collect());
        }
        Reading::Failed(format!("{name}: the list kept growing"))
    }
}

/// Converts an entry. The fields from `/proc` are filled in later.
fn process(info: &sys::nvmlProcessInfo_t) -> GpuProcess {
    // `NVML_VALUE_NOT_AVAILABLE`.
    let used = if info.usedGpuMemory == u64::MAX {
        Reading::Unsupported
    } else {
        Reading::Known(info.usedGpuMemory / MIB)
    };
    let unread = || "not looked up".to_owned();
    GpuProcess {
        pid: info.pid,
        used_mib: used,
        name: Reading::Failed(unread()),
        uid: Reading::Failed(unread()),
        exiting: false,
        slurm_job: Reading::Failed(unread()),
    }
}

fn field_value(value: &sys::nvmlFieldValue_t) -> Reading<u64> {
    let negative = || Reading::Failed(format!("field {}: negative", value.fieldId));
    // SAFETY: `valueType` gives the member that NVML wrote; all of it was zero before.
    unsafe {
        match value.valueType {
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Reading::Known(value.value.uiVal.into()),
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG
            | sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => {
                Reading::Known(value.value.ullVal)
            }
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => {
                u64::try_from(value.value.sllVal).map_or_else(|_| negative(), Reading::Known)
            }
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => {
                u64::try_from(value.value.siVal).map_or_else(|_| negative(), Reading::Known)
            }
            sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => {
                Reading::Known(value.value.usVal.into())
            }
            other => Reading::Failed(format!("field {}: value of type {other}", value.fieldId)),
        }
    }
}

fn recovery(value: u64) -> RecoveryAction {
    match u32::try_from(value).unwrap_or(u32::MAX) {
        0 => RecoveryAction::None,
        1 => RecoveryAction::GpuReset,
        2 => RecoveryAction::NodeReboot,
        3 => RecoveryAction::DrainP2p,
        4 => RecoveryAction::DrainAndReset,
        other => RecoveryAction::Other(other),
    }
}

/// The version word of an NVML structure: its size, with the version in the top byte.
pub(super) fn version<T>(version: u32) -> c_uint {
    c_uint::try_from(mem::size_of::<T>()).unwrap_or_default() | (version << 24)
}

/// Converts milliwatts to watts.
fn milli(value: u32) -> f64 {
    f64::from(value) / 1000.0
}

#[expect(clippy::cast_precision_loss, reason = "exact below 285 years at 1 kW")]
fn millijoules(value: u64) -> f64 {
    value as f64 / 1000.0
}
