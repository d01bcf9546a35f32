//! Pages of small fleets.

use std::collections::BTreeMap;

use railgate_fleet::{
    Attempt, Cause, Drainer, Event, Grade, History, NodeFinding, Outcome, Settings, Shared, SharedKind,
    Source, What, judge,
};
use railgate_model::{Class, Severity};

use crate::{Facts, Names, html};

/// 2026-11-26, a Thursday.
const T: u64 = 1_795_651_200_000;
const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// Events up to 2026-12-24.
#[derive(Default)]
struct Story {
    events: Vec<Event>,
}

fn name(node: usize) -> String {
    format!("n{node:02}")
}

fn list(nodes: &[String]) -> String {
    nodes.join(",")
}

fn withheld() -> Names {
    Names::Withheld { why: "PrivateData of Slurm contains jobs".to_owned() }
}

fn shown() -> Names {
    Names::Shown { users: BTreeMap::from([(60_001, "alice".to_owned())]) }
}

impl Story {
    fn add(&mut self, time: u64, what: What) {
        self.events.push(Event { id: format!("e{}", self.events.len()), time, source: Source::Root, what });
    }

    fn fault(&mut self, node: &str, time: u64, cause: Cause) {
        let finding = NodeFinding {
            node: node.to_owned(),
            check: "test".to_owned(),
            severity: Severity::Fail,
            class: Class::Node,
            cause,
            grade: Grade::Proof,
            card: None,
            leaf: None,
            accuser: None,
        };
        self.add(time, What::Finding(finding));
    }

    fn job(&mut self, job: u32, nodes: Vec<String>, end: u64, outcome: Outcome) {
        let attempt = Attempt {
            job,
            attempt: 0,
            uid: 60_001,
            partition: "train".to_owned(),
            gpus: 8 * u32::try_from(nodes.len()).unwrap(),
            nodes: nodes.iter().collect(),
            queued: end - 11 * HOUR,
            start: end - 10 * HOUR,
            end: Some((end, outcome)),
        };
        self.add(end, What::JobEnded(attempt));
    }

    /// 64 nodes below two leaf switches; n05 is a lemon; leaf0 fails now; n60 to n62 are drained; a job took its nodes with it.
    fn eventful() -> Story {
        let mut story = Story::default();
        for node in 0..64 {
            let leaf = Shared { kind: SharedKind::Leaf, name: format!("leaf{}", node / 32) };
            story.add(T, What::Placed { node: name(node), shares: vec![leaf] });
        }
        for node in 40..50 {
            story.fault(&name(node), T + (node as u64 - 39) * 2 * DAY, Cause::Host);
        }
        for day in [3, 9, 15, 21] {
            story.fault("n05", T + day * DAY, Cause::Gpu);
        }
        story.job(7, vec![name(5), name(6)], T + 9 * DAY + MINUTE, Outcome::Failed);
        story.job(48213, (20..40).map(name).collect(), T + 10 * DAY, Outcome::NodeFail);
        for node in 20..40 {
            story.add(T + 10 * DAY + node as u64 * 1000, What::Down { node: name(node) });
            story.add(T + 10 * DAY + HOUR, What::Resumed { node: name(node) });
        }
        story.job(8, vec![name(50)], T + 12 * DAY, Outcome::Completed);
        story.job(9, vec![name(51)], T + 12 * DAY, Outcome::Failed);
        for node in 6..30 {
            story.fault(&name(node), T + 28 * DAY - 20 * MINUTE + node as u64 * 1000, Cause::Network);
        }
        for (node, by, reason) in [
            (60, Drainer::Railgate, "railgate: gpu-lost@3: off bus, Xid 79; reboot [epilog job=48213]"),
            (61, Drainer::Admin, "alice broke it with job 48213"),
            (62, Drainer::Slurm, "Kill task failed"),
        ] {
            let reason = reason.to_owned();
            story.add(T + 27 * DAY, What::Drained { node: name(node), by, reason });
        }
        story
    }

