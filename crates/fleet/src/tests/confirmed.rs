//! What follows a drain, and what that says about its check.

use super::*;
use crate::confirmed_drains;

/// A node that a check drains on a day, and that is resumed four hours later.
fn drained(story: &mut Story, node: usize, day: u64) {
    let time = T + day * DAY;
    story.fault(node, time, None);
    story.add(
        time + MINUTE,
        What::Drained { node: name(node), by: Drainer::Railgate, reason: "railgate: test: x".to_owned() },
    );
    story.add(time + 4 * HOUR, What::Resumed { node: name(node) });
}

/// Drains, confirmed, unconfirmed of the only check.
fn found(story: &Story) -> (usize, usize, usize) {
    let (history, settings) = (story.history(), Settings::default());
    let all = confirmed_drains(&history, &judge(&history, &settings), &settings);
    match all.as_slice() {
        [] => (0, 0, 0),
        [one] => {
            assert_eq!(one.check, "test");
            (one.drains, one.confirmed, one.unconfirmed)
        }
        more => panic!("{more:?}"),
    }
}

#[test]
fn a_drain_is_confirmed_by_what_follows_it() {
    let mut story = Story::new();
    assert_eq!(found(&story), (0, 0, 0), "faults without a drain");
    drained(&mut story, 1, 5);
    assert_eq!(found(&story), (1, 0, 1), "it worked for weeks afterwards");
    drained(&mut story, 2, 24);
    assert_eq!(found(&story), (2, 0, 1), "four days are not enough to tell");
    drained(&mut story, 3, 5);
    story.fault(3, T + 7 * DAY, None);
    assert_eq!(found(&story), (3, 1, 1), "the same fault again");
    drained(&mut story, 4, 5);
    story.add(T + 5 * DAY + 3 * HOUR, repaired(name(4)));
    assert_eq!(found(&story), (4, 2, 1), "a repair");
    drained(&mut story, 5, 5);
    let figure = What::SelfTested {
        node: name(5),
        figure: "wrong-values".to_owned(),
        value: Some(3.0),
        unit: String::new(),
        passed: Some(false),
    };
    story.add(T + 5 * DAY + 2 * HOUR, figure);
    assert_eq!(found(&story), (5, 3, 1), "a self-test that failed");
    // On another day: faults of many nodes at the same time are an incident.
    drained(&mut story, 6, 7);
    story.job(77, 6..8, T + 7 * DAY - 9 * HOUR, T + 7 * DAY, Outcome::NodeFail);
    assert_eq!(found(&story), (6, 4, 1), "a job that ended with the node");
    // Not resumed.
    story.fault(9, T + 3 * DAY, None);
    let reason = "railgate: test: x".to_owned();
    story.add(T + 3 * DAY + MINUTE, What::Drained { node: name(9), by: Drainer::Railgate, reason });
    assert_eq!(found(&story), (7, 4, 1), "still out of service");
    // A node that was down was found by no check.
    story.add(T + 3 * DAY, What::Down { node: name(10) });
    story.add(T + 4 * DAY, What::Resumed { node: name(10) });
    assert_eq!(found(&story), (7, 4, 1));
}
