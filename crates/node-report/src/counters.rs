use std::collections::BTreeMap;
use std::fmt::Display;

use railgate_model::{
    Access, Allocation, Gpu, GpuInventory, Hca, JobGpus, PciAddress, Port, PortState, RailMap, Reading,
    Snapshot, UnixMillis,
};
use serde::{Deserialize, Serialize};

/// The two readings between which counters are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// The earlier reading.
    pub start: UnixMillis,
    /// The later reading.
    pub end: UnixMillis,
}

impl Window {
    /// Length, seconds; `None` if the clock did not advance or went backwards.
    pub fn seconds(self) -> Option<f64> {
        let millis = self.end.checked_sub(self.start).filter(|millis| *millis > 0)?;
        Some(std::time::Duration::from_millis(millis).as_secs_f64())
    }
}

/// One counter over the window. An unreliable delta is `Failed`, never zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counter<T> {
    /// Earlier reading.
    pub before: Reading<T>,
    /// Later reading.
    pub after: Reading<T>,
    /// Difference, or why there is none.
    pub delta: Reading<T>,
}

/// Counters of one GPU over the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuUse {
    /// NVML index at the later reading; at the earlier one if the GPU is lost.
    pub index: u32,
    /// PCI address.
    pub pci: Reading<PciAddress>,
    /// UUID.
    pub uuid: Reading<String>,
    /// Model name.
    pub name: Reading<String>,
    /// Whether the GPU was allocated to the job; `None` if Slurm's list could not be read.
    pub own: Option<bool>,
    /// Whether it responds after the run.
    pub access: Access,
    /// Energy, joules. On a shared GPU it includes other jobs.
    pub energy_j: Counter<f64>,
    /// Uncorrected ECC errors.
    pub ecc_uncorrected: Counter<u64>,
    /// Corrected ECC errors.
    pub ecc_corrected: Counter<u64>,
    /// Remapped rows, for correctable and uncorrectable errors together.
    pub rows_remapped: Counter<u64>,
    /// PCIe replays.
    pub pcie_replays: Counter<u64>,
    /// Bytes sent over NVLink.
    pub nvlink_tx_bytes: Counter<u64>,
    /// Bytes received over NVLink.
    pub nvlink_rx_bytes: Counter<u64>,
    /// Number of NVLinks up before and after, of those that the GPU listed.
    pub nvlinks_up: Counter<u32>,
    /// Temperature after the run, °C.
    pub temperature_c: Reading<u32>,
}

/// Counters of one RDMA port over the run. They are not split between the jobs of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortUse {
    /// HCA name, `mlx5_0`.
    pub hca: String,
    /// Port number, from 1.
    pub port: u32,
    /// Rail number; `None` for a port that is not on a rail.
    pub rail: Option<usize>,
    /// Port state before.
    pub state_before: Reading<PortState>,
    /// Port state after.
    pub state_after: Reading<PortState>,
    /// Link rate after the run, Gb/s.
    pub rate_gbps: Reading<f64>,
    /// Bytes sent: `port_xmit_data`, in units of four octets, times four.
    pub tx_bytes: Counter<u64>,
    /// Bytes received: `port_rcv_data` times four.
    pub rx_bytes: Counter<u64>,
    /// `link_downed`: number of times the link went down.
    pub link_downed: Counter<u64>,
    /// Error and retransmission counters by kernel name: those that increased, and those that are unknown.
    pub errors: BTreeMap<String, Counter<u64>>,
}

