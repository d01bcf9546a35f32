use std::collections::BTreeMap;

use railgate_model::{LinkLayer, Net};
use serde::{Deserialize, Serialize};

use crate::NcclRange;
use crate::environment::speaks;
use crate::rules::Context;

/// `[[rails.rules]]`: variables of the site's own under conditions. A condition that is not there always holds.
/// Which nodes it is for, `[[node]]` tables say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SiteRule {
    /// Its variables.
    pub set: BTreeMap<String, String>,
    /// One line for people: why.
    pub why: String,
    /// There are rails, and all speak this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<Layer>,
    /// How many nodes the job has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Nodes>,
    /// How much of this node's GPUs the job has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Share>,
    /// Runs under a hypervisor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub virtualised: Option<bool>,
    /// Releases of NCCL; such values reach NCCL 2.28.7 and later, through the environment plugin.
    #[serde(skip_serializing_if = "NcclRange::is_all")]
    pub nccl: NcclRange,
    /// Jobs with `--railgate-profile` of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// What moves the data between nodes; empty: whatever does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net: Vec<Net>,
}

/// What a node's rails speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// InfiniBand.
    Infiniband,
    /// RoCE.
    Ethernet,
}

/// How many nodes a job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nodes {
    /// One.
    One,
    /// More, or nobody knows.
    Several,
}

/// How much of a node a job has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// Every GPU.
    All,
    /// Some of them.
    Part,
}

impl SiteRule {
    /// Whether it is for this job on this node. A condition about what nobody knows does not hold.
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
