//! Resumes a node that railgate drained: only a drain by railgate, and only if it has not changed since the node was
//! checked.

use crate::answer::UnixSeconds;
use crate::{DrainDesk, SlurmError, is_ours};

/// State of a node in Slurm, for `railgate readmit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// railgate drained it.
    Ours {
        /// The drain reason.
        reason: String,
        /// When it was set.
        since: Option<UnixSeconds>,
    },
    /// It is in service.
    InService,
    /// Drained by others or in maintenance; the text names the owner.
    Others(String),
}

/// Why a node was not resumed.
#[derive(Debug, thiserror::Error)]
pub enum NotResumed {
    /// Slurm gave no usable answer.
    #[error(transparent)]
    Slurm(#[from] SlurmError),
    /// The state has changed since the node was checked.
    #[error("the node's state changed meanwhile: {0}")]
    Changed(String),
    /// Another railgate process holds the lock.
    #[error("{0}")]
    Locked(String),
}

impl DrainDesk {
    /// The state of a node.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn standing(&self, node: &str) -> Result<Standing, SlurmError> {
        let client = self.client().until(self.patience());
        let state = client.node(node)?;
        // A reservation or a reboot is an admin's work in progress, even if railgate drained the node before.
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

    /// Resumes a node that is drained with exactly this reason.
    ///
    /// # Errors
    /// [`NotResumed`]; nothing was changed.
    pub fn resume(&self, node: &str, reason: &str) -> Result<(), NotResumed> {
        let _held = self.lock().map_err(NotResumed::Locked)?;
        match self.standing(node)? {
            Standing::Ours { reason: now, .. } if now == reason => {}
            Standing::Ours { reason, .. } => return Err(NotResumed::Changed(reason)),
            Standing::InService => return Err(NotResumed::Changed("in service".to_owned())),
            Standing::Others(what) => return Err(NotResumed::Changed(what)),
        }
        self.client().until(self.patience()).undrain_node(node)?;
        self.note_resume();
        self.drop_pending();
        Ok(())
    }
}
