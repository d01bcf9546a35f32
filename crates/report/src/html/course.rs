use std::fmt::Write as _;

use maud::{Markup, Render, html};
use railgate_node_report::plain::{float, span, stamp};
use railgate_store::Course;

use super::{Tenths, Text};

const LEFT: f64 = 110.0;
const WIDTH: f64 = 1000.0;
const LANE: f64 = 34.0;

/// A lane for each GPU: how busy it was, its tensor pipe on top of that, its clock as a line.
pub(super) fn courses(courses: &[Course], problems: &[String]) -> Markup {
    html! {
        @if !courses.is_empty() || !problems.is_empty() {
            h2 { "Time line of each GPU" }
            div.card {
                @for course in courses { (one(course)) }
                @for problem in problems { p.warn { (Text(problem)) } }
            }
        }
    }
}

fn one(course: &Course) -> Markup {
    let columns = course.gpus.iter().map(|gpu| gpu.busy.len()).max().unwrap_or(0).max(1);
    let width = (WIDTH - LEFT) / float(u64::try_from(columns).unwrap_or(1));
    let clocks = course.gpus.iter().flat_map(|gpu| gpu.clock.iter().flatten());
    let top = clocks.fold(0.0_f32, |top, clock| top.max(*clock));
    let height = LANE * float(u64::try_from(course.gpus.len()).unwrap_or(1));
    html! {
        h3 { (Text(&course.node)) }
        p.soft {
            "From " (Text(&stamp(course.start))) ", " (Text(&span(course.span_s))) " a column. Grey: time with any kernel. \
             Green: tensor pipe. Line: SM clock, up to " (format_args!("{top:.0}")) " MHz. Nothing: not sampled."
        }
        svg viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label="Activity of each GPU over the run" {
            @for (lane, gpu) in (0_u32..).zip(&course.gpus) {
                @let floor = LANE * f64::from(lane + 1) - 4.0;
                text.name x="0" y=(Tenths(floor - 8.0)) { "GPU " (gpu.index) }
                (area(&gpu.busy, (width, floor), "#8a93a0"))
                (area(&gpu.tensor, (width, floor), "#2e7d6b"))
                (line(&gpu.clock, (width, floor), top))
            }
        }
    }
}

/// Points of a shape.
struct Points(Vec<(f64, f64)>);

impl Render for Points {
    fn render_to(&self, page: &mut String) {
        for (place, (x, y)) in self.0.iter().enumerate() {
            let blank = if place > 0 { " " } else { "" };
            // Writing to a String cannot fail.
            let _ = write!(page, "{blank}{x:.1},{y:.1}");
        }
    }
}

fn point((width, floor): (f64, f64), column: usize, share: f64) -> (f64, f64) {
    let x = LEFT + width * float(u64::try_from(column).unwrap_or(0));
    (x, floor - (LANE - 8.0) * share.clamp(0.0, 1.0))
}

/// Neighbours that are known, as one shape each.
fn runs(values: &[Option<f32>]) -> Vec<(usize, Vec<f32>)> {
    let mut runs: Vec<(usize, Vec<f32>)> = Vec::new();
    let mut open = false;
    for (column, value) in values.iter().enumerate() {
        match (value, runs.last_mut()) {
            (Some(value), Some((_, run))) if open => run.push(*value),
            (Some(value), _) => runs.push((column, vec![*value])),
            (None, _) => {}
        }
        open = value.is_some();
    }
    runs
}

fn area(values: &[Option<f32>], place: (f64, f64), fill: &'static str) -> Markup {
    let shapes = runs(values).into_iter().map(|(first, run)| {
        let steps = (first..).zip(&run).flat_map(|(column, value)| {
            let (x, y) = point(place, column, f64::from(*value) / 100.0);
            [(x, y), (x + place.0, y)]
        });
        let floor = [point(place, first + run.len(), 0.0), point(place, first, 0.0)];
        Points(steps.chain(floor).collect())
    });
    html! {
        @for points in shapes { polygon points=(points) fill=(fill) fill-opacity="0.8" {} }
    }
}

fn line(values: &[Option<f32>], place: (f64, f64), top: f32) -> Markup {
    if top <= 0.0 {
        return Markup::default();
    }
    let lines = runs(values).into_iter().map(|(first, run)| {
        let middles = (first..).zip(&run).map(|(column, value)| {
            let (x, y) = point(place, column, f64::from(*value / top));
            (x + place.0 / 2.0, y)
        });
        Points(middles.collect())
    });
    html! {
        @for points in lines { polyline points=(points) fill="none" stroke="#c0392b" stroke-width="1" {} }
    }
}

#[cfg(test)]
mod tests {
    use railgate_store::GpuCourse;

    use super::*;

    #[test]
    fn what_was_not_sampled_is_a_hole_and_no_zero() {
        let busy = vec![Some(50.0), Some(60.0), None, Some(70.0)];
        assert_eq!(runs(&busy), [(0, vec![50.0, 60.0]), (3, vec![70.0])]);
        let gpu = GpuCourse { index: 5, busy, tensor: vec![None; 4], clock: vec![Some(1800.0); 4] };
        let course = Course { node: "<n1>".to_owned(), start: 1, span_s: 60.0, gpus: vec![gpu] };
        let out = courses(&[course], &["gn2: no <samples>".to_owned()]).into_string();
        assert_eq!((out.matches("<polygon").count(), out.matches("<polyline").count()), (2, 1));
        assert!(out.contains("&lt;n1&gt;") && out.contains("no &lt;samples&gt;") && out.contains("GPU 5"));
        assert_eq!(courses(&[], &[]).into_string(), "");
    }
}
