//! Filters a node report for the job's owner: processes, users and jobs of others are removed.
//!
//! On a shared node the kernel log, the driver and `/proc` name processes of every job. The complete findings
//! are in the system log and the node's history, which only root can read.

use std::borrow::Cow;

use railgate_model::kernel_lines::without_processes;
use railgate_model::{Class, Evidence, Finding, Job, PciAddress, Severity, is_oom};

use crate::evidence::keep_own_kills;
use crate::{Decision, NodeReport};

impl NodeReport {
    /// The report without processes, users and jobs of others. Kernel lines that name a process keep their
    /// other words; an Xid on a GPU that the job does not hold keeps its code, GPU and time.
    #[must_use]
    pub fn for_reader(&self) -> NodeReport {
        let mut report = self.clone();
        let held: Vec<PciAddress> = self
            .gpus
            .iter()
            .filter(|gpu| gpu.own == Some(true))
            .filter_map(|gpu| gpu.pci.known().copied())
            .collect();
        let reader = Reader { job: &self.job, held };
        keep_own_kills(&mut report.kernel.lines, &self.job);
        for line in &mut report.kernel.lines {
            match without_cpuset(&line.text) {
                Some(own_kill) => line.text = own_kill,
                None => reader.line(&mut line.text),
            }
        }
        for xid in &mut report.kernel.xids {
            if !xid.gpu.is_some_and(|gpu| reader.holds(gpu)) || of_a_slice(&xid.text) {
                xid.pid = None;
                xid.text = without_processes(&xid.text).into_owned();
            }
        }
        let mut renamed = Vec::new();
        for look in [&mut report.prolog, &mut report.epilog].into_iter().flatten() {
            let findings = look.verdict.findings.iter_mut().chain(&mut look.verdict.shadow);
            renamed.extend(findings.filter_map(|finding| reader.finding(finding)));
        }
        renamed.extend(report.evidence.iter_mut().filter_map(|item| reader.finding(&mut item.finding)));
        // Reasons and messages quote the finding, sometimes truncated.
        for act in &mut report.acts {
            for Renamed { subject, was, is } in &renamed {
                if act.detail.contains(was.as_str()) {
                    act.detail = act.detail.replace(was.as_str(), is);
                } else if !act.detail.contains(is.as_str())
                    && let Some((head, _)) = act.detail.split_once(&format!("{subject}: "))
                {
                    act.detail = format!("{head}{subject}: {is}");
                }
            }
            act.detail = reason_for_reader(&act.detail, &[self.job.id]);
        }
        report
    }
}

impl Decision {
    /// The decision as its owner `uid` may read it, without reasons of nodes without jobs and processes of
    /// others.
    #[must_use]
    pub fn for_reader(&self, uid: u32) -> Decision {
        let mut decision = self.clone();
        for node in decision.nodes.iter_mut().filter(|node| !node.reason.is_empty()) {
            let mut reason = reason_for_reader(&node.reason, &[self.job]);
            if let Some((was, is)) = reworded(&reason, uid) {
                reason = reason.replacen(&was, &is, 1);
            }
            // The sentence may quote the reason.
            decision.why = decision.why.replace(&node.reason, &reason);
            node.reason = reason;
        }
        decision.why = reason_for_reader(&decision.why, &[self.job]);
        decision
    }
}

/// Removes the jobs of others from quoted drain reasons (`[epilog job=5,77]`); only `own` remain.
#[must_use]
pub fn reason_for_reader(text: &str, own: &[u32]) -> String {
    let mut told = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, list)) = rest.split_once(" job=") {
        told.push_str(before);
        let end = list.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b',').count();
        let (ids, behind) = list.split_at(end);
        let is_own = |id: &&str| id.parse().is_ok_and(|id| own.contains(&id));
        let kept: Vec<&str> = ids.split(',').filter(is_own).collect();
        if ids.is_empty() || !kept.is_empty() {
            told.push_str(" job=");
            told.push_str(&kept.join(","));
        }
        rest = behind;
    }
    told.push_str(rest);
    told
}

