//! Which RDMA ports are compute ports, and why the others are not.

use railgate_model::{
    Distance, Hca, LeftOut, LinkLayer, PciAddress, Port, PortState, Profile, Reading, Snapshot,
};

use crate::distance::{between, device};
use crate::pairs::Anchor;

/// A port that may be a rail.
pub(crate) struct Candidate<'a> {
    pub(crate) hca: &'a Hca,
    pub(crate) port: &'a Port,
    /// It stands in the PCI tree.
    placed: bool,
    /// To each anchor, in their order.
    pub(crate) distances: Vec<Option<Distance>>,
}

impl Candidate<'_> {
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.hca.name, self.port.number)
    }

    pub(crate) fn active(&self) -> bool {
        self.port.state == Reading::Known(PortState::Active)
    }

    /// Active, or nobody could tell: NCCL looks for itself, and leaving out a good rail is worse.
    pub(crate) fn usable(&self) -> bool {
        self.active() || !matches!(self.port.state, Reading::Known(_))
    }

    /// A GPU sits under the same switches.
    fn near_by(&self) -> bool {
        self.distances.iter().flatten().any(|distance| *distance <= Distance::Pxb)
    }

    fn rate(&self) -> Option<f64> {
        self.port.rate_gbps.known().copied().filter(|_| self.active())
    }

    fn layer(&self) -> Option<&LinkLayer> {
        self.port.link_layer.known()
    }

    /// Ports in the order in which NCCL itself sorts them: by PCI address, then port.
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

/// `mlx5_8`, or a pattern with a trailing `*`.
pub(crate) fn pattern_fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(head) => name.starts_with(head),
        None => pattern == name,
    }
}

pub(crate) fn state_text(state: &Reading<PortState>) -> String {
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

/// The state as one word for a table.
pub(crate) fn state_word(state: &Reading<PortState>) -> String {
    match state {
        Reading::Known(PortState::Down) => "DOWN",
        Reading::Known(PortState::Init) => "INIT",
        Reading::Known(PortState::Armed) => "ARMED",
        Reading::Known(PortState::Active) => "ACTIVE",
        Reading::Known(PortState::Other(_)) => "OTHER",
        Reading::Unsupported | Reading::Failed(_) => "unknown",
    }
    .to_owned()
}

/// Ports that could carry NCCL at all.
pub(crate) fn candidates<'a>(
    snapshot: &'a Snapshot,
    profile: &Profile,
    anchors: &[Anchor<'_>],
    left_out: &mut Vec<LeftOut>,
) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    for hca in snapshot.fabric.data().map_or(&[][..], |fabric| &fabric.hcas) {
        let pci = device(snapshot, hca.pci.known());
        for port in &hca.ports {
            let mut leave = |why: String| {
                left_out.push(LeftOut { port: format!("{}:{}", hca.name, port.number), why });
            };
            if let Some(pattern) =
                profile.fabric.exclude.iter().find(|pattern| pattern_fits(pattern, &hca.name))
            {
                leave(format!("excluded by the machine profile ('{pattern}')"));
                continue;
            }
            if profile.fabric.hcas == Some(0) {
                leave("the machine type has no compute fabric".to_owned());
                continue;
            }
            if let Reading::Known(LinkLayer::Other(layer)) = &port.link_layer {
                leave(format!("link layer '{layer}'"));
                continue;
            }
            if let (Some(want), Some(have)) = (wanted_layer(profile), port.link_layer.known())
                && want != *have
            {
                leave(format!("speaks {}, compute ports speak {}", layer_text(have), layer_text(&want)));
                continue;
            }
            let distances =
                anchors.iter().map(|anchor| Some(between(anchor.place.as_ref()?, pci.as_ref()?))).collect();
            found.push(Candidate { hca, port, placed: pci.is_some(), distances });
        }
    }
    found.sort_by_key(Candidate::place);
    found
}

fn wanted_layer(profile: &Profile) -> Option<LinkLayer> {
    match profile.fabric.link_layer.as_deref()? {
        "infiniband" => Some(LinkLayer::InfiniBand),
        "ethernet" => Some(LinkLayer::Ethernet),
        _ => None,
    }
}

pub(crate) fn layer_text(layer: &LinkLayer) -> &str {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::Other(text) => text,
    }
}

