use super::*;
use EntryKind::{Changed, New, Passed, Repeated, Resolved};

#[test]
fn five_hundred_nodes_that_fail_within_ten_seconds_are_one_message() {
    for step in [20, 200, 1000, 9999] {
        let mut play = Play::new(one());
        for node in 0..500 {
            if node * 20 % step == 0 {
                play.round(&mut |_| Outcome::Accepted);
            }
            play.now = NOON + node * 20;
            play.begin(condition(&format!("node/gn{node:03}"), Priority::P1, &[&format!("gn{node:03}")]));
        }
        let messages = play.run(10 * MINUTE);
        assert!(messages.len() <= 2, "step {step}: {} messages", messages.len());
        assert_eq!(entries(&messages).len(), 500);
        assert!(entries(&messages).iter().all(|(kind, _)| *kind == New));
    }
}

#[test]
fn an_incident_that_grows_is_reported_once_and_then_with_its_change() {
    let mut play = Play::new(one());
    play.begin(condition("incident/leaf/sw1", Priority::P0, &["a", "b", "c"]));
    assert_eq!(entries(&play.run(MINUTE)), [(New, "incident/leaf/sw1")]);
    play.begin(condition("incident/leaf/sw1", Priority::P0, &["a", "b", "c", "d"]));
    assert_eq!(entries(&play.run(MINUTE)), [(Changed, "incident/leaf/sw1")]);
    // Fewer nodes, and one that is back, are no change.
    play.begin(condition("incident/leaf/sw1", Priority::P0, &["a", "b"]));
    assert_eq!(entries(&play.run(MINUTE)), []);
    play.begin(condition("incident/leaf/sw1", Priority::P0, &["a", "b", "d"]));
    assert_eq!(entries(&play.run(MINUTE)), []);
}

#[test]
fn a_condition_that_lasts_is_repeated_at_growing_intervals() {
    let mut play = Play::new(one());
    play.begin(condition("node/a", Priority::P1, &["a"]));
    play.run(60 * HOUR);
    let times: Vec<UnixMillis> = play.sent.iter().map(|(time, _)| time - NOON).collect();
    let gaps: Vec<UnixMillis> = times.windows(2).map(|two| (two[1] - two[0]).div_ceil(MINUTE)).collect();
    assert_eq!(gaps, [15, 60, 240, 1440, 1440]);
    // A change resets them.
    play.begin(condition("node/a", Priority::P0, &["a"]));
    assert_eq!(entries(&play.run(MINUTE)), [(Changed, "node/a")]);
    assert_eq!(entries(&play.run(15 * MINUTE)), [(Repeated, "node/a")]);
}

#[test]
fn repeats_that_are_nearly_due_go_together() {
    let mut play = Play::new(one());
    for minute in 0..3 {
        play.begin(condition(&format!("node/{minute}"), Priority::P0, &["a"]));
        play.run(MINUTE);
    }
    let messages = play.run(15 * MINUTE);
    assert_eq!(messages.len(), 1);
    assert_eq!(entries(&messages).len(), 3);
}

#[test]
fn a_condition_is_over_when_complete_observations_are_without_it() {
    let mut play = Play::new(one());
    play.begin(condition("node/a", Priority::P1, &["a"]));
    play.run(MINUTE);
    play.end("node/a");
    play.complete = false;
    assert_eq!(entries(&play.run(8 * MINUTE)), []);
    play.complete = true;
    assert_eq!(entries(&play.run(4 * MINUTE)), []);
    // It is back before the time is over: nothing happened.
    play.begin(condition("node/a", Priority::P1, &["a"]));
    play.run(5 * SECOND);
    play.end("node/a");
    assert_eq!(entries(&play.run(4 * MINUTE)), []);
    let messages = play.run(7 * MINUTE);
    assert_eq!(entries(&messages), [(Resolved, "node/a")]);
    assert!(messages[0].entries[0].ended.is_some());
}

