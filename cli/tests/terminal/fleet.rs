//! `railgate fleet`: a history in which every text is hostile.

use std::os::unix::fs::PermissionsExt;

use railgate_fleet::{
    Attempt, Card, Cause, Drainer, Event, Grade, NodeFinding, Outcome, Shared, SharedKind, Source, What,
};
use railgate_fleet_store::Writer;
use railgate_model::{Class, Severity};

use crate::stage::{Stage, hostile};

const T: u64 = 1_700_000_000_000;

/// Events about a node whose name is hostile, and about gn1.
fn events() -> Vec<Event> {
    let text = hostile();
    let mut all = Vec::new();
    for node in ["gn1".to_owned(), text.clone()] {
        let finding = NodeFinding {
            node: node.clone(),
            check: text.clone(),
            severity: Severity::Fail,
            class: Class::Node,
            cause: Cause::Gpu,
            grade: Grade::Proof,
            card: Some(text.clone()),
            leaf: Some(text.clone()),
            accuser: None,
        };
        let leaf = Shared { kind: SharedKind::Leaf, name: text.clone() };
        let attempt = Attempt {
            job: 7,
            attempt: 0,
            uid: 1000,
            partition: text.clone(),
            nodes: vec![node.clone()],
            gpus: 8,
            queued: T,
            start: T,
            end: Some((T + 3_600_000, Outcome::Failed)),
        };
        all.extend([
            What::Placed { node: node.clone(), shares: vec![leaf] },
            What::Cards {
                node: node.clone(),
                cards: vec![Card { uuid: text.clone(), serial: text.clone() }],
            },
            What::Finding(finding),
            What::SelfTested { node: node.clone(), figure: text.clone(), value: None, passed: None },
            What::Maintained { node: node.clone(), repair: false, card: Some(text.clone()) },
            What::JobEnded(attempt),
            What::Drained { node, by: Drainer::Admin, reason: text.clone() },
        ]);
    }
    let event = |(number, what): (usize, What)| Event {
        id: format!("{number}{text}"),
        time: T + number as u64 * 1000,
        source: Source::Root,
        what,
    };
    all.into_iter().enumerate().map(event).collect()
}

pub(crate) fn fleet(stage: &mut Stage) {
    let text = hostile();
    let dir = stage.path("state/fleet");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    let mut writer = Writer::open(&dir.join("fleet.db"), "test", T).unwrap();
    writer.take_in(&events(), T).unwrap();
    drop(writer);
    stage.shows_both(&["fleet"], true);
    stage.shows_both(&["fleet", "node", "gn1"], true);
    stage.shows_both(&["fleet", "node", &text], true);
    stage.shows_both(&["fleet", "card", &text], true);
    stage.shows_both(&["fleet", "cost"], true);
    stage.shows(&["fleet", "export"]);
    for command in ["incidents", "lemons"] {
        stage.run(&["fleet", command]);
        stage.run(&["fleet", command, "--format", "json"]);
    }
    let other = format!("x{text}");
    for command in ["node", "card", "incident"] {
        stage.shows(&["fleet", command, &other]);
    }
    stage.shows(&["fleet", "--database", &other]);
    stage.write("state/fleet/fleet.db", &text);
    stage.run(&["fleet"]);
}
