//! The breaker, which limits automatic drains: a pure count over the output of `sinfo`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::answer::{SinfoLine, is_held};
use crate::{BreakerConfig, is_ours};

/// Number of nodes drained by railgate in the cluster or in one partition, and the limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cap {
    /// `cluster`, or `partition main`.
    pub scope: String,
    /// Nodes in this scope.
    pub nodes: usize,
    /// Nodes in it that railgate drained; if the cap is computed for one node, those drained before it.
    pub held: usize,
    /// Most nodes that railgate may drain here, from `[breaker]` and the number of nodes.
    pub limit: usize,
}

impl Cap {
    /// Whether no further node may be drained in this scope.
    pub fn is_reached(&self) -> bool {
        self.held >= self.limit
    }
}

/// The current cap of the cluster, then of each partition.
pub(crate) fn caps(config: &BreakerConfig, cluster: &[SinfoLine]) -> Vec<Cap> {
    let held: BTreeSet<&str> = ours(cluster).map(|line| line.node.as_str()).collect();
    counted(config, cluster, &held, |_| true)
}

/// Whether `node` may be drained, or stay drained: only nodes that railgate drained before it count. If `node` is not
/// drained yet, all of them do.
pub(crate) fn allows(config: &BreakerConfig, cluster: &[SinfoLine], node: &str) -> Result<(), Cap> {
    // Ties are broken by name: times have whole seconds, and all nodes must agree on the order.
    let rank = |line: &SinfoLine| (line.since.unwrap_or(0), line.node.clone());
    let mine = ours(cluster).find(|line| line.node == node).map(rank);
    let earlier: BTreeSet<&str> = ours(cluster)
        .filter(|line| line.node != node && mine.as_ref().is_none_or(|mine| rank(line) < *mine))
        .map(|line| line.node.as_str())
        .collect();
    let caps = counted(config, cluster, &earlier, |members| members.contains(node));
    caps.into_iter().find(Cap::is_reached).map_or(Ok(()), Err)
}

fn ours(cluster: &[SinfoLine]) -> impl Iterator<Item = &SinfoLine> {
    cluster.iter().filter(|line| is_ours(&line.reason) && is_held(&line.state))
}

/// The cap of the cluster, and those of the partitions that `with` selects.
fn counted(
    config: &BreakerConfig,
    cluster: &[SinfoLine],
    held: &BTreeSet<&str>,
    with: impl Fn(&BTreeSet<&str>) -> bool,
) -> Vec<Cap> {
    let mut partitions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for line in cluster {
        partitions.entry(&line.partition).or_default().insert(&line.node);
    }
    let everything: BTreeSet<&str> = cluster.iter().map(|line| line.node.as_str()).collect();
    let cap = |scope: String, members: &BTreeSet<&str>, nodes: u32, percent: f64| Cap {
        scope,
        nodes: members.len(),
        held: members.intersection(held).count(),
        limit: limit(members.len(), nodes, percent),
    };
    let whole = cap("cluster".to_owned(), &everything, config.max_nodes, config.max_percent);
    let parts = partitions.iter().filter(|(_, members)| with(members)).map(|(name, members)| {
        let (nodes, percent) = (config.partition_max_nodes, config.partition_max_percent);
        cap(format!("partition {name}"), members, nodes, percent)
    });
    std::iter::once(whole).chain(parts).collect()
}

