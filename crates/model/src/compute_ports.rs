//! Which RDMA ports of a node are compute ports, and why the others are not: one answer for the gate, which judges them,
//! and for the rail map, which NCCL gets.

use std::collections::BTreeSet;

use crate::gpu_places::gpu_places;
use crate::{Distance, GpuPlace, Hca, LinkLayer, PciAddress, Port, PortState, Profile, Reading, Snapshot};

/// Why a port is no compute port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// The profile excludes its HCA, wires no GPU to it, or names another link layer.
    Profile,
    /// It is nearer to no GPU than another port.
    Distance,
    /// Most ports have the other link layer.
    Layer,
    /// It is active at another rate than compute ports, and there are more ports than compute ports.
    Rate,
    /// It is not active, and no compute port is missing.
    Spare,
}

/// A port that is no compute port.
#[derive(Clone, Debug)]
pub struct NotCompute<'a> {
    pub hca: &'a Hca,
    pub port: &'a Port,
    pub because: Because,
    /// For a person: `200 Gb/s, compute ports have 400 Gb/s`.
    pub why: String,
}

/// The RDMA ports of a node.
#[derive(Clone, Debug)]
pub struct ComputePorts<'a> {
    /// The GPUs in PCI order; the ports' distances are to these.
    pub gpus: Vec<GpuPlace<'a>>,
    /// In the order in which NCCL sorts them: by PCI address, then port. Also ports that are down.
    pub ports: Vec<ComputePort<'a>>,
    pub left_out: Vec<NotCompute<'a>>,
    /// What contradicts the profile.
    pub notes: Vec<String>,
    /// The profile's `[rails] wiring` decided, because the PCI tree does not tell pairs.
    pub by_wiring: bool,
    /// How many compute ports a healthy machine has: the profile's `hcas`, but no more than its wiring names if that decided.
    pub expected: Option<usize>,
    /// Gb/s of a compute port: the profile's, or what most ports have.
    rate_gbps: Option<f64>,
}

impl<'a> ComputePorts<'a> {
    /// The compute ports, ports that none of them lacks, and, where these are fewer than expected, those left-out ports that
    /// may be compute ports with a fault: at the rate of one; or not active, or of unknown rate; or beside a GPU at a lower rate,
    /// in this order.
    /// An active port at another rate to which no GPU is nearest is storage. Where no number is expected, one beside a GPU
    /// stays: it may have trained down.
    pub fn with_faulty(&self) -> Vec<(&'a Hca, &'a Port)> {
        let expected = self.expected.unwrap_or(0);
        let mut found: Vec<_> = self.ports.iter().map(|port| (port.hca, port.port)).collect();
        let mut add = |fits: &dyn Fn(&NotCompute<'_>) -> bool| {
            found.extend(self.left_out.iter().filter(|left| fits(left)).map(|left| (left.hca, left.port)));
            found.len() >= expected
        };
        let is_active = |left: &NotCompute<'_>| left.port.state == Reading::Known(PortState::Active);
        let at_rate = |left: &NotCompute<'_>| {
            self.rate_gbps.is_some() && left.port.rate_gbps.known() == self.rate_gbps.as_ref()
        };
        let by_place = |left: &NotCompute<'_>| matches!(left.because, Because::Distance | Because::Layer);
        let by_rate = |left: &NotCompute<'_>| left.because == Because::Rate;
        let _ = add(&|left| left.because == Because::Spare || self.expected.is_none() && by_rate(left))
            || add(&|left| by_place(left) && is_active(left) && at_rate(left))
            || add(&|left| by_place(left) && (!is_active(left) || left.port.rate_gbps.known().is_none()))
            || add(&by_rate);
        found
    }
}

/// Sorts the ports of a snapshot into compute ports and others.
pub fn compute_ports<'a>(snapshot: &'a Snapshot, profile: &Profile) -> ComputePorts<'a> {
    let (gpus, missing) = gpu_places(snapshot, profile);
    let found = ComputePorts {
        gpus,
        ports: Vec::new(),
        left_out: Vec::new(),
        notes: Vec::new(),
        by_wiring: false,
        expected: profile.fabric.hcas.map(|count| count as usize),
        rate_gbps: profile.fabric.rate_gbps,
    };
    let mut sorted = Sorted { found, profile };
    sorted.candidates(snapshot);
    let tells = sorted.found.ports.iter().any(ComputePort::is_near);
    if !tells && !profile.rails.wiring.is_empty() && !sorted.found.ports.is_empty() {
        sorted.found.by_wiring = true;
        sorted.keep_wired();
    } else {
        sorted.keep_nearest(missing);
        sorted.keep_layer();
        sorted.keep_rate();
        sorted.drop_spare();
    }
    sorted.found
}

/// A compute port.
#[derive(Clone, Debug)]
pub struct ComputePort<'a> {
    pub hca: &'a Hca,
    pub port: &'a Port,
    /// The PCI tree has its HCA.
    is_placed: bool,
    /// To each GPU of [`ComputePorts::gpus`]; `None` if the PCI tree lacks the GPU or the HCA.
    pub distances: Vec<Option<Distance>>,
}

