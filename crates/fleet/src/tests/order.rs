//! Any order, any copies: one judgement.

use proptest::prelude::*;

use super::*;
use crate::{Outage, costs, goodput};

/// A history with a bit of everything.
fn eventful() -> Story {
    let mut story = Story::new();
    for day in [3, 9, 15] {
        story.fault(5, T + day * DAY, Some(1));
        story.add(
            T + day * DAY + 2000,
            What::Drained { node: name(5), by: Drainer::Slurm, reason: "x".to_owned() },
        );
        story.add(T + day * DAY + HOUR, What::Resumed { node: name(5) });
    }
    leaf_fails(&mut story, T + 20 * DAY);
    story.job(1, 0..64, T + 20 * DAY - HOUR, T + 20 * DAY + MINUTE, Outcome::Failed);
    story.job(2, 10..30, T + 10 * DAY, T + 10 * DAY + HOUR, Outcome::NodeFail);
    for node in 10..30 {
        story.add(T + 10 * DAY + HOUR, What::Down { node: name(node) });
    }
    story.add(T + 2 * DAY, What::JobStarted(attempt(1, 0..64, T + 20 * DAY - HOUR, None)));
    story.add(T + 22 * DAY, repaired(name(5)));
    // Two contents for one id: what two controllers wrote.
    let mut other = story.events.last().unwrap().clone();
    other.time -= 10 * DAY;
    story.events.push(other);
    story
}

fn all(events: Vec<Event>, now: UnixMillis) -> String {
    let history = History::new(events, now);
    let settings = Settings::default();
    let judged = (judge(&history, &settings), costs(&history, &settings), goodput(&history, &settings));
    format!("{judged:?} {} {}", history.forged(), history.conflicting())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn late_doubled_and_shuffled_events_give_the_same(
        order in Just(eventful().events).prop_shuffle(),
        again in proptest::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let story = eventful();
        let want = all(story.events, story.now);
        let mut events = order;
        for index in again {
            let copy = events[index.index(events.len())].clone();
            events.push(copy);
        }
        prop_assert_eq!(all(events, story.now), want);
    }
}

#[test]
fn what_happens_later_does_not_count_yet() {
    let story = eventful();
    let now = T + 12 * DAY;
    let before: Vec<Event> = story.events.iter().filter(|event| event.time <= now).cloned().collect();
    assert_eq!(all(story.events, now), all(before, now));
}

#[test]
fn an_end_without_a_start_and_a_start_after_its_end_are_one_attempt() {
    let story = eventful();
    let history = story.history();
    assert_eq!(history.attempts().len(), 2);
    assert!(history.attempts().iter().all(|attempt| attempt.end.is_some()));
}

#[test]
fn the_last_drain_or_silence_of_a_node_is_kept_in_any_order() {
    let drained =
        |reason: &str| What::Drained { node: name(5), by: Drainer::Admin, reason: reason.to_owned() };
    let mut story = Story::new();
    story.add(T + 3 * DAY, What::Down { node: name(6) });
    story.add(T + 9 * DAY, drained("new fans"));
    story.add(T + 3 * DAY, drained("old fans"));
    story.add(T + 10 * DAY, What::Resumed { node: name(5) });
    story.add_from(Source::User, T + 12 * DAY, drained("forged"));
    let history = History::new(story.events, T + 12 * DAY);
    let fans = Outage::Drained { by: Drainer::Admin, reason: "new fans".to_owned() };
    assert_eq!(history.outage("n05"), Some(&fans));
    assert_eq!(history.outage("n06"), Some(&Outage::Down));
    assert_eq!((history.outage("n07"), history.outage("other")), (None, None));
    assert_eq!(history.last(), Some(T + 12 * DAY));
    assert_eq!(History::new([], T).last(), None);
}
