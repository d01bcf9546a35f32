#![allow(unsafe_code, reason = "NVML is a C library; this file makes GPM's calls")]

use std::{mem, ptr};

use nvml_wrapper_sys::bindings as sys;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlGpmSample_t};
use railgate_model::{GpuField, Reading};

use super::super::device::present;
use super::super::returns;

pub(super) const OF_SAMPLE: usize = GpuField::GPM.len();
pub(super) const OF_WINDOW: [u32; 3] = [1, 2, 5];

/// Three GPM samples in rotation: the start of the interval, the end of the last window, and a free one.
pub(super) struct Gpm {
    lib: *const NvmlLib,
    device: nvmlDevice_t,
    instance: Option<u32>,
    samples: [nvmlGpmSample_t; 3],
    first: usize,
    last: usize,
    /// Kept, since 8 KiB would otherwise have to be cleared for every query.
    query: Box<sys::nvmlGpmMetricsGet_t>,
}

impl Gpm {
    pub(super) fn new(lib: &NvmlLib, device: nvmlDevice_t, instance: Option<u32>) -> Result<Self, String> {
        let name = "nvmlGpmSampleAlloc";
        let call = present(name, &lib.nvmlGpmSampleAlloc)?;
        let mut samples = [ptr::null_mut(); 3];
        for sample in &mut samples {
            // SAFETY: `sample` outlives the call. It is never freed: this process ends by itself.
            match unsafe { call(sample) } {
                returns::SUCCESS => {}
                code => return Err(returns::text(name, code)),
            }
        }
        // SAFETY: numbers and pointers that NVML fills in; all zeroes is a value.
        let query = unsafe { Box::<sys::nvmlGpmMetricsGet_t>::new_zeroed().assume_init() };
        Ok(Gpm { lib, device, instance, samples, first: 0, last: 0, query })
    }

    fn lib(&self) -> &NvmlLib {
        // SAFETY: the library is loaded for as long as this process lives, and `watch` keeps it in place.
        unsafe { &*self.lib }
    }

    fn take(&mut self, place: usize) -> Result<(), String> {
        let lib = self.lib();
        let Some(sample) = self.samples.get(place).copied() else { return Err("no such sample".to_owned()) };
        let (name, code) = match self.instance {
            None => {
                let name = "nvmlGpmSampleGet";
                let call = present(name, &lib.nvmlGpmSampleGet)?;
                // SAFETY: both are NVML's own.
                (name, unsafe { call(self.device, sample) })
            }
            Some(instance) => {
                let name = "nvmlGpmMigSampleGet";
                let call = present(name, &lib.nvmlGpmMigSampleGet)?;
                // SAFETY: as above.
                (name, unsafe { call(self.device, instance, sample) })
            }
        };
        if code == returns::SUCCESS { Ok(()) } else { Err(returns::text(name, code)) }
    }

    pub(super) fn restart(&mut self) -> Result<(), String> {
        (self.first, self.last) = (0, 0);
        self.take(0)
    }

    /// Returns the activities since the last window.
    pub(super) fn window(&mut self) -> [Reading<f64>; 3] {
        let free = (0..3).find(|place| *place != self.first && *place != self.last).unwrap_or(1);
        if let Err(why) = self.take(free) {
            return std::array::from_fn(|_| Reading::Failed(why.clone()));
        }
        let before = mem::replace(&mut self.last, free);
        self.metrics(OF_WINDOW, before, free)
    }

    /// Returns the metrics of [`GpuField::GPM`] since the start of the interval. The preceding call of `window` took the
    /// closing sample.
    pub(super) fn sample(&mut self) -> [Reading<f64>; OF_SAMPLE] {
        let (first, last) = (self.first, self.last);
        if first == last {
            return std::array::from_fn(|_| Reading::Failed("too short for GPM".to_owned()));
        }
        self.first = last;
        let mut ids = GpuField::GPM.iter().map(|metric| metric.id);
        self.metrics(std::array::from_fn::<_, OF_SAMPLE, _>(|_| ids.next().unwrap_or_default()), first, last)
    }

    fn metrics<const N: usize>(&mut self, ids: [u32; N], one: usize, two: usize) -> [Reading<f64>; N] {
        let name = "nvmlGpmMetricsGet";
        let call = match present(name, &self.lib().nvmlGpmMetricsGet) {
            Ok(call) => call,
            Err(why) => return std::array::from_fn(|_| Reading::Failed(why.clone())),
        };
        let sample = |place: usize| self.samples.get(place).copied().unwrap_or(ptr::null_mut());
        let (one, two) = (sample(one), sample(two));
        let query = &mut self.query;
        (query.version, query.numMetrics) = (1, u32::try_from(N).unwrap_or_default());
        (query.sample1, query.sample2) = (one, two);
        for (metric, id) in query.metrics.iter_mut().zip(ids) {
            (metric.metricId, metric.nvmlReturn, metric.value) = (id, returns::UNKNOWN, f64::NAN);
        }
        // SAFETY: the structure has room for more metrics than are asked for, and both samples are NVML's own.
        let code = unsafe { call(&raw mut **query) };
        if code != returns::SUCCESS {
            return std::array::from_fn(|_| returns::reading(name, code).map(|()| 0.0));
        }
        let mut values = query.metrics.iter().map(|metric| match metric.nvmlReturn {
            returns::SUCCESS if metric.value.is_finite() => Reading::Known(metric.value),
            // Not a number: GPM has no value for this period.
            returns::SUCCESS => Reading::Failed(format!("{name}: metric {}: no number", metric.metricId)),
            returns::INVALID_ARGUMENT => Reading::Unsupported,
            code => returns::reading(name, code).map(|()| 0.0),
        });
        std::array::from_fn(|_| values.next().unwrap_or(Reading::Unsupported))
    }
}
