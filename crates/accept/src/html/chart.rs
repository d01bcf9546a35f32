//! Values over time: a lane for each node, all on one scale.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use maud::{Markup, Render, html};
use railgate_page::Text;

use super::time;
use crate::figures::short;
use crate::report::{Chart, ChartRow, Point};

/// Nodes that a chart shows; the JSON has all.
const MOST_LANES: usize = 64;
const WIDTH: f64 = 1000.0;
/// Where lanes begin and end: their names and values stand beside them.
const LEFT: f64 = 130.0;
const RIGHT: f64 = 880.0;
const TOP: f64 = 22.0;
const LANE: f64 = 34.0;
/// Height of the values in a lane.
const INNER: f64 = 26.0;
/// Columns of a lane: points that are closer together are drawn as one.
const COLUMNS: u32 = 250;

/// A coordinate.
struct Tenths(f64);

impl Render for Tenths {
    fn render_to(&self, page: &mut String) {
        // Writing to a String cannot fail.
        let _ = write!(page, "{:.1}", self.0);
    }
}

/// The times and values of all lanes.
struct Scale {
    start: u64,
    end: u64,
    lowest: f64,
    highest: f64,
}

impl Scale {
    fn of(rows: &[&ChartRow]) -> Option<Scale> {
        let points = || rows.iter().flat_map(|row| &row.points);
        Some(Scale {
            start: points().map(|point| point.at).min()?,
            end: points().map(|point| point.at).max()?,
            lowest: points().map(|point| point.lowest).reduce(f64::min)?,
            highest: points().map(|point| point.highest).reduce(f64::max)?,
        })
    }

    fn column(&self, at: u64) -> u32 {
        let span = u128::from(self.end - self.start).max(1);
        let share = u128::from(at.clamp(self.start, self.end) - self.start) * u128::from(COLUMNS - 1) / span;
        u32::try_from(share).unwrap_or(COLUMNS - 1)
    }

    /// Distance from the top of a lane.
    fn depth(&self, value: f64) -> f64 {
        let span = self.highest - self.lowest;
        // The difference of two finite numbers may be infinite.
        let is_usable = span > 0.0 && span.is_finite();
        if is_usable { (self.highest - value) / span * INNER } else { INNER / 2.0 }
    }

    /// The lowest and the highest value in each column.
    fn columns(&self, points: &[Point]) -> BTreeMap<u32, (f64, f64)> {
        let mut columns = BTreeMap::new();
        for point in points {
            let (lowest, highest) =
                columns.entry(self.column(point.at)).or_insert((point.lowest, point.highest));
            (*lowest, *highest) = (lowest.min(point.lowest), highest.max(point.highest));
        }
        columns
    }
}

/// Returns the chart with its title.
pub(super) fn chart(chart: &Chart) -> Markup {
    let rows: Vec<&ChartRow> =
        chart.rows.iter().filter(|row| !row.points.is_empty()).take(MOST_LANES).collect();
    let more = chart.rows.len().saturating_sub(rows.len());
    html! {
        h2 { (Text(&chart.title)) }
        div.card {
            p.soft {
                (Text(&chart.source)) ". Each bar: from the lowest to the highest card of the node. "
                @if chart.unknown > 0 { (chart.unknown) " readings gave no value." }
            }
            @if let Some(scale) = Scale::of(&rows) {
                (lanes(&chart.title, &rows, &scale))
                @if more > 0 { p.soft { (more) " more nodes: --format json" } }
            } @else { p { "Unknown: no reading gave a value." } }
        }
    }
}

fn lanes(title: &str, rows: &[&ChartRow], scale: &Scale) -> Markup {
    let count = f64::from(u32::try_from(rows.len()).unwrap_or(0));
    let height = TOP + LANE * count;
    let width = (RIGHT - LEFT) / f64::from(COLUMNS);
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label=(Text(title)) {
            text x=(LEFT) y="13" { (Text(&time(scale.start))) }
            text x=(RIGHT) y="13" text-anchor="end" { (Text(&time(scale.end))) }
            text x=(WIDTH) y="13" text-anchor="end" { (short(scale.lowest)) " to " (short(scale.highest)) }
            @for (y, row) in (0_u32..).map(|lane| TOP + LANE * f64::from(lane)).zip(rows) {
                @let low = row.points.iter().map(|point| point.lowest).fold(f64::INFINITY, f64::min);
                @let high = row.points.iter().map(|point| point.highest).fold(f64::NEG_INFINITY, f64::max);
                text.name x="0" y=(Tenths(y + 17.0)) { (Text(&railgate_text::shorten(&row.name, 16))) }
                line.grid x1=(LEFT) y1=(Tenths(y + INNER + 3.0)) x2=(RIGHT) y2=(Tenths(y + INNER + 3.0)) {}
                @for (column, (lowest, highest)) in scale.columns(&row.points) {
                    @let top = scale.depth(highest);
                    rect.over-time x=(Tenths(LEFT + f64::from(column) * width)) y=(Tenths(y + top)) width=(Tenths(width))
                        height=(Tenths((scale.depth(lowest) - top).max(2.0))) {}
                }
                text x=(WIDTH) y=(Tenths(y + 17.0)) text-anchor="end" { (short(low)) " to " (short(high)) }
            }
        }
    }
}