    fn page(&self, names: &Names) -> String {
        let history = History::new(self.events.iter().cloned(), T + 28 * DAY);
        let settings = Settings::default();
        let judgement = judge(&history, &settings);
        html(&Facts {
            history: &history,
            judgement: &judgement,
            settings: &settings,
            drains_lemons: false,
            names,
            host_list: list,
            railgate: "1.0",
        })
    }
}

/// Fails with the whole page if a part is missing.
fn has(page: &str, parts: &[&str]) {
    for part in parts {
        assert!(page.contains(part), "{part:?} is not in:\n{page}");
    }
}

/// Tags open and close in order; text between quotes is no tag.
fn balanced(page: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let body = page.split_once("</style></head>").map_or(page, |(_, body)| body);
    for piece in body.split('<').skip(1) {
        let tag = piece.split('>').next().unwrap_or_default();
        match tag.strip_prefix('/') {
            Some("html") => {}
            Some(name) if open.last() == Some(&name) => {
                open.pop();
            }
            Some(name) => return Err(format!("</{name}> after {:?}", open.last())),
            None => open.push(tag.split(' ').next().unwrap_or_default()),
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("{open:?} stay open")) }
}

#[test]
fn the_page_begins_with_what_needs_action() {
    let page = Story::eventful().page(&shown());
    assert_eq!(balanced(&page), Ok(()));
    has(
        &page,
        &[
            "1 open incident, 1 lemon, 3 nodes out of service",
            "64 nodes and 4 job attempts from 2026-11-26 00:00 to 2026-12-24 00:00",
            "2026-12-23 23:40</td><td>network</td><td class=\"n\">24 of 32</td>",
            "24 of 32 nodes of leaf switch leaf0 failed: network",
            "Rate, times the fleet's (90 % interval)",
            "drain it after a self-test confirms a fault",
            // Its number of faults is in the columns after.
            "<td class=\"s\">4 x GPU",
            "<td class=\"l\">n60</td><td>railgate</td><td>railgate: gpu-lost@3: off bus, Xid 79; reboot [epilog job=48213]",
            "<td class=\"l\">n62</td><td>Slurm</td><td>Kill task failed",
        ],
    );
    let places: Vec<usize> =
        ["Open incidents", "Lemons,", "Nodes out of service", "Figures of the period", "by day"]
            .iter()
            .map(|part| page.find(part).unwrap())
            .collect();
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn figures_have_units_and_bounds() {
    let page = Story::eventful().page(&shown());
    has(
        &page,
        &[
            // 2 + 20 + 1 + 1 nodes with 8 GPUs for 10 h.
            "1,920 GPU-hours",
            "of these GPU-hours were productive (lower to upper bound)",
            "Lost GPU-hours (lower to upper bound)",
            "<td>node: GPU</td><td class=\"n\">1</td><td class=\"n\">0 to 160</td>",
            "<td>job that failed its nodes</td><td class=\"n\">1</td><td class=\"n\">0 to 1,600</td>",
            "<td>could not tell: no evidence against one node</td><td class=\"n\">1</td>",
            "Hours to failure (90 % interval)",
            "more than ",
            "could not tell: no job of about this size has failed because of a node</td>",
            "Time between checkpoints, if one takes 30 s; 5 min",
            "<td>network</td><td class=\"n\">0</td><td class=\"n\">24</td>",
        ],
    );
}

#[test]
fn the_picture_has_only_nodes_with_faults() {
    let page = Story::eventful().page(&shown());
    let picture = page.split("Nodes with faults, by day").nth(1).unwrap();
    has(
        picture,
        &[
            "2026-11-29: 1 counted, 0 set aside (GPU)",
            "2026-12-23: 0 counted, 1 set aside (network)",
            "class=\"bar\"",
            "Further nodes: ",
        ],
    );
    let lane = |node: &str| picture.find(&format!("class=\"name\" x=\"0\" y=\"33.0\">{node}<")).is_some();
    assert!(lane("n05"), "the node with the most faults that count comes first");
    assert!(!picture.contains(">n55<") && !picture.contains(">n60<"));
}

#[test]
fn names_and_jobs_are_shown_or_withheld_everywhere() {
    let story = Story::eventful();
    let page = story.page(&shown());
    has(
        &page,
        &[
            "20 of 20 nodes of job 48213 of alice failed with it: no answer",
            "<td class=\"n\">7</td><td>alice</td>",
            "alice broke it with job 48213",
        ],
    );
    let page = story.page(&withheld());
    has(
        &page,
        &[
            "Without user names and job IDs: PrivateData of Slurm contains jobs.",
            "20 of 20 nodes of a job failed with it: no answer",
            "<td>railgate: gpu-lost@3</td>",
            "text of an admin, which can name users and jobs: sinfo -R",
            "Kill task failed",
        ],
    );
    for secret in ["48213", "alice", "60001", "job 7"] {
        assert!(!page.contains(secret), "{secret}");
    }
}

#[test]
fn jobs_of_one_user_have_no_name_either() {
    let mut story = Story::eventful();
    let end = T + 25 * DAY;
    for (job, node) in (152..).zip(52..60) {
        story.job(job, vec![name(node)], end + node as u64 * 1000, Outcome::NodeFail);
        story.add(end + node as u64 * 1000, What::Down { node: name(node) });
    }
    has(&story.page(&shown()), &["8 of 8 nodes with jobs of alice failed: no answer"]);
    has(&story.page(&withheld()), &["8 of 8 nodes with jobs of one user failed: no answer"]);
}

#[test]
fn a_user_without_a_name_is_shown_by_id() {
    let page = Story::eventful().page(&Names::Shown { users: BTreeMap::new() });
    has(&page, &["nodes of job 48213 of uid 60001 failed with it"]);
}

#[test]
fn an_empty_history_is_not_a_healthy_fleet() {
    let page = Story::default().page(&withheld());
    assert_eq!(balanced(&page), Ok(()));
    has(
        &page,
        &[
            "No events yet: railgate-fleet takes them in.",
            "could not tell: no attempt with a known number of GPUs",
            "could not tell: no job has run",
        ],
    );
}

#[test]
fn a_node_that_became_known_late_is_not_shown_as_healthy_before() {
    let mut story = Story::eventful();
    story.fault("new", T + 20 * DAY, Cause::Gpu);
    let page = story.page(&shown());
    has(&page, &["<rect class=\"unknown\""]);
    assert_eq!(Story::eventful().page(&shown()).matches("<rect class=\"unknown\"").count(), 0);
}

#[test]
fn the_order_of_the_events_changes_nothing() {
    let story = Story::eventful();
    let mut other = Story { events: story.events.clone() };
    other.events.reverse();
    assert_eq!(story.page(&shown()), other.page(&shown()));
}

#[test]
fn no_foreign_text_becomes_a_tag() {
    let evil = "\"><script>alert(1)</script><b onmouseover='x'>\u{202e}\0&amp;";
    let mut story = Story::eventful();
    story.add(T, What::Placed { node: evil.to_owned(), shares: vec![] });
    for day in [3, 9, 15, 21] {
        story.fault(evil, T + day * DAY, Cause::Gpu);
    }
    story.add(
        T + 26 * DAY,
        What::Drained { node: evil.to_owned(), by: Drainer::Admin, reason: evil.to_owned() },
    );
    for node in 0..6 {
        let rack = Shared { kind: SharedKind::Rack, name: evil.to_owned() };
        story.add(T + DAY, What::Placed { node: name(node), shares: vec![rack] });
        story.fault(&name(node), T + 24 * DAY + node as u64 * 1000, Cause::Power);
    }
    let attempt = Attempt {
        job: 3,
        attempt: 0,
        uid: 60_001,
        partition: evil.to_owned(),
        nodes: [evil].iter().collect(),
        gpus: 8,
        queued: T,
        start: T + DAY,
        end: Some((T + 3 * DAY, Outcome::Failed)),
    };
    story.add(T + 3 * DAY, What::JobEnded(attempt));
    let names = [
        Names::Shown { users: BTreeMap::from([(60_001, evil.to_owned())]) },
        Names::Withheld { why: evil.to_owned() },
    ];
    for names in names {
        let page = story.page(&names);
        assert_eq!(balanced(&page), Ok(()));
        let scripts = page.matches("<script").count();
        assert_eq!(scripts, 1, "the page's own, which its policy permits by its digest");
        assert!(!page.contains("<b ") && !page.contains('\u{202e}'));
        assert!(!page.contains('\0'));
        assert!(page.matches("&lt;script&gt;").count() > 6, "{page}");
        for outside in ["http://", "https://", "<link", "url(", "@import", "<img"] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}

#[test]
fn long_names_and_many_faults_leave_the_page_small() {
    let mut story = Story::default();
    for node in 0..1200 {
        for day in 0..28 {
            story.fault(&format!("{}{node:04}", "n".repeat(300)), T + day * DAY + HOUR, Cause::Gpu);
        }
    }
    let page = story.page(&shown());
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    has(
        &page,
        &["1,200 of 1,200 nodes had faults from 2026-11-26", "more: <code>railgate fleet node NAME</code>"],
    );
}

#[test]
fn the_map_has_a_square_for_each_node_by_what_is_known_of_places() {
    let mut story = Story::eventful();
    let page = story.page(&shown());
    let (_, map) = page.split_once("<h2>Map</h2>").unwrap();
    let (map, _) = map.split_once("<h2>").unwrap();
    assert!(map.contains("By leaf switch. "), "{map}");
    assert_eq!(map.matches("<rect").count(), 64);
    assert!(map.contains("<title>n60: out of service</title>"), "{map}");
    assert!(map.contains("<title>n20: in an open incident</title>"), "{map}");
    assert!(map.contains("32 nodes: "), "{map}");
    // Racks come before leaf switches, and a node without a rack is named.
    for node in 0..63 {
        let rack = Shared { kind: SharedKind::Rack, name: format!("r{}", node / 8) };
        story.add(T, What::Placed { node: name(node), shares: vec![rack] });
    }
    let page = story.page(&shown());
    let (_, map) = page.split_once("<h2>Map</h2>").unwrap();
    let (map, _) = map.split_once("<h2>").unwrap();
    assert!(map.contains("By rack. ") && map.contains("<strong>no known rack</strong>"), "{map}");
    assert!(map.contains("All nodes in service: "), "{map}");
    let empty = Story::default().page(&shown());
    assert!(empty.contains("No racks or leaf switches are known"), "{empty}");
}

#[test]
fn incidents_are_on_a_time_line_and_drains_have_their_checks() {
    let mut story = Story::eventful();
    let reason = "railgate: test: x".to_owned();
    story.add(T + 3 * DAY + MINUTE, What::Drained { node: name(5), by: Drainer::Railgate, reason });
    story.add(T + 3 * DAY + HOUR, What::Resumed { node: name(5) });
    let page = story.page(&shown());
    let (_, line) = page.split_once("<h2>Incidents by day</h2>").unwrap();
    let (line, _) = line.split_once("<h2>").unwrap();
    assert!(line.contains("leaf switch</text>") && line.contains("one job</text>"), "{line}");
    assert!(line.contains(r#"class="bad""#) && line.contains(r#"class="calm""#), "{line}");
    let (_, checks) = page.split_once("<h2>Drains by check, and what confirmed them</h2>").unwrap();
    let (checks, _) = checks.split_once("<h2>").unwrap();
    // The fault came again six days later.
    let row = "<td>test</td><td class=\"n\">1</td><td class=\"n\">1</td><td class=\"n\">0</td><td class=\"n\">0</td>";
    assert!(checks.contains(row) && checks.contains("could not tell: too few"), "{checks}");
}
