//! NCCL's own failover from a port that failed, and the return to it: whether they can work on this node.

use railgate_model::{JobGpus, RailMap, Snapshot};
use serde::Serialize;

use super::{Context, card, ports};
use crate::config::RailsConfig;
use crate::job_shape::JobShape;

/// A variable that the site asks for and that is not set on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotSet {
    /// The variable.
    pub variable: &'static str,
    /// The key of the configuration.
    pub key: &'static str,
    /// The condition that does not hold, with what was found.
    pub why: String,
}

/// Returns what the site's `port_failover` and `port_recovery` ask for and the node does not allow.
pub fn not_set(map: &RailMap, snapshot: &Snapshot, config: &RailsConfig, shape: &JobShape) -> Vec<NotSet> {
    if !config.environment || shape.gpus == JobGpus::None {
        return Vec::new();
    }
    let context = Context { map, snapshot, config, shape };
    let failover = (config.port_failover, "NCCL_IB_RESILIENCY_PORT_FAILOVER", "rails.port_failover");
    let recovery = (config.port_recovery, "NCCL_IB_RESILIENCY_PORT_RECOVERY", "rails.port_recovery");
    let lacks = [(failover, failover_lacks(&context)), (recovery, recovery_lacks(&context))];
    let asked = lacks.into_iter().filter(|((asked, ..), _)| *asked);
    asked.filter_map(|((_, variable, key), why)| Some(NotSet { variable, key, why: why? })).collect()
}

pub(super) fn failover(context: &Context<'_>) -> Option<String> {
    (context.config.port_failover && failover_lacks(context).is_none()).then(|| "1".to_owned())
}

pub(super) fn recovery(context: &Context<'_>) -> Option<String> {
    (context.config.port_recovery && recovery_lacks(context).is_none()).then(|| "1".to_owned())
}

/// NCCL moves the traffic of a failed port to another port of the same merged device, and by itself it merges the ports of a card.
fn failover_lacks(context: &Context<'_>) -> Option<String> {
    let (config, rails) = (context.config, &context.map.rails);
    let mine: Vec<usize> = ports(context).into_iter().collect();
    if mine.is_empty() {
        return Some("the node has no compute ports".to_owned());
    }
    if !context.roce() && !context.infiniband() {
        return Some("not all rails have the same link layer, and NCCL merges no others".to_owned());
    }
    if config.split_ports {
        return Some("rails.split_ports keeps NCCL from merging the ports of a card".to_owned());
    }
    let file = context.shape.site_conf.iter().map(|(name, value)| (name, value));
    for (name, value) in config.set.iter().chain(file) {
        if [("NCCL_IB_MERGE_NICS", "0"), ("NCCL_NET_MERGE_LEVEL", "LOC")].contains(&(name, value)) {
            return Some(format!("the site sets {name}={value}: NCCL merges no ports"));
        }
    }
    if let Some(rail) = mine.iter().filter_map(|at| rails.get(*at)).find(|rail| card(rail).is_none()) {
        return Some(format!("the PCI address of {} is not known, and so not its card", rail.hca));
    }
    let alone = mine.iter().find(|at| {
        let own = rails.get(**at).and_then(card);
        let beside = |other: &&usize| *other != *at && rails.get(**other).and_then(card) == own;
        !mine.iter().any(|other| beside(&other))
    });
    if let Some(rail) = alone.and_then(|at| rails.get(*at)) {
        return Some(format!(
            "{}:{} has no second port on its card among the job's ports, so NCCL has nowhere to move its traffic",
            rail.hca, rail.port
        ));
    }
    let (tries, watchdog) = (config.patience(), config.watchdog);
    (tries >= watchdog).then(|| {
        let (tries, watchdog) = (tries.as_secs(), watchdog.as_secs());
        format!("NCCL notices a failed port after {tries} s, the framework's watchdog ends the job after {watchdog} s")
    })
}

fn recovery_lacks(context: &Context<'_>) -> Option<String> {
    if !context.config.port_failover {
        return Some("it needs rails.port_failover".to_owned());
    }
    failover_lacks(context).or_else(|| {
        let why = "the rails are RoCE: NCCL keeps the old GID index of a port that returns (PR #2183)";
        context.roce().then(|| why.to_owned())
    })
}