/// Counters of loss, retransmission or a bad link. Other counters are traffic or configuration.
pub const ERROR_COUNTERS: &[(&str, &str)] = &[
    ("symbol_error", "symbol errors on the link, after error correction on HDR and later"),
    ("link_error_recovery", "times the link retrained by itself"),
    ("port_rcv_errors", "packets received with an error"),
    ("port_rcv_remote_physical_errors", "packets that arrived marked bad by the far end"),
    ("port_rcv_switch_relay_errors", "packets a switch could not forward"),
    ("port_xmit_discards", "packets dropped on sending: port down or congestion"),
    ("port_rcv_constraint_errors", "packets refused on receiving: partition or raw packet rules"),
    ("port_xmit_constraint_errors", "packets refused on sending: partition or raw packet rules"),
    ("local_link_integrity_errors", "local physical errors beyond the port's threshold"),
    ("excessive_buffer_overrun_errors", "receive buffer overruns in a row"),
    ("VL15_dropped", "management packets dropped"),
    (
        "port_xmit_wait",
        "ticks with data to send and no credits: congestion, compare with earlier values of the port",
    ),
    ("out_of_sequence", "packets that arrived out of order"),
    ("packet_seq_err", "NAKs for a sequence error: packets were lost"),
    ("local_ack_timeout_err", "missing acknowledgements: retransmitted"),
    ("rnr_nak_retry_err", "the receiver was not ready too often"),
    ("implied_nak_seq_err", "responses lost on the way"),
    ("duplicate_request", "requests that arrived twice"),
    ("req_cqe_error", "requests that ended in error"),
    ("resp_cqe_error", "responses that ended in error"),
    ("roce_adp_retrans", "adaptive retransmissions (RoCE)"),
    ("roce_adp_retrans_to", "adaptive retransmission timeouts (RoCE)"),
    ("roce_slow_restart", "slow restarts (RoCE)"),
    ("np_ecn_marked_roce_packets", "packets marked by ECN: congestion (RoCE)"),
    ("np_cnp_sent", "congestion notices sent (RoCE)"),
    ("rp_cnp_handled", "congestion notices received (RoCE)"),
    ("rp_cnp_ignored", "congestion notices ignored (RoCE)"),
];

/// Reason why no delta of this pair of snapshots can be computed, if there is one.
fn broken_pair(before: &Snapshot, after: &Snapshot) -> Option<String> {
    if before.boot_id.is_empty() || after.boot_id.is_empty() {
        Some("the boot of one of the two readings is not known".to_owned())
    } else if before.boot_id != after.boot_id {
        Some("the node was rebooted between the two readings".to_owned())
    } else {
        None
    }
}

fn no_value<T>(side: &str, reading: &Reading<T>) -> String {
    match reading {
        Reading::Failed(why) => format!("{side}: {why}"),
        Reading::Unsupported | Reading::Known(_) => format!("{side}: not supported"),
    }
}

fn compare<T: Copy + PartialOrd + Display>(
    before: Reading<T>,
    after: Reading<T>,
    broken: Option<&str>,
    subtract: impl Fn(T, T) -> T,
) -> Counter<T> {
    let delta = match (&before, &after, broken) {
        (Reading::Unsupported, Reading::Unsupported, _) => Reading::Unsupported,
        (_, _, Some(why)) => Reading::Failed(why.to_owned()),
        (Reading::Known(was), Reading::Known(is), None) if is < was => {
            Reading::Failed(format!("went backwards, from {was} to {is}: the counter was reset"))
        }
        (Reading::Known(was), Reading::Known(is), None) => Reading::Known(subtract(*is, *was)),
        (Reading::Known(_), gone, None) => Reading::Failed(no_value("after", gone)),
        (gone, _, None) => Reading::Failed(no_value("before", gone)),
    };
    Counter { before, after, delta }
}

fn count(before: Reading<u64>, after: Reading<u64>, broken: Option<&str>) -> Counter<u64> {
    compare(before, after, broken, |is, was| is - was)
}

fn scaled(reading: Reading<u64>, by: u64) -> Reading<u64> {
    match reading {
        Reading::Known(value) => match value.checked_mul(by) {
            Some(value) => Reading::Known(value),
            None => Reading::Failed(format!("{value} times {by} does not fit")),
        },
        other => other,
    }
}

fn absent<T>(side: &str) -> Reading<T> {
    Reading::Failed(format!("not seen {side} the run"))
}