impl ComputePort<'_> {
    /// `mlx5_0:1`
    pub fn name(&self) -> String {
        format!("{}:{}", self.hca.name, self.port.number)
    }

    pub fn is_active(&self) -> bool {
        self.port.state == Reading::Known(PortState::Active)
    }

    /// Active, or its state could not be read: NCCL checks it itself, and leaving out a good rail is worse.
    pub fn is_usable(&self) -> bool {
        self.is_active() || !matches!(self.port.state, Reading::Known(_))
    }

    /// A GPU is under the same switches.
    fn is_near(&self) -> bool {
        self.distances.iter().flatten().any(|distance| distance.is_below_one_port())
    }

    /// Its rate in Gb/s; that of a port that is not active means nothing.
    fn rate(&self) -> Option<f64> {
        self.port.rate_gbps.known().copied().filter(|_| self.is_active())
    }

    fn layer(&self) -> Option<&LinkLayer> {
        self.port.link_layer.known()
    }

    fn place(&self) -> (bool, Option<PciAddress>, (String, u64), u32) {
        let address = self.hca.pci.known().copied();
        (address.is_none(), address, natural(&self.hca.name), self.port.number)
    }
}

/// `mlx5_10` after `mlx5_9`.
fn natural(name: &str) -> (String, u64) {
    let head = name.trim_end_matches(|c: char| c.is_ascii_digit());
    (head.to_owned(), name[head.len()..].parse().unwrap_or(0))
}

/// A port's state for a sentence: `down`, `in state INIT (no subnet manager?)`.
pub fn port_state_text(state: &Reading<PortState>) -> String {
    match state {
        Reading::Known(PortState::Down) => "down".to_owned(),
        Reading::Known(PortState::Init) => "in state INIT (no subnet manager?)".to_owned(),
        Reading::Known(PortState::Armed) => "in state ARMED".to_owned(),
        Reading::Known(PortState::Active) => "active".to_owned(),
        Reading::Known(PortState::Other(text)) => format!("in state '{text}'"),
        Reading::Unsupported => "in no known state".to_owned(),
        Reading::Failed(why) => format!("in an unknown state ({why})"),
    }
}

struct Sorted<'a, 'p> {
    found: ComputePorts<'a>,
    profile: &'p Profile,
}

