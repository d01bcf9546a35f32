//! Returning a node to service: a node that railgate drained is checked as a whole, and resumed in Slurm if it
//! passes.

use railgate_gate::{CHECKS, CheckInfo, KnownLink, Level};
use railgate_model::{Finding, Fitness, PartName, Phase, Severity, Snapshot};
use railgate_slurm::{Acting, DrainDesk, Env, LemonReason, NotResumed, Standing};

use crate::check_run::{CheckRun, Purpose, check_node};
use crate::finding_history::{FindingHistory, Given};
use crate::switches::{self, Switch};
use crate::{Config, History, Places, desk, now};

/// A request to resume a node.
#[derive(Clone, Copy, Debug)]
pub struct Readmit<'a> {
    /// User name.
    pub by: &'a str,
    /// `--repaired`: the admin confirms that the part was reset or replaced. The kernel's messages of this boot
    /// cannot be checked again.
    pub repaired: bool,
}

/// Outcome of the request.
#[derive(Debug)]
pub enum Readmitted {
    /// The node is resumed: its former drain reason, and the check run that it passed.
    Back(String, Box<CheckRun>),
    /// The node was not drained.
    InService,
    /// The node was left as it is: the reason.
    Left(String),
    /// The node is still unfit, or could not be judged.
    Unfit(Box<CheckRun>),
}

/// Checks this node as before a job and as between jobs. Resumes it if it passes both and was drained by railgate.
///
/// # Errors
/// Slurm does not answer, or the node's state changed during the check.
pub fn readmit(
    config: &Config,
    places: &Places,
    env: &Env,
    node: &str,
    how: Readmit<'_>,
) -> Result<Readmitted, NotResumed> {
    if switches::state(places) == Switch::Disabled {
        return Ok(Readmitted::Left(format!("{}/disable exists", places.etc.display())));
    }
    if !config.source.speaks_for_the_node() {
        return Ok(Readmitted::Left("[source] names other roots than the system's".to_owned()));
    }
    // An admin requests this explicitly: report mode and a pause apply only to railgate's own actions.
    let desk = desk(config, places, env).acting(Acting::Allowed);
    let reason = match desk.standing(node)? {
        Standing::Ours { reason, .. } => reason,
        Standing::InService => return Ok(Readmitted::InService),
        Standing::Others(what) => return Ok(Readmitted::Left(what)),
    };
    // Test this before the check runs, which take a while.
    if let Err(why) = History::try_change(places, |_| ()) {
        return Ok(Readmitted::Left(unremembered(&why)));
    }
    // Forgets link flaps from before the repair. They are restored if the node is not resumed.
    let flaps = how.repaired.then(|| Flaps::forget(places));
    let back = after_looks(config, places, &desk, node, &reason, how);
    if let Some(flaps) = flaps
        && !matches!(back, Ok(Readmitted::Back(..)))
    {
        flaps.remember(places);
    }
    back
}

/// Error of a state directory that is not writable: without saved state the next check run would find the repaired
/// fault again and drain the node.
fn unremembered(why: &std::io::Error) -> String {
    format!("not resumed: the repair cannot be saved, and the node would be drained again: {why}")
}

fn after_looks(
    config: &Config,
    places: &Places,
    desk: &DrainDesk,
    node: &str,
    reason: &str,
    how: Readmit<'_>,
) -> Result<Readmitted, NotResumed> {
    // A transient fault has had its time: a link that is still slow keeps the node drained.
    let mut strict = config.clone();
    strict.gate.strikes = 1;
    let mut passed = None;
    for phase in [Phase::Periodic, Phase::Prolog] {
        let purpose = Purpose { everything: true, full: true, ..Purpose::whole_node(phase) };
        let check_run = check_node(&strict, places, node, &purpose);
        check_run.log(None);
        if !matches!(check_run.verdict.fitness, Fitness::Fit | Fitness::Degraded) {
            return Ok(Readmitted::Unfit(Box::new(check_run)));
        }
        passed = Some(check_run);
    }
    let Some(check_run) = passed else { return Ok(Readmitted::Left("nothing was checked".to_owned())) };
    if !how.repaired
        && let Some(why) = unproven(&FindingHistory::load(places), reason, &check_run.snapshot)
            .or_else(|| untested(reason, &check_run))
    {
        return Ok(Readmitted::Left(why));
    }
    let mut before = History::default();
    let remembered = History::try_change(places, |history| {
        before = history.clone();
        history.settle(&check_run.snapshot);
        history.memory.strikes.clear();
    });
    if let Err(why) = remembered {
        return Ok(Readmitted::Left(unremembered(&why)));
    }
    if let Err(why) = desk.resume(node, reason) {
        History::change(places, |history| {
            history.settled = before.settled;
            history.memory.strikes.splice(..0, before.memory.strikes);
        });
        return Err(why);
    }
    let given = Given {
        time: now() / 1000,
        by: how.by.to_owned(),
        reason: reason.to_owned(),
        repaired: how.repaired,
    };
    tracing::warn!("{node}: resumed by {}: {reason}", how.by);
    FindingHistory::change(places, |past| past.given_back(given));
    Ok(Readmitted::Back(reason.to_owned(), Box::new(check_run)))
}