/// GPUs that a job held during a run. Their NVML indices may differ between the snapshots before and after it.
#[derive(Clone, Debug)]
pub struct RunGpus {
    /// `None` without a snapshot from before the run.
    before: Option<JobGpus>,
    after: JobGpus,
}

impl RunGpus {
    /// Finds the job's GPUs in both snapshots. `remembered` are the GPUs that the node had before them, if
    /// known.
    pub fn resolve(
        allocation: &Allocation,
        before: Option<&Snapshot>,
        after: &Snapshot,
        remembered: &GpuInventory,
    ) -> RunGpus {
        let was = before.and_then(|before| before.gpus.data());
        let inventory = remembered.clone().with(was);
        let of = |gpus| JobGpus::resolve(allocation, gpus, &inventory, None);
        RunGpus { before: was.map(|gpus| of(Some(gpus))), after: of(after.gpus.data()) }
    }

    /// GPUs of the earlier snapshot, or of the later one if there is none, with that snapshot's indices.
    pub(crate) fn first(&self) -> &JobGpus {
        self.before.as_ref().unwrap_or(&self.after)
    }

    /// GPUs of the later snapshot.
    pub fn after(&self) -> &JobGpus {
        &self.after
    }
}

/// The same card in another snapshot: by UUID, else by PCI address; by index only if neither is known.
fn same_card<'a>(gpu: &Gpu, among: &'a [Gpu]) -> Option<&'a Gpu> {
    if let Some(uuid) = gpu.uuid.known() {
        if let Some(found) = among.iter().find(|other| other.uuid.known() == Some(uuid)) {
            return Some(found);
        }
        // The other snapshot may lack its UUID (a lost GPU); a different UUID is a different card.
        return among.iter().find(|other| {
            other.uuid.known().is_none()
                && match (other.pci.known(), gpu.pci.known()) {
                    (Some(there), Some(here)) => there == here,
                    _ => other.index == gpu.index,
                }
        });
    }
    match gpu.pci.known() {
        Some(pci) => among.iter().find(|other| other.pci.known() == Some(pci)),
        None => among.iter().find(|other| other.index == gpu.index),
    }
}

fn energy(before: Reading<f64>, after: Reading<f64>, broken: Option<&str>) -> Counter<f64> {
    compare(before, after, broken, |is, was| is - was)
}

fn remapped(gpu: &Gpu) -> Reading<u64> {
    gpu.row_remap.clone().map(|rows| u64::from(rows.correctable) + u64::from(rows.uncorrectable))
}

fn links_up(gpu: &Gpu) -> Reading<u32> {
    let mut up = 0;
    for link in &gpu.nvlinks {
        match &link.up {
            Reading::Known(true) => up += 1,
            Reading::Known(false) | Reading::Unsupported => {}
            Reading::Failed(why) => return Reading::Failed(format!("link {}: {why}", link.link)),
        }
    }
    if gpu.nvlinks.iter().all(|link| link.up == Reading::Unsupported) {
        return Reading::Unsupported;
    }
    Reading::Known(up)
}