/// Takes away what no GPU is nearest to: storage and management HCAs sit elsewhere. Where `missing` GPUs left
/// no trace, their HCAs are nobody's nearest and stay, or every rail behind them would get another number.
pub(crate) fn keep_nearest(
    candidates: &mut Vec<Candidate<'_>>,
    missing: usize,
    profile: &Profile,
    left_out: &mut Vec<LeftOut>,
) {
    let gpus = candidates.first().map_or(0, |candidate| candidate.distances.len());
    let nearest: Vec<Option<Distance>> = (0..gpus)
        .map(|gpu| candidates.iter().filter_map(|candidate| candidate.distances[gpu]).min())
        .collect();
    if nearest.iter().all(Option::is_none) {
        return;
    }
    let rate = profile.fabric.rate_gbps.or_else(|| commonest(candidates.iter().filter_map(Candidate::rate)));
    let near_by = candidates.iter().filter(|candidate| candidate.near_by()).count();
    let expected = profile.fabric.hcas.map(|count| count as usize).filter(|_| near_by > 0);
    let mut room = match expected {
        // Fewer than GPUs: some may stand far from all of them.
        Some(expected) if expected < gpus + missing => expected.saturating_sub(near_by),
        // One for each GPU, beside it: what stands far off is not the one that a GPU lacks.
        _ => missing,
    };
    candidates.retain(|candidate| {
        let nearest =
            candidate.distances.iter().zip(&nearest).any(|(have, best)| have.is_some() && have == best);
        if !candidate.placed || nearest && (candidate.near_by() || expected.is_none()) {
            return true;
        }
        if room > 0 && candidate.rate() == rate {
            room -= 1;
            return true;
        }
        left_out.push(LeftOut {
            port: candidate.name(),
            why: "no GPU is nearest to it: storage or management".to_owned(),
        });
        false
    });
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

/// Among ports equally near, a storage port gives itself away by its link layer, its rate, or by being
/// one too many and not cabled. Where no port is too many, an odd one is a compute port with a fault.
pub(crate) fn keep_compute(
    candidates: &mut Vec<Candidate<'_>>,
    profile: &Profile,
    left_out: &mut Vec<LeftOut>,
    notes: &mut Vec<String>,
) {
    let layers =
        candidates.iter().filter(|candidate| candidate.active()).filter_map(|candidate| candidate.layer());
    let ethernet = commonest(layers.map(|layer| *layer == LinkLayer::Ethernet));
    candidates.retain(|candidate| {
        let mixed =
            candidate.layer().zip(ethernet).filter(|(layer, most)| (**layer == LinkLayer::Ethernet) != *most);
        if let Some((layer, _)) = mixed {
            left_out.push(LeftOut {
                port: candidate.name(),
                why: format!("speaks {}, most ports do not: NCCL cannot mix them", layer_text(layer)),
            });
        }
        mixed.is_none()
    });

    let expected = profile.fabric.hcas.map(|count| count as usize);
    let gpus = candidates.first().map_or(0, |candidate| candidate.distances.len());

    let rate = profile.fabric.rate_gbps.or_else(|| commonest(candidates.iter().filter_map(Candidate::rate)));
    if let Some(rate) = rate {
        let odd = |candidate: &Candidate<'_>| candidate.rate().is_some_and(|have| (have - rate).abs() > 0.5);
        let regular = candidates.iter().filter(|candidate| !odd(candidate)).count();
        let drop = candidates.len() > expected.unwrap_or(gpus) && regular > 0;
        candidates.retain(|candidate| {
            let Some(have) = candidate.rate().filter(|_| odd(candidate)) else { return true };
            if drop {
                left_out.push(LeftOut {
                    port: candidate.name(),
                    why: format!("{have} Gb/s, compute ports have {rate} Gb/s"),
                });
            } else {
                notes.push(format!(
                    "{} runs at {have} Gb/s, compute ports have {rate} Gb/s",
                    candidate.name()
                ));
            }
            !drop
        });
    }

    let active = candidates.iter().filter(|candidate| candidate.active()).count();
    let lit: Vec<String> = candidates
        .iter()
        .filter(|candidate| candidate.active())
        .map(|candidate| candidate.hca.name.clone())
        .collect();
    candidates.retain(|candidate| {
        let spare = !candidate.usable()
            && match expected {
                Some(expected) => active >= expected,
                None => lit.contains(&candidate.hca.name),
            };
        if spare {
            left_out.push(LeftOut {
                port: candidate.name(),
                why: format!("port is {}, and no rail lacks it", state_text(&candidate.port.state)),
            });
        }
        !spare
    });
}

fn wired_hca<'a>(profile: &'a Profile, hca: &str) -> Option<&'a (u32, String)> {
    profile.rails.wiring.iter().find(|(_, name)| name == hca)
}

pub(crate) fn keep_wired(
    candidates: &mut Vec<Candidate<'_>>,
    profile: &Profile,
    left_out: &mut Vec<LeftOut>,
    notes: &mut Vec<String>,
) {
    for (gpu, hca) in &profile.rails.wiring {
        if !candidates.iter().any(|candidate| candidate.hca.name == *hca) {
            notes.push(format!("the machine profile wires GPU {gpu} to {hca}, which is not there"));
        }
    }
    let mut seen: Vec<String> = Vec::new();
    candidates.retain(|candidate| {
        let why = if wired_hca(profile, &candidate.hca.name).is_none() {
            "the machine profile wires no GPU to it"
        } else if seen.contains(&candidate.hca.name) {
            "another port of the same HCA is the rail"
        } else {
            seen.push(candidate.hca.name.clone());
            return true;
        };
        left_out.push(LeftOut { port: candidate.name(), why: why.to_owned() });
        false
    });
}