#[test]
fn quiet_hours_hold_everything_but_p0() {
    let mut policy = one();
    policy.quiet_hours = Some(QuietHours::try_from("13:00-14:00".to_owned()).unwrap());
    let mut play = Play::new(policy);
    play.run(HOUR + MINUTE);
    play.begin(condition("node/a", Priority::P1, &["a"]));
    play.begin(condition("node/b", Priority::P2, &["b"]));
    play.begin(condition("node/c", Priority::P0, &["c"]));
    assert_eq!(entries(&play.run(10 * MINUTE)), [(New, "node/c")]);
    play.end("node/b");
    play.run(48 * MINUTE);
    let messages = play.run(2 * MINUTE);
    assert_eq!(messages.len(), 1);
    assert_eq!(entries(&messages), [(New, "node/a"), (Passed, "node/b")]);
}

#[test]
fn a_silence_holds_until_its_end() {
    let silence = "[silences.work]\nnodes = [\"a*\"]\nuntil = \"2026-01-05T13:00:00Z\"\nreason = \"x\"\n";
    let mut play =
        Play::new(policy(&format!("[sinks.chat]\nkind = \"wecom\"\nurl_file = \"/x\"\n{silence}")));
    play.begin(condition("node/a1", Priority::P0, &["a1"]));
    play.begin(condition("node/a2", Priority::P0, &["a2"]));
    play.begin(condition("incident/rack/r1", Priority::P0, &["a1", "b1"]));
    let messages = play.run(30 * MINUTE);
    assert!(entries(&messages).iter().all(|(_, key)| *key == "incident/rack/r1"));
    assert_eq!(messages[0].entries[0].nodes, ["b1"]);
    play.end("node/a2");
    play.run(29 * MINUTE);
    let messages = play.run(2 * MINUTE);
    // The incident has a further node now; node/a2 began and ended inside of the silence.
    assert_eq!(entries(&messages), [(Changed, "incident/rack/r1"), (New, "node/a1")]);
}

#[test]
fn a_silence_can_name_a_check_and_a_reservation() {
    for (keys, covers) in [
        ("check = 'gpu-lost'", true),
        ("check = 'gpu-ecc'", false),
        ("reservation = 'maint'", true),
        ("reservation = 'other'", false),
        ("check = 'gpu-lost'\nreservation = 'maint'\nnodes = ['a']", true),
        ("check = 'gpu-lost'\nreservation = 'maint'\nnodes = ['b']", false),
    ] {
        let silence = format!("[silences.s]\nuntil = '2027-01-05T13:00:00Z'\nreason = 'x'\n{keys}\n");
        let mut play = Play::new(policy(&format!("[sinks.c]\nkind = 'wecom'\nurl_file = '/x'\n{silence}")));
        let mut of_a = condition("node/a", Priority::P0, &["a"]);
        of_a.nodes.get_mut("a").unwrap().insert("maint".to_owned());
        play.begin(of_a);
        assert_eq!(play.run(MINUTE).is_empty(), covers, "{keys}");
    }
}

#[test]
fn receivers_get_the_priorities_that_they_ask_for() {
    let chat =
        |name: &str, least| format!("[sinks.{name}]\nkind = 'wecom'\nurl_file = '/x'\nleast = '{least}'\n");
    let mut play = Play::new(policy(&(chat("all", "P2") + &chat("night", "P0"))));
    play.begin(condition("node/a", Priority::P2, &["a"]));
    play.begin(condition("node/b", Priority::P0, &["b"]));
    let got = |messages: &[Message], sink: &str| -> Vec<(EntryKind, String)> {
        let of = messages.iter().filter(|message| message.sink == sink).flat_map(|message| &message.entries);
        of.map(|entry| (entry.kind, entry.key.clone())).collect()
    };
    let messages = play.run(MINUTE);
    assert_eq!(got(&messages, "all").len(), 2);
    assert_eq!(got(&messages, "night"), [(New, "node/b".to_owned())]);
    // It is new for the receiver that did not get it before.
    play.begin(condition("node/a", Priority::P0, &["a"]));
    let messages = play.run(MINUTE);
    assert_eq!(got(&messages, "all"), [(Changed, "node/a".to_owned())]);
    assert_eq!(got(&messages, "night"), [(New, "node/a".to_owned())]);
}