fn gpu_use(was: Option<&Gpu>, is: Option<&Gpu>, own: Option<bool>, broken: Option<&str>) -> Option<GpuUse> {
    let shown = is.or(was)?;
    let pair = |read: &dyn Fn(&Gpu) -> Reading<u64>| {
        count(was.map_or_else(|| absent("before"), read), is.map_or_else(|| absent("after"), read), broken)
    };
    let identity = |read: &dyn Fn(&Gpu) -> Option<String>| {
        was.and_then(read).or_else(|| is.and_then(read)).map(Reading::Known)
    };
    let up_before = was.map_or_else(|| absent("before"), links_up);
    let up_after = is.map_or_else(|| absent("after"), links_up);
    let lost_links = match (&up_before, &up_after) {
        (Reading::Known(before), Reading::Known(after)) => Reading::Known(before.saturating_sub(*after)),
        (Reading::Unsupported, Reading::Unsupported) => Reading::Unsupported,
        (Reading::Known(_), gone) => Reading::Failed(no_value("after", gone)),
        (gone, _) => Reading::Failed(no_value("before", gone)),
    };
    Some(GpuUse {
        index: shown.index,
        pci: match (shown.pci.known(), was.and_then(|gpu| gpu.pci.known())) {
            (Some(pci), _) | (None, Some(pci)) => Reading::Known(*pci),
            (None, None) => shown.pci.clone(),
        },
        uuid: identity(&|gpu| gpu.uuid.known().cloned()).unwrap_or_else(|| shown.uuid.clone()),
        name: identity(&|gpu| gpu.name.known().cloned()).unwrap_or_else(|| shown.name.clone()),
        own,
        access: match is {
            Some(gpu) => gpu.access.clone(),
            None => Access::Lost("not listed after the run".to_owned()),
        },
        energy_j: energy(
            was.map_or_else(|| absent("before"), |gpu| gpu.energy_j.clone()),
            is.map_or_else(|| absent("after"), |gpu| gpu.energy_j.clone()),
            broken,
        ),
        ecc_uncorrected: pair(&|gpu| gpu.ecc.volatile_uncorrected.clone()),
        ecc_corrected: pair(&|gpu| gpu.ecc.volatile_corrected.clone()),
        rows_remapped: pair(&remapped),
        pcie_replays: pair(&|gpu| gpu.pcie_replays.clone()),
        nvlink_tx_bytes: pair(&|gpu| scaled(gpu.nvlink_tx_kib.clone(), 1024)),
        nvlink_rx_bytes: pair(&|gpu| scaled(gpu.nvlink_rx_kib.clone(), 1024)),
        nvlinks_up: Counter { before: up_before, after: up_after, delta: lost_links },
        temperature_c: is.map_or_else(|| absent("after"), |gpu| gpu.temperature_c.clone()),
    })
}

/// Counters of GPUs between two readings. `held`: GPUs of the job. Without `before` all deltas are unknown.
pub fn gpu_uses(before: Option<&Snapshot>, after: &Snapshot, held: &RunGpus) -> Vec<GpuUse> {
    let broken = match before {
        Some(before) => broken_pair(before, after),
        None => Some("no baseline from before the run".to_owned()),
    };
    let was = before.and_then(|snapshot| snapshot.gpus.data()).map_or(&[][..], |gpus| &gpus.gpus);
    let Some(now) = after.gpus.data() else {
        let why = after.gpus.missing().unwrap_or_default();
        return was
            .iter()
            .filter_map(|gpu| {
                let mut line = gpu_use(Some(gpu), None, held.first().has(gpu.index), broken.as_deref())?;
                line.access = Access::Failed(why.clone());
                Some(line)
            })
            .collect();
    };
    let mut uses: Vec<GpuUse> = now
        .gpus
        .iter()
        .filter_map(|gpu| {
            let earlier = same_card(gpu, was);
            // A lost GPU may have no UUID any more; the earlier snapshot shows which job held it.
            let own = match earlier {
                Some(earlier) => held.first().has(earlier.index),
                None => held.after().has(gpu.index),
            };
            gpu_use(earlier, Some(gpu), own, broken.as_deref())
        })
        .collect();
    for gone in was.iter().filter(|gpu| !now.gpus.iter().any(|is| same_card(is, was) == Some(*gpu))) {
        uses.extend(gpu_use(Some(gone), None, held.first().has(gone.index), broken.as_deref()));
    }
    uses.sort_by_key(|gpu| gpu.index);
    uses
}

fn port_of<'a>(snapshot: Option<&'a Snapshot>, hca: &str, number: u32) -> Option<&'a Port> {
    let hcas: &'a [Hca] = &snapshot?.fabric.data()?.hcas;
    hcas.iter().find(|have| have.name == hca)?.ports.iter().find(|port| port.number == number)
}

fn port_counter(port: Option<&Port>, name: &str, side: &str) -> Reading<u64> {
    match port {
        None => absent(side),
        Some(port) => port.counters.get(name).cloned().unwrap_or(Reading::Unsupported),
    }
}

