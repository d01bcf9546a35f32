//! GPU counters of earlier check runs, from which a rate is calculated if there is no baseline of a job. GPUs are
//! identified by UUID, so a replaced card starts with an empty history.

use std::collections::BTreeMap;
use std::time::Duration;

use railgate_model::{Gpu, LinkErrors, NvLinkErrors, Reading, Snapshot};
use serde::{Deserialize, Serialize};

use crate::links::{Sample, sampled};

/// The history of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownCounts {
    /// UUID of the GPU.
    pub uuid: String,
    /// Boot in which the samples were taken.
    pub boot_id: String,
    /// Counters, oldest first. The last sample is that of the last check run.
    pub samples: Vec<Sample>,
}

/// Counters by [`Counter::name`].
pub(crate) type Counts = BTreeMap<String, u64>;

/// Key of the number of links that were read. A sample leaves out links that have counted nothing, since a machine has
/// 144 of them.
const LINKS: &str = "nvlinks";
const MOST_GPUS: usize = 64;

/// A GPU counter that is judged by its growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counter {
    /// Corrected memory errors.
    Corrected,
    PcieReplays,
    /// Nanoseconds of hardware thermal slowdown.
    Thermal,
    /// Nanoseconds of power brake slowdown.
    Brake,
    /// Sum over all NVLinks.
    Links(Kind),
    /// One NVLink, by its number.
    Link(u32, Kind),
}

/// Limits of the errors of NVLinks, for `gpu-link-errors` and for the copies of the self-test. A window shorter than an hour counts as an
/// hour.
pub(crate) const MAX_RECOVERIES: u64 = 0;
pub(crate) const REPLAYS_PER_HOUR: u64 = 1_000;
/// 100 per second, DCGM's limit.
pub(crate) const CRC_PER_HOUR: u64 = 360_000;

/// Error counters of an NVLink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Recoveries,
    Replays,
    Crc,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Recoveries, Kind::Replays, Kind::Crc];

    pub(crate) fn of(self, errors: &LinkErrors) -> &Reading<u64> {
        match self {
            Kind::Recoveries => &errors.recoveries,
            Kind::Replays => &errors.replays,
            Kind::Crc => &errors.crc,
        }
    }

    pub(crate) fn of_all(self, errors: &NvLinkErrors) -> &Reading<u64> {
        match self {
            Kind::Recoveries => &errors.recoveries,
            Kind::Replays => &errors.replays,
            Kind::Crc => &errors.crc,
        }
    }

    /// For messages.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Kind::Recoveries => "recoveries",
            Kind::Replays => "replays",
            Kind::Crc => "CRC errors",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Recoveries => "recoveries",
            Kind::Replays => "replays",
            Kind::Crc => "crc",
        }
    }
}

impl Counter {
    fn name(self) -> String {
        match self {
            Counter::Corrected => "ecc_corrected".to_owned(),
            Counter::PcieReplays => "pcie_replays".to_owned(),
            Counter::Thermal => "hw_thermal_ns".to_owned(),
            Counter::Brake => "power_brake_ns".to_owned(),
            Counter::Links(kind) => format!("nvlinks_{}", kind.name()),
            Counter::Link(link, kind) => format!("nvlink_{link}_{}", kind.name()),
        }
    }

    /// The current value, if the GPU reports it.
    pub(crate) fn of(self, gpu: &Gpu) -> Option<u64> {
        let errors = &gpu.details.nvlink_errors;
        let reading = match self {
            Counter::Corrected => &gpu.ecc.volatile_corrected,
            Counter::PcieReplays => &gpu.pcie_replays,
            Counter::Thermal => &gpu.details.hw_thermal_ns,
            Counter::Brake => &gpu.details.power_brake_ns,
            Counter::Links(kind) => kind.of_all(errors),
            Counter::Link(link, kind) => kind.of(errors.links.iter().find(|errors| errors.link == link)?),
        };
        reading.known().copied()
    }

    /// The value in a sample.
    pub(crate) fn of_counts(self, counts: &Counts) -> Option<u64> {
        let nothing = || (matches!(self, Counter::Link(..)) && counts.contains_key(LINKS)).then_some(0);
        counts.get(&self.name()).copied().or_else(nothing)
    }
}