#[test]
fn the_digest_is_made_once_a_day_and_lists_what_is_open() {
    let mut policy = one();
    policy.digest = Some(DayTime::try_from("17:00".to_owned()).unwrap());
    policy.utc_offset = UtcOffset::try_from("+08:00".to_owned()).unwrap();
    let mut play = Play::new(policy);
    play.begin(condition("node/a", Priority::P2, &["a"]));
    play.run(48 * HOUR);
    let digests: Vec<&(UnixMillis, Message)> =
        play.sent.iter().filter(|(_, message)| message.kind == MessageKind::Digest).collect();
    let times: Vec<UnixMillis> = digests.iter().map(|(time, _)| (time - NOON) / HOUR).collect();
    assert_eq!(times, [21, 45]);
    assert_eq!(digests[0].1.counts, [1, 0, 0]);
    assert_eq!(digests[1].1.counts, [0, 0, 0]);
    assert_eq!(digests[0].1.entries.len(), 1);
}

#[test]
fn without_anything_to_list_there_is_no_digest() {
    let mut policy = one();
    policy.digest = Some(DayTime::try_from("17:00".to_owned()).unwrap());
    let mut play = Play::new(policy);
    assert_eq!(play.run(48 * HOUR), []);
}

#[test]
fn the_heartbeat_stops_while_the_data_is_old() {
    let mut policy = one();
    policy.sinks.get_mut("chat").unwrap().heartbeat = Some(Span(std::time::Duration::from_secs(300)));
    let mut play = Play::new(policy);
    let beats = |play: &mut Play, minutes: u64| -> usize {
        let mut count = 0;
        for _ in 0..minutes {
            play.now += MINUTE;
            play.round(&mut |_| Outcome::Accepted);
            count += usize::from(play.state.heartbeat(&play.policy, "chat", play.now).is_some());
        }
        count
    };
    assert_eq!(beats(&mut play, 60), 12);
    play.complete = false;
    beats(&mut play, 10);
    assert_eq!(beats(&mut play, 60), 0);
    assert!(play.sent.iter().any(|(_, message)| entries(std::slice::from_ref(message)) == [(New, BLIND)]));
    play.complete = true;
    assert_eq!(beats(&mut play, 60), 12);
    assert!(
        play.sent.iter().any(|(_, message)| entries(std::slice::from_ref(message)) == [(Resolved, BLIND)])
    );
}

#[test]
fn data_that_is_not_renewed_makes_it_blind_although_it_was_complete() {
    let mut play = Play::new(one());
    play.observe();
    let old = Observation { conditions: Vec::new(), time: play.now, complete: true };
    for _ in 0..12 {
        play.now += MINUTE;
        play.state.observe(&play.policy, &old, play.now);
    }
    assert!(play.state.conditions().any(|(condition, _)| condition.key == BLIND));
}

#[test]
fn a_message_that_may_have_arrived_comes_again_with_its_id() {
    let mut play = Play::new(one());
    play.begin(condition("node/a", Priority::P1, &["a"]));
    let mut tried: Vec<Message> = Vec::new();
    let mut down = |message: &Message| {
        tried.push(message.clone());
        Outcome::Later { problem: "no answer".to_owned(), wait: None }
    };
    for second in 0..1200 {
        play.now = NOON + second * SECOND;
        if second == 600 {
            play.begin(condition("node/b", Priority::P1, &["b"]));
        }
        play.round(&mut down);
    }
    let ids: BTreeSet<&String> = tried.iter().map(|message| &message.id).collect();
    assert_eq!(ids.len(), 1);
    assert!((5..=8).contains(&tried.len()), "waits grow: {} attempts in 20 min", tried.len());
    assert!(tried.windows(2).all(|two| two[0] == two[1]), "the content is the same as well");
    // The other one waits until then.
    let messages = play.run(30 * MINUTE);
    assert_eq!(entries(&messages[..2]), [(New, "node/a"), (Repeated, "node/a"), (New, "node/b")]);
}

#[test]
fn what_was_refused_goes_into_a_new_message_and_in_the_end_only_as_numbers() {
    let mut play = Play::new(one());
    play.begin(condition("node/a", Priority::P1, &["a"]));
    let mut tried: Vec<Message> = Vec::new();
    for second in 0..3600 {
        play.now = NOON + second * SECOND;
        if second == 1800 {
            play.end("node/a");
        }
        play.round(&mut |message| {
            tried.push(message.clone());
            Outcome::Rejected { problem: "invalid".to_owned() }
        });
    }
    let ids: BTreeSet<&String> = tried.iter().map(|message| &message.id).collect();
    assert_eq!(ids.len(), tried.len());
    assert!(tried[2].text(2000).contains("node/a failed") && !tried[3].text(2000).contains("node/a"));
    let sink = play.state.sinks().next().unwrap().1.clone();
    assert_eq!((sink.problem.as_deref(), sink.waiting()), (Some("invalid"), 1));
    assert_eq!(entries(&play.run(HOUR)), [(Passed, "node/a")]);
}

