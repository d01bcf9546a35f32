//! Drains nodes that fail more often than the fleet.

use std::collections::BTreeMap;

use railgate_fleet::NodeRecord;
use railgate_runner::{Places, acting};
use railgate_slurm::{Acting, DrainOutcome, LemonReason, NodeState};

use crate::places::Site;

/// Drains of lemons.
#[derive(Debug, Default)]
pub(crate) struct LemonDrains {
    /// What was logged of each node that is not drained, so that a text is logged once.
    told: BTreeMap<String, String>,
}

impl LemonDrains {
    /// Drains the nodes whose drain is proposed, the highest rate first. `states`: of all nodes, from this reading.
    /// Returns the drained ones with their reasons.
    pub(crate) fn drain(
        &mut self,
        site: &Site,
        proposed: &[NodeRecord],
        states: &[NodeState],
    ) -> Vec<(String, String)> {
        let mut done = Vec::new();
        let is_lemon = |state: &&NodeState| {
            state.held() && state.reason.as_ref().is_some_and(|reason| LemonReason::is(&reason.text))
        };
        let mut drained = states.iter().filter(is_lemon).count();
        let most = site.config.fleet.max_lemons;
        let forbidden = match acting(&site.config, &Places::default()) {
            Acting::Forbidden(why) => Some(why),
            Acting::Allowed => None,
        };
        let mut proposed: Vec<&NodeRecord> = proposed.iter().collect();
        proposed.sort_by(|one, other| other.ratio.low.total_cmp(&one.ratio.low));
        let before = std::mem::take(&mut self.told);
        for record in proposed {
            let why = if let Some(why) = &forbidden {
                why.clone()
            } else if drained >= most {
                format!("{drained} lemons are drained (at most {most}: [fleet] max_lemons)")
            } else {
                let (node, times) = (record.node.clone(), record.ratio.mean);
                let reason = LemonReason { node, faults: record.faults, times };
                match reason.drain(&site.client, &site.config.breaker) {
                    Ok(DrainOutcome::Drained { reason }) => {
                        tracing::warn!("{}: drained: {reason}", record.node);
                        drained += 1;
                        done.push((record.node.clone(), reason));
                        continue;
                    }
                    Ok(outcome) => outcome.to_string(),
                    Err(why) => format!("could not tell whether it is drained: {why}"),
                }
            };
            if before.get(&record.node) != Some(&why) {
                tracing::info!("{}: a lemon, not drained: {why}", record.node);
            }
            self.told.insert(record.node.clone(), why);
        }
        done
    }
}