impl<'a> Sorted<'a, '_> {
    /// Ports that could carry NCCL at all.
    fn candidates(&mut self, snapshot: &'a Snapshot) {
        let fabric = &self.profile.fabric;
        let wanted = match fabric.link_layer.as_deref() {
            Some("infiniband") => Some(LinkLayer::InfiniBand),
            Some("ethernet") => Some(LinkLayer::Ethernet),
            _ => None,
        };
        let pci = snapshot.pci.data();
        for hca in snapshot.fabric.data().map_or(&[][..], |fabric| &fabric.hcas) {
            let place = hca.pci.known().zip(pci).and_then(|(at, pci)| pci.device(*at));
            let excluded = fabric.exclusion(&hca.name);
            for port in &hca.ports {
                let layer = port.link_layer.known();
                let why = match (excluded, layer, &wanted) {
                    (Some(pattern), ..) => format!("excluded by the machine profile ('{pattern}')"),
                    _ if fabric.hcas == Some(0) => "the profile has no compute fabric".to_owned(),
                    (_, Some(LinkLayer::Other(layer)), _) => format!("link layer '{layer}'"),
                    (_, Some(have), Some(want)) if want != have => {
                        format!("link layer {}, compute ports have {}", have.name(), want.name())
                    }
                    _ => {
                        let to = |gpu: &GpuPlace<'_>| Some(Distance::assumed(gpu.place?, place?));
                        let distances = self.found.gpus.iter().map(to).collect();
                        self.found.ports.push(ComputePort {
                            hca,
                            port,
                            is_placed: place.is_some(),
                            distances,
                        });
                        continue;
                    }
                };
                self.found.left_out.push(NotCompute { hca, port, because: Because::Profile, why });
            }
        }
        self.found.ports.sort_by_key(ComputePort::place);
    }

    /// The rate of compute ports in Gb/s: the profile's, or the commonest of those that are left.
    fn usual_rate(&mut self) -> Option<f64> {
        let rates = self.found.ports.iter().filter_map(ComputePort::rate);
        self.found.rate_gbps = self.profile.fabric.rate_gbps.or_else(|| commonest(rates));
        self.found.rate_gbps
    }

    /// Leaves out the ports for which `why` has a reason.
    fn leave_out(&mut self, because: Because, mut why: impl FnMut(&ComputePort<'a>) -> Option<String>) {
        let left_out = &mut self.found.left_out;
        self.found.ports.retain(|port| {
            let Some(why) = why(port) else { return true };
            left_out.push(NotCompute { hca: port.hca, port: port.port, because, why });
            false
        });
    }

    /// Leaves out ports that are nearest to no GPU: storage and management HCAs. HCAs of `missing` GPUs that left no trace are nearest
    /// to none either; they stay, or every rail behind them would get another number.
    fn keep_nearest(&mut self, missing: usize) {
        let gpus = self.found.gpus.len();
        let nearest: Vec<Option<Distance>> = (0..gpus)
            .map(|gpu| self.found.ports.iter().filter_map(|port| port.distances[gpu]).min())
            .collect();
        if nearest.iter().all(Option::is_none) {
            return;
        }
        let rate = self.usual_rate();
        let near = self.found.ports.iter().filter(|port| port.is_near()).count();
        let expected = self.found.expected.filter(|_| near > 0);
        let mut room = match expected {
            // Fewer than GPUs: some may be far from all of them.
            Some(expected) if expected < gpus + missing => expected.saturating_sub(near),
            // One for each GPU, beside it: a port far off is not the one that a GPU lacks.
            _ => missing,
        };
        self.leave_out(Because::Distance, |port| {
            let is_nearest =
                port.distances.iter().zip(&nearest).any(|(have, best)| have.is_some() && have == best);
            if !port.is_placed || is_nearest && (port.is_near() || expected.is_none()) {
                return None;
            }
            if room > 0 && port.rate() == rate {
                room -= 1;
                return None;
            }
            Some("no GPU is nearest to it: storage or management".to_owned())
        });
    }

    /// Among ports equally near, a storage port has another link layer.
    fn keep_layer(&mut self) {
        let active = self.found.ports.iter().filter(|port| port.is_active());
        let is_ethernet = |layer: &LinkLayer| *layer == LinkLayer::Ethernet;
        let most = commonest(active.filter_map(ComputePort::layer).map(is_ethernet));
        self.leave_out(Because::Layer, |port| {
            let layer = port.layer().filter(|layer| most.is_some_and(|most| is_ethernet(layer) != most))?;
            Some(format!("link layer {}, most ports have another one: NCCL cannot mix them", layer.name()))
        });
    }

    /// Among ports equally near, a storage port has another rate. If there are no more ports than compute ports, a port of another
    /// rate is a compute port with a fault.
    fn keep_rate(&mut self) {
        let Some(rate) = self.usual_rate() else { return };
        let odd = |port: &ComputePort<'_>| port.rate().filter(|have| (have - rate).abs() > 0.5);
        let regular = self.found.ports.iter().any(|port| odd(port).is_none());
        let room = self.found.expected.unwrap_or(self.found.gpus.len());
        if self.found.ports.len() > room && regular {
            self.leave_out(Because::Rate, |port| {
                Some(format!("{} Gb/s, compute ports have {rate} Gb/s", odd(port)?))
            });
            return;
        }
        for port in &self.found.ports {
            if let Some(have) = odd(port) {
                self.found
                    .notes
                    .push(format!("{} runs at {have} Gb/s, compute ports have {rate} Gb/s", port.name()));
            }
        }
    }

    /// Leaves out ports that are not active, if as many as expected are.
    fn drop_spare(&mut self) {
        let active: Vec<&Hca> =
            self.found.ports.iter().filter(|port| port.is_active()).map(|port| port.hca).collect();
        let expected = self.found.expected;
        self.leave_out(Because::Spare, |port| {
            let is_spare = !port.is_usable()
                && match expected {
                    Some(expected) => active.len() >= expected,
                    None => active.iter().any(|hca| hca.name == port.hca.name),
                };
            is_spare.then(|| {
                format!(
                    "port is {}, and there are enough rails without it",
                    port_state_text(&port.port.state)
                )
            })
        });
    }

    fn keep_wired(&mut self) {
        let wiring = &self.profile.rails.wiring;
        let wired = wiring.iter().map(|(_, hca)| hca.as_str()).collect::<BTreeSet<_>>().len();
        self.found.expected = self.found.expected.map(|count| count.min(wired));
        for (gpu, hca) in wiring {
            if !self.found.ports.iter().any(|port| port.hca.name == *hca) {
                self.found.notes.push(format!(
                    "the machine profile wires GPU {gpu} to {hca}, which this machine does not have"
                ));
            }
        }
        let mut seen: Vec<&str> = Vec::new();
        self.leave_out(Because::Profile, |port| {
            let name = port.hca.name.as_str();
            if !wiring.iter().any(|(_, hca)| hca == name) {
                return Some("the machine profile wires no GPU to it".to_owned());
            }
            if seen.contains(&name) {
                return Some("another port of the same HCA is the rail".to_owned());
            }
            seen.push(name);
            None
        });
    }
}

/// The value that most ports have; of equals the greater one.
fn commonest<T: PartialOrd + Copy>(values: impl Iterator<Item = T> + Clone) -> Option<T> {
    let count = |value: T| values.clone().filter(|other| *other == value).count();
    let mut best: Option<T> = None;
    for value in values.clone() {
        if best.is_none_or(|best| (count(value), value) > (count(best), best)) {
            best = Some(value);
        }
    }
    best
}