#[test]
fn what_waits_behind_a_refused_message_is_kept() {
    let mut play = Play::new(one());
    play.begin(condition("node/a", Priority::P0, &["a"]));
    play.begin(condition("node/b", Priority::P0, &["b"]));
    let later = Outcome::Later { problem: "busy".to_owned(), wait: None };
    let rejected = Outcome::Rejected { problem: "bad".to_owned() };
    for minute in 0..60 {
        play.now = NOON + minute * MINUTE;
        if minute == 5 {
            play.begin(condition("node/a", Priority::P0, &["a", "a2"]));
            play.end("node/b");
        }
        let outcome = if minute < 20 { &later } else { &rejected };
        play.round(&mut |_| outcome.clone());
    }
    play.state.sinks.get_mut("chat").unwrap().refusals = 0;
    let messages = play.run(20 * MINUTE);
    assert_eq!(entries(&messages[..1]), [(New, "node/a"), (Passed, "node/b")]);
    assert_eq!(messages[0].entries[0].nodes, ["a", "a2"]);
}

#[test]
fn a_clock_that_was_set_back_stops_nothing() {
    let mut play = Play::new(one());
    play.begin(condition("node/a", Priority::P1, &["a"]));
    play.run(HOUR);
    play.now -= 30 * 24 * HOUR;
    play.begin(condition("node/b", Priority::P1, &["b"]));
    assert!(entries(&play.run(10 * MINUTE)).contains(&(New, "node/b")));
}

#[test]
fn foreign_text_is_one_line_and_within_limits() {
    let mut play = Play::new(one());
    let mut hostile = condition("node/a\nX", Priority::P1, &["a\r\nBcc: x"]);
    hostile.title = format!("t\u{1b}[2J\r\nSubject: x{}", "y".repeat(10_000));
    hostile.details = "\n".repeat(100_000) + "x";
    play.begin(hostile);
    let messages = play.run(MINUTE);
    let text = messages[0].text(4000);
    assert!(text.len() < 4000 && !text.contains(['\r', '\u{1b}']));
    assert!(!text.lines().any(|line| line.starts_with("Subject") || line.starts_with("Bcc")), "{text}");
}

#[test]
fn what_does_not_fit_into_a_text_is_counted() {
    let mut play = Play::new(one());
    for node in 0..500 {
        play.begin(condition(&format!("node/{node}"), Priority::P1, &[&format!("gn{node}")]));
    }
    let messages = play.run(MINUTE);
    let text = messages[0].text(2048);
    let shown = text.matches("NEW P1").count();
    assert!(text.len() <= 2048 && shown > 5, "{shown}");
    assert!(text.contains(&format!("… and {} more", 500 - shown)), "{text}");
}

#[test]
fn a_judgement_becomes_conditions() {
    use railgate_fleet::{
        Cause, Incident, Judgement, NodeRecord, Ratio, Reason, Shared, SharedKind, Standing,
    };
    let incident = |reason, end| Incident {
        reason,
        cause: Cause::Network,
        nodes: vec!["a".to_owned()],
        of: 3,
        start: NOON,
        end,
        what: "1 of 3 nodes".to_owned(),
    };
    let record = |node: &str, standing| NodeRecord {
        node: node.to_owned(),
        standing,
        faults: 3,
        expected: 0.2,
        hours: 100.0,
        ratio: Ratio { mean: 5.0, low: 2.0, high: 9.0 },
        set_aside: 0,
        repaired: None,
        out_of_service: false,
        in_incident: false,
        reasons: vec!["Two.".to_owned()],
    };
    let judgement = Judgement {
        incidents: vec![
            incident(Reason::Shared(Shared { kind: SharedKind::Leaf, name: "sw1".to_owned() }), None),
            incident(Reason::Shared(Shared { kind: SharedKind::Driver, name: "570".to_owned() }), None),
            incident(Reason::Job { job: 7, attempt: 1 }, None),
            incident(Reason::User { uid: 1000 }, Some(NOON)),
        ],
        blames: Vec::new(),
        nodes: vec![record("a", Standing::Lemon), record("b", Standing::Ordinary)],
        faults: Vec::new(),
    };
    let mut conditions = fleet_conditions(&judgement);
    let reservations = BTreeMap::from([("a".to_owned(), "maint".to_owned())]);
    conditions.iter_mut().for_each(|condition| condition.add_reservations(&reservations));
    let got: Vec<(&str, Priority)> =
        conditions.iter().map(|condition| (condition.key.as_str(), condition.priority)).collect();
    assert_eq!(
        got,
        [
            ("incident/leaf-switch/sw1", Priority::P0),
            ("incident/driver-version/570", Priority::P1),
            ("incident/job/7.1", Priority::P2),
            ("lemon/a", Priority::P2),
        ]
    );
    assert!(conditions[0].nodes["a"].contains("maint"));
}