/// Counters of RDMA ports between two readings.
pub fn port_uses(before: Option<&Snapshot>, after: &Snapshot, rails: Option<&RailMap>) -> Vec<PortUse> {
    let broken = match before {
        Some(before) => broken_pair(before, after),
        None => Some("no baseline from before the run".to_owned()),
    };
    let broken = broken.as_deref();
    let mut names: Vec<(String, u32)> = Vec::new();
    for snapshot in [before, Some(after)].into_iter().flatten() {
        for hca in snapshot.fabric.data().map_or(&[][..], |fabric| &fabric.hcas) {
            for port in &hca.ports {
                let name = (hca.name.clone(), port.number);
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
    }
    let mut uses: Vec<PortUse> = names
        .into_iter()
        .map(|(hca, port)| {
            let (was, is) = (port_of(before, &hca, port), port_of(Some(after), &hca, port));
            let counter = |name: &str, by: u64| {
                count(
                    scaled(port_counter(was, name, "before"), by),
                    scaled(port_counter(is, name, "after"), by),
                    broken,
                )
            };
            let errors = ERROR_COUNTERS
                .iter()
                .map(|(name, _)| ((*name).to_owned(), counter(name, 1)))
                .filter(|(_, counter)| !matches!(counter.delta, Reading::Known(0) | Reading::Unsupported))
                .collect();
            PortUse {
                rail: rails.and_then(|map| {
                    map.rails.iter().find(|rail| rail.hca == hca && rail.port == port).map(|rail| rail.number)
                }),
                state_before: was.map_or_else(|| absent("before"), |port| port.state.clone()),
                state_after: is.map_or_else(|| absent("after"), |port| port.state.clone()),
                rate_gbps: is.map_or_else(|| absent("after"), |port| port.rate_gbps.clone()),
                tx_bytes: counter("port_xmit_data", 4),
                rx_bytes: counter("port_rcv_data", 4),
                link_downed: counter("link_downed", 1),
                errors,
                hca,
                port,
            }
        })
        .collect();
    uses.sort_by(|a, b| {
        let place = |port: &PortUse| (port.rail.unwrap_or(usize::MAX), port.hca.clone(), port.port);
        place(a).cmp(&place(b))
    });
    uses
}

#[cfg(test)]
mod tests {
    use railgate_model::Part;

    use super::*;
    use crate::testing::{add, after, job, machine, rails};

    fn held(before: Option<&Snapshot>, now: &Snapshot, allocation: &Allocation) -> RunGpus {
        RunGpus::resolve(allocation, before, now, &GpuInventory::default())
    }

    fn uses(before: &Snapshot, now: &Snapshot) -> Vec<GpuUse> {
        gpu_uses(Some(before), now, &held(Some(before), now, &job(0..4).allocation))
    }

    #[test]
    fn deltas_are_differences_of_the_readings() {
        let before = machine("n1", "");
        let now = after(&before, "");
        let gpus = uses(&before, &now);
        assert_eq!(gpus.len(), 8);
        assert_eq!(gpus[0].energy_j.delta, Reading::Known(600.0 * 3600.0));
        assert_eq!(gpus[0].nvlink_tx_bytes.delta, Reading::Known(1_024_000_000), "KiB become bytes");
        assert_eq!(gpus[0].ecc_uncorrected.delta, Reading::Known(0));
        let own: Vec<_> = gpus.iter().map(|gpu| gpu.own).collect();
        assert_eq!(own, [[Some(true); 4], [Some(false); 4]].concat());

        let ports = port_uses(Some(&before), &now, Some(&rails(&before)));
        assert_eq!(ports[0].rail, Some(0));
        assert_eq!(ports[0].tx_bytes.delta, Reading::Known(36_000_000_000), "four octets each");
        assert!(ports.iter().all(|port| port.errors.is_empty()), "{:?}", ports[0].errors);
        let window = Window { start: before.taken, end: now.taken };
        assert_eq!(window.seconds(), Some(3600.0));
        assert_eq!(Window { start: 5, end: 5 }.seconds(), None);
    }

    #[test]
    fn counters_that_decrease_or_cross_a_boot_are_unknown() {
        let mut before = machine("n1", "");
        let mut now = after(&before, "");
        if let Part::Read { data, .. } = &mut before.gpus {
            data.gpus[2].pcie_replays = Reading::Known(50);
        }
        if let Part::Read { data, .. } = &mut now.gpus {
            data.gpus[2].pcie_replays = Reading::Known(7);
            data.gpus[1].energy_j = Reading::Failed("timeout".to_owned());
        }
        let gpus = uses(&before, &now);
        assert!(
            matches!(&gpus[2].pcie_replays.delta, Reading::Failed(why) if why.contains("backwards, from 50 to 7"))
        );
        assert_eq!(gpus[1].energy_j.delta, Reading::Failed("after: timeout".to_owned()));

        now.boot_id = "another".to_owned();
        let gpus = uses(&before, &now);
        let ports = port_uses(Some(&before), &now, None);
        for delta in [&gpus[0].pcie_replays.delta, &ports[0].tx_bytes.delta, &ports[0].link_downed.delta] {
            assert!(matches!(delta, Reading::Failed(why) if why.contains("booted")), "{delta:?}");
        }
        let gpus = gpu_uses(None, &now, &held(None, &now, &job(0..8).allocation));
        assert!(matches!(&gpus[0].energy_j.delta, Reading::Failed(why) if why.contains("no baseline")));
    }

    #[test]
    fn lost_gpu_keeps_its_owner_and_has_no_deltas() {
        let before = machine("n1", "");
        for fault in ["gpu-lost@3", "gpu-missing@3"] {
            let gpus = uses(&before, &after(&before, fault));
            let lost = gpus.iter().find(|gpu| !matches!(gpu.access, Access::Ok)).unwrap();
            assert_eq!(lost.own, Some(true), "{fault}");
            assert!(lost.uuid.known().is_some() && lost.pci.known().is_some(), "{fault}");
            assert!(matches!(lost.energy_j.delta, Reading::Failed(_)), "{fault}");
            assert_eq!(gpus.iter().filter(|gpu| gpu.own == Some(true)).count(), 4, "{fault}");
            assert_eq!(gpus.len(), 8, "{fault}");
        }
    }

    #[test]
    fn different_card_at_the_same_index_is_not_compared() {
        let before = machine("n1", "");
        let mut now = after(&before, "");
        if let Part::Read { data, .. } = &mut now.gpus {
            data.gpus[0].uuid = Reading::Known("GPU-new".to_owned());
        }
        let gpus = uses(&before, &now);
        assert_eq!(gpus.len(), 9, "the old card and the new one");
        assert!(gpus.iter().filter(|gpu| gpu.index == 0).all(|gpu| gpu.energy_j.delta.known().is_none()));
    }

    #[test]
    fn only_error_counters_that_grew_are_listed() {
        let before = machine("n1", "");
        let mut now = after(&before, "");
        if let Part::Read { data, .. } = &mut now.fabric {
            let port = &mut data.hcas[0].ports[0];
            add(port, "symbol_error", 12);
            add(port, "link_downed", 1);
        }
        let ports = port_uses(Some(&before), &now, None);
        let changed = ports.iter().find(|port| !port.errors.is_empty()).unwrap();
        assert_eq!(changed.errors.keys().collect::<Vec<_>>(), ["symbol_error"]);
        assert_eq!(changed.link_downed.delta, Reading::Known(1));
    }

    #[test]
    fn earlier_reading_is_shown_if_the_later_one_failed() {
        let before = machine("n1", "");
        let mut now = after(&before, "");
        now.gpus = Part::Silent { after_ms: 8000.0 };
        let gpus = uses(&before, &now);
        assert_eq!(gpus.len(), 8);
        assert!(gpus.iter().all(|gpu| matches!(&gpu.access, Access::Failed(why) if why.contains("8.0 s"))));
        assert!(gpus[0].energy_j.delta.known().is_none());
    }
}