/// Times of link flaps, set aside while the node is checked after a repair.
struct Flaps(Vec<(String, String, Vec<u64>)>);

impl Flaps {
    fn forget(places: &Places) -> Flaps {
        let mut flaps = Vec::new();
        History::change(places, |history| {
            let take = |link: &mut KnownLink| {
                (link.guid.clone(), link.port.clone(), std::mem::take(&mut link.downs))
            };
            flaps = history.memory.links.iter_mut().map(take).collect();
        });
        Flaps(flaps)
    }

    fn remember(self, places: &Places) {
        History::change(places, |history| {
            for (guid, port, mut downs) in self.0 {
                let mut links = history.memory.links.iter_mut();
                if let Some(link) = links.find(|link| (&link.guid, &link.port) == (&guid, &port)) {
                    downs.append(&mut link.downs);
                    link.downs = downs;
                }
            }
        });
    }
}

/// A fault that only the kernel log reported leaves nothing for a check to find. Until a reboot or a replacement of
/// the part, the repair rests on the admin's word; returns why.
fn unproven(past: &FindingHistory, reason: &str, snapshot: &Snapshot) -> Option<String> {
    let Cause { subject, known, part } = Cause::of(reason)?;
    let check = known.id;
    let only_log = known.parts.contains(&PartName::KernelLog) && check.contains("xid");
    let of_this = |episode: &&crate::Episode| episode.finding.check == check && episode.finding.part == part;
    let episode = past.episodes.iter().rev().find(of_this)?;
    let same_boot = !episode.boot_id.is_empty() && episode.boot_id == snapshot.boot_id;
    let same_part = episode.identity.is_empty() || episode.identity == snapshot.identity(part);
    (only_log && same_boot && same_part).then(|| {
        format!(
            "{subject}: reported by the kernel in this boot, and unknown whether it was repaired since: reboot, \
             or use --repaired"
        )
    })
}

/// A fault that only exercising the hardware shows is not known to be repaired until that has a result again. A lemon's drain names no
/// part: all self-tests must have a result. Returns why there is none.
fn untested(reason: &str, check_run: &CheckRun) -> Option<String> {
    let verdict = &check_run.verdict;
    let findings = verdict.findings.iter().chain(&verdict.shadow);
    let mut open = findings.filter(|finding| finding.severity == Severity::Unknown);
    if LemonReason::is(reason) {
        let is_self_test = |finding: &&Finding| {
            CHECKS.iter().any(|known| known.id == finding.check && known.level >= Level::Full)
        };
        let open = open.find(is_self_test)?;
        return Some(format!(
            "a lemon, and {} has no result ({}): repair that, or test the node by hand and use --repaired",
            open.check, open.what
        ));
    }
    let Cause { subject, known, part } = Cause::of(reason)?;
    if known.level < Level::Full {
        return None;
    }
    let is_of_part = |finding: &&Finding| finding.part == part || finding.part.is_empty();
    let open = open.find(|finding| finding.check == known.id && is_of_part(finding))?;
    Some(format!("{subject}: no result now ({}): test it by hand, or use --repaired", open.what))
}

/// The finding in the reason of one of our drains.
struct Cause<'r> {
    subject: &'r str,
    known: &'static CheckInfo,
    part: &'r str,
}

