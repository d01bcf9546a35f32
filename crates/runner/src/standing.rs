use railgate_node_report::{NodeReport, NodeWait};
use railgate_slurm::hostlist::expand;
use railgate_store::{ReportConfig, load_waits};

/// Nodes of a job that stand still.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StandingNodes {
    /// Number of nodes of the job.
    pub nodes: usize,
    /// Those that stand still, by name.
    pub standing: Vec<(String, NodeWait)>,
}

/// Whether this node is the one that looks at the others: the first one of a job of several nodes. Components of a heterogeneous
/// job do not know each other's nodes.
pub fn looks_at_others(report: &NodeReport) -> bool {
    let first = |nodes: Vec<String>| nodes.len() > 1 && nodes.first() == Some(&report.node);
    report.job.het_leader.is_none() && expand(&report.job.nodelist).is_ok_and(first)
}

/// The nodes of the job of this report that stand still, from their partial reports. Waits for a file server for half a minute.
///
/// # Errors
/// In words: the report directory cannot be read in time.
pub fn standing_nodes(config: &ReportConfig, report: &NodeReport) -> Result<StandingNodes, String> {
    let nodes = expand(&report.job.nodelist).map_err(|why| why.to_string())?;
    let standing = load_waits(config, report, &nodes)?;
    Ok(StandingNodes { nodes: nodes.len(), standing })
}
