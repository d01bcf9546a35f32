use std::fmt::Write as _;

use railgate_node_report::application::Course;
use railgate_node_report::plain::{byte_rate, bytes, float, stamp};

use super::{esc, table};
use crate::JobReport;
use crate::view::{DiagnosisRow, View, screen};

const MOST_RANKS: usize = 128;

/// What the job got out of its hardware, with what can be drawn of it.
pub(super) fn numbers(out: &mut String, report: &JobReport, view: &View) {
    let Some((attempt, _)) = screen::telling(report) else { return };
    out.push_str("<h2>Use of the hardware</h2>\n<div class=\"card\">\n");
    let rows = view.screen.iter().filter(|row| row.name != screen::TABLE);
    of_the_job(out, rows.map(|row| (row.name, row.text())));
    diagnoses(out, &view.diagnoses);
    if !view.collectives.is_empty() {
        out.push_str("<h3>Costliest collectives of the job</h3>");
        let rows: Vec<Vec<String>> = view.collectives.iter().map(|row| row.to_vec()).collect();
        let [op, numbers @ ..] = screen::COLLECTIVES;
        let numbers = numbers.map(|name| format!("#{name}"));
        let head: Vec<&str> = std::iter::once(op).chain(numbers.iter().map(String::as_str)).collect();
        table(out, &head, &rows);
    }
    heat_map(out, attempt);
    collectives(out, attempt);
    rails(out, attempt);
    out.push_str("</div>\n");
}

/// The first screen.
pub(super) fn of_the_job(out: &mut String, rows: impl Iterator<Item = (&'static str, String)>) {
    let rows: Vec<Vec<String>> = rows.map(|(name, text)| vec![name.to_owned(), text]).collect();
    table(out, &["", "Of the job"], &rows);
}

pub(super) fn diagnoses(out: &mut String, diagnoses: &[DiagnosisRow]) {
    let cells = |one: &DiagnosisRow| {
        [&one.rule, &one.what, &one.costs, &one.whose, &one.fix].into_iter().cloned().collect()
    };
    let rows: Vec<Vec<String>> = diagnoses.iter().map(cells).collect();
    if !rows.is_empty() {
        out.push_str("<h3>Findings</h3>");
        table(out, &["Rule", "What", "#Costs", "Class, confidence", "What to do"], &rows);
    }
}

/// Each rank's mean step time over the run, against the job's median.
fn heat_map(out: &mut String, attempt: &crate::Attempt) {
    let told = attempt.nodes.iter().filter_map(|node| Some((node, node.application.as_ref()?)));
    let rows: Vec<(String, &Course)> = told
        .flat_map(|(node, told)| told.ranks.iter().map(move |rank| (node, rank)))
        .filter_map(|(node, rank)| {
            let number = rank.rank.map_or_else(|| "?".to_owned(), |rank| rank.to_string());
            Some((format!("{} rank {number}", node.node), rank.course.as_ref()?))
        })
        .collect();
    let mut all: Vec<f32> =
        rows.iter().flat_map(|(_, course)| course.step_s.iter().flatten().copied()).collect();
    all.sort_by(f32::total_cmp);
    let (Some(&median), Some((_, first))) = (all.get(all.len() / 2), rows.first()) else { return };
    let columns = rows.iter().map(|(_, course)| course.step_s.len()).max().unwrap_or(1).max(1);
    let width = 840.0 / float(u64::try_from(columns).unwrap_or(1));
    let shown = rows.len().min(MOST_RANKS);
    let height = 14 * shown + 4;
    let _ = writeln!(
        out,
        "<h3>Step time of each rank</h3><p class=\"soft\">From {}, {:.0} s a cell; the darker, the longer, from the \
         median ({median:.3} s) to twice that. No cell: no step.</p>\n\
         <svg viewBox=\"0 0 1000 {height}\" role=\"img\" aria-label=\"Step time of each rank over the run\">",
        esc(&stamp(first.start)),
        first.span_s
    );
    for (row, (name, course)) in rows.iter().take(MOST_RANKS).enumerate() {
        let y = 14 * row;
        let _ = write!(
            out,
            "<text class=\"name\" x=\"0\" y=\"{}\" font-size=\"10\">{}</text>",
            y + 11,
            esc(name)
        );
        for (column, seconds) in course.step_s.iter().enumerate() {
            let Some(seconds) = seconds else { continue };
            let x = 150.0 + width * float(u64::try_from(column).unwrap_or(0));
            let over = f64::from(((seconds / median.max(1e-6)) - 1.0).clamp(0.0, 1.0));
            let _ = write!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"12\" fill=\"#c0392b\" \
                 fill-opacity=\"{:.2}\"></rect>",
                0.08 + 0.92 * over
            );
        }
    }
    out.push_str("</svg>\n");
    if rows.len() > shown {
        let _ = writeln!(out, "<p class=\"soft\">and {} more ranks</p>", rows.len() - shown);
    }
}

