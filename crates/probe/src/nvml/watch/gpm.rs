#![allow(unsafe_code, reason = "NVML is a C library; this file makes GPM's calls")]

use std::{mem, ptr};

use nvml_wrapper_sys::bindings as sys;
use nvml_wrapper_sys::bindings::{NvmlLib, nvmlDevice_t, nvmlGpmSample_t};
use railgate_model::{GpuField, Reading};

use super::super::device::present;
use super::super::returns;

pub(super) const OF_SAMPLE: usize = GpuField::GPM.len();
/// Fields of [`GpuField::GPM`] that a window returns.
pub(super) const OF_WINDOW: [GpuField; 3] = [GpuField::Graphics, GpuField::Sm, GpuField::Tensor];

type Metrics = [Reading<f64>; OF_SAMPLE];

/// Three GPM samples in rotation: the start of the interval, the end of the last window, and a free one.
pub(super) struct Gpm {
    lib: *const NvmlLib,
    device: nvmlDevice_t,
    instance: Option<u32>,
    samples: [nvmlGpmSample_t; 3],
    first: usize,
    last: usize,
    /// The metrics since the start of the interval, if its only window so far has asked for them. The call takes 1.2 ms on
    /// an H100, of any number of metrics.
    whole: Option<Metrics>,
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
        Ok(Gpm { lib, device, instance, samples, first: 0, last: 0, whole: None, query })
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
        (self.first, self.last, self.whole) = (0, 0, None);
        self.take(0)
    }

    /// Returns the activities since the last window.
    pub(super) fn window(&mut self) -> [Reading<f64>; 3] {
        let free = (0..3).find(|place| *place != self.first && *place != self.last).unwrap_or(1);
        if let Err(why) = self.take(free) {
            return std::array::from_fn(|_| Reading::Failed(why.clone()));
        }
        let before = mem::replace(&mut self.last, free);
        let metrics = self.metrics(before, free);
        let activities = OF_WINDOW.map(|field| {
            let found = GpuField::GPM.iter().zip(&metrics).find(|(metric, _)| metric.field == field);
            found.map_or(Reading::Unsupported, |(_, reading)| reading.clone())
        });
        self.whole = (before == self.first).then_some(metrics);
        activities
    }

    /// Returns the metrics of [`GpuField::GPM`] since the start of the interval. The preceding call of `window` took the
    /// closing sample.
    pub(super) fn sample(&mut self) -> Metrics {
        let (first, last) = (self.first, self.last);
        if first == last {
            return std::array::from_fn(|_| Reading::Failed("too short for GPM".to_owned()));
        }
        self.first = last;
        self.whole.take().unwrap_or_else(|| self.metrics(first, last))
    }

    fn metrics(&mut self, one: usize, two: usize) -> Metrics {
        let name = "nvmlGpmMetricsGet";
        let call = match present(name, &self.lib().nvmlGpmMetricsGet) {
            Ok(call) => call,
            Err(why) => return std::array::from_fn(|_| Reading::Failed(why.clone())),
        };
        let sample = |place: usize| self.samples.get(place).copied().unwrap_or(ptr::null_mut());
        let (one, two) = (sample(one), sample(two));
        let query = &mut self.query;
        (query.version, query.numMetrics) = (1, u32::try_from(OF_SAMPLE).unwrap_or_default());
        (query.sample1, query.sample2) = (one, two);
        for (metric, of) in query.metrics.iter_mut().zip(GpuField::GPM) {
            (metric.metricId, metric.nvmlReturn, metric.value) = (of.id, returns::UNKNOWN, f64::NAN);
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
