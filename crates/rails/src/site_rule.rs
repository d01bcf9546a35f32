use std::collections::BTreeMap;

use railgate_model::{LinkLayer, Net};
use serde::{Deserialize, Serialize};

use crate::NcclRange;
use crate::environment::speaks;
use crate::rules::Context;

/// `[[rails.rules]]`: the site's variables under conditions. An absent condition always holds. To limit a rule to
/// nodes, put it in a `[[node]]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteRule {
    /// Variables to set.
    pub set: BTreeMap<String, String>,
    /// The reason, one line for people.
    pub why: String,
    /// There are rails, and all have this link layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<Layer>,
    /// Number of nodes of the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,
    /// Share of this node's GPUs that the job holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Share>,
    /// Whether the node runs under a hypervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtualised: Option<bool>,
    /// NCCL releases. A value with this condition is set through the environment plugin, in NCCL 2.28.7 and later.
    #[serde(skip_serializing_if = "NcclRange::is_all")]
    pub nccl: NcclRange,
    /// Jobs with this `--railgate-profile`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Network plugins; empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net: Vec<Net>,
}

/// Link layer of a node's rails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// InfiniBand.
    Infiniband,
    /// RoCE.
    Ethernet,
}

/// Number of nodes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nodes {
    /// One.
    One,
    /// More than one, or unknown.
    Several,
}

/// Share of a node's GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// Every GPU.
    All,
    /// Some of them.
    Part,
}

impl SiteRule {
    /// Returns whether the rule applies to this job on this node. A condition on an unknown value does not hold.
    pub(crate) fn holds(&self, context: &Context<'_>) -> bool {
        let virtualised = context.snapshot.host.data().and_then(|host| host.virtualised.known().copied());
        self.link_layer.is_none_or(|layer| {
            let layer = match layer {
                Layer::Infiniband => LinkLayer::InfiniBand,
                Layer::Ethernet => LinkLayer::Ethernet,
            };
            speaks(context.map, &layer)
        }) && self.nodes.is_none_or(|nodes| (nodes == Nodes::One) == (context.shape.nodes == Some(1)))
            && self.gpus.is_none_or(|share| (share == Share::Part) == context.part_of_the_node())
            && self.virtualised.is_none_or(|wanted| virtualised == Some(wanted))
            && self.profile.as_ref().is_none_or(|name| context.shape.profile.as_ref() == Some(name))
    }
}
