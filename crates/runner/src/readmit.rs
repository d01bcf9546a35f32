//! The way back: a node that railgate holds is looked at in whole, and given back to Slurm if nothing is wrong with it.

use railgate_gate::{CHECKS, KnownLink};
use railgate_model::{Fitness, PartName, Phase, Snapshot};
use railgate_slurm::{Acting, DrainDesk, Env, NotGivenBack, Standing};

use crate::look::{Look, Purpose, look};
use crate::past::{Given, Past};
use crate::switches::{self, Switch};
use crate::{Config, History, Places, desk, now};

/// Who wants the node back, and what they vouch for.
#[derive(Clone, Copy, Debug)]
pub struct Readmit<'a> {
    /// User name.
    pub by: &'a str,
    /// They say that the part was reset or replaced: the kernel's own word cannot be unsaid within a boot.
    pub repaired: bool,
}

/// What came of it.
#[derive(Debug)]
pub enum Readmitted {
    /// It is back in service; the reason that stood on it, and the look that it passed.
    Back(String, Box<Look>),
    /// Nobody holds it.
    InService,
    /// It was left as it is, and why.
    Left(String),
    /// It is still unfit, or could not be judged.
    Unfit(Box<Look>),
}

/// Looks at this node as before a job and as beside jobs, and resumes it if it passes both and stands drained by us.
///
/// # Errors
/// Slurm does not answer, or the node changed hands during the look.
pub fn readmit(
    config: &Config,
    places: &Places,
    env: &Env,
    node: &str,
    how: Readmit<'_>,
) -> Result<Readmitted, NotGivenBack> {
    if switches::state(places) == Switch::Disabled {
        return Ok(Readmitted::Left(format!("{}/disable exists", places.etc.display())));
    }
    if !config.source.speaks_for_the_node() {
        return Ok(Readmitted::Left("[source] names other roots than the system's".to_owned()));
    }
    // Somebody asks for it here and now: report mode and a pause are for what railgate does by itself.
    let desk = desk(config, places, env).acting(Acting::Allowed);
    let reason = match desk.standing(node)? {
        Standing::Ours { reason, .. } => reason,
        Standing::InService => return Ok(Readmitted::InService),
        Standing::Others(what) => return Ok(Readmitted::Left(what)),
    };
    // Before the looks, which take a while.
    if let Err(why) = History::try_change(places, |_| ()) {
        return Ok(Readmitted::Left(unremembered(&why)));
    }
    // They vouch for the links, too: what flapped before the repair is no longer held against them. It was not repaired if the
    // node does not come back.
    let flaps = how.repaired.then(|| Flaps::forget(places));
    let back = after_looks(config, places, &desk, node, &reason, how);
    if let Some(flaps) = flaps
        && !matches!(back, Ok(Readmitted::Back(..)))
    {
        flaps.remember(places);
    }
    back
}

/// Without it the next look would find again what was repaired, and drain the node.
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
) -> Result<Readmitted, NotGivenBack> {
    // What may pass by itself has had its time: a slow link that is still slow does not come back.
    let mut strict = config.clone();
    strict.gate.strikes = 1;
    let mut passed = None;
    for phase in [Phase::Periodic, Phase::Prolog] {
        let purpose = Purpose { everything: true, full: true, ..Purpose::whole_node(phase) };
        let look = look(&strict, places, node, &purpose);
        look.log(None);
        if !matches!(look.verdict.fitness, Fitness::Fit | Fitness::Degraded) {
            return Ok(Readmitted::Unfit(Box::new(look)));
        }
        passed = Some(look);
    }
    let Some(look) = passed else { return Ok(Readmitted::Left("nothing was checked".to_owned())) };
    if !how.repaired
        && let Some(why) = unproven(&Past::load(places), reason, &look.snapshot)
    {
        return Ok(Readmitted::Left(why));
    }
    let mut before = History::default();
    let remembered = History::try_change(places, |history| {
        before = history.clone();
        history.settle(&look.snapshot);
        history.memory.strikes.clear();
    });
    if let Err(why) = remembered {
        return Ok(Readmitted::Left(unremembered(&why)));
    }
    if let Err(why) = desk.give_back(node, reason) {
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
    Past::change(places, |past| past.given_back(given));
    Ok(Readmitted::Back(reason.to_owned(), Box::new(look)))
}

/// When links went down before somebody says that they were repaired.
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

/// A fault that only the kernel told of leaves nothing that a look could find: while the node has not been booted
/// and the part is the same, that it was repaired is somebody's word.
fn unproven(past: &Past, reason: &str, snapshot: &Snapshot) -> Option<String> {
    let subject = reason.strip_prefix(railgate_slurm::LEADER)?.trim_start();
    let subject = subject.split(": ").next().unwrap_or_default();
    let (check, part) = subject.split_once('@').unwrap_or((subject, ""));
    let known = CHECKS.iter().find(|known| known.id == check)?;
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

#[cfg(test)]
mod tests {
    use railgate_gate::GateConfig;

    use super::*;

    #[test]
    fn flaps_come_back_where_the_node_does_not() {
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
        // A look meanwhile found it down once more.
        History::change(&places, |history| history.memory.links[0].downs.push(9));
        flaps.remember(&places);
        assert_eq!(downs(), [vec![5, 6, 9], none]);
    }

    #[test]
    fn a_fault_that_only_the_kernel_reported_needs_a_reboot_another_part_or_repaired() {
        let gate = GateConfig::default();
        let look = crate::testing::look("h100-sxm:gpu-xid-48@3", &gate, 1);
        let mut snapshot = look.snapshot.clone();
        let mut past = Past::default();
        past.note(&gate, &look, None, true);
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
}
