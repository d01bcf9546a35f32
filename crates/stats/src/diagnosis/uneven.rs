use super::Diagnosis;
use super::facts::{Facts, median};

/// A rank works on less or more than the others: those with less wait.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    let per_step: Vec<(String, f64)> = facts
        .reporting()
        .filter(|(_, rank)| rank.steps > 1 && !rank.model.as_ref().is_some_and(|model| model.global))
        .filter_map(|(unit, rank)| {
            let count = rank.tokens.or(rank.samples)?;
            Some((unit.name(), count / crate::plain::float(rank.steps)))
        })
        .collect();
    let Some(typical) = median(per_step.iter().map(|(_, count)| *count).collect()) else { return Vec::new() };
    if per_step.len() < 3 || typical <= 0.0 {
        return Vec::new();
    }
    let odd: Vec<_> = per_step.iter().filter(|(_, count)| (count / typical - 1.0).abs() > 0.05).collect();
    // A division of labour, not a mishap.
    if odd.len() * 4 > per_step.len() {
        return Vec::new();
    }
    odd.into_iter()
        .map(|(part, count)| {
            let share = count / typical - 1.0;
            let (word, costs) = if share < 0.0 {
                ("less", -share / crate::plain::float(u64::try_from(per_step.len()).unwrap_or(1)))
            } else {
                ("more", share / (1.0 + share))
            };
            let what =
                format!("{part} works on {:.0} % {word} per step than the others", 100.0 * share.abs());
            let mut one =
                Diagnosis::new("application", "high", part.clone(), what, "give every rank the same batch");
            one.costs = Some(costs);
            one
        })
        .collect()
}
