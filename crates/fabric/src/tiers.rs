//! The distance of each switch from the nodes, and the oversubscription of tiers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;

use crate::discover::{Fabric, Kind};

/// Switches at the same distance from the nodes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tier {
    /// Number of the tier; 1 for leaf switches.
    pub tier: usize,
    /// Number of switches.
    pub switches: usize,
    /// Number of links to the tier below, or to nodes in tier 1.
    pub down_links: usize,
    /// Number of links to the tier above.
    pub up_links: usize,
    /// Capacity of the links down, Gb/s; `None` if the rate of a link is unknown.
    pub down_gbps: Option<f64>,
    /// Capacity of the links up, Gb/s.
    pub up_gbps: Option<f64>,
    /// Ratio of down to up, by rate if all rates are known, otherwise by number of links; `None` at the top.
    pub oversubscription: Option<f64>,
    /// The most oversubscribed switch, if it is worse than the whole tier.
    pub worst: Option<Worst>,
}

/// The most oversubscribed switch of a tier.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Worst {
    /// Name.
    pub switch: String,
    /// Ratio of down to up; `None` without any link up.
    pub oversubscription: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    links: usize,
    mbps: u64,
    unknown: bool,
}

impl Sum {
    fn add(&mut self, mbps: Option<u32>) {
        self.links += 1;
        self.mbps += u64::from(mbps.unwrap_or_default());
        self.unknown |= mbps.is_none();
    }

    fn join(&mut self, other: &Sum) {
        self.links += other.links;
        self.mbps += other.mbps;
        self.unknown |= other.unknown;
    }

    #[expect(clippy::cast_precision_loss, reason = "rates of a fabric stay far below 2^53 Mb/s")]
    fn gbps(&self) -> Option<f64> {
        (!self.unknown).then_some(self.mbps as f64 / 1000.0)
    }
}

/// Ratio of down to up.
#[expect(clippy::cast_precision_loss, reason = "links of a fabric are few")]
fn ratio(down: &Sum, up: &Sum) -> Option<f64> {
    match (down.gbps(), up.gbps()) {
        _ if up.links == 0 => None,
        (Some(down), Some(up)) => Some(down / up),
        _ => Some(down.links as f64 / up.links as f64),
    }
}

/// Returns the tier of each switch that is reachable from a leaf switch.
pub(crate) fn tiers(fabric: &Fabric, leafs: &BTreeSet<usize>) -> BTreeMap<usize, usize> {
    let mut beside: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    let is_switch = |at: usize| fabric.devices.get(at).is_some_and(|device| device.kind == Kind::Switch);
    for link in &fabric.links {
        let [one, other] = link.ends.map(|end| end.device);
        if is_switch(one) && is_switch(other) {
            beside.entry(one).or_default().insert(other);
            beside.entry(other).or_default().insert(one);
        }
    }
    let mut tiers: BTreeMap<usize, usize> = leafs.iter().map(|leaf| (*leaf, 1)).collect();
    let mut queue: VecDeque<(usize, usize)> = leafs.iter().map(|leaf| (*leaf, 1)).collect();
    while let Some((at, tier)) = queue.pop_front() {
        for next in beside.get(&at).into_iter().flatten() {
            if !tiers.contains_key(next) {
                tiers.insert(*next, tier + 1);
                queue.push_back((*next, tier + 1));
            }
        }
    }
    tiers
}

/// Returns the sums of each tier. `below` are the HCAs that belong to nodes.
pub(crate) fn sums(
    fabric: &Fabric,
    tiers: &BTreeMap<usize, usize>,
    below: &BTreeSet<usize>,
    names: &BTreeMap<usize, String>,
) -> Vec<Tier> {
    let mut switches: BTreeMap<usize, (Sum, Sum)> =
        tiers.keys().map(|at| (*at, Default::default())).collect();
    for link in &fabric.links {
        let [one, other] = link.ends.map(|end| end.device);
        for (at, peer) in [(one, other), (other, one)] {
            let (Some(tier), Some((down, up))) = (tiers.get(&at), switches.get_mut(&at)) else { continue };
            match tiers.get(&peer) {
                Some(peer) if peer < tier => down.add(link.mbps),
                Some(peer) if peer > tier => up.add(link.mbps),
                None if below.contains(&peer) => down.add(link.mbps),
                _ => {}
            }
        }
    }
    let last = tiers.values().max().copied().unwrap_or_default();
    (1..=last)
        .map(|tier| {
            let of: Vec<_> = switches.iter().filter(|(at, _)| tiers.get(at) == Some(&tier)).collect();
            let (mut down, mut up) = (Sum::default(), Sum::default());
            for (_, (switch_down, switch_up)) in &of {
                down.join(switch_down);
                up.join(switch_up);
            }
            let whole = ratio(&down, &up);
            let score = |down: &Sum, up: &Sum| ratio(down, up).unwrap_or(f64::INFINITY);
            let worst = whole.and_then(|whole| {
                let loaded = of.iter().filter(|(_, (down, _))| down.links > 0);
                let (at, (down, up)) =
                    loaded.max_by(|(_, (a, b)), (_, (c, d))| score(a, b).total_cmp(&score(c, d)))?;
                (score(down, up) > whole * 1.001).then(|| Worst {
                    switch: names.get(at).cloned().unwrap_or_default(),
                    oversubscription: ratio(down, up),
                })
            });
            Tier {
                tier,
                switches: of.len(),
                down_links: down.links,
                up_links: up.links,
                down_gbps: down.gbps(),
                up_gbps: up.gbps(),
                oversubscription: whole,
                worst,
            }
        })
        .collect()
}
