use proptest::prelude::*;

use super::*;

/// What happens in a play.
#[derive(Clone, Debug)]
enum Step {
    Begin(u8, u8, u8),
    End(u8),
    Incomplete(bool),
    Answer(u8),
    /// The process dies after the message was sent, before the answer was committed.
    Crash,
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..12_u8, 0..3_u8, 0..6_u8).prop_map(|(key, priority, node)| Step::Begin(key, priority, node)),
        3 => (0..12_u8).prop_map(Step::End),
        1 => any::<bool>().prop_map(Step::Incomplete),
        2 => (0..3_u8).prop_map(Step::Answer),
        1 => Just(Step::Crash),
        8 => (1..2000_u16).prop_map(Step::Wait),
    ]
}

const PRIORITIES: [Priority; 3] = [Priority::P2, Priority::P1, Priority::P0];

/// All that the receiver got, in order, and the times of all attempts.
#[derive(Debug, Default)]
struct Receiver {
    got: Vec<Message>,
    attempts: Vec<UnixMillis>,
    crashes: usize,
}

/// Plays steps in rounds of seven seconds.
fn play(steps: &[Step], quiet: bool) -> (Play, Receiver) {
    let mut policy = one();
    policy.resolve_after = std::time::Duration::from_secs(60);
    if quiet {
        policy.quiet_hours = Some(QuietHours::try_from("12:10-13:40".to_owned()).unwrap());
    }
    let mut play = Play::new(policy);
    let mut receiver = Receiver::default();
    let (mut mode, mut crash) = (0, false);
    let calm = [Step::Incomplete(false), Step::Answer(0), Step::Wait(20_000)];
    for step in steps.iter().chain(&calm) {
        let seconds = match step {
            Step::Begin(key, priority, node) => {
                let key = format!("c{key}");
                let mut next = condition(&key, PRIORITIES[usize::from(*priority)], &[&format!("n{node}")]);
                if let Some(known) = play.conditions.get(&key) {
                    next.nodes.extend(known.nodes.clone());
                }
                play.begin(next);
                0
            }
            Step::End(key) => {
                play.end(&format!("c{key}"));
                0
            }
            Step::Incomplete(is) => {
                play.complete = !is;
                0
            }
            Step::Answer(next) => {
                mode = *next;
                0
            }
            Step::Crash => {
                crash = true;
                0
            }
            Step::Wait(seconds) => u64::from(*seconds),
        };
        for _ in 0..=seconds / 7 {
            play.observe();
            while let Some(message) = play.state.next(&play.policy, "chat", play.now) {
                let committed = play.state.clone();
                receiver.attempts.push(play.now);
                let outcome = match mode {
                    0 => Outcome::Accepted,
                    1 => Outcome::Later { problem: "busy".to_owned(), wait: None },
                    _ => Outcome::Rejected { problem: "bad".to_owned() },
                };
                if mode == 0 {
                    receiver.got.push(message.clone());
                }
                if std::mem::take(&mut crash) {
                    receiver.crashes += 1;
                    play.state = serde_json::from_str(&serde_json::to_string(&committed).unwrap()).unwrap();
                } else {
                    play.state.finished("chat", &message.id, &outcome, play.now);
                }
            }
            play.now += 7 * SECOND;
        }
    }
    (play, receiver)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// A receiver that follows the messages, and drops ids that it knows, knows exactly the open conditions at the end.
    #[test]
    fn nothing_is_lost(steps in proptest::collection::vec(step(), 0..60), quiet in any::<bool>()) {
        let (play, receiver) = play(&steps, quiet);
        let mut known = BTreeSet::new();
        let mut open: BTreeMap<&str, (Priority, BTreeSet<&String>)> = BTreeMap::new();
        for message in receiver.got.iter().filter(|message| known.insert(message.id.as_str())) {
            for entry in &message.entries {
                let was_open = open.contains_key(entry.key.as_str());
                match entry.kind {
                    EntryKind::New => prop_assert!(!was_open, "{} is known", entry.key),
                    EntryKind::Passed => prop_assert!(!was_open, "{} was notified", entry.key),
                    _ => prop_assert!(was_open, "{}: {:?} without a beginning", entry.key, entry.kind),
                }
                if entry.kind.is_over() {
                    open.remove(entry.key.as_str());
                } else {
                    let known = open.entry(&entry.key).or_default();
                    known.0 = known.0.max(entry.priority);
                    known.1.extend(&entry.nodes);
                }
            }
        }
        let wanted: Vec<&String> = play.conditions.keys().collect();
        prop_assert_eq!(open.keys().copied().collect::<Vec<_>>(), wanted);
        for (key, condition) in &play.conditions {
            let (priority, nodes) = &open[key.as_str()];
            prop_assert!(*priority >= condition.priority);
            prop_assert!(condition.nodes.keys().all(|node| nodes.contains(node)), "{} lacks nodes", key);
        }
    }

    /// A receiver that knows each condition by its priority has one alert of each open condition at the end, and gets no end of one that it
    /// never had.
    #[test]
    fn each_condition_is_known_by_one_priority(steps in proptest::collection::vec(step(), 0..60), quiet in any::<bool>()) {
        let (play, receiver) = play(&steps, quiet);
        let mut ids = BTreeSet::new();
        let mut firing: BTreeSet<(&str, Priority)> = BTreeSet::new();
        for message in receiver.got.iter().filter(|message| ids.insert(message.id.as_str())) {
            for entry in &message.entries {
                let key = entry.key.as_str();
                if let Some(former) = entry.known_by {
                    prop_assert!(firing.remove(&(key, former)), "{key} was not {former}");
                }
                match entry.kind {
                    EntryKind::Passed => {}
                    EntryKind::Resolved if entry.known_by.is_some() => {}
                    EntryKind::Resolved => prop_assert!(firing.remove(&(key, entry.priority)), "{key} had another one"),
                    _ => { firing.insert((key, entry.priority)); }
                }
            }
        }
        let open: Vec<&str> = firing.iter().map(|(key, _)| *key).collect();
        prop_assert_eq!(open, play.conditions.keys().map(String::as_str).collect::<Vec<_>>());
    }

    #[test]
    fn no_minute_has_more_attempts_than_the_limit(
        steps in proptest::collection::vec(step(), 0..60),
        limit in 1..5_usize,
    ) {
        let mut policy = one();
        policy.sinks.get_mut("chat").unwrap().per_minute = u32::try_from(limit).unwrap();
        policy.group_wait = std::time::Duration::ZERO;
        policy.group_interval = std::time::Duration::from_secs(10);
        let mut play = Play::new(policy);
        let mut attempts: Vec<UnixMillis> = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            play.begin(condition(&format!("x{index}"), Priority::P0, &[&format!("{step:?}")]));
            for _ in 0..4 {
                play.now += SECOND;
                play.round(&mut |_| { attempts.push(0); Outcome::Accepted });
                let now = play.now;
                attempts.iter_mut().filter(|time| **time == 0).for_each(|time| *time = now);
            }
        }
        for window in attempts.windows(limit + 1) {
            prop_assert!(window[limit] - window[0] > MINUTE, "{:?}", window);
        }
    }

    /// Each crash repeats one message, with its id and content.
    #[test]
    fn a_crash_repeats_only_the_message_under_way(steps in proptest::collection::vec(step(), 0..60)) {
        let (_, receiver) = play(&steps, false);
        let mut by_id: BTreeMap<&str, Vec<&Message>> = BTreeMap::new();
        for message in &receiver.got {
            by_id.entry(&message.id).or_default().push(message);
        }
        let repeats: usize = by_id.values().map(|same| same.len() - 1).sum();
        prop_assert!(repeats <= receiver.crashes, "{repeats} repeats, {} crashes", receiver.crashes);
        prop_assert!(by_id.values().all(|same| same.iter().all(|message| *message == same[0])));
    }

    #[test]
    fn the_order_of_conditions_does_not_matter(
        order in Just((0..40).collect::<Vec<usize>>()).prop_shuffle(),
    ) {
        // Ten keys, four conditions each.
        let all: Vec<Condition> = (0..40)
            .map(|index| {
                let (key, copy) = (index % 10, index / 10);
                // Of half of the keys the copies differ only in nodes and times.
                let varied = if key < 5 { 0 } else { copy };
                let priority = PRIORITIES[(key + varied) % 3];
                let mut one = condition(&format!("c{key}"), priority, &[&format!("n{index}")]);
                one.title = format!("title {varied}");
                one.since = (copy > 0).then_some(NOON - index as u64);
                one
            })
            .collect();
        let observed = |conditions: Vec<Condition>| {
            let mut state = State::default();
            state.observe(&one(), &Observation { conditions, time: NOON, complete: true }, NOON);
            state
        };
        let shuffled = order.iter().map(|index| all[*index].clone()).collect();
        prop_assert_eq!(observed(shuffled), observed(all));
    }
}
