use std::fmt::Write as _;

use railgate_node_report::plain::{float, span, stamp};
use railgate_store::Course;

use super::esc;

const LEFT: f64 = 110.0;
const WIDTH: f64 = 1000.0;
const LANE: f64 = 34.0;

/// A lane for each GPU: how busy it was, its tensor pipe on top of that, its clock as a line.
pub(super) fn courses(out: &mut String, courses: &[Course], problems: &[String]) {
    if courses.is_empty() && problems.is_empty() {
        return;
    }
    out.push_str("<h2>Time line of each GPU</h2>\n<div class=\"card\">\n");
    for course in courses {
        one(out, course);
    }
    for problem in problems {
        let _ = writeln!(out, "<p class=\"warn\">{}</p>", esc(problem));
    }
    out.push_str("</div>\n");
}

fn one(out: &mut String, course: &Course) {
    let columns = course.gpus.iter().map(|gpu| gpu.busy.len()).max().unwrap_or(0).max(1);
    let width = (WIDTH - LEFT) / float(u64::try_from(columns).unwrap_or(1));
    let clocks = course.gpus.iter().flat_map(|gpu| gpu.clock.iter().flatten());
    let top = clocks.fold(0.0_f32, |top, clock| top.max(*clock));
    let height = LANE * float(u64::try_from(course.gpus.len()).unwrap_or(1));
    let _ = writeln!(
        out,
        "<h3>{}</h3><p class=\"soft\">From {}, {} a column. Grey: time with any kernel. Green: tensor pipe. Line: SM \
         clock, up to {top:.0} MHz. Nothing: not sampled.</p>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Activity of each GPU over the run\">",
        esc(&course.node),
        esc(&stamp(course.start)),
        span(course.span_s)
    );
    for (lane, gpu) in (0_u32..).zip(&course.gpus) {
        let floor = LANE * f64::from(lane + 1) - 4.0;
        let _ = write!(out, "<text class=\"name\" x=\"0\" y=\"{:.1}\">GPU {}</text>", floor - 8.0, gpu.index);
        for (values, fill) in [(&gpu.busy, "#8a93a0"), (&gpu.tensor, "#2e7d6b")] {
            area(out, values, (width, floor), 100.0, fill);
        }
        line(out, &gpu.clock, (width, floor), top);
    }
    out.push_str("</svg>\n");
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

fn area(out: &mut String, values: &[Option<f32>], place: (f64, f64), whole: f64, fill: &str) {
    for (first, run) in runs(values) {
        let mut path = String::new();
        for (column, value) in (first..).zip(&run) {
            let (x, y) = point(place, column, f64::from(*value) / whole);
            let _ = write!(path, "{x:.1},{y:.1} {:.1},{y:.1} ", x + place.0);
        }
        let (from, _) = point(place, first, 0.0);
        let (to, floor) = point(place, first + run.len(), 0.0);
        let _ = writeln!(
            out,
            "<polygon points=\"{path}{to:.1},{floor:.1} {from:.1},{floor:.1}\" fill=\"{fill}\" fill-opacity=\"0.8\"></polygon>"
        );
    }
}

fn line(out: &mut String, values: &[Option<f32>], place: (f64, f64), top: f32) {
    if top <= 0.0 {
        return;
    }
    for (first, run) in runs(values) {
        let mut path = String::new();
        for (column, value) in (first..).zip(&run) {
            let (x, y) = point(place, column, f64::from(*value / top));
            let _ = write!(path, "{:.1},{y:.1} ", x + place.0 / 2.0);
        }
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"#c0392b\" stroke-width=\"1\"></polyline>",
            path.trim_end()
        );
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
        let mut out = String::new();
        courses(&mut out, &[course], &["gn2: no <samples>".to_owned()]);
        assert_eq!((out.matches("<polygon").count(), out.matches("<polyline").count()), (2, 1));
        assert!(out.contains("&lt;n1&gt;") && out.contains("no &lt;samples&gt;") && out.contains("GPU 5"));
        let mut nothing = String::new();
        courses(&mut nothing, &[], &[]);
        assert_eq!(nothing, "");
    }
}
