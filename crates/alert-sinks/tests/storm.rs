//! 500 nodes fail within ten seconds, with a robot that counts as DingTalk does.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use railgate_alert_sinks::{Keep, Sinks, deliver};
use railgate_alerts::{Condition, Observation, Priority, State};
use support::*;

/// Nothing is stored.
struct Nowhere;

impl Keep for Nowhere {
    fn commit(&mut self, _: &State) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(())
    }
}

/// A robot that refuses the 21st message of a minute, by a clock that the test sets. Returns the times of all requests.
fn robot(clock: Arc<AtomicU64>) -> (Server, Arc<Mutex<Vec<u64>>>) {
    let times: Arc<Mutex<Vec<u64>>> = Arc::default();
    let seen = times.clone();
    let server = Server::start(move |_, _| {
        let now = clock.load(Ordering::SeqCst);
        let mut times = seen.lock().unwrap();
        times.push(now);
        let recent = times.iter().filter(|time| now - **time < 60_000).count();
        ok(if recent > 20 {
            r#"{"errcode":130101,"errmsg":"send too fast"}"#
        } else {
            r#"{"errcode":0,"errmsg":"ok"}"#
        })
    });
    (server, times)
}

fn node(number: u64) -> Condition {
    condition(&format!("node/gn{number:03}"), Priority::P0, &[&format!("gn{number:03}")])
}

#[test]
fn five_hundred_nodes_are_at_most_three_messages() {
    for step in [500, 2_000, 30_000] {
        let clock = Arc::new(AtomicU64::new(NOON));
        let (server, times) = robot(clock.clone());
        let files = Files::new();
        let config = files.config("dingtalk", &server.url("/robot/send?access_token=abcdefgh"), "");
        let (sinks, mut state) = (Sinks::open(&config), State::default());
        let mut accepted = 0;
        while clock.load(Ordering::SeqCst) < NOON + 600_000 {
            let now = clock.fetch_add(step, Ordering::SeqCst) + step;
            let failed = ((now - NOON) / 20).min(500);
            let conditions = (0..failed).map(node).collect();
            state.observe(&config, &Observation { conditions, time: now, complete: true }, now);
            let time = || clock.load(Ordering::SeqCst);
            accepted += deliver(&mut state, &config, &sinks, &mut Nowhere, &time).accepted;
        }
        let sent = times.lock().unwrap().len();
        assert!((1..=3).contains(&sent) && accepted == sent, "step {step}: {sent} messages");
        assert_eq!(state.conditions().count(), 500);
        assert!(state.sinks().all(|(_, sink)| sink.waiting() == 0));
    }
}

#[test]
fn a_robot_is_never_sent_more_than_its_limit() {
    let clock = Arc::new(AtomicU64::new(NOON));
    let (server, times) = robot(clock.clone());
    let files = Files::new();
    let mut config = files.config("dingtalk", &server.url("/robot/send?access_token=abcdefgh"), "");
    // As fast as it can: a new P0 each second, and no waiting.
    config.group_wait = std::time::Duration::ZERO;
    let (sinks, mut state) = (Sinks::open(&config), State::default());
    for second in 1..=300 {
        let now = NOON + second * 1000;
        clock.store(now, Ordering::SeqCst);
        let conditions = (0..second).map(node).collect();
        state.observe(&config, &Observation { conditions, time: now, complete: true }, now);
        let done = deliver(&mut state, &config, &sinks, &mut Nowhere, &|| now);
        assert_eq!(done.failed, Vec::new());
    }
    let times = times.lock().unwrap();
    assert!(times.len() >= 80, "{}", times.len());
    assert!(times.windows(21).all(|window| window[20] - window[0] > 60_000));
}
