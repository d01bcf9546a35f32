//! Drains of nodes that fail more often than the fleet.
//!
//! `railgate: lemon: 4 faults, 9.3 times the fleet's rate; see railgate fleet node gn017 [fleet]`. Unlike a [`crate::Reason`] it names no
//! check: no part was found broken.

use std::fmt;

use crate::{BreakerConfig, Client, DrainOutcome, MAX_REASON, SlurmError, breaker, is_ours};

const LEMON: &str = "railgate: lemon: ";

/// The reason of such a drain.
#[derive(Clone, Debug, PartialEq)]
pub struct LemonReason {
    /// The node.
    pub node: String,
    /// Faults that count against it.
    pub faults: usize,
    /// Its rate of faults as a multiple of the fleet's.
    pub times: f64,
}

impl fmt::Display for LemonReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = if self.faults == 1 { "fault" } else { "faults" };
        let text = format!(
            "{LEMON}{} {faults}, {:.1} times the fleet's rate; see railgate fleet node {} [fleet]",
            self.faults, self.times, self.node
        );
        f.write_str(text.get(..MAX_REASON.min(text.len())).unwrap_or(&text))
    }
}

impl LemonReason {
    /// Whether a drain has such a reason.
    pub fn is(text: &str) -> bool {
        text.starts_with(LEMON)
    }

    /// Drains the node, if it is in service and the breaker allows it.
    ///
    /// # Errors
    /// Slurm gave no usable answer. If it accepted the drain all the same, the next call finds the node drained.
    pub fn drain(&self, client: &Client, limits: &BreakerConfig) -> Result<DrainOutcome, SlurmError> {
        let state = client.node(&self.node)?;
        if state.held() {
            let reason = state.reason.as_ref().map_or_else(|| state.state(), |reason| reason.text.clone());
            return Ok(match is_ours(&reason) {
                true => DrainOutcome::AlreadyOurs { reason, added: false },
                false => DrainOutcome::Foreign { reason },
            });
        }
        if let Some(service) = state.serviced() {
            return Ok(DrainOutcome::Foreign { reason: service.to_ascii_lowercase() });
        }
        let cluster = client.cluster()?;
        if !cluster.iter().any(|line| line.node == self.node) {
            return Ok(DrainOutcome::NotActing("sinfo does not list it".to_owned()));
        }
        if let Err(open) = breaker::allows(limits, &cluster, &self.node) {
            return Ok(open.into());
        }
        let reason = self.to_string();
        client.drain_node(&self.node, &reason)?;
        Ok(DrainOutcome::Drained { reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Reason;

    #[test]
    fn the_reason_names_the_command_and_is_no_finding() {
        let reason = LemonReason { node: "gn017".to_owned(), faults: 4, times: 9.34 };
        let text = reason.to_string();
        assert_eq!(
            text,
            "railgate: lemon: 4 faults, 9.3 times the fleet's rate; see railgate fleet node gn017 [fleet]"
        );
        assert!(LemonReason::is(&text) && is_ours(&text) && Reason::parse(&text).is_none());
        assert!(!LemonReason::is("railgate: gpu-lost@3: off bus [prolog]"));
        let long = LemonReason { node: "n".repeat(200), ..reason };
        assert_eq!(long.to_string().len(), MAX_REASON);
    }
}
