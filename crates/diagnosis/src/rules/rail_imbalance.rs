use railgate_node_report::plain::byte_rate;

use super::degraded_rail;
use crate::facts::{Facts, median};
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "rail-imbalance",
    about: "a rail carries far less than the other rails of its node",
    class: Class::Unknown,
    evidence: "bytes sent and received by each rail's port, as the sampler reads them, against the median of the node's rails. Ports
count for the whole node: on a shared node this includes the traffic of other jobs.",
    why: "NCCL spreads its traffic over all rails: one that carries less slows down each collective between nodes.",
    look_alikes: "a list in NCCL_IB_HCA that leaves the port out, a job that uses fewer GPUs than the node has rails, a port on a
lower rate (`ib-rate`), a port with errors (`ib-errors`), a rail that stopped (`degraded-rail`). Its cost is not known, so it is listed last.",
    fix: "check that port's rate and errors, and NCCL_IB_HCA",
    thresholds: Settings::KEYS,
    line: Line::Rails,
    over: Over::Training,
    explains: Explains::Nothing,
    find,
};

thresholds! {
    used_mb_s: Number(100.0), 0.0 to 1000000.0, "MB/s", "rails whose median carries less than this are not in use, and are not judged";
    carries_percent: Number(70.0), 0.0 to 100.0, "%", "the rail carries less than this much of the median of the node's rails";
}

fn find(facts: &Facts<'_>) -> Vec<Found> {
    let set = &facts.rules.rail_imbalance;
    let mut found: Vec<Found> = Vec::new();
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
        if rates.len() < 2 || typical < 1e6 * set.used_mb_s.get() {
            continue;
        }
        let little = set.carries_percent.share() * typical;
        // The mean of a rail that stopped is low as well: that is the other rule's.
        let stopped = |rail: &usize| {
            let mut rails = usage.rails.iter().filter(|one| one.rail == Some(*rail));
            rails.any(|one| degraded_rail::stopped(facts, one).is_some())
        };
        let odd = rates.iter().filter(|(_, rail, rate)| *rate < little && !stopped(rail));
        for (hca, rail, rate) in odd {
            let part = format!("{} r{rail} ({hca})", node.node);
            let what = format!(
                "{part} carries {}, the node's other rails carry {}",
                byte_rate(*rate),
                byte_rate(typical)
            );
            // The cost is not known. It did not end the job, so it comes last.
            found.push(Found { costs: Some(0.0), ..Found::new("medium", part, what) });
        }
    }
    found
}
