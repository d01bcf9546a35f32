//! Figures of the fleet for Prometheus, from a judgement.

use std::collections::BTreeMap;

use railgate_fleet::{
    Bounds, Cause, FaultCounts, History, Judgement, Reason, Settings, Share, SharedKind, Standing, costs,
    goodput, lost_by_cause,
};
use railgate_metrics::FleetNow;

/// All kinds: one without an open incident is 0, so that an alert on it can end.
const KINDS: [SharedKind; 8] = [
    SharedKind::Leaf,
    SharedKind::Rail,
    SharedKind::Pdu,
    SharedKind::Rack,
    SharedKind::Cooling,
    SharedKind::FileServer,
    SharedKind::Driver,
    SharedKind::Image,
];

/// Returns the figures that follow from the history. They have no names of nodes, jobs and users.
pub(crate) fn of(history: &History, judgement: &Judgement, settings: &Settings) -> FleetNow {
    let kinds = KINDS.iter().map(label).chain(["job".to_owned(), "user".to_owned()]);
    let mut incidents: BTreeMap<String, u64> = kinds.map(|kind| (kind, 0)).collect();
    for incident in judgement.incidents.iter().filter(|incident| incident.end.is_none()) {
        let kind = match &incident.reason {
            Reason::Shared(shared) => label(&shared.kind),
            Reason::Job { .. } => "job".to_owned(),
            Reason::User { .. } => "user".to_owned(),
        };
        *incidents.entry(kind).or_default() += 1;
    }
    let lost = lost_by_cause(history, judgement, settings).into_iter();
    let lost =
        lost.map(|one| (one.why.to_string(), (3600.0 * one.gpu_hours.low, 3600.0 * one.gpu_hours.high)));
    let (goodput, costs) = (goodput(history, settings), costs(history, settings));
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let of_cause =
        |(cause, of): (Cause, FaultCounts)| (label(&cause), (number(of.counted), number(of.aside)));
    let ends = |share: Share| share.of_one().map(|Bounds { low, high }| (low, high));
    FleetNow {
        incidents,
        lemons: number(judgement.nodes.iter().filter(|node| node.standing == Standing::Lemon).count()),
        out_of_service: number(judgement.nodes.iter().filter(|node| node.out_of_service).count()),
        faults: judgement.faults_by_cause().into_iter().map(of_cause).collect(),
        lost_gpu_s: lost.collect(),
        ettr: ends(Share::ettr(&costs)),
        goodput: ends(Share::goodput(&goodput)),
        complete_s: None,
        events: 0,
    }
}

/// `leaf-switch`.
fn label(kind: &impl ToString) -> String {
    kind.to_string().to_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use railgate_fleet::{Attempt, Drainer, Event, Outcome, Source, What, judge};

    use super::*;

    const HOUR: u64 = 3_600_000;

    #[test]
    fn figures_follow_from_the_history_and_have_no_names() {
        let attempt = |job: u32, end: u64, outcome| Attempt {
            job,
            attempt: 0,
            uid: 60_001,
            partition: "train".to_owned(),
            nodes: [format!("n{job}")].iter().collect(),
            gpus: 8,
            queued: HOUR,
            start: 2 * HOUR,
            end: Some((end, outcome)),
        };
        let all = [
            (4 * HOUR, What::JobEnded(attempt(1, 4 * HOUR, Outcome::Failed))),
            (4 * HOUR, What::JobEnded(attempt(2, 4 * HOUR, Outcome::Cancelled))),
            (5 * HOUR, What::Drained { node: "n2".to_owned(), by: Drainer::Admin, reason: "x".to_owned() }),
        ];
        let event =
            |(number, (time, what))| Event { id: format!("{number}"), time, source: Source::Root, what };
        let history = History::new(all.into_iter().enumerate().map(event), 6 * HOUR);
        let settings = Settings::default();
        let now = of(&history, &judge(&history, &settings), &settings);
        assert_eq!((now.lemons, now.out_of_service), (0, 1));
        assert_eq!(now.incidents.len(), 10);
        assert!(now.incidents.values().all(|open| *open == 0), "{:?}", now.incidents);
        // Two hours on 8 GPUs.
        let lost = |why: &str| now.lost_gpu_s.get(why).copied();
        assert_eq!(lost("unknown"), Some((0.0, 57_600.0)));
        assert_eq!(lost("cancelled"), Some((0.0, 57_600.0)));
        assert_eq!(now.goodput, Some((0.0, 1.0)));
        assert_eq!(now.ettr, Some((0.0, 4.0 / 6.0)));
        let empty = History::new([], HOUR);
        let nothing = of(&empty, &judge(&empty, &settings), &settings);
        assert_eq!((nothing.ettr, nothing.goodput), (None, None));
    }
}
