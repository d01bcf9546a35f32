use std::collections::BTreeMap;

use railgate_node::{
    Distance, FabricProfile, Gpu, GpuProfile, Hca, LeftOut, LinkLayer, PciAddress, PciDevice, Port,
    PortState, Profile, Rail, RailGpu, RailMap, RailProfile, Reading, Snapshot,
};

use crate::distance::{between, device};

/// [`RailMap::method`] where the PCI tree told the pairs.
pub const BY_TREE: &str = "pci tree";
/// [`RailMap::method`] where the machine profile told them, because the tree is flat.
pub const BY_PROFILE: &str = "profile wiring";
/// [`RailMap::method`] where neither could, and equally near ports were dealt out in order, as NCCL would.
pub const BY_ORDER: &str = "order of equals";
/// [`RailMap::method`] where there is nothing to pair.
pub const BY_NOTHING: &str = "none";

/// A port that may be a rail.
struct Candidate<'a> {
    hca: &'a Hca,
    port: &'a Port,
    pci: Option<PciDevice>,
    /// To each GPU, in the GPUs' order.
    distances: Vec<Option<Distance>>,
}

impl Candidate<'_> {
    fn name(&self) -> String {
        format!("{}:{}", self.hca.name, self.port.number)
    }

    fn active(&self) -> bool {
        self.port.state == Reading::Known(PortState::Active)
    }

    /// Active, or nobody could tell: NCCL looks for itself, and leaving out a good rail is worse.
    fn usable(&self) -> bool {
        self.active() || !matches!(self.port.state, Reading::Known(_))
    }

    fn rate(&self) -> Option<f64> {
        self.port.rate_gbps.known().copied().filter(|_| self.active())
    }

    fn layer(&self) -> Option<&LinkLayer> {
        self.port.link_layer.known()
    }

    /// Ports in the order in which NCCL itself sorts them: by PCI address, then port.
    fn place(&self) -> (bool, Option<railgate_node::PciAddress>, (String, u64), u32) {
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
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(head) => name.starts_with(head),
        None => pattern == name,
    }
}

