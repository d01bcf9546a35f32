//! The page of a large fleet stays small: of all nodes it has a square, and no row.
#![expect(clippy::disallowed_types, clippy::disallowed_methods, reason = "prints how long a page takes")]

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use railgate_fleet::{History, Judgement, Settings, judge};
use railgate_fleet_page::{Facts, Names, html};
use railgate_fleet_store::{Reader, Writer};

use crate::generator::{Parameters, fleet};

fn page(history: &History, judgement: &Judgement, settings: &Settings) -> String {
    let names = Names::Shown { users: BTreeMap::new() };
    html(&Facts {
        history,
        judgement,
        settings,
        drains_lemons: false,
        names: &names,
        host_list: |nodes| nodes.join(","),
        railgate: "1.0",
    })
}

#[test]
fn the_page_of_4096_nodes_and_90_days_stays_below_5_mb() {
    let fleet = fleet(&Parameters::new(4096, 90, 601));
    let (begin, settings) = (Instant::now(), Settings::default());
    let history = History::new(fleet.events.iter().cloned(), fleet.now);
    let ordered = begin.elapsed();
    let judgement = judge(&history, &settings);
    let judged = begin.elapsed();
    let page = page(&history, &judgement, &settings);
    println!(
        "{} events: in order after {ordered:?}, judged after {judged:?}, the page after {:?}; {} bytes",
        fleet.events.len(),
        begin.elapsed(),
        page.len()
    );
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    assert_eq!(page, self::page(&history, &judgement, &settings), "sorted the same way each time");
    for part in ["Needs action", "Goodput", "</html>"] {
        assert!(page.contains(part), "{part}");
    }
    // Half of the nodes have faults: nodes without one have no lane.
    let lanes = page.matches("class=\"name\"").count();
    assert!((100..4096).contains(&lanes), "{lanes} lanes");
}

/// Times of what `railgate fleet --format html` does.
struct Clock {
    begin: Instant,
    cpu: Duration,
}

impl Clock {
    fn new() -> Clock {
        Clock { begin: Instant::now(), cpu: cpu() }
    }

    fn print(&self, what: &str) {
        println!("{what} after {:.2?}, {:.2?} of processor time", self.begin.elapsed(), cpu() - self.cpu);
    }
}

/// Processor time of this program so far.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11..=12].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

#[test]
#[ignore = "measures: cargo test --release -p railgate-fleet --test fleets how_fast -- --ignored --nocapture"]
fn how_fast_a_page_is_made_from_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fleet.db");
    let (now, count) = {
        let fleet = fleet(&Parameters::new(4096, 90, 601));
        let mut writer = Writer::open(&path, "here", fleet.now).unwrap();
        for events in fleet.events.chunks(10_000) {
            writer.take_in(events, fleet.now).unwrap();
        }
        (fleet.now, fleet.events.len())
    };
    println!("{count} events, {} bytes", fs::metadata(&path).unwrap().len());
    for _ in 0..3 {
        let clock = Clock::new();
        let reader = Reader::open(&path).unwrap();
        clock.print("opened");
        let events = reader.events(0, u64::MAX).unwrap();
        clock.print("read");
        let history = History::new(events, now);
        clock.print("in order");
        let settings = Settings::default();
        let judgement = judge(&history, &settings);
        clock.print("judged");
        let page = page(&history, &judgement, &settings);
        clock.print(&format!("page of {} bytes", page.len()));
    }
}
