//! Compares a judgement with the truth.

use std::collections::BTreeSet;

use railgate_fleet::{Blame, History, Judgement, Reason, Settings, Standing, costs, judge};

use crate::generator::{DAY, Fleet, HOUR, MINUTE, Parameters, Planted, Why, fleet};
use crate::meta;

/// Found, wrong and missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hits {
    /// Lemons of the last day that were named at some time.
    pub(crate) right: usize,
    /// Lemons that were named, also those that were mended later.
    pub(crate) named: usize,
    /// Nodes that were named and were no lemons then.
    pub(crate) wrong: usize,
    /// Lemons of the last day that were never named.
    pub(crate) missed: usize,
}

impl Hits {
    pub(crate) fn precision(&self) -> f64 {
        self.named as f64 / ((self.named + self.wrong) as f64).max(1.0)
    }

    pub(crate) fn recall(&self) -> f64 {
        self.right as f64 / ((self.right + self.missed) as f64).max(1.0)
    }

    fn of(named: &BTreeSet<&str>, true_lemons: &BTreeSet<&str>) -> Hits {
        let right = named.intersection(true_lemons).count();
        Hits {
            right,
            named: right,
            wrong: named.difference(true_lemons).count(),
            missed: true_lemons.difference(named).count(),
        }
    }

    /// Harmonic mean of precision and recall.
    fn f1(&self) -> f64 {
        let (precision, recall) = (self.precision(), self.recall());
        2.0 * precision * recall / (precision + recall).max(1e-9)
    }

