//! Marks an unfit node that the breaker did not let railgate drain, in the node's Slurm `Comment`:
//! `railgate: unfit, not drained (breaker): gpu-lost@3: off bus; reboot [periodic] since 2026-11-23T09:00:00Z`.
//!
//! `railgate nodes` reads these comments. A comment that railgate did not write is never changed. The node keeps a
//! copy in `/run/railgate/let-through`, so that a fit node does not query slurmctld. An empty file means that the
//! node has no comment by railgate; a missing file means unknown, for example after a boot.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, UNIX_EPOCH};

use railgate_fsutil::{read_small, write_whole};
use railgate_model::Finding;
use tracing::warn;

use crate::answer::{UnixSeconds, time};
use crate::{Acting, Client, DrainDesk, LEADER, Reason};

const NOTE: &str = "railgate: unfit, not drained (breaker): ";
const SINCE: &str = " since ";

/// Deadline for reading and writing a comment.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a node would be drained if the breaker allowed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetThrough {
    /// The reason that a drain would have, without jobs.
    pub reason: Reason,
    /// When the comment was set.
    pub since: Option<UnixSeconds>,
}

impl LetThrough {
    /// Parses a node's comment. `None` if railgate did not write it.
    pub fn parse(comment: &str) -> Option<LetThrough> {
        let (text, since) = comment.strip_prefix(NOTE)?.trim_end().rsplit_once(SINCE)?;
        Some(LetThrough {
            reason: Reason::parse(&format!("{LEADER} {text}"))?,
            since: since.strip_suffix('Z').and_then(time),
        })
    }

    /// The mark for this reason.
    fn new(reason: &Reason, since: UnixSeconds) -> Option<LetThrough> {
        let reason = Reason { jobs: Vec::new(), ..reason.clone() };
        // Parse the reason in the form in which the comment has it, cut to its length.
        let reason = Reason::parse(&reason.to_string().replace(['"', '\''], ""))?;
        Some(LetThrough { reason, since: Some(since) })
    }

    /// Whether both name the same fault. Phases word one fault differently, and updating the comment for every job
    /// would cost a call each; so it stays as first written, as a drain's reason does.
    fn is_of(&self, other: &LetThrough) -> bool {
        self.reason.subject == other.reason.subject
    }

    /// Whether the comment is about this finding.
    pub fn matches(&self, finding: &Finding) -> bool {
        LetThrough::new(&Reason::new(finding, self.reason.phase, &[]), 0)
            .is_some_and(|other| other.is_of(self))
    }
}

impl std::fmt::Display for LetThrough {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let reason = self.reason.to_string();
        let since =
            humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(self.since.unwrap_or(0)));
        write!(f, "{NOTE}{}{SINCE}{since}", reason.strip_prefix(LEADER).unwrap_or_default().trim_start())
    }
}

impl DrainDesk {
    /// Writes the comment of an unfit node that the open breaker did not drain, unless it is there already or the
    /// site has set a comment of its own.
    pub(crate) fn note_let_through(
        &self,
        client: &Client,
        node: &str,
        reason: &Reason,
        comment: &str,
        now: UnixSeconds,
    ) {
        let Some(note) = LetThrough::new(reason, now) else { return };
        if !comment.is_empty() && !comment.starts_with(NOTE) {
            return;
        }
        // Saved before it is sent: if the process is killed in between, the comment is known.
        match LetThrough::parse(comment).filter(|standing| standing.is_of(&note)) {
            Some(standing) => self.keep_let_through(&standing.to_string()),
            None => {
                let text = note.to_string();
                self.keep_let_through(&text);
                if let Err(why) = client.until(Instant::now() + PATIENCE).set_comment(node, &text) {
                    warn!("{node}: the unfit mark could not be written to its comment: {why}");
                }
            }
        }
    }

    /// The node's mark, from the local copy. If that is unknown and `ask` is set, slurmctld is queried.
    pub fn let_through(&self, node: &str, ask: bool) -> Option<LetThrough> {
        match read_small(&self.let_through_file()) {
            Ok(text) => LetThrough::parse(&String::from_utf8_lossy(&text)),
            Err(_) if ask && self.acts() => {
                let comment = self.client().until(self.soon()).node(node).ok()?.comment;
                let note = LetThrough::parse(&comment);
                self.keep_let_through(&note.as_ref().map(LetThrough::to_string).unwrap_or_default());
                note
            }
            Err(_) => None,
        }
    }

    /// Clears the node's comment if it is still the one that railgate wrote. If slurmctld does not answer, the next
    /// check run tries again.
    pub fn take_back_let_through(&self, node: &str) {
        if !self.acts() {
            return;
        }
        let client = self.client().until(self.soon());
        let emptied = client.node(node).and_then(|state| match state.comment.starts_with(NOTE) {
            true => client.set_comment(node, ""),
            false => Ok(()),
        });
        match emptied {
            Ok(()) => self.keep_let_through(""),
            Err(why) => warn!("{node}: the unfit mark could not be removed from its comment: {why}"),
        }
    }

    fn acts(&self) -> bool {
        self.is_acting() == &Acting::Allowed
    }

    fn soon(&self) -> Instant {
        self.patience().min(Instant::now() + PATIENCE)
    }

    fn let_through_file(&self) -> PathBuf {
        self.run().join("let-through")
    }

    fn keep_let_through(&self, text: &str) {
        let path = self.let_through_file();
        if fs::read_to_string(&path).is_ok_and(|kept| kept == text) {
            return;
        }
        if let Err(why) =
            fs::create_dir_all(self.run()).and_then(|()| write_whole(&path, text.as_bytes(), 0o644))
        {
            warn!("{}: {why}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::Phase;

    use super::*;

    const TEXT: &str = "railgate: unfit, not drained (breaker): gpu-lost@3: 0000:9b:00.0 off bus, Xid 79; reboot \
                        [periodic] since 2026-11-23T09:00:00Z";

    #[test]
    fn a_comment_survives_a_round_trip() {
        let note = LetThrough::parse(TEXT).unwrap();
        assert_eq!((note.reason.subject.as_str(), note.reason.fix.as_str()), ("gpu-lost@3", "reboot"));
        assert_eq!(note.since, time("2026-11-23T09:00:00"));
        assert_eq!(note.to_string(), TEXT);
        for foreign in ["", "rack 7", "railgate: rack 7", "railgate: unfit, not drained (breaker): by hand"] {
            assert_eq!(LetThrough::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn the_same_fault_gives_the_same_comment_without_quotes() {
        let reason = |phase, what: &str, jobs: &[u32]| Reason {
            subject: "gpu-lost@3".to_owned(),
            what: what.to_owned(),
            fix: "reboot".to_owned(),
            phase,
            jobs: jobs.to_vec(),
        };
        let note = |phase, what: &str, jobs: &[u32]| LetThrough::new(&reason(phase, what, jobs), 0).unwrap();
        assert!(note(Phase::Prolog, "off bus", &[7]).is_of(&note(Phase::Periodic, "off bus, Xid 79", &[])));
        let other = Reason { subject: "gpu-lost@4".to_owned(), ..reason(Phase::Prolog, "off bus", &[]) };
        assert!(!note(Phase::Prolog, "off bus", &[]).is_of(&LetThrough::new(&other, 0).unwrap()));
        let long = note(Phase::Epilog, &"a \"b\" 'c'\n\u{1b}[1m\u{9b}é ".repeat(90), &[7]).to_string();
        assert!(long.len() < 200 && long.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{long}");
        assert!(!long.contains(['"', '\'']) && LetThrough::parse(&long).is_some(), "{long}");
    }
}
