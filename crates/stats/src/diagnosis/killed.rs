use super::Diagnosis;
use super::facts::{Facts, Outcome, Unit, median};
use super::hang::{behind, stood_still};
use crate::application::{AppEventKind, RankApplication};
use crate::plain::{clock, float};

/// One rank was gone before the others, of a job that failed.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    let told: Vec<_> = facts.reporting().collect();
    // A job that stood still for long has another story.
    if facts.outcome == Outcome::Good || stood_still(facts).is_some() {
        return Vec::new();
    }
    let (unit, how, confidence) = if let Some(found) = alone(&told) {
        found
    } else if let Some(found) = earlier(&told) {
        found
    } else if let Some(lag) = behind(facts).filter(|_| facts.outcome == Outcome::Failed) {
        let what = format!("{} when the job ended soon after: it died there", lag.what);
        // Whoever is ended with the others may be one operation behind by chance.
        let confidence = if lag.confidence == "high" { "medium" } else { "low" };
        let mut found = Diagnosis::new("unknown", confidence, lag.part, what, FIX);
        found.since = lag.since;
        return vec![found];
    } else {
        return Vec::new();
    };
    let rank = unit.app.map(|rank| (rank.steps, rank.last_seen)).unwrap_or_default();
    let when = clock(rank.1);
    let number = unit.rank.map_or_else(|| "?".to_owned(), |rank| rank.to_string());
    let what = format!(
        "rank {number} {how} after {} steps, last seen {}",
        rank.0,
        when.get(..8).unwrap_or_default()
    );
    let mut found = Diagnosis::new("unknown", confidence, unit.name(), what, FIX);
    found.since = Some(rank.1);
    vec![found]
}

const FIX: &str = "look for its end in the job's log: out of memory, a signal, an error of its own";

type Found<'a> = (&'a Unit<'a>, &'static str, &'static str);

fn ended(rank: &RankApplication) -> bool {
    rank.events.last().is_some_and(|event| event.what == AppEventKind::End)
}

/// The one that said nothing where the others ended in good order, or the other way round.
fn alone<'a>(told: &[(&'a Unit<'a>, &'a RankApplication)]) -> Option<Found<'a>> {
    let (orderly, silent): (Vec<_>, Vec<_>) = told.iter().partition(|(_, rank)| ended(rank));
    match (orderly.as_slice(), silent.as_slice()) {
        ([_, ..], [(unit, _)]) => Some((unit, "was gone without a word, the others were not", "high")),
        ([(unit, _)], [_, ..]) => Some((unit, "ended by itself and the others did not", "high")),
        _ => None,
    }
}

/// The one that was silent while the others went on.
fn earlier<'a>(told: &[(&'a Unit<'a>, &'a RankApplication)]) -> Option<Found<'a>> {
    let middle = median(told.iter().map(|(_, rank)| float(rank.last_seen)).collect())?;
    let (unit, rank) = told.iter().min_by_key(|(_, rank)| (rank.steps, rank.last_seen))?;
    let gone_s = (middle - float(rank.last_seen)) / 1000.0;
    let many = gone_s > (3.0 * unit.step_s().unwrap_or(0.0)).max(5.0);
    (told.len() > 1 && many).then_some((unit, "was silent while the others went on", "medium"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::simulator::{Plant, parts_with};

    /// torchrun ends the other rank within its step: both are silent from the same moment, and one is behind in NCCL.
    #[test]
    fn of_two_the_one_behind_is_named_and_not_surely() {
        let mut nodes = parts_with(&[Plant::Killed]);
        nodes.truncate(1);
        let node = &mut nodes[0];
        node.usage.as_mut().unwrap().gpus.truncate(2);
        let comm = node.communication.as_mut().unwrap();
        comm.communicators.truncate(2);
        comm.communicators.iter_mut().for_each(|one| one.size = 2);
        comm.communicators[0].ops = comm.communicators[1].ops + 1;
        let told = &mut node.application.as_mut().unwrap().ranks;
        told.truncate(2);
        let (steps, last_seen) = (told[0].steps, told[0].last_seen);
        told.iter_mut()
            .for_each(|rank| (rank.world, rank.steps, rank.last_seen) = (Some(2), steps, last_seen));
        let found = find(&Facts::new(&nodes, Some(last_seen + 500), Outcome::Failed, None));
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((one.part.as_str(), one.confidence.as_str()), ("n0 GPU 1 rank 1", "low"));
        let cancelled = Facts::new(&nodes, Some(last_seen + 500), Outcome::CutOff, None);
        assert_eq!(find(&cancelled), []);
        nodes[0].communication.as_mut().unwrap().communicators[0].ops -= 1;
        assert_eq!(find(&Facts::new(&nodes, Some(last_seen + 500), Outcome::Failed, None)), []);
    }
}
