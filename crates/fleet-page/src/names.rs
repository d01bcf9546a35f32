//! User names and job ids, which not every reader may see.

use std::collections::BTreeMap;

use railgate_fleet::{Drainer, History, Incident, Reason};

/// Whether the page has user names and job ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Names {
    /// It has them.
    Shown {
        /// User names by user id. A user without an entry is shown by id.
        users: BTreeMap<u32, String>,
    },
    /// It has neither of them, nor text in which they can occur.
    Withheld {
        /// The reason, without a full stop.
        why: String,
    },
}

impl Names {
    pub(crate) fn are_shown(&self) -> bool {
        matches!(self, Names::Shown { .. })
    }

    /// A user for people.
    pub(crate) fn user(&self, uid: u32) -> String {
        match self {
            Names::Shown { users } => users.get(&uid).cloned().unwrap_or_else(|| format!("uid {uid}")),
            Names::Withheld { .. } => "one user".to_owned(),
        }
    }

    /// An incident for people: [`Incident::what`] has user ids and job ids.
    pub(crate) fn incident(&self, incident: &Incident, history: &History) -> String {
        let Incident { reason, cause, nodes, of, what, .. } = incident;
        let failed = nodes.len();
        match (reason, self) {
            (Reason::Shared(_), _) => what.clone(),
            (Reason::Job { job, attempt }, Names::Shown { .. }) => {
                let owner = history.attempt(*job, *attempt);
                let owner = owner.map_or_else(String::new, |one| format!(" of {}", self.user(one.uid)));
                format!("{failed} of {of} nodes of job {job}{owner} failed with it: {cause}")
            }
            (Reason::Job { .. }, Names::Withheld { .. }) => {
                format!("{failed} of {of} nodes of a job failed with it: {cause}")
            }
            (Reason::User { uid }, Names::Shown { .. }) => {
                format!("{failed} of {of} nodes with jobs of {} failed: {cause}", self.user(*uid))
            }
            (Reason::User { .. }, Names::Withheld { .. }) => {
                format!("{failed} of {of} nodes with jobs of one user failed: {cause}")
            }
        }
    }

    /// The reason of a drain. railgate's reasons name jobs behind the part that failed, and an admin can write anything.
    pub(crate) fn drain_reason(&self, by: Drainer, reason: &str) -> String {
        match (by, self) {
            _ if reason.trim().is_empty() => "no reason is set".to_owned(),
            (Drainer::Slurm, _) | (_, Names::Shown { .. }) => reason.to_owned(),
            (Drainer::Railgate, Names::Withheld { .. }) => {
                let mut parts = reason.splitn(3, ':').map(str::trim);
                match (parts.next(), parts.next(), parts.next()) {
                    (Some(leader), Some(subject), Some(_)) => format!("{leader}: {subject}"),
                    _ => "railgate: the check is not named".to_owned(),
                }
            }
            (Drainer::Admin, Names::Withheld { .. }) => {
                "text of an admin, which can name users and jobs: sinfo -R".to_owned()
            }
        }
    }
}