/// A limit below one node counts as one: otherwise a small partition could never be protected.
fn limit(total: usize, nodes: u32, percent: f64) -> usize {
    let nodes = usize::try_from(nodes).unwrap_or(usize::MAX);
    if percent <= 0.0 {
        return 0;
    }
    let allowed = (1..=total).take_while(|&n| n as f64 * 100.0 <= total as f64 * percent).count();
    nodes.min(allowed.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(node: &str, partition: &str, since: Option<u64>) -> SinfoLine {
        SinfoLine {
            node: node.to_owned(),
            partition: partition.to_owned(),
            state: if since.is_some() { "drained" } else { "idle" }.to_owned(),
            since,
            reason: if since.is_some() { "railgate: a: b; c [epilog]" } else { "none" }.to_owned(),
        }
    }

    fn cluster(held: &[(usize, u64)]) -> Vec<SinfoLine> {
        (0..10)
            .map(|n| {
                let since = held.iter().find(|(node, _)| *node == n).map(|(_, since)| *since);
                line(&format!("n{n}"), "main", since)
            })
            .collect()
    }

    fn config(max_nodes: u32, max_percent: f64) -> BreakerConfig {
        BreakerConfig {
            max_nodes,
            max_percent,
            partition_max_nodes: 100,
            partition_max_percent: 100.0,
            ..BreakerConfig::default()
        }
    }

    #[test]
    fn the_limit_is_the_smaller_of_count_and_percentage() {
        for (total, nodes, percent, expected) in [
            (4, 10, 10.0, 1),
            (100, 10, 25.0, 10),
            (100, 50, 25.0, 25),
            (10, 0, 50.0, 0),
            (10, 5, 0.0, 0),
            (3, 10, 100.0, 3),
            (10, 10, 30.0, 3),
        ] {
            assert_eq!(limit(total, nodes, percent), expected, "{total} {nodes} {percent}");
        }
    }

    #[test]
    fn before_a_drain_all_drained_nodes_count() {
        assert_eq!(allows(&config(2, 100.0), &cluster(&[(1, 5)]), "n9"), Ok(()));
        let open = allows(&config(2, 100.0), &cluster(&[(1, 5), (2, 9)]), "n9").unwrap_err();
        assert_eq!((open.scope.as_str(), open.held, open.limit), ("cluster", 2, 2));
    }

    #[test]
    fn a_small_cluster_has_a_limit_of_one_node() {
        let caps = super::caps(&BreakerConfig::default(), &cluster(&[(1, 5)])[..4]);
        let told: Vec<_> =
            caps.iter().map(|cap| (cap.scope.as_str(), cap.nodes, cap.held, cap.limit)).collect();
        assert_eq!(told, [("cluster", 4, 1, 1), ("partition main", 4, 1, 1)]);
        assert!(caps.iter().all(Cap::is_reached));
    }

    #[test]
    fn after_simultaneous_drains_the_oldest_stay() {
        let held = [(3, 7), (1, 7), (5, 6), (8, 9)];
        for cap in 0..=4 {
            let stay = held
                .iter()
                .filter(|(node, _)| allows(&config(cap, 100.0), &cluster(&held), &format!("n{node}")).is_ok())
                .map(|(node, _)| *node)
                .collect::<BTreeSet<_>>();
            let expected: BTreeSet<_> = [5, 1, 3, 8].into_iter().take(cap as usize).collect();
            assert_eq!(stay, expected, "cap {cap}");
        }
    }

    #[test]
    fn each_partition_has_its_own_cap() {
        let mut lines = cluster(&[(1, 5)]);
        lines.push(line("n1", "small", Some(5)));
        lines.push(line("n2", "small", None));
        let config = BreakerConfig { partition_max_percent: 50.0, ..config(10, 100.0) };
        let open = allows(&config, &lines, "n2").unwrap_err();
        assert_eq!((open.scope.as_str(), open.held, open.limit), ("partition small", 1, 1));
        assert_eq!(allows(&config, &lines, "n3"), Ok(()));
    }

    /// Two hundred nodes fail within a second. Slurm has no compare-and-swap: each node counts before it drains (the
    /// drains of the others may not be visible yet), and counts again once no other drain can have its second.
    #[test]
    fn two_hundred_simultaneous_failures_end_at_the_cap() {
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        enum Step {
            Count,
            Drain,
            Again,
        }
        const NODES: usize = 200;
        let config = BreakerConfig { partition_max_percent: 100.0, ..config(10, 100.0) };
        for seed in 0..20_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut random = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            // Milliseconds. slurmctld takes up to three seconds to carry out a drain under this load.
            let mut events: Vec<(u64, Step, usize)> = Vec::new();
            for node in 0..NODES {
                let count = 5_000 + random(1_000);
                let drain = count + random(3_000);
                events.extend([(count, Step::Count, node), (drain, Step::Drain, node)]);
                events.push((drain + 1_100 + random(500), Step::Again, node));
            }
            events.sort_unstable();
            let name = |node: usize| format!("n{node:03}");
            let mut lines: Vec<SinfoLine> = (0..NODES).map(|node| line(&name(node), "main", None)).collect();
            let mut given_up = BTreeSet::new();
            let (mut most, mut order) = (0, Vec::new());
            for (time, step, node) in events {
                let allowed = allows(&config, &lines, &name(node)).is_ok();
                match step {
                    Step::Count if !allowed => {
                        given_up.insert(node);
                    }
                    Step::Drain if !given_up.contains(&node) => {
                        order.push((time / 1000, node));
                        lines[node] = line(&name(node), "main", Some(time / 1000));
                    }
                    Step::Again if !given_up.contains(&node) && !allowed => {
                        lines[node] = line(&name(node), "main", None);
                    }
                    Step::Count | Step::Drain | Step::Again => {}
                }
                most = most.max(lines.iter().filter(|line| line.since.is_some()).count());
            }
            let held: BTreeSet<usize> = (0..NODES).filter(|node| lines[*node].since.is_some()).collect();
            order.sort_unstable();
            let oldest: BTreeSet<usize> = order.iter().take(10).map(|(_, node)| *node).collect();
            assert_eq!(held, oldest, "seed {seed}");
            assert!(most > 10, "seed {seed}: a storm that never passes the cap proves nothing");
        }
    }

    #[test]
    fn drains_by_others_and_old_reasons_do_not_count() {
        let mut lines = cluster(&[]);
        lines[1].reason = "bad dimm".to_owned();
        lines[1].state = "drained".to_owned();
        lines[2].reason = "railgate: long ago [epilog]".to_owned();
        assert_eq!(allows(&config(1, 100.0), &lines, "n9"), Ok(()));
    }
}