/// All counters of a GPU, as a sample.
fn counts(gpu: &Gpu) -> Counts {
    let whole = [Counter::Corrected, Counter::PcieReplays, Counter::Thermal, Counter::Brake];
    let all = whole.into_iter().chain(Kind::ALL.map(Counter::Links));
    let mut counts: Counts = all.filter_map(|counter| Some((counter.name(), counter.of(gpu)?))).collect();
    let links = &gpu.details.nvlink_errors.links;
    let each = || links.iter().flat_map(|errors| Kind::ALL.map(|kind| (errors, kind)));
    for (errors, kind) in each() {
        if let Some(count) = kind.of(errors).known().filter(|count| **count > 0) {
            counts.insert(Counter::Link(errors.link, kind).name(), *count);
        }
    }
    // A counter that could not be read may have counted errors, so it must not appear as zero.
    if !links.is_empty() && !each().any(|(errors, kind)| matches!(kind.of(errors), Reading::Failed(_))) {
        counts.insert(LINKS.to_owned(), links.len() as u64);
    }
    counts
}

/// The oldest sample of this boot within `window`, and its age.
pub(crate) fn before<'a>(
    known: &'a [KnownCounts],
    gpu: &Gpu,
    now: &Snapshot,
    window: Duration,
) -> Option<(&'a Counts, Duration)> {
    let uuid = gpu.uuid.known()?;
    let same = |known: &&KnownCounts| {
        known.uuid == *uuid && !known.boot_id.is_empty() && known.boot_id == now.boot_id
    };
    let time = now.taken / 1000;
    known.iter().find(same)?.samples.iter().find_map(|sample| {
        let ago = Duration::from_secs(time.checked_sub(sample.time)?);
        (!ago.is_zero() && ago <= window).then_some((&sample.counters, ago))
    })
}

/// The history for the next check run. A check run that did not read the GPUs leaves it unchanged.
pub(crate) fn after(known: &[KnownCounts], now: &Snapshot) -> Vec<KnownCounts> {
    let Some(gpus) = now.gpus.data() else { return known.to_vec() };
    let old = |uuid: &str| known.iter().find(|known| known.uuid == uuid);
    let mut next = Vec::new();
    for gpu in gpus.gpus.iter().take(MOST_GPUS) {
        let Some(uuid) = gpu.uuid.known() else { continue };
        let samples = old(uuid).filter(|old| !now.boot_id.is_empty() && old.boot_id == now.boot_id);
        let samples = samples.map_or(&[][..], |old| old.samples.as_slice());
        next.push(KnownCounts {
            uuid: uuid.clone(),
            boot_id: now.boot_id.clone(),
            samples: sampled(samples, now.taken / 1000, counts(gpu)),
        });
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{case, read};

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_oldest_sample_within_the_window_is_the_baseline() {
        let mut now = case("h100-sxm").now;
        let known = after(&[], &now);
        assert_eq!(known.len(), 8);
        now.taken += 600_000;
        let gpu = &mut read(&mut now.gpus).gpus[3];
        gpu.pcie_replays = Reading::Known(9);
        gpu.details.nvlink_errors.links[7].recoveries = Reading::Known(2);
        let gpu = gpu.clone();
        let (then, ago) = before(&known, &gpu, &now, HOUR).unwrap();
        assert_eq!((Counter::PcieReplays.of_counts(then), ago.as_secs()), (Some(0), 600));
        let link = Counter::Link(7, Kind::Recoveries);
        assert_eq!((link.of_counts(then), link.of(&gpu)), (Some(0), Some(2)));
        assert_eq!(link.of_counts(&counts(&gpu)), Some(2));
        assert_eq!(Counter::Links(Kind::Replays).of_counts(then), None, "this driver tells no sums");
        now.taken += 2 * 3_600_000;
        assert!(before(&known, &gpu, &now, HOUR).is_none(), "too long ago");
        now.boot_id = "another".to_owned();
        assert!(before(&known, &gpu, &now, 10 * HOUR).is_none(), "another boot");
        now.boot_id = known[3].boot_id.clone();
        let mut other = gpu.clone();
        other.uuid = Reading::Known("GPU-new".to_owned());
        assert!(before(&known, &other, &now, 10 * HOUR).is_none(), "another card");
    }

    #[test]
    fn an_unreadable_link_does_not_count_as_zero() {
        let mut gpu = case("h100-sxm").now.gpus.data().unwrap().gpus[3].clone();
        let link = Counter::Link(7, Kind::Replays);
        assert_eq!(link.of_counts(&counts(&gpu)), Some(0));
        gpu.details.nvlink_errors.links[2].replays = Reading::Failed("999".to_owned());
        assert_eq!(link.of_counts(&counts(&gpu)), None);
        let sums = case("a100-sxm").now.gpus.data().unwrap().gpus[3].clone();
        assert_eq!(link.of_counts(&counts(&sums)), None);
        assert_eq!(Counter::Links(Kind::Replays).of_counts(&counts(&sums)), Some(0));
    }

    #[test]
    fn a_check_run_without_gpus_keeps_the_history() {
        let mut now = case("h100-sxm").now;
        let known = after(&[], &now);
        now.gpus = railgate_model::Part::Skipped;
        assert_eq!(after(&known, &now), known);
    }
}
