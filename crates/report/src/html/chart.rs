use std::fmt::Write as _;

use railgate_model::UnixMillis;
use railgate_node_report::plain::{clock, float, stamp};

use super::esc;
use crate::{EndKind, JobReport, Weight};

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
pub(super) fn chart(out: &mut String, report: &JobReport) {
    let times = report
        .timeline
        .iter()
        .map(|event| event.time)
        .chain(report.attempts.iter().flat_map(|attempt| attempt.start.into_iter().chain(attempt.end)));
    let (Some(start), Some(end)) = (times.clone().min(), times.max()) else { return };
    let scale = Scale { start, end };
    let lanes: Vec<_> = report
        .attempts
        .iter()
        .flat_map(|attempt| attempt.nodes.iter().map(move |node| (attempt, node)))
        .take(MOST_LANES)
        .collect();
    if lanes.is_empty() || end <= start {
        return;
    }
    let height = TOP + LANE * (f64::from(u32::try_from(lanes.len()).unwrap_or(0)) + 1.0) + 8.0;
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Time line of nodes and events\">"
    );
    for tick in 0..=4_u32 {
        let time = start + (end - start) / 4 * u64::from(tick);
        let x = scale.at(time);
        let anchor = if tick == 4 { "end" } else { "start" };
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{height:.1}\"/>\
             <text x=\"{x:.1}\" y=\"15\" text-anchor=\"{anchor}\">{}</text>",
            clock(time).get(..8).unwrap_or_default()
        );
    }
    for (lane, (attempt, node)) in lanes.iter().enumerate() {
        let y = TOP + LANE * f64::from(u32::try_from(lane).unwrap_or(0)) + 4.0;
        // A node that refused the job had nothing more to do with it.
        let refusal = node.acts.iter().map(|act| act.time).max().filter(|_| node.refused());
        let until = node.end.or(refusal).or(attempt.end).unwrap_or(end);
        let (from, to) = (scale.at(node.start), scale.at(until.max(node.start)));
        let bad =
            node.refused() || matches!(attempt.ended.kind, EndKind::Hardware if !node.evidence.is_empty());
        let _ = writeln!(
            out,
            "<text class=\"name\" x=\"0\" y=\"{:.1}\">{}</text>\
             <rect class=\"{}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"3\">\
             <title>{} to {}</title></rect>",
            y + 13.0,
            esc(&lane_name(&node.node, attempt.attempt, report.attempts.len() > 1)),
            if bad { "badbar" } else { "bar" },
            (to - from).max(2.0),
            LANE - 8.0,
            stamp(node.start),
            stamp(until),
        );
        for event in
            report.timeline.iter().filter(|event| event.node == node.node && event.attempt == attempt.attempt)
        {
            dot(out, &scale, event, y + (LANE - 8.0) / 2.0);
        }
    }
    let y = TOP + LANE * f64::from(u32::try_from(lanes.len()).unwrap_or(0)) + 4.0;
    let _ = writeln!(out, "<text class=\"name\" x=\"0\" y=\"{:.1}\">controller</text>", y + 13.0);
    for event in report.timeline.iter().filter(|event| event.node == "controller") {
        dot(out, &scale, event, y + (LANE - 8.0) / 2.0);
    }
    out.push_str("</svg>\n");
    let more: usize = report.attempts.iter().map(|attempt| attempt.nodes.len()).sum::<usize>() - lanes.len();
    if more > 0 {
        let _ = writeln!(out, "<p class=\"soft\">and {more} more nodes</p>");
    }
}

fn lane_name(node: &str, attempt: u32, numbered: bool) -> String {
    let name = railgate_text::shorten(node, if numbered { 12 } else { 16 });
    if numbered { format!("{name} #{attempt}") } else { name }
}

fn dot(out: &mut String, scale: &Scale, event: &crate::Event, y: f64) {
    let (class, size) = match event.weight {
        Weight::Step => return,
        Weight::Act => ("calm", 4.5),
        Weight::Warn => ("warn", 4.5),
        Weight::Fail => ("bad", 6.0),
    };
    let _ = writeln!(
        out,
        "<circle class=\"{class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{size}\"><title>{} {}</title></circle>",
        scale.at(event.time),
        y,
        clock(event.time),
        esc(&event.what)
    );
}
