use super::Diagnosis;
use super::facts::{Facts, median};
use crate::plain::byte_rate;

/// A rail that carries far less than its neighbours on the same node.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    let mut found: Vec<Diagnosis> = Vec::new();
    for node in facts.nodes {
        let Some(usage) = &node.usage else { continue };
        let rates: Vec<(&str, usize, f64)> = usage
            .rails
            .iter()
            .filter_map(|rail| {
                let (tx, rx) = (rail.tx_bytes_s.known()?, rail.rx_bytes_s.known()?);
                Some((rail.hca.as_str(), rail.rail?, tx.mean + rx.mean))
            })
            .collect();
        let Some(typical) = median(rates.iter().map(|(_, _, rate)| *rate).collect()) else { continue };
        // Below that, nobody uses them.
        if rates.len() < 2 || typical < 100e6 {
            continue;
        }
        for (hca, rail, rate) in rates.iter().filter(|(_, _, rate)| *rate < 0.7 * typical) {
            let part = format!("{} r{rail} ({hca})", node.node);
            let what = format!(
                "{part} carries {} where the node's other rails carry {}",
                byte_rate(*rate),
                byte_rate(typical)
            );
            let fix = "look at that port's rate and errors, and at NCCL_IB_HCA";
            let mut one = Diagnosis::new("unknown", "medium", part, what, fix);
            // Its price is not known; it ended nothing and stands last.
            one.costs = Some(0.0);
            found.push(one);
        }
    }
    found
}
