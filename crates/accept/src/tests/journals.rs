use super::entry;
use crate::{Entry, Event, Fate, Journal, State};

fn text(events: &[Event]) -> String {
    events.iter().map(|event| entry(event.clone()).line().unwrap()).collect()
}

fn begin() -> Event {
    Event::Begin { run: "r".to_owned(), plan: "p".to_owned() }
}

fn submit(attempt: u32) -> Event {
    Event::Submit { unit: "u".to_owned(), attempt, nodes: vec!["n1".to_owned()] }
}

fn lost(attempt: u32) -> Event {
    Event::Lost { unit: "u".to_owned(), attempt, why: "w".to_owned(), node_failed: Some(true) }
}

fn late(attempt: u32) -> Event {
    Event::LateResult { unit: "u".to_owned(), attempt, file: "f".to_owned(), digest: "d".to_owned() }
}

fn result(attempt: u32) -> Event {
    Event::Result { unit: "u".to_owned(), attempt, file: "f".to_owned(), digest: "d".to_owned() }
}

fn follow(events: &[Event]) -> Result<State, (usize, String)> {
    let entries: Vec<Entry> = events.iter().cloned().map(entry).collect();
    State::follow(&entries).map_err(|bad| (bad.line, bad.why))
}

/// A crash can end the file at any byte: whole lines count, and what follows is counted as torn.
#[test]
fn a_journal_that_ends_anywhere_is_read_up_to_its_last_whole_line() {
    let whole = text(&[begin(), submit(1), lost(1), submit(2)]);
    for end in 0..=whole.len() {
        let journal = Journal::parse(&whole.as_bytes()[..end]).unwrap();
        let lines = whole[..end].matches('\n').count();
        assert_eq!((journal.entries.len(), journal.length + journal.torn), (lines, end));
        State::follow(&journal.entries).unwrap();
    }
}

#[test]
fn other_damage_is_an_error_that_names_the_line() {
    let good = text(&[begin(), submit(1)]);
    let line = |text: &str| Journal::parse(text.as_bytes()).unwrap_err().line;
    assert_eq!(line(&good.replacen("attempt", "attemp", 1)), 2);
    assert_eq!(line(&format!("{good}\n")), 3);
    assert_eq!(line(&format!("{good}{{}}\n")), 3);
    assert_eq!(line(&text(&[submit(1)])), 1);
    assert_eq!(line(&text(&[begin(), begin()])), 2);
    assert!(Journal::parse(b"").unwrap().entries.is_empty());
}

#[test]
fn the_state_of_a_unit_follows_from_its_lines() {
    let state = follow(&[begin(), submit(1), lost(1), submit(2)]).unwrap();
    assert!(state.is_open("u", 2) && !state.is_open("u", 1) && !state.is_open("v", 1));
    let of = &state.units["u"];
    assert!(matches!(of.attempts[0].fate, Fate::Lost { node_failed: Some(true), .. }) && !of.is_settled(2));
    // Lost twice of two; a driver that continues may try again.
    let twice = [begin(), submit(1), lost(1), submit(2), lost(2)];
    assert!(follow(&twice).unwrap().units["u"].is_settled(2));
    let again = follow(&[&twice[..], &[Event::Continue {}]].concat()).unwrap();
    assert!(!again.units["u"].is_settled(2));
    let given_up = Event::GivenUp { unit: "u".to_owned(), why: "w".to_owned() };
    assert!(follow(&[begin(), given_up.clone()]).unwrap().units["u"].is_settled(9));
    assert!(!follow(&[begin(), given_up, Event::Continue {}]).unwrap().units["u"].is_settled(9));
    let late = follow(&[begin(), submit(1), lost(1), submit(2), lost(2), late(1)]).unwrap();
    assert_eq!(late.units["u"].done().map(|attempt| attempt.number), Some(1));
    let done = follow(&[begin(), submit(1), result(1), Event::Continue {}]).unwrap();
    assert!(done.units["u"].is_settled(1) && done.units["u"].done().is_some() && !done.is_open("u", 1));
}

#[test]
fn a_line_that_does_not_fit_the_lines_before_it_is_an_error() {
    for (events, line) in [
        (vec![begin(), submit(2)], 2),
        (vec![begin(), submit(1), submit(2)], 3),
        (vec![begin(), submit(1), result(1), submit(2)], 4),
        (vec![begin(), submit(1), result(1), result(1)], 4),
        (vec![begin(), result(1)], 2),
        (vec![begin(), submit(1), lost(1), result(1)], 4),
        (vec![begin(), submit(1), late(1)], 3),
        (vec![begin(), submit(1), lost(1), late(2)], 4),
        (vec![begin(), submit(1), lost(1), submit(2), late(1)], 5),
        (vec![begin(), submit(1), lost(1), submit(2), result(2), late(1)], 6),
    ] {
        assert_eq!(follow(&events).unwrap_err().0, line, "{events:?}");
    }
}
