//! What GPUs have counted at earlier looks, so that a rate is known without a job's baseline, too. GPUs are known by
//! UUID: a card that was replaced begins anew.

use std::collections::BTreeMap;
use std::time::Duration;

use railgate_node::{Gpu, LinkErrors, Reading, Snapshot};
use serde::{Deserialize, Serialize};

use crate::links::{Sample, sampled};

/// A GPU as looks have seen it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownCounts {
    /// UUID.
    pub uuid: String,
    /// The boot of the samples.
    pub boot_id: String,
    /// Counters, oldest first; the last one is the last look's.
    pub samples: Vec<Sample>,
}

/// Counters by name.
pub(crate) type Counts = BTreeMap<String, u64>;

/// How many links were read. Those that have counted nothing are left out of a sample: a machine has 144 of them.
const LINKS: &str = "nvlinks";
const MOST_GPUS: usize = 64;

/// Replays, recoveries and checksum errors, by the names that [`link`] makes counters of.
pub(crate) const LINK_KINDS: [&str; 3] = ["recoveries", "replays", "crc"];

/// The counter of one link.
pub(crate) fn link(link: u32, kind: &str) -> String {
    format!("nvlink_{link}_{kind}")
}

/// What a link counts of a kind.
pub(crate) fn of_link<'a>(errors: &'a LinkErrors, kind: &str) -> &'a Reading<u64> {
    match kind {
        "recoveries" => &errors.recoveries,
        "replays" => &errors.replays,
        _ => &errors.crc,
    }
}

/// Everything that a GPU counts and that is judged by its growth.
pub(crate) fn counts(gpu: &Gpu) -> Counts {
    let details = &gpu.details;
    let sums = &details.nvlink_errors;
    let all = [
        ("ecc_corrected", &gpu.ecc.volatile_corrected),
        ("pcie_replays", &gpu.pcie_replays),
        ("hw_thermal_ns", &details.hw_thermal_ns),
        ("power_brake_ns", &details.power_brake_ns),
        ("nvlink_recoveries", &sums.recoveries),
        ("nvlink_replays", &sums.replays),
        ("nvlink_crc", &sums.crc),
    ];
    let mut counts: Counts =
        all.iter().filter_map(|(name, count)| Some(((*name).to_owned(), *count.known()?))).collect();
    let each = || sums.links.iter().flat_map(|link| LINK_KINDS.map(|kind| (link, kind, of_link(link, kind))));
    for (errors, kind, count) in each() {
        if let Some(count) = count.known().filter(|count| **count > 0) {
            counts.insert(link(errors.link, kind), *count);
        }
    }
    // Where one could not be read, nobody knows that it has counted nothing.
    if !sums.links.is_empty() && !each().any(|(_, _, count)| matches!(count, Reading::Failed(_))) {
        counts.insert(LINKS.to_owned(), sums.links.len() as u64);
    }
    counts
}

/// One of them.
pub(crate) fn count(counts: &Counts, name: &str) -> Option<u64> {
    let nothing = || (name.starts_with("nvlink_") && counts.contains_key(LINKS)).then_some(0);
    counts.get(name).copied().or_else(nothing)
}

/// What a GPU had counted at the oldest look of this boot within `window`, and how long ago that was.
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

/// What the next look should know; a look that did not read the GPUs changes nothing.
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
    use crate::testing::{look, read};

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_a_gpu_had_counted_before() {
        let mut now = look("h100-sxm").now;
        let known = after(&[], &now);
        assert_eq!(known.len(), 8);
        now.taken += 600_000;
        let gpu = &mut read(&mut now.gpus).gpus[3];
        gpu.pcie_replays = Reading::Known(9);
        gpu.details.nvlink_errors.links[7].recoveries = Reading::Known(2);
        let gpu = gpu.clone();
        let (then, ago) = before(&known, &gpu, &now, HOUR).unwrap();
        assert_eq!((count(then, "pcie_replays"), ago.as_secs()), (Some(0), 600));
        assert_eq!(count(then, &link(7, "recoveries")), Some(0));
        assert_eq!(count(then, "nvlink_replays"), Some(0), "of a name that no link has");
        assert_eq!(count(&counts(&gpu), &link(7, "recoveries")), Some(2));
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
    fn a_link_that_could_not_be_read_has_not_counted_nothing() {
        let mut gpu = look("h100-sxm").now.gpus.data().unwrap().gpus[3].clone();
        assert_eq!(count(&counts(&gpu), &link(7, "replays")), Some(0));
        gpu.details.nvlink_errors.links[2].replays = Reading::Failed("999".to_owned());
        assert_eq!(count(&counts(&gpu), &link(7, "replays")), None);
        let sums = look("a100-sxm").now.gpus.data().unwrap().gpus[3].clone();
        assert_eq!(count(&counts(&sums), &link(7, "replays")), None);
        assert_eq!(count(&counts(&sums), "nvlink_replays"), Some(0));
    }

    #[test]
    fn a_look_without_gpus_forgets_nothing() {
        let mut now = look("h100-sxm").now;
        let known = after(&[], &now);
        now.gpus = railgate_node::Part::Skipped;
        assert_eq!(after(&known, &now), known);
    }
}
