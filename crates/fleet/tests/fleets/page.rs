//! The page of a large fleet stays small: it has no list of all nodes.
#![expect(clippy::disallowed_types, reason = "prints how long a page takes")]

use std::collections::BTreeMap;
use std::time::Instant;

use railgate_fleet::{History, Settings, judge};
use railgate_fleet_page::{Facts, Names, html};

use crate::generator::{Parameters, fleet};

#[test]
fn the_page_of_4096_nodes_and_90_days_stays_below_5_mb() {
    let fleet = fleet(&Parameters::new(4096, 90, 601));
    let (begin, settings) = (Instant::now(), Settings::default());
    let history = History::new(fleet.events.iter().cloned(), fleet.now);
    let ordered = begin.elapsed();
    let judgement = judge(&history, &settings);
    let judged = begin.elapsed();
    let names = Names::Shown { users: BTreeMap::new() };
    let facts = Facts {
        history: &history,
        judgement: &judgement,
        settings: &settings,
        names: &names,
        host_list: |nodes| nodes.join(","),
        railgate: "1.0",
    };
    let page = html(&facts);
    println!(
        "{} events: in order after {ordered:?}, judged after {judged:?}, the page after {:?}; {} bytes",
        fleet.events.len(),
        begin.elapsed(),
        page.len()
    );
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    assert_eq!(page, html(&facts), "sorted the same way each time");
    for part in ["Needs action", "Goodput", "</html>"] {
        assert!(page.contains(part), "{part}");
    }
    // Half of the nodes have faults: nodes without one have no lane.
    let lanes = page.matches("class=\"name\"").count();
    assert!((100..4096).contains(&lanes), "{lanes} lanes");
}
