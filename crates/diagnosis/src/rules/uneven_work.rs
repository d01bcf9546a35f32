use crate::facts::{Facts, median};
use crate::register::{Class, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "uneven-work",
    about: "a rank works on less or more per step than the other ranks",
    class: Class::Application,
    evidence: "tokens (else samples) per step of each rank, as the program reports them (docs/application-reports.md), against the
median of the ranks, each with at least two steps. Of two ranks, the one with less work is named: medium confidence.",
    why: "ranks with less work wait in every step for those with more.",
    look_alikes: "an intended division of labour, as in a pipeline or with parameter servers: if more than a quarter of the ranks
differ, none is reported. Sequences of varying length even out over many steps.",
    fix: "give every rank the same number of tokens or samples per step",
    thresholds: Settings::KEYS,
    line: Line::Slow,
    over: Over::Training,
    explains_idle: false,
    find,
};

thresholds! {
    off_percent: Number(5.0), 0.1 to 1000.0, "%", "a rank's work per step is off the median by more than this";
}

fn find(facts: &Facts<'_>) -> Vec<Found> {
    let off = facts.rules.uneven_work.off_percent.share();
    let per_step: Vec<(String, f64)> = facts
        .reporting()
        .filter(|(_, rank)| rank.steps > 1 && !rank.model.as_ref().is_some_and(|model| model.global))
        .filter_map(|(unit, rank)| {
            let count = rank.tokens.or(rank.samples)?;
            Some((unit.name(), count / railgate_node_report::plain::float(rank.steps)))
        })
        .collect();
    let Some(typical) = median(per_step.iter().map(|(_, count)| *count).collect()) else { return Vec::new() };
    if let [(one, first), (other, second)] = per_step.as_slice() {
        return of_two(one, *first, other, *second, off);
    }
    if per_step.len() < 3 || typical <= 0.0 {
        return Vec::new();
    }
    let odd: Vec<_> = per_step.iter().filter(|(_, count)| (count / typical - 1.0).abs() > off).collect();
    // An intended division of labour, not a fault.
    if odd.len() * 4 > per_step.len().max(4) {
        return Vec::new();
    }
    odd.into_iter()
        .map(|(part, count)| {
            let share = count / typical - 1.0;
            let (word, costs) = if share < 0.0 {
                (
                    "less",
                    -share / railgate_node_report::plain::float(u64::try_from(per_step.len()).unwrap_or(1)),
                )
            } else {
                ("more", share / (1.0 + share))
            };
            let what =
                format!("{part} works on {:.0} % {word} per step than the others", 100.0 * share.abs());
            Found { costs: Some(costs), ..Found::new("high", part.clone(), what) }
        })
        .collect()
}

/// Of two ranks neither is the odd one.
fn of_two(one: &str, first: f64, other: &str, second: f64, off: f64) -> Vec<Found> {
    let (less, more, fewer) = if first < second { (one, second, first) } else { (other, first, second) };
    let share = 1.0 - fewer / more;
    if more <= 0.0 || share <= off {
        return Vec::new();
    }
    let what =
        format!("{less} works on {:.0} % less per step than the other rank and waits for it", 100.0 * share);
    // Both hold a GPU for as long as the one with more work needs.
    vec![Found { costs: Some(share / 2.0), ..Found::new("medium", less.to_owned(), what) }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Outcome;
    use crate::simulator;

    #[test]
    fn one_of_three_is_odd_and_three_of_eight_are_intended() {
        let found = |ranks: usize, odd: usize| {
            let mut nodes = simulator::healthy();
            let all = nodes.iter_mut().flat_map(|node| &mut node.application.as_mut().unwrap().ranks);
            for (number, rank) in all.enumerate() {
                match number {
                    number if number < odd => rank.tokens = rank.tokens.map(|tokens| tokens / 2.0),
                    number if number >= ranks => rank.steps = 0,
                    _ => {}
                }
            }
            let found = find(&Facts::new(&nodes, nodes[0].end, Outcome::Good, None));
            found.into_iter().map(|one| one.part).collect::<Vec<_>>()
        };
        assert_eq!(found(3, 1), ["n0 GPU 0 rank 0"]);
        assert_eq!(found(8, 2), ["n0 GPU 0 rank 0", "n0 GPU 1 rank 1"]);
        assert!(found(8, 3).is_empty() && found(2, 0).is_empty());
        assert_eq!(found(2, 1), ["n0 GPU 0 rank 0"]);
    }
}