/// How this node is wired: each GPU's rail, and the compute ports in rail order.
///
/// A rail's number does not depend on what is broken today: a port that is down leaves a gap.
pub fn rail_map<'p>(snapshot: &Snapshot, profile: impl Into<Option<&'p Profile>>) -> RailMap {
    let unknown = Profile {
        id: String::new(),
        title: String::new(),
        gpus: GpuProfile::default(),
        fabric: FabricProfile::default(),
        rails: RailProfile::default(),
    };
    let profile = profile.into().unwrap_or(&unknown);
    let mut notes = Vec::new();
    let mut left_out = Vec::new();
    let gpus = snapshot.gpus.data().map_or(&[][..], |gpus| &gpus.gpus);
    if let Some(why) = snapshot.gpus.missing() {
        notes.push(format!("GPUs unknown: {why}"));
    }
    if let Some(why) = snapshot.fabric.missing() {
        notes.push(format!("RDMA ports unknown: {why}"));
    }
    if let Some(why) = snapshot.pci.missing() {
        notes.push(format!("PCI tree unknown: {why}"));
    }
    let places: Vec<Option<PciDevice>> = gpus.iter().map(|gpu| device(snapshot, gpu.pci.known())).collect();

    let mut candidates = candidates(snapshot, profile, &places, &mut left_out);
    let tells = candidates
        .iter()
        .flat_map(|candidate| &candidate.distances)
        .any(|distance| distance.is_some_and(|distance| distance <= Distance::Pxb));
    let wired = !tells && !profile.rails.wiring.is_empty() && !candidates.is_empty();
    if wired {
        keep_wired(&mut candidates, profile, &mut left_out, &mut notes);
    } else {
        keep_nearest(&mut candidates, profile, &mut left_out);
        keep_compute(&mut candidates, profile, &mut left_out, &mut notes);
    }
    let (pairs, guessed) = if wired {
        (by_wiring(&candidates, gpus, profile), false)
    } else {
        by_distance(&candidates, gpus.len())
    };
    let method = match () {
        () if wired => BY_PROFILE,
        () if pairs.iter().all(Option::is_none) => BY_NOTHING,
        () if guessed => BY_ORDER,
        () => BY_TREE,
    };
    if method == BY_ORDER {
        notes.push(
            "the PCI tree does not tell which HCA belongs to which GPU: dealt out in order; `wiring` in the \
             machine profile's [rails] can tell"
                .to_owned(),
        );
    }

    let order = rail_order(&candidates, &pairs, gpus, profile, wired);
    let mut rails = Vec::new();
    let mut index_of = BTreeMap::new();
    for (number, candidate_index) in order.into_iter().enumerate() {
        let candidate = &candidates[candidate_index];
        if candidate.usable() {
            if !candidate.active() {
                notes.push(format!("{}: port is {}", candidate.name(), state_text(&candidate.port.state)));
            }
            index_of.insert(candidate_index, rails.len());
            rails.push(rail(number, candidate));
        } else {
            let why = format!("rail {number}: port is {}", state_text(&candidate.port.state));
            notes.push(format!(
                "rail {number} is missing: {} is {}",
                candidate.name(),
                state_text(&candidate.port.state)
            ));
            left_out.push(LeftOut { port: candidate.name(), why });
        }
    }
    if let Some(expected) = profile.fabric.hcas
        && expected as usize != rails.len()
        && snapshot.fabric.data().is_some()
    {
        notes.push(format!("{} rails, the machine type has {expected}", rails.len()));
    }
    left_out.sort_by(|a, b| a.port.cmp(&b.port));

    RailMap {
        gpus: gpus
            .iter()
            .zip(&pairs)
            .zip(&places)
            .map(|((gpu, pair), place)| RailGpu {
                index: gpu.index,
                pci: gpu.pci.clone(),
                numa_node: match place {
                    Some(place) => place.numa_node.clone(),
                    None => Reading::Failed("not in the PCI tree".to_owned()),
                },
                rail: pair.and_then(|(candidate, _)| index_of.get(&candidate).copied()),
                distance: pair
                    .filter(|(candidate, _)| index_of.contains_key(candidate))
                    .and_then(|(_, distance)| distance),
            })
            .collect(),
        rails,
        left_out,
        method: method.to_owned(),
        notes,
    }
}