    fn add(&mut self, other: Hits) {
        self.right += other.right;
        self.named += other.named;
        self.wrong += other.wrong;
        self.missed += other.missed;
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Score {
    /// Over all days.
    pub(crate) lemons: Hits,
    /// On the last day.
    pub(crate) at_end: Hits,
    /// By the usual thresholds first.
    pub(crate) meta: Vec<Hits>,
    /// Nodes that are no lemons and are named only because jobs failed them, or because peers and users accuse them.
    pub(crate) framed: usize,
    pub(crate) planted: usize,
    pub(crate) as_one: usize,
    pub(crate) false_incidents: usize,
    pub(crate) storms: usize,
    pub(crate) drains_in_storms: usize,
    pub(crate) jobs: usize,
    pub(crate) ettr_held: usize,
    pub(crate) ettr_width: f64,
    pub(crate) reported: usize,
    pub(crate) reported_width: f64,
    /// Job ends by a node with evidence: the right node, and another answer that names a node.
    pub(crate) node_ends: usize,
    pub(crate) right_node: usize,
    pub(crate) wrong_node: usize,
    /// Ends by a job that failed its nodes, and those that name a node.
    pub(crate) killer_ends: usize,
    pub(crate) killer_blames_node: usize,
    /// What went wrong, one line each.
    pub(crate) details: Vec<String>,
}

impl Score {
    pub(crate) fn add(&mut self, other: &Score) {
        self.lemons.add(other.lemons);
        self.at_end.add(other.at_end);
        self.meta.resize(other.meta.len(), Hits::default());
        for (sum, hits) in self.meta.iter_mut().zip(&other.meta) {
            sum.add(*hits);
        }
        for (sum, value) in [
            (&mut self.framed, other.framed),
            (&mut self.planted, other.planted),
            (&mut self.as_one, other.as_one),
            (&mut self.false_incidents, other.false_incidents),
            (&mut self.storms, other.storms),
            (&mut self.drains_in_storms, other.drains_in_storms),
            (&mut self.jobs, other.jobs),
            (&mut self.ettr_held, other.ettr_held),
            (&mut self.reported, other.reported),
            (&mut self.node_ends, other.node_ends),
            (&mut self.right_node, other.right_node),
            (&mut self.wrong_node, other.wrong_node),
            (&mut self.killer_ends, other.killer_ends),
            (&mut self.killer_blames_node, other.killer_blames_node),
        ] {
            *sum += value;
        }
        self.details.extend(other.details.iter().cloned());
        self.ettr_width += other.ettr_width;
        self.reported_width += other.reported_width;
    }

    pub(crate) fn as_one_share(&self) -> f64 {
        self.as_one as f64 / (self.planted as f64).max(1.0)
    }

    pub(crate) fn ettr_share(&self) -> f64 {
        self.ettr_held as f64 / (self.jobs as f64).max(1.0)
    }

    pub(crate) fn row(&self, name: &str) -> String {
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        let both = |hits: &Hits| format!("{}, {}", percent(hits.precision()), percent(hits.recall()));
        let usual = self.meta.first().copied().unwrap_or_default();
        let best = self
            .meta
            .iter()
            .max_by(|one, other| one.f1().total_cmp(&other.f1()))
            .copied()
            .unwrap_or_default();
        format!(
            "| {name} | {} | {} | {} | {} | {} | {} of {} | {} | {} of {} | {} | {:.2}, {:.2} | {} of {}, {} wrong | {} of {} |",
            self.lemons.right + self.lemons.missed,
            both(&self.lemons),
            both(&self.at_end),
            both(&usual),
            both(&best),
            self.as_one,
            self.planted,
            self.false_incidents,
            self.drains_in_storms,
            self.storms,
            percent(self.ettr_share()),
            self.ettr_width / (self.jobs - self.reported).max(1) as f64,
            self.reported_width / self.reported.max(1) as f64,
            self.right_node,
            self.node_ends,
            self.wrong_node,
            self.killer_blames_node,
            self.killer_ends,
        )
    }

    pub(crate) const HEAD: &str = "\
| fleet | lemons | precision, recall % | on the last day | thresholds | tuned in hindsight | incidents as one | false | drains in storms | ETTR held % | mean width without, with reports | ends by a node | job's own named a node |
|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|";
}

/// Plays a fleet, judges it at its end, every so many days from the eighth on, and around so many incidents.
pub(crate) fn play(parameters: &Parameters, storms: usize, every: u64) -> Score {
    let fleet = fleet(parameters);
    let settings = Settings::default();
    let mut score = Score::default();
    let history = History::new(fleet.events.iter().cloned(), fleet.now);
    let judgement = judge(&history, &settings);
    lemons(&fleet, &judgement, every, &mut score);
    incidents(&fleet, &judgement, &mut score);
    ends(&fleet, &history, &judgement, &mut score);
    ettr(&fleet, &history, &settings, &mut score);
    for planted in fleet.truth.planted.iter().filter(|planted| planted.nodes.len() >= 3).take(storms) {
        storm(&fleet, planted, &settings, &mut score);
    }
    score
}

/// The nodes that were named on any day and were lemons on that day, and those that were not.
#[derive(Default)]
struct Named {
    right: BTreeSet<String>,
    wrong: BTreeSet<String>,
}

impl Named {
    fn add(&mut self, fleet: &Fleet, day: u64, nodes: impl IntoIterator<Item = String>) {
        for node in nodes {
            let set = if fleet.truth.is_lemon(&node, day) { &mut self.right } else { &mut self.wrong };
            set.insert(node);
        }
    }

    fn hits(&self, lemons: &BTreeSet<&str>) -> Hits {
        let missed = lemons.iter().filter(|node| !self.right.contains(**node)).count();
        Hits { right: lemons.len() - missed, named: self.right.len(), wrong: self.wrong.len(), missed }
    }
}

fn lemons(fleet: &Fleet, judgement: &Judgement, every: u64, score: &mut Score) {
    let names = |judgement: &Judgement| -> BTreeSet<String> {
        let named = judgement.nodes.iter().filter(|record| record.standing == Standing::Lemon);
        named.map(|record| record.node.clone()).collect()
    };
    let all = fleet.truth.lemons.keys().map(String::as_str);
    let lemons: BTreeSet<&str> = all.filter(|node| fleet.truth.is_lemon(node, fleet.now)).collect();
    let mut ours = Named::default();
    let mut theirs: Vec<Named> = Vec::new();
    let mut day = fleet.begin + 8 * DAY;
    while day <= fleet.now {
        let history = History::new(fleet.events.iter().filter(|event| event.time <= day).cloned(), day);
        ours.add(fleet, day, names(&judge(&history, &Settings::default())));
        let by_thresholds = meta::lemons(&fleet.events, day);
        theirs.resize_with(by_thresholds.len(), Named::default);
        for (sum, nodes) in theirs.iter_mut().zip(by_thresholds) {
            sum.add(fleet, day, nodes);
        }
        day += every * DAY;
    }
    score.lemons = ours.hits(&lemons);
    score.meta = theirs.iter().map(|named| named.hits(&lemons)).collect();
    let now = names(judgement);
    let now: BTreeSet<&str> = now.iter().map(String::as_str).collect();
    score.at_end = Hits::of(&now, &lemons);
    // Would the node be named without what jobs did to it and what others claimed?
    let honest = fleet.events.iter().filter(|event| !fleet.truth.framing.contains(&event.id)).cloned();
    let honest = judge(&History::new(honest, fleet.now), &Settings::default());
    let without = |node: &&&str| honest.node(node).is_some_and(|record| record.standing != Standing::Lemon);
    score.framed = now.difference(&lemons).filter(without).count();
    for record in &judgement.nodes {
        let is = lemons.contains(record.node.as_str());
        if is != now.contains(record.node.as_str()) {
            let detail = format!("{}: lemon {is}, {:?}, {:?}", record.node, record.standing, record.reasons);
            score.details.push(detail);
        }
    }
}

fn incidents(fleet: &Fleet, judgement: &Judgement, score: &mut Score) {
    let during = |planted: &Planted, incident: &railgate_fleet::Incident| {
        planted.start <= incident.end.unwrap_or(fleet.now) + 10 * MINUTE
            && incident.start <= planted.end + HOUR
    };
    let both = |planted: &Planted, incident: &railgate_fleet::Incident| {
        incident.nodes.iter().filter(|node| planted.nodes.contains(*node)).count()
    };
    let visible: Vec<&Planted> =
        fleet.truth.planted.iter().filter(|planted| planted.nodes.len() >= 3).collect();
    score.planted = visible.len();
    for planted in &visible {
        // What really happened at that time as well is an incident of its own: a job that failed its nodes, or another planted one.
        let is_other = |incident: &railgate_fleet::Incident| match &incident.reason {
            Reason::Job { job, attempt } => fleet.truth.ends.get(&(*job, *attempt)) == Some(&Why::Itself),
            Reason::User { uid } => *uid > 2000,
            Reason::Shared(shared) => {
                let is_it = |other: &&Planted| other.shared == *shared && during(other, incident);
                *shared != planted.shared && visible.iter().any(is_it)
            }
        };
        let parts = judgement.incidents.iter().filter(|incident| during(planted, incident));
        let parts = parts.filter(|incident| both(planted, incident) >= 2 && !is_other(incident));
        let parts: Vec<&railgate_fleet::Incident> = parts.collect();
        let is_one = |incident: &railgate_fleet::Incident| {
            incident.reason == Reason::Shared(planted.shared.clone())
                && both(planted, incident) * 5 >= planted.nodes.len() * 4
        };
        let as_one = parts.len() == 1 && is_one(parts[0]);
        score.as_one += usize::from(as_one);
        if !as_one {
            let parts: Vec<&str> = parts.iter().map(|part| part.what.as_str()).collect();
            score.details.push(format!(
                "planted {:?}, {} nodes: {parts:?}",
                planted.shared,
                planted.nodes.len()
            ));
        }
    }
    let shared = judgement.incidents.iter().filter(|incident| matches!(incident.reason, Reason::Shared(_)));
    let unplanted = |incident: &&railgate_fleet::Incident| {
        !fleet.truth.planted.iter().any(|planted| during(planted, incident))
    };
    let unplanted: Vec<&railgate_fleet::Incident> = shared.filter(unplanted).collect();
    score.details.extend(unplanted.iter().map(|incident| format!("not planted: {}", incident.what)));
    score.false_incidents = unplanted.len();
}

fn ends(fleet: &Fleet, history: &History, judgement: &Judgement, score: &mut Score) {
    for (attempt, blame) in history.attempts().iter().zip(&judgement.blames) {
        let Some(why) = fleet.truth.ends.get(&(attempt.job, attempt.attempt)) else { continue };
        let named = match blame {
            Blame::Node { node, .. } => Some(node),
            _ => None,
        };
        match why {
            Why::Node { node, evidence: true } => {
                score.node_ends += 1;
                score.right_node += usize::from(named == Some(node));
                score.wrong_node += usize::from(named.is_some_and(|named| named != node));
            }
            Why::Node { .. } | Why::Ordinary | Why::Shared => {
                score.wrong_node += usize::from(named.is_some())
            }
            Why::Itself => {
                score.killer_ends += 1;
                score.killer_blames_node += usize::from(named.is_some());
            }
        }
    }
}

fn ettr(fleet: &Fleet, history: &History, settings: &Settings, score: &mut Score) {
    for cost in costs(history, settings) {
        let (Some((productive, wall)), Some(ettr)) = (fleet.truth.productive.get(&cost.job), cost.ettr)
        else {
            continue;
        };
        let truth = productive / wall;
        score.jobs += 1;
        score.ettr_held += usize::from(ettr.low <= truth + 1e-6 && truth <= ettr.high + 1e-6);
        let width = ettr.high - ettr.low;
        if cost.reported {
            score.reported += 1;
            score.reported_width += width;
        } else {
            score.ettr_width += width;
        }
    }
}

/// Nodes whose drain is proposed in the first minutes of an incident and was not before it.
fn storm(fleet: &Fleet, planted: &Planted, settings: &Settings, score: &mut Score) {
    let proposed = |now: u64| -> BTreeSet<String> {
        let judgement = judge(&History::new(fleet.events.iter().cloned(), now), settings);
        let nodes = judgement.nodes.into_iter().filter(railgate_fleet::NodeRecord::proposes_drain);
        nodes.map(|record| record.node).collect()
    };
    let before = proposed(planted.start - 1);
    for minutes in [3, 10, 40] {
        let during = proposed(planted.start + minutes * MINUTE);
        let wrong: Vec<&String> =
            during.iter().filter(|node| planted.nodes.contains(*node) && !before.contains(*node)).collect();
        score.drains_in_storms += wrong.len();
        if !wrong.is_empty() {
            score.details.push(format!("{minutes} min into {:?}: drains of {wrong:?}", planted.shared));
        }
    }
    score.storms += 1;
}
