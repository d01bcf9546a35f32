//! Giving a node back that railgate holds: only our own drain, and only if it is still the one that was looked at.

use crate::answer::UnixSeconds;
use crate::{DrainDesk, SlurmError, is_ours};

/// How a node stands in Slurm, for somebody who wants it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// railgate holds it.
    Ours {
        /// The reason that stands on it.
        reason: String,
        /// Since when.
        since: Option<UnixSeconds>,
    },
    /// It is in service.
    InService,
    /// Somebody else's business, and whose.
    Others(String),
}

/// Why a node was not given back.
#[derive(Debug, thiserror::Error)]
pub enum NotGivenBack {
    /// Slurm gave no usable answer.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// It does not stand as it stood when it was looked at.
    #[error("it changed hands meanwhile: {0}")]
    Changed(String),
    /// Another railgate process is at it.
    #[error("{0}")]
    Locked(String),
}

impl DrainDesk {
    /// How a node stands.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn standing(&self, node: &str) -> Result<Standing, SlurmError> {
        let client = self.client().until(self.patience());
        let state = client.node(node)?;
        // A reservation or a reboot is an admin's work in progress, whoever drained the node before it.
        if let Some(service) = state.serviced() {
            let what =
                if service.starts_with("MAINT") { "in a maintenance reservation" } else { "about to reboot" };
            return Ok(Standing::Others(format!("{what} ({})", state.state())));
        }
        if !state.held() {
            return Ok(Standing::InService);
        }
        let (text, since) =
            state.reason.as_ref().map_or(("", None), |reason| (reason.text.as_str(), reason.since));
        if ["DOWN", "NOT_RESPONDING"].iter().any(|flag| state.has(flag)) {
            return Ok(Standing::Others(format!("{}: slurmd does not answer there ({text})", state.state())));
        }
        Ok(if is_ours(text) {
            Standing::Ours { reason: text.to_owned(), since }
        } else {
            Standing::Others(format!("drained by others: {text}"))
        })
    }

    /// Returns a node to service that stands with this reason of ours.
    ///
    /// # Errors
    /// [`NotGivenBack`]; nothing has been changed then.
    pub fn give_back(&self, node: &str, reason: &str) -> Result<(), NotGivenBack> {
        let _held = self.lock().map_err(NotGivenBack::Locked)?;
        match self.standing(node)? {
            Standing::Ours { reason: now, .. } if now == reason => {}
            Standing::Ours { reason, .. } => return Err(NotGivenBack::Changed(reason)),
            Standing::InService => return Err(NotGivenBack::Changed("in service".to_owned())),
            Standing::Others(what) => return Err(NotGivenBack::Changed(what)),
        }
        self.client().until(self.patience()).undrain_node(node)?;
        self.was_given_back();
        self.drop_pending();
        Ok(())
    }
}