fn collectives(out: &mut String, attempt: &crate::Attempt) {
    let Some((node, comm)) = attempt.nodes.iter().find_map(|node| Some((node, node.communication.as_ref()?)))
    else {
        return;
    };
    let rows: Vec<Vec<String>> = comm
        .collectives
        .iter()
        .take(40)
        .map(|row| {
            vec![
                row.op.clone(),
                bytes(float(row.from_bytes)),
                row.size.to_string(),
                row.calls.to_string(),
                row.busbw_gb_s.map_or_else(|| "?".to_owned(), |rate| format!("{rate:.1}")),
                row.busbw_back_to_back_gb_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
                row.reference_gb_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
                row.of_reference_percent.map_or_else(|| "-".to_owned(), |share| format!("{share:.0}")),
                row.back_to_back_error_percent
                    .or(row.error_percent)
                    .map_or_else(|| "?".to_owned(), |error| format!("{error:.1}")),
                format!("{} {}", row.algorithm, row.protocol),
            ]
        })
        .collect();
    if rows.is_empty() {
        return;
    }
    let _ = write!(out, "<h3>Collectives by size, as on {}</h3>", esc(&node.node));
    table(
        out,
        &[
            "Operation",
            "#Size",
            "#Ranks",
            "#Calls",
            "#busbw GB/s",
            "#in a loop",
            "#ref",
            "#% of ref",
            "#+- %",
            "How",
        ],
        &rows,
    );
}

fn rails(out: &mut String, attempt: &crate::Attempt) {
    let shown = attempt.nodes.iter().filter_map(|node| Some((node, node.usage.as_ref()?))).take(16);
    let rates: Vec<(String, f64)> = shown
        .flat_map(|(node, usage)| usage.rails.iter().map(move |rail| (node, rail)))
        .filter_map(|(node, rail)| {
            let sum = rail.tx_bytes_s.known()?.mean + rail.rx_bytes_s.known()?.mean;
            Some((format!("{} {}:{}", node.node, rail.hca, rail.port), sum))
        })
        .take(MOST_RANKS)
        .collect();
    let most = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    if most <= 0.0 {
        return;
    }
    let height = 16 * rates.len() + 4;
    let _ = writeln!(
        out,
        "<h3>Rails, sent and received, mean</h3><svg viewBox=\"0 0 1000 {height}\" role=\"img\" \
         aria-label=\"Traffic of each rail\">"
    );
    for (row, (name, rate)) in rates.iter().enumerate() {
        let y = 16 * row;
        let width = 640.0 * rate / most;
        let _ = writeln!(
            out,
            "<text class=\"name\" x=\"0\" y=\"{}\" font-size=\"11\">{}</text><rect x=\"210\" y=\"{y}\" \
             width=\"{width:.1}\" height=\"12\" fill=\"#2e7d6b\"></rect><text x=\"{:.1}\" y=\"{}\" \
             font-size=\"11\">{}</text>",
            y + 11,
            esc(name),
            216.0 + width,
            y + 11,
            esc(&byte_rate(*rate))
        );
    }
    out.push_str("</svg>\n");
}