impl Cause<'_> {
    fn of(reason: &str) -> Option<Cause<'_>> {
        let subject = reason.strip_prefix(railgate_slurm::LEADER)?.trim_start();
        let subject = subject.split(": ").next().unwrap_or_default();
        let (check, part) = subject.split_once('@').unwrap_or((subject, ""));
        let known = CHECKS.iter().find(|known| known.id == check)?;
        Some(Cause { subject, known, part })
    }
}

#[cfg(test)]
mod tests {
    use railgate_gate::GateConfig;

    use super::*;

    #[test]
    fn flaps_are_restored_if_the_node_is_not_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places { state: folder.path().to_owned(), ..Places::default() };
        let link = |port: &str, downs: &[u64]| KnownLink {
            port: port.to_owned(),
            guid: port.to_owned(),
            downs: downs.to_vec(),
            ..KnownLink::default()
        };
        History::change(&places, |history| {
            history.memory.links = vec![link("a/1", &[5, 6]), link("b/1", &[])]
        });
        let flaps = Flaps::forget(&places);
        let downs = || {
            let links = History::load(&places).memory.links;
            links.into_iter().map(|link| link.downs).collect::<Vec<Vec<u64>>>()
        };
        let none: Vec<u64> = Vec::new();
        assert_eq!(downs(), [none.clone(), none.clone()]);
        // A check run has meanwhile found the link down again.
        History::change(&places, |history| history.memory.links[0].downs.push(9));
        flaps.remember(&places);
        assert_eq!(downs(), [vec![5, 6, 9], none]);
    }

    #[test]
    fn a_fault_only_in_the_kernel_log_needs_a_reboot_a_new_part_or_repaired() {
        let gate = GateConfig::default();
        let check_run = crate::testing::simulated_check_run("h100-sxm:gpu-xid-48@3", &gate, 1);
        let mut snapshot = check_run.snapshot.clone();
        let mut past = FindingHistory::default();
        past.note(&gate, &check_run, None, true);
        let reason = "railgate: gpu-xid@3: Xid 48; reset GPU [periodic]";
        assert!(unproven(&past, reason, &snapshot).unwrap().starts_with("gpu-xid@3: reported by the kernel"));
        assert_eq!(unproven(&past, "railgate: gpu-lost@3: off bus; reboot [periodic]", &snapshot), None);
        let mut booted = snapshot.clone();
        booted.boot_id = "next".to_owned();
        assert_eq!(unproven(&past, reason, &booted), None);
        let railgate_model::Part::Read { data, .. } = &mut snapshot.gpus else { panic!("no GPUs") };
        data.gpus[3].uuid = railgate_model::Reading::Known("GPU-another".to_owned());
        assert_eq!(unproven(&past, reason, &snapshot), None);
    }

    #[test]
    fn a_gpu_without_a_self_test_result_is_not_repaired() {
        let gate = GateConfig::default();
        let reason =
            "railgate: gpu-self-test@3: 0000:61:00.0: 1 of 4 values of gemm-bf16 wrong; RMA [prolog job=7]";
        let told =
            |node: &str, reason: &str| untested(reason, &crate::testing::simulated_check_run(node, &gate, 1));
        for missing in ["h100-sxm:gpu-self-test-silent@3", "h100-sxm:gpu-self-test-missing"] {
            let why = told(missing, reason).unwrap();
            assert!(why.starts_with("gpu-self-test@3: no result now ("), "{why}");
        }
        assert_eq!(told("h100-sxm:gpu-self-test-silent@5", reason), None, "another GPU");
        assert_eq!(told("h100-sxm:gpu-self-test-slow@5", reason), None, "it passed");
        assert_eq!(told("h100-sxm:gpu-self-test-missing", "railgate: gpu-lost@3: off bus; reboot"), None);
        // No part is named: each one has to pass.
        let lemon =
            "railgate: lemon: 3 faults, 9.3 times the fleet's rate; see railgate fleet node gn7 [fleet]";
        for missing in ["h100-sxm:gpu-self-test-silent@5", "h100-sxm:gpu-self-test-missing"] {
            let why = told(missing, lemon).unwrap();
            assert!(why.starts_with("a lemon, and gpu-self-test has no result ("), "{why}");
        }
        assert_eq!(told("h100-sxm", lemon), None, "all passed");
    }
}