#[test]
fn alertmanager_gets_its_open_conditions_again_every_three_minutes() {
    let mut play = Play::new(policy("[sinks.am]\nkind = \"alertmanager\"\nurl = \"http://am\"\n"));
    play.begin(condition("node/a", Priority::P1, &["a"]));
    play.begin(condition("node/b", Priority::P1, &["b"]));
    assert_eq!(entries(&play.run(MINUTE)), [(New, "node/a"), (New, "node/b")]);
    let known = [(Repeated, "node/a"), (Repeated, "node/b")];
    for _ in 0..2 {
        let messages = play.run(3 * MINUTE);
        assert_eq!(messages.iter().map(|message| message.kind).collect::<Vec<_>>(), [MessageKind::Refresh]);
        assert_eq!(entries(&messages), known);
    }

    // A change waits for its message. Until then the refresh has the priority that Alertmanager knows.
    play.policy.quiet_hours = Some(QuietHours::try_from("12:00-13:00".to_owned()).unwrap());
    play.begin(condition("node/a", Priority::P2, &["a"]));
    play.begin(condition("node/b", Priority::P1, &["b", "c"]));
    let refresh = play.run(3 * MINUTE);
    assert_eq!(entries(&refresh), known);
    assert!(
        refresh[0].entries.iter().all(|entry| entry.priority == Priority::P1 && entry.known_by.is_none())
    );

    // A refresh that fails is not repeated. One of a silenced condition is not made.
    let mut failed = 0;
    play.now += 3 * MINUTE;
    for _ in 0..2 {
        play.round(&mut |_| {
            failed += 1;
            Outcome::Later { problem: "busy".to_owned(), wait: None }
        });
    }
    assert_eq!(failed, 1);
    let silence = "[silences.a]\nnodes = [\"a\"]\nuntil = \"2026-01-06T00:00:00Z\"\nreason = \"x\"\n";
    play.policy.silences = policy(silence).silences;
    assert_eq!(entries(&play.run(3 * MINUTE)), [(Repeated, "node/b")]);

    // The end waits for its message as well; without open conditions there is nothing to send.
    play.end("node/a");
    play.end("node/b");
    play.policy.quiet_hours = None;
    let messages = play.run(20 * MINUTE);
    let ends: Vec<_> = entries(&messages).into_iter().filter(|(kind, _)| *kind == Resolved).collect();
    assert_eq!(ends, [(Resolved, "node/b"), (Resolved, "node/a")]);
    assert_eq!(play.run(60 * MINUTE), []);
}

#[test]
fn only_alertmanager_gets_refreshes() {
    for kind in ["webhook", "slack", "wecom", "dingtalk", "feishu", "sendmail"] {
        let address = match kind {
            "sendmail" => "to = ['ops@example.org']\nfrom = 'railgate@example.org'\n",
            _ => "url_file = '/x'\n",
        };
        let mut play = Play::new(policy(&format!("[sinks.it]\nkind = '{kind}'\n{address}")));
        play.begin(condition("node/a", Priority::P1, &["a"]));
        let messages = play.run(10 * MINUTE);
        assert_eq!(entries(&messages), [(New, "node/a")], "{kind}");
    }
}
