use maud::{Markup, html};
use railgate_model::UnixMillis;
use railgate_node_report::NodeReport;
use railgate_node_report::plain::{clock, float, stamp};

use super::{Tenths, Text, class};
use crate::{Attempt, EndKind, Event, JobReport, Weight};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 130.0;
const LANE: f64 = 26.0;
const TOP: f64 = 26.0;
const MOST_LANES: usize = 40;

struct Scale {
    start: UnixMillis,
    end: UnixMillis,
}

impl Scale {
    fn at(&self, time: UnixMillis) -> f64 {
        let span = float(self.end.saturating_sub(self.start)).max(1.0);
        let share = float(time.clamp(self.start, self.end) - self.start) / span;
        LEFT + share * (WIDTH - LEFT - 12.0)
    }
}

/// One lane for each node and attempt, and the moments that matter on them.
pub(super) fn chart(report: &JobReport) -> Markup {
    let times = report
        .timeline
        .iter()
        .map(|event| event.time)
        .chain(report.attempts.iter().flat_map(|attempt| attempt.start.into_iter().chain(attempt.end)));
    let (Some(start), Some(end)) = (times.clone().min(), times.max()) else { return Markup::default() };
    let scale = Scale { start, end };
    let lanes: Vec<_> = report
        .attempts
        .iter()
        .flat_map(|attempt| attempt.nodes.iter().map(move |node| (attempt, node)))
        .take(MOST_LANES)
        .collect();
    if lanes.is_empty() || end <= start {
        return Markup::default();
    }
    let count = f64::from(u32::try_from(lanes.len()).unwrap_or(0));
    let height = TOP + LANE * (count + 1.0) + 8.0;
    let last = TOP + LANE * count + 4.0;
    let more: usize = report.attempts.iter().map(|attempt| attempt.nodes.len()).sum::<usize>() - lanes.len();
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label="Time line of nodes and events" {
            @for tick in 0..=4_u32 {
                @let time = start + (end - start) / 4 * u64::from(tick);
                @let x = Tenths(scale.at(time));
                line.grid x1=(x) y1=(TOP) x2=(x) y2=(Tenths(height)) {}
                text x=(x) y="15" text-anchor=(if tick == 4 { "end" } else { "start" }) {
                    (Text(clock(time).get(..8).unwrap_or_default()))
                }
            }
            @for (y, (attempt, node)) in (0_u32..).map(|lane| TOP + LANE * f64::from(lane) + 4.0).zip(&lanes) {
                (bar(report, &scale, attempt, node, y))
                @for event in &report.timeline {
                    @if event.node == node.node && event.attempt == attempt.attempt { (dot(&scale, event, y)) }
                }
            }
            text.name x="0" y=(Tenths(last + 13.0)) { "controller" }
            @for event in &report.timeline {
                @if event.node == "controller" { (dot(&scale, event, last)) }
            }
        }
        @if more > 0 {
            p.soft { "and " (more) " more nodes" }
        }
    }
}

/// When a node had the job.
fn bar(report: &JobReport, scale: &Scale, attempt: &Attempt, node: &NodeReport, y: f64) -> Markup {
    // A node that refused the job had nothing more to do with it.
    let refusal = node.acts.iter().map(|act| act.time).max().filter(|_| node.refused());
    let until = node.end.or(refusal).or(attempt.end).unwrap_or(scale.end);
    let (from, to) = (scale.at(node.start), scale.at(until.max(node.start)));
    let proven = attempt.ended.proof.iter().any(|proof| proof.node == node.node);
    let bad = node.refused() || (proven && matches!(attempt.ended.kind, EndKind::Hardware));
    let name = lane_name(&node.node, attempt.attempt, report.attempts.len() > 1);
    let class = if bad { "badbar" } else { "bar" };
    html! {
        text.name x="0" y=(Tenths(y + 13.0)) { (Text(&name)) }
        rect.(class) x=(Tenths(from)) y=(Tenths(y)) width=(Tenths((to - from).max(2.0))) height=(Tenths(LANE - 8.0)) rx="3" {
            title { (Text(&stamp(node.start))) " to " (Text(&stamp(until))) }
        }
    }
}

fn lane_name(node: &str, attempt: u32, numbered: bool) -> String {
    let name = railgate_text::shorten(node, if numbered { 12 } else { 16 });
    if numbered { format!("{name} #{attempt}") } else { name }
}

/// An event, on the lane that begins at `y`.
fn dot(scale: &Scale, event: &Event, y: f64) -> Markup {
    let size = match event.weight {
        Weight::Step => return Markup::default(),
        Weight::Act | Weight::Warn => "4.5",
        Weight::Fail => "6",
    };
    html! {
        circle class=[class(event.weight)] cx=(Tenths(scale.at(event.time))) cy=(Tenths(y + (LANE - 8.0) / 2.0)) r=(size) {
            title { (Text(&clock(event.time))) " " (Text(&event.what)) }
        }
    }
}
