use railgate_model::{
    Access, GpuDetails, GpuFabric, LinkErrors, NvLink, NvLinkErrors, Peer, RetiredPages, SramEcc,
};

use super::{
    Device, Out, OutOf, OutText, Reading, Return, Symbol, TEXT, c_char, c_uint, milli, returns, sys,
    until_nul, version,
};

/// `NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS`
const NVLINK_RECOVERY_EVENTS: u32 = 215;
const FUNCTION_NOT_FOUND: Return = 13;
const ARGUMENT_VERSION_MISMATCH: Return = 25;
const RETIRED_PENDING: u32 = sys::field_id::NVML_FI_DEV_RETIRED_PENDING;

/// Version 2 of the fabric info structure; later versions start with the same fields.
const FABRIC_V2: c_uint = 36 | 2 << 24;

impl Device<'_> {
    /// Reads values that old drivers may lack; missing ones are unsupported.
    pub(super) fn details(&self, index: u32, count: u32, nvlinks: &[NvLink]) -> GpuDetails {
        let lib = self.lib;
        let slowdown = sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_SLOWDOWN;
        let memory_max = sys::nvmlTemperatureThresholds_enum_NVML_TEMPERATURE_THRESHOLD_MEM_MAX;
        let sm = sys::nvmlClockType_enum_NVML_CLOCK_SM;
        let [
            single,
            double,
            pending,
            memory_c,
            replays,
            recoveries,
            crc,
            thermal,
            brake,
            thermal_new,
            brake_new,
        ] = self.fields(
            [
                sys::field_id::NVML_FI_DEV_RETIRED_SBE,
                sys::field_id::NVML_FI_DEV_RETIRED_DBE,
                RETIRED_PENDING,
                sys::field_id::NVML_FI_DEV_MEMORY_TEMP,
                sys::field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
                sys::field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL,
                sys::field_id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
                252,
                253,
                // The numbers of these two fields since driver 580.82.
                270,
                271,
            ]
            .map(|field| (field, 0)),
        );
        GpuDetails {
            inforom: self.new_text(symbol!(lib, nvmlDeviceGetInforomImageVersion)),
            gsp: self.gsp(),
            ecc_pending: self.out_two(symbol!(lib, nvmlDeviceGetEccMode)).map(|(_, pending)| pending != 0),
            sram: self.sram(),
            retired_pages: retired(single, double, pending),
            margin_c: self.margin(),
            slowdown_c: self.new_of(symbol!(lib, nvmlDeviceGetTemperatureThreshold), slowdown),
            memory_c: memory_c.map(|degrees| u32::try_from(degrees).unwrap_or(u32::MAX)),
            memory_max_c: self.new_of(symbol!(lib, nvmlDeviceGetTemperatureThreshold), memory_max),
            hw_thermal_ns: newer(thermal_new, thermal),
            power_brake_ns: newer(brake_new, brake),
            power_default_w: self.new_out(symbol!(lib, nvmlDeviceGetPowerManagementDefaultLimit)).map(milli),
            app_clock_mhz: self.new_of(symbol!(lib, nvmlDeviceGetApplicationsClock), sm),
            app_clock_default_mhz: self.new_of(symbol!(lib, nvmlDeviceGetDefaultApplicationsClock), sm),
            pcie_max_gen: self.new_out(symbol!(lib, nvmlDeviceGetMaxPcieLinkGeneration)),
            pcie_max_width: self.new_out(symbol!(lib, nvmlDeviceGetMaxPcieLinkWidth)),
            utilization: self.utilization(),
            fabric: self.fabric(),
            nvlink_errors: NvLinkErrors { replays, recoveries, crc, links: self.link_errors(nvlinks) },
            peers: self.peers(index, count),
            throttle_reasons_later: self
                .new_out::<u64, _>(symbol!(lib, nvmlDeviceGetCurrentClocksThrottleReasons)),
        }
    }

    /// Reads the error counters of all links in one call. Drivers before Hopper only have the sums, and Blackwell has
    /// another field.
    fn link_errors(&self, nvlinks: &[NvLink]) -> Vec<LinkErrors> {
        let links: Vec<u32> =
            nvlinks.iter().filter(|link| link.up.known().is_some()).map(|link| link.link).collect();
        let fields = [
            sys::field_id::NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
            sys::field_id::NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
            sys::field_id::NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
        ];
        let of_each = |fields: &[u32]| {
            let wanted: Vec<_> =
                links.iter().flat_map(|link| fields.iter().map(move |field| (*field, *link))).collect();
            if wanted.is_empty() { Vec::new() } else { self.field_list(&wanted) }
        };
        let values = of_each(&fields);
        let mut found: Vec<LinkErrors> = (links.iter().zip(values.chunks(fields.len())))
            .filter_map(|(link, values)| match values {
                [replays, recoveries, crc] => Some(LinkErrors {
                    link: *link,
                    replays: replays.clone(),
                    recoveries: recoveries.clone(),
                    crc: crc.clone(),
                }),
                _ => None,
            })
            .collect();
        if found.iter().all(|link| link.recoveries == Reading::Unsupported) {
            let recoveries = of_each(&[NVLINK_RECOVERY_EVENTS]);
            for (link, recoveries) in found.iter_mut().zip(recoveries) {
                link.recoveries = recoveries;
            }
        }
        let tells = |link: &LinkErrors| {
            [&link.replays, &link.recoveries, &link.crc].iter().any(|count| **count != Reading::Unsupported)
        };
        if found.iter().any(tells) { found } else { Vec::new() }
    }

    /// Makes a call that an older driver may lack or reject.
    fn newer<F: Copy, E: std::fmt::Display, T>(
        &self,
        (name, symbol): Symbol<'_, F, E>,
        call: impl FnOnce(F) -> (Return, T),
    ) -> Reading<T> {
        if symbol.is_err() {
            return Reading::Unsupported;
        }
        let mut code = returns::SUCCESS;
        let reading = self.ask((name, symbol), |function| {
            let (answer, value) = call(function);
            code = answer;
            (answer, value)
        });
        match code {
            returns::INVALID_ARGUMENT | FUNCTION_NOT_FOUND => Reading::Unsupported,
            _ => reading,
        }
    }

    fn new_out<T: Default, E: std::fmt::Display>(&self, symbol: Symbol<'_, Out<T>, E>) -> Reading<T> {
        self.newer(symbol, |call| {
            let mut value = T::default();
            // SAFETY: the handle is NVML's own and `value` outlives the call.
            (unsafe { call(self.handle, &raw mut value) }, value)
        })
    }

    fn new_of<E: std::fmt::Display>(&self, symbol: Symbol<'_, OutOf<u32>, E>, of: c_uint) -> Reading<u32> {
        self.newer(symbol, |call| {
            let mut value = 0;
            // SAFETY: as in `new_out`.
            (unsafe { call(self.handle, of, &raw mut value) }, value)
        })
    }

    fn new_text<E: std::fmt::Display>(&self, symbol: Symbol<'_, OutText, E>) -> Reading<String> {
        self.newer(symbol, |call| {
            let mut buffer = [0_u8; TEXT];
            let length = c_uint::try_from(TEXT - 1).unwrap_or_default();
            // SAFETY: the handle is NVML's own and the buffer has more than `length` bytes.
            let code = unsafe { call(self.handle, buffer.as_mut_ptr().cast(), length) };
            (code, until_nul(&buffer))
        })
    }

    /// The only text for which NVML takes no length: its buffer has 64 bytes by definition.
    fn gsp(&self) -> Reading<String> {
        self.newer(symbol!(self.lib, nvmlDeviceGetGspFirmwareVersion), |call| {
            let mut buffer = [0_u8; TEXT];
            // SAFETY: the buffer is twice as long as the interface demands.
            let code = unsafe { call(self.handle, buffer.as_mut_ptr().cast::<c_char>()) };
            (code, until_nul(&buffer))
        })
    }

    fn sram(&self) -> Reading<SramEcc> {
        self.newer(symbol!(self.lib, nvmlDeviceGetSramEccErrorStatus), |call| {
            // SAFETY: a plain C structure of numbers, for which all zeroes is a value.
            let mut status: sys::nvmlEccSramErrorStatus_t = unsafe { std::mem::zeroed() };
            status.version = version::<sys::nvmlEccSramErrorStatus_t>(1);
            // SAFETY: as in `new_out`; the structure has its version.
            let code = unsafe { call(self.handle, &raw mut status) };
            let sram = SramEcc {
                volatile_uncorrected: status.volatileUncParity.saturating_add(status.volatileUncSecDed),
                aggregate_uncorrected: status.aggregateUncParity.saturating_add(status.aggregateUncSecDed),
                over_threshold: status.bThresholdExceeded != 0,
            };
            (code, sram)
        })
    }

    fn margin(&self) -> Reading<i32> {
        self.newer(symbol!(self.lib, nvmlDeviceGetMarginTemperature), |call| {
            let mut margin = sys::nvmlMarginTemperature_t {
                version: version::<sys::nvmlMarginTemperature_t>(1),
                marginTemperature: 0,
            };
            // SAFETY: as in `new_out`; the structure has its version.
            let code = unsafe { call(self.handle, &raw mut margin) };
            (code, margin.marginTemperature)
        })
    }

    fn utilization(&self) -> Reading<u32> {
        self.newer(symbol!(self.lib, nvmlDeviceGetUtilizationRates), |call| {
            let mut rates = sys::nvmlUtilization_t { gpu: 0, memory: 0 };
            // SAFETY: as in `new_out`.
            (unsafe { call(self.handle, &raw mut rates) }, rates.gpu)
        })
    }

    fn fabric(&self) -> Reading<GpuFabric> {
        self.newer(symbol!(self.lib, nvmlDeviceGetGpuFabricInfoV), |call| {
            // SAFETY: a plain C structure of numbers, for which all zeroes is a value.
            let mut info: sys::nvmlGpuFabricInfoV_t = unsafe { std::mem::zeroed() };
            info.version = version::<sys::nvmlGpuFabricInfoV_t>(3);
            // SAFETY: as in `new_out`; the structure has its version.
            let mut code = unsafe { call(self.handle, &raw mut info) };
            if code == ARGUMENT_VERSION_MISMATCH {
                info.version = FABRIC_V2;
                // SAFETY: as before; the older structure is the beginning of this one.
                code = unsafe { call(self.handle, &raw mut info) };
            }
            let fabric = GpuFabric {
                state: info.state.into(),
                status: info.status,
                clique: info.cliqueId,
                cluster: info.clusterUuid.iter().map(|byte| format!("{byte:02x}")).collect(),
                health: info.healthSummary.into(),
                health_mask: info.healthMask,
            };
            (code, fabric)
        })
    }

    /// Queries the GPUs with a higher index; the other half of the matrix is the same. Errors of a peer do not concern
    /// this GPU and are not recorded.
    fn peers(&self, index: u32, count: u32) -> Vec<Peer> {
        let (Ok(handle_of), Ok(status_of)) =
            (&self.lib.nvmlDeviceGetHandleByIndex_v2, &self.lib.nvmlDeviceGetP2PStatus)
        else {
            return Vec::new();
        };
        if *self.access.borrow() != Access::Ok {
            return Vec::new();
        }
        let mut peers = Vec::new();
        for other in index.saturating_add(1)..count {
            let mut handle = std::ptr::null_mut();
            // SAFETY: `handle` outlives the call.
            if unsafe { handle_of(other, &raw mut handle) } != returns::SUCCESS {
                continue;
            }
            let mut status = 0;
            let read = sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_READ;
            // SAFETY: both handles are NVML's own and `status` outlives the call.
            let code = unsafe { status_of(self.handle, handle, read, &raw mut status) };
            let reading = match code {
                returns::INVALID_ARGUMENT | FUNCTION_NOT_FOUND => Reading::Unsupported,
                code => returns::reading("nvmlDeviceGetP2PStatus", code),
            };
            if reading != Reading::Unsupported {
                peers.push(Peer { index: other, status: reading.map(|()| status) });
            }
        }
        peers
    }
}

/// Combines the three values; all of them or none.
fn retired(single: Reading<u64>, double: Reading<u64>, pending: Reading<u64>) -> Reading<RetiredPages> {
    let short = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    match (single, double, pending) {
        (Reading::Known(single), Reading::Known(double), Reading::Known(pending)) => {
            Reading::Known(RetiredPages {
                single_bit: short(single),
                double_bit: short(double),
                pending: pending != 0,
            })
        }
        (Reading::Failed(why), _, _) | (_, Reading::Failed(why), _) | (_, _, Reading::Failed(why)) => {
            Reading::Failed(why)
        }
        _ => Reading::Unsupported,
    }
}

fn newer(new: Reading<u64>, old: Reading<u64>) -> Reading<u64> {
    if new == Reading::Unsupported { old } else { new }
}