/// The part of a railgate drain reason that describes processes of others, and its replacement.
fn reworded(reason: &str, uid: u32) -> Option<(String, String)> {
    let (subject, rest) = reason.strip_prefix("railgate: ")?.split_once(": ")?;
    let (check, part) = subject.split_once('@').unwrap_or((subject, ""));
    let end = [rest.find("; "), rest.rfind(" [")].into_iter().flatten().min().unwrap_or(rest.len());
    let what = rest.get(..end)?.to_owned();
    let finding = Finding {
        check: check.to_owned(),
        part: part.to_owned(),
        severity: Severity::Fail,
        class: Class::Node,
        what: what.clone(),
        fix: String::new(),
        evidence: Vec::new(),
    };
    Some((what, instead(uid, &finding)?))
}

/// Filters a finding for the owner of a job that holds no GPU yet.
#[must_use]
pub fn finding_for_reader(job: &Job, finding: &Finding) -> Finding {
    let mut finding = finding.clone();
    Reader { job, held: Vec::new() }.finding(&mut finding);
    finding
}

struct Reader<'a> {
    job: &'a Job,
    held: Vec<PciAddress>,
}

impl Reader<'_> {
    fn holds(&self, gpu: PciAddress) -> bool {
        let place = |at: PciAddress| (at.domain, at.bus, at.device);
        self.held.iter().any(|held| place(*held) == place(gpu))
    }

    /// Filters a text that may quote a line of the kernel log.
    fn line(&self, text: &mut String) {
        let own_gpu = text
            .split_once("NVRM: Xid (")
            .and_then(|(_, rest)| rest.trim_start_matches("PCI:").split([')', ' ']).next()?.parse().ok())
            .is_some_and(|gpu| self.holds(gpu));
        if own_gpu && !of_a_slice(text) {
            return;
        }
        if let Cow::Owned(covered) = without_processes(text) {
            *text = covered;
        }
    }

    fn finding(&self, finding: &mut Finding) -> Option<Renamed> {
        let Some(is) = instead(self.job.uid, finding) else {
            for row in finding.evidence.iter_mut().filter(|row| row.source.starts_with("kmsg")) {
                self.line(&mut row.got);
                self.line(&mut row.source);
            }
            return None;
        };
        finding.evidence.clear();
        if finding.what == is {
            return None;
        }
        let subject = finding.subject();
        Some(Renamed { subject, was: std::mem::replace(&mut finding.what, is.clone()), is })
    }
}

/// Replacement for a finding that names processes of others in its own sentence; its rows are omitted.
fn instead(uid: u32, finding: &Finding) -> Option<String> {
    match (finding.check.as_str(), finding.part.as_str()) {
        ("gpu-processes", _) => {
            let (_, behind) = finding.what.split_once("process ")?;
            let of = |row: &Evidence, uid: u32| row.got.starts_with(&format!("uid {uid},"));
            // The rows begin with an entry of /proc, not with a name. Processes of root are daemons.
            let shown =
                !finding.evidence.is_empty() && finding.evidence.iter().all(|row| of(row, uid) || of(row, 0));
            let numbered = behind.starts_with(|c: char| c.is_ascii_digit());
            (numbered && !shown).then(|| "a process that is not of this job".to_owned())
        }
        ("kmsg-forged", _) if finding.what.contains(&format!(" of uid {uid} imitated")) => {
            Some(finding.what.clone())
        }
        ("kmsg-forged", _) => Some("a process imitated a driver in the kernel log".to_owned()),
        ("tasks", "blocked") => {
            let (count, _) = finding.what.split_once(": ").unwrap_or((&finding.what, ""));
            Some(count.to_owned())
        }
        _ => None,
    }
}

/// The original words of a finding and their replacement.
struct Renamed {
    subject: String,
    was: String,
    is: String,
}

/// A kill record without the cpuset, which is that of the process that requested memory and may belong to
/// another job.
fn without_cpuset(text: &str) -> Option<String> {
    is_oom(text).then(|| match text.split_once(",cpuset=") {
        Some((head, rest)) => match rest.rsplit_once(",mems_allowed=") {
            Some((_, tail)) => format!("{head},cpuset=…,mems_allowed={tail}"),
            None => format!("{head}…"),
        },
        None => text.to_owned(),
    })
}

/// Whether the text names a MIG slice, which may belong to another job than the rest of the GPU.
fn of_a_slice(text: &str) -> bool {
    text.split_once("): ").is_some_and(|(place, _)| place.contains(" GPU-I:"))
}

#[cfg(test)]
mod tests;