fn state_text(state: &Reading<PortState>) -> String {
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

fn rail(number: usize, candidate: &Candidate<'_>) -> Rail {
    Rail {
        number,
        hca: candidate.hca.name.clone(),
        port: candidate.port.number,
        pci: candidate.hca.pci.clone(),
        numa_node: candidate.hca.numa_node.clone(),
        link_layer: candidate.port.link_layer.clone(),
        rate_gbps: candidate.port.rate_gbps.clone(),
        state: candidate.port.state.clone(),
    }
}

/// Ports that could carry NCCL at all.
fn candidates<'a>(
    snapshot: &'a Snapshot,
    profile: &Profile,
    gpus: &[Option<PciDevice>],
    left_out: &mut Vec<LeftOut>,
) -> Vec<Candidate<'a>> {
    let mut found = Vec::new();
    for hca in snapshot.fabric.data().map_or(&[][..], |fabric| &fabric.hcas) {
        let pci = device(snapshot, hca.pci.known());
        for port in &hca.ports {
            let mut leave = |why: String| {
                left_out.push(LeftOut { port: format!("{}:{}", hca.name, port.number), why });
            };
            if let Some(pattern) = profile.fabric.exclude.iter().find(|pattern| matches(pattern, &hca.name)) {
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
            let distances = gpus.iter().map(|gpu| Some(between(gpu.as_ref()?, pci.as_ref()?))).collect();
            found.push(Candidate { hca, port, pci: pci.clone(), distances });
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

/// Takes away what no GPU is nearest to: storage and management HCAs sit elsewhere. Where a GPU is missing,
/// its HCA is nobody's nearest and must stay, or every rail behind it would get another number.
fn keep_nearest(candidates: &mut Vec<Candidate<'_>>, profile: &Profile, left_out: &mut Vec<LeftOut>) {
    let gpus = candidates.first().map_or(0, |candidate| candidate.distances.len());
    let nearest: Vec<Option<Distance>> = (0..gpus)
        .map(|gpu| candidates.iter().filter_map(|candidate| candidate.distances[gpu]).min())
        .collect();
    if nearest.iter().all(Option::is_none) {
        return;
    }
    let gpu_missing = profile.gpus.count.is_some_and(|count| gpus < count as usize);
    let rate = profile.fabric.rate_gbps.or_else(|| commonest(candidates.iter().filter_map(Candidate::rate)));
    candidates.retain(|candidate| {
        let near = candidate.pci.is_none()
            || (gpu_missing && candidate.rate() == rate)
            || candidate.distances.iter().zip(&nearest).any(|(have, best)| have.is_some() && have == best);
        if !near {
            left_out.push(LeftOut {
                port: candidate.name(),
                why: "no GPU is nearest to it: storage or management".to_owned(),
            });
        }
        near
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
fn keep_compute(
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
    let too_many = |count: usize| expected.is_none_or(|expected| count > expected);

    let rate = profile.fabric.rate_gbps.or_else(|| commonest(candidates.iter().filter_map(Candidate::rate)));
    if let Some(rate) = rate {
        let odd = |candidate: &Candidate<'_>| candidate.rate().is_some_and(|have| (have - rate).abs() > 0.5);
        let regular = candidates.iter().filter(|candidate| !odd(candidate)).count();
        let drop = too_many(candidates.len()) && regular > 0;
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

fn keep_wired(
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

type Pair = Option<(usize, Option<Distance>)>;

fn by_wiring(candidates: &[Candidate<'_>], gpus: &[Gpu], profile: &Profile) -> Vec<Pair> {
    gpus.iter()
        .enumerate()
        .map(|(position, gpu)| {
            let (_, hca) = profile.rails.wiring.iter().find(|(index, _)| *index == gpu.index)?;
            let candidate = candidates.iter().position(|candidate| candidate.hca.name == *hca)?;
            Some((candidate, candidates[candidate].distances[position]))
        })
        .collect()
}

/// Each GPU takes its nearest port; of equally near ones that with the fewest GPUs so far. The second value
/// says that this was a guess: through the CPU all ports of a socket look the same.
fn by_distance(candidates: &[Candidate<'_>], gpus: usize) -> (Vec<Pair>, bool) {
    let mut taken = vec![0_usize; candidates.len()];
    let mut guessed = false;
    let pairs = (0..gpus)
        .map(|gpu| {
            let best = candidates.iter().filter_map(|candidate| candidate.distances[gpu]).min()?;
            let near =
                || (0..candidates.len()).filter(|index| candidates[*index].distances[gpu] == Some(best));
            guessed |= best > Distance::Pxb && near().count() > 1;
            let chosen = near().min_by_key(|index| taken[*index])?;
            taken[chosen] += 1;
            Some((chosen, Some(best)))
        })
        .collect();
    (pairs, guessed)
}

/// By the order of the GPUs, whatever the HCAs are called. A card that lost its GPU stands where its own
/// address puts it: a switch owns a range of buses, so that is the same place.
fn rail_order(
    candidates: &[Candidate<'_>],
    pairs: &[Pair],
    gpus: &[Gpu],
    profile: &Profile,
    wired: bool,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    if wired {
        let place = |index: &usize| {
            let name = &candidates[*index].hca.name;
            profile.rails.wiring.iter().position(|(_, hca)| hca == name)
        };
        order.sort_by_key(|index| place(index).unwrap_or(usize::MAX));
        return order;
    }
    let card = |index: usize| {
        let address = candidates[index].hca.pci.known()?;
        Some(PciAddress { function: 0, ..*address })
    };
    let place = |index: &usize| {
        let first_gpu = pairs
            .iter()
            .zip(gpus)
            .filter(|(pair, _)| {
                pair.is_some_and(|(other, _)| {
                    other == *index || (card(*index).is_some() && card(other) == card(*index))
                })
            })
            .filter_map(|(_, gpu)| gpu.pci.known().copied())
            .min();
        let place = first_gpu.or(candidates[*index].hca.pci.known().copied());
        (place.is_none(), place)
    };
    // Stable: what stands at one place keeps the order of address, name and port.
    order.sort_by_key(place);
    order
}

#[cfg(test)]
mod tests {
    use railgate_node::{Fabric, Part};

    use super::*;
    use crate::testing::{flat_machine, hca, machine, pci, profile, wired_profile};

    fn fabric(snapshot: &mut Snapshot) -> &mut Fabric {
        match &mut snapshot.fabric {
            Part::Read { data, .. } => data,
            other => panic!("{other:?}"),
        }
    }

    fn names(map: &RailMap) -> Vec<(usize, &str)> {
        map.rails.iter().map(|rail| (rail.number, rail.hca.as_str())).collect()
    }

    fn left_out<'a>(map: &'a RailMap, port: &str) -> &'a str {
        map.left_out.iter().find(|left| left.port == port).map_or("", |left| left.why.as_str())
    }

    #[test]
    fn each_gpu_has_the_hca_of_its_switch_and_storage_is_no_rail() {
        let map = rail_map(&machine(), Some(&profile()));
        assert_eq!(names(&map), [(0, "mlx5_0"), (1, "mlx5_1"), (2, "mlx5_2"), (3, "mlx5_3")]);
        for (index, gpu) in map.gpus.iter().enumerate() {
            assert_eq!((gpu.rail, gpu.distance), (Some(index), Some(Distance::Pix)));
        }
        assert!(left_out(&map, "mlx5_4:1").contains("no GPU is nearest"));
        assert_eq!(map.method, BY_TREE);
        assert!(map.notes.is_empty(), "{:?}", map.notes);
    }

    #[test]
    fn a_port_that_is_down_leaves_a_gap_and_renumbers_nothing() {
        let mut snapshot = machine();
        fabric(&mut snapshot).hcas[1].ports[0].state = Reading::Known(PortState::Down);
        fabric(&mut snapshot).hcas[1].ports[0].rate_gbps = Reading::Known(10.0);
        let map = rail_map(&snapshot, Some(&profile()));
        assert_eq!(names(&map), [(0, "mlx5_0"), (2, "mlx5_2"), (3, "mlx5_3")]);
        assert_eq!(map.gpus[1].rail, None);
        assert_eq!(map.gpus[3].rail, Some(2), "an index into rails");
        assert!(left_out(&map, "mlx5_1:1").contains("rail 1: port is down"));
        assert!(map.notes.iter().any(|note| note.contains("rail 1 is missing")));
    }

    #[test]
    fn a_missing_gpu_renumbers_nothing() {
        let mut snapshot = machine();
        if let Part::Read { data, .. } = &mut snapshot.gpus {
            data.gpus.remove(0);
        }
        assert_eq!(
            names(&rail_map(&snapshot, Some(&profile()))),
            [(0, "mlx5_0"), (1, "mlx5_1"), (2, "mlx5_2"), (3, "mlx5_3")]
        );
        snapshot.gpus = Part::Silent { after_ms: 8000.0 };
        let map = rail_map(&snapshot, Some(&profile()));
        assert!(map.gpus.is_empty() && map.notes[0].contains("no answer in 8.0 s"));
        assert_eq!(map.rails.len(), 4, "the storage HCA still gives itself away by its rate: {map:?}");
    }

    #[test]
    fn names_may_differ_from_pci_order() {
        let mut snapshot = machine();
        let hcas = &mut fabric(&mut snapshot).hcas;
        for (hca, name) in hcas.iter_mut().zip(["mlx5_10", "mlx5_2", "ibp3", "mlx5_0"]) {
            hca.name = name.to_owned();
        }
        hcas.reverse();
        let map = rail_map(&snapshot, Some(&profile()));
        assert_eq!(names(&map), [(0, "mlx5_10"), (1, "mlx5_2"), (2, "ibp3"), (3, "mlx5_0")]);
    }

    #[test]
    fn a_storage_port_beside_a_rail_is_told_by_its_rate_and_a_slow_rail_is_kept() {
        let mut snapshot = machine();
        let beside = pci(
            "0000:15:01.0",
            0x02_0700,
            Reading::Known(0),
            "pci0000:10",
            &["0000:10:01.0", "0000:11:00.0", "0000:12:03.0"],
        );
        if let Part::Read { data, .. } = &mut snapshot.pci {
            data.devices.push(beside);
        }
        fabric(&mut snapshot).hcas.push(hca("mlx5_9", "0000:15:01.0", Reading::Known(0), 200.0));
        let map = rail_map(&snapshot, Some(&profile()));
        assert_eq!(map.rails.len(), 4);
        assert!(left_out(&map, "mlx5_9:1").contains("200 Gb/s"));

        let mut slow = machine();
        fabric(&mut slow).hcas[2].ports[0].rate_gbps = Reading::Known(200.0);
        let map = rail_map(&slow, Some(&profile()));
        assert_eq!(map.rails.len(), 4);
        assert!(map.notes.iter().any(|note| note.contains("mlx5_2:1 runs at 200 Gb/s")));
    }

    #[test]
    fn excluded_ports_and_foreign_link_layers_are_left_out() {
        let mut fitting = profile();
        fitting.fabric.exclude = vec!["mlx5_4".to_owned(), "mlx5_bond*".to_owned()];
        let mut snapshot = machine();
        fabric(&mut snapshot).hcas[3].ports[0].link_layer = Reading::Known(LinkLayer::Ethernet);
        let map = rail_map(&snapshot, Some(&fitting));
        assert!(left_out(&map, "mlx5_4:1").contains("'mlx5_4'"));
        assert!(left_out(&map, "mlx5_3:1").contains("Ethernet"));
        assert_eq!(map.rails.len(), 3);
        assert!(matches("mlx5_bond*", "mlx5_bond_0") && !matches("mlx5_1", "mlx5_10"));
    }

    #[test]
    fn two_gpus_share_an_hca_where_there_are_fewer() {
        let mut snapshot = machine();
        fabric(&mut snapshot).hcas.truncate(2);
        let mut fitting = profile();
        fitting.fabric.hcas = Some(2);
        let map = rail_map(&snapshot, Some(&fitting));
        assert_eq!(map.rails.len(), 2);
        assert_eq!(map.gpus[0].rail, Some(0));
        assert_eq!(map.gpus[3].rail, None, "two HCAs of the other socket are equally far");
        assert!(left_out(&map, "mlx5_0:1").is_empty());
    }

    #[test]
    fn two_hcas_and_two_gpus_of_one_switch_pair_up() {
        let mut snapshot = machine();
        let bridges = ["0000:10:01.0", "0000:11:00.0"];
        if let Part::Read { data, .. } = &mut snapshot.pci {
            for (slot, device) in data.devices.iter_mut().enumerate().take(4) {
                device.root = "pci0000:10".to_owned();
                device.bridges = bridges.iter().map(|bridge| bridge.parse().unwrap()).collect();
                device.bridges.push(format!("0000:12:{slot:02x}.0").parse().unwrap());
            }
        }
        let map = rail_map(&snapshot, Some(&profile()));
        let rails: Vec<Option<usize>> = map.gpus.iter().map(|gpu| gpu.rail).collect();
        assert_eq!(rails, [Some(0), Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn a_flat_tree_is_told_by_the_profile_and_else_not_at_all() {
        let map = rail_map(&flat_machine(), Some(&wired_profile()));
        assert_eq!(names(&map), [(0, "mlx5_3"), (1, "mlx5_2"), (2, "mlx5_1"), (3, "mlx5_0")]);
        assert_eq!(map.gpus[0].rail, Some(0));
        assert_eq!(map.method, BY_PROFILE);

        let map = rail_map(&flat_machine(), Some(&profile()));
        assert_eq!(map.method, BY_NOTHING);
        assert_eq!(map.rails.len(), 4);
        assert!(map.gpus.iter().all(|gpu| gpu.rail.is_none()));
        assert!(map.notes.iter().any(|note| note.contains("wiring")));
    }

    #[test]
    fn a_machine_with_gpus_only_has_no_rails_and_no_complaint() {
        let mut snapshot = machine();
        fabric(&mut snapshot).hcas.clear();
        let mut fitting = profile();
        fitting.fabric.hcas = Some(0);
        let map = rail_map(&snapshot, Some(&fitting));
        assert!(map.rails.is_empty() && map.left_out.is_empty() && map.notes.is_empty());
        assert_eq!(map.gpus.len(), 4);
    }
}
