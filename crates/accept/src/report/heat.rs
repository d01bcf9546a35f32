//! Heat maps: node × rail, card × figure, node × round.

use std::collections::{BTreeMap, BTreeSet};

use railgate_text::natural;
use serde::{Deserialize, Serialize};

use crate::figures::{Better, Figure, median};

/// A table of values of one kind, or of one kind in each column.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeatMap {
    /// Title with the unit.
    pub title: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<HeatRow>,
    /// Whether a high value is good.
    pub better: Better,
    /// Whether values are compared within their column; otherwise within the whole map.
    pub by_column: bool,
}

/// A row of a heat map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeatRow {
    /// Its name.
    pub name: String,
    /// One value for each column; `None` was not measured.
    pub values: Vec<Option<f64>>,
}

/// A request for a map of a figure over time.
pub(super) struct Course {
    pub(super) end: String,
    pub(super) beginning: String,
    pub(super) title: String,
}

impl HeatMap {
    /// Returns the value with which a cell is compared.
    pub(crate) fn usual(&self, column: usize) -> Option<f64> {
        if self.by_column {
            median(self.rows.iter().filter_map(|row| *row.values.get(column)?))
        } else {
            median(self.rows.iter().flat_map(|row| row.values.iter().flatten().copied()))
        }
    }
}

/// Rows in the order of their names, gn2 before gn10.
fn in_order(rows: impl Iterator<Item = HeatRow>) -> Vec<HeatRow> {
    let mut rows: Vec<HeatRow> = rows.collect();
    rows.sort_by_cached_key(|row| natural(&row.name));
    rows
}

pub(super) fn of_rails(rails: &BTreeMap<String, BTreeMap<(String, usize), f64>>) -> Vec<HeatMap> {
    let one = |(net, cells): (&String, &BTreeMap<(String, usize), f64>)| {
        let nodes: BTreeSet<&String> = cells.keys().map(|(node, _)| node).collect();
        let count = cells.keys().map(|(_, rail)| rail + 1).max().unwrap_or(0);
        let row = |node: &String| HeatRow {
            name: node.clone(),
            values: (0..count).map(|rail| cells.get(&(node.clone(), rail)).copied()).collect(),
        };
        HeatMap {
            title: format!("Lowest rate that each node sent on each rail, by {net}, Gb/s"),
            columns: (0..count).map(|rail| format!("rail {rail}")).collect(),
            rows: in_order(nodes.into_iter().map(row)),
            better: Better::Higher,
            by_column: false,
        }
    };
    rails.iter().map(one).collect()
}

/// Rates of the cards of stage `node`, medians of the repetitions.
pub(super) fn of_cards(figures: &[Figure]) -> Option<HeatMap> {
    let of_cards: Vec<&Figure> = figures
        .iter()
        .filter(|figure| figure.id.starts_with("node.") && figure.better == Better::Higher)
        .filter(|figure| !figure.values.iter().any(|value| value.part.contains(" to ")))
        .collect();
    let cards: BTreeSet<&str> =
        of_cards.iter().flat_map(|figure| figure.values.iter().map(|value| value.part.as_str())).collect();
    if cards.is_empty() {
        return None;
    }
    let cell = |card: &str, figure: &Figure| {
        median(figure.values.iter().filter(|value| value.part == card).map(|value| value.value))
    };
    let row = |card: &str| HeatRow {
        name: card.to_owned(),
        values: of_cards.iter().map(|figure| cell(card, figure)).collect(),
    };
    let name = |figure: &&Figure| {
        let id = figure.id.trim_start_matches("node.");
        format!("{id} ({})", figure.unit)
    };
    Some(HeatMap {
        title: "Cards and their rates, medians of the repetitions".to_owned(),
        columns: of_cards.iter().map(name).collect(),
        rows: in_order(cards.into_iter().map(row)),
        better: Better::Higher,
        by_column: true,
    })
}

pub(super) fn of_course(course: &Course, figures: &[Figure]) -> Option<HeatMap> {
    let fits = |figure: &&Figure| {
        let id = figure.id.split('@').next().unwrap_or_default();
        id.starts_with(&course.beginning) && id.ends_with(&course.end)
    };
    let mut cells: BTreeMap<&str, BTreeMap<u32, f64>> = BTreeMap::new();
    for value in figures.iter().filter(fits).flat_map(|figure| &figure.values) {
        let highest = cells.entry(&value.node).or_default().entry(value.repetition).or_insert(value.value);
        *highest = highest.max(value.value);
    }
    let rounds: BTreeSet<u32> = cells.values().flat_map(|of| of.keys().copied()).collect();
    if rounds.is_empty() {
        return None;
    }
    let row = |(node, of): (&&str, &BTreeMap<u32, f64>)| HeatRow {
        name: (*node).to_owned(),
        values: rounds.iter().map(|round| of.get(round).copied()).collect(),
    };
    Some(HeatMap {
        title: course.title.clone(),
        columns: rounds.iter().map(|round| format!("r{round}")).collect(),
        rows: in_order(cells.iter().map(row)),
        better: Better::Lower,
        by_column: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_their_numbers() {
        let cells = ["gn10", "gn2", "gn1"].map(|node| ((node.to_owned(), 0), 400.0));
        let maps = of_rails(&BTreeMap::from([("RDMA".to_owned(), BTreeMap::from(cells))]));
        let names: Vec<&str> = maps.iter().flat_map(|map| &map.rows).map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["gn1", "gn2", "gn10"]);
    }
}
