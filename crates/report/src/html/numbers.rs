use maud::{Markup, html};
use railgate_node_report::application::Course;
use railgate_node_report::plain::{byte_rate, bytes, float, stamp};

use super::{Tenths, Text, table};
use crate::view::{DiagnosisRow, View, screen};
use crate::{Attempt, JobReport};

const MOST_RANKS: usize = 128;

/// What the job got out of its hardware, with what can be drawn of it.
pub(super) fn numbers(report: &JobReport, view: &View) -> Markup {
    let Some((attempt, _)) = screen::telling(report) else { return Markup::default() };
    let rows = view.screen.iter().filter(|row| row.name != screen::TABLE);
    html! {
        h2 { "Use of the hardware" }
        div.card {
            (of_the_job(rows.map(|row| (row.name, row.text()))))
            (diagnoses(&view.diagnoses))
            (costliest(&view.collectives))
            (heat_map(attempt))
            (collectives(attempt))
            (rails(attempt))
        }
    }
}

/// The first screen.
pub(super) fn of_the_job(rows: impl Iterator<Item = (&'static str, String)>) -> Markup {
    let rows: Vec<Vec<String>> = rows.map(|(name, text)| vec![name.to_owned(), text]).collect();
    table(&["", "Of the job"], &rows)
}

pub(super) fn diagnoses(diagnoses: &[DiagnosisRow]) -> Markup {
    let cells = |one: &DiagnosisRow| {
        [&one.rule, &one.what, &one.costs, &one.class, &one.fix].into_iter().cloned().collect()
    };
    let rows: Vec<Vec<String>> = diagnoses.iter().map(cells).collect();
    html! {
        @if !rows.is_empty() {
            h3 { "Findings" }
            (table(&["Rule", "What", "#Costs", "Class, confidence", "What to do"], &rows))
        }
    }
}

fn costliest(collectives: &[[String; 6]]) -> Markup {
    let rows: Vec<Vec<String>> = collectives.iter().map(|row| row.to_vec()).collect();
    let [op, numbers @ ..] = screen::COLLECTIVES;
    let numbers = numbers.map(|name| format!("#{name}"));
    let head: Vec<&str> = std::iter::once(op).chain(numbers.iter().map(String::as_str)).collect();
    html! {
        @if !rows.is_empty() {
            h3 { "Costliest collectives of the job" }
            (table(&head, &rows))
        }
    }
}

/// Each rank's mean step time over the run, against the job's median.
fn heat_map(attempt: &Attempt) -> Markup {
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
    let (Some(&median), Some((_, first))) = (all.get(all.len() / 2), rows.first()) else {
        return Markup::default();
    };
    let columns = rows.iter().map(|(_, course)| course.step_s.len()).max().unwrap_or(1).max(1);
    let width = 840.0 / float(u64::try_from(columns).unwrap_or(1));
    let shown = rows.len().min(MOST_RANKS);
    let x = |column: usize| 150.0 + width * float(u64::try_from(column).unwrap_or(0));
    let opacity = |seconds: f32| {
        let over = f64::from(((seconds / median.max(1e-6)) - 1.0).clamp(0.0, 1.0));
        0.08 + 0.92 * over
    };
    html! {
        h3 { "Step time of each rank" }
        p.soft {
            "From " (Text(&stamp(first.start))) ", " (format_args!("{:.0}", first.span_s)) " s a cell; the darker, the longer, \
             from the median (" (format_args!("{median:.3}")) " s) to twice that. No cell: no step."
        }
        svg viewBox={ "0 0 1000 " (14 * shown + 4) } role="img" aria-label="Step time of each rank over the run" {
            @for (row, (name, course)) in rows.iter().take(MOST_RANKS).enumerate() {
                @let y = 14 * row;
                text.name x="0" y=(y + 11) font-size="10" { (Text(name)) }
                @for (column, seconds) in course.step_s.iter().enumerate() {
                    @if let Some(seconds) = seconds {
                        rect x=(Tenths(x(column))) y=(y) width=(Tenths(width)) height="12" fill="#c0392b"
                            fill-opacity=(format_args!("{:.2}", opacity(*seconds))) {}
                    }
                }
            }
        }
        @if rows.len() > shown {
            p.soft { "and " (rows.len() - shown) " more ranks" }
        }
    }
}

fn collectives(attempt: &Attempt) -> Markup {
    const HEAD: [&str; 10] = [
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
    ];
    let Some((node, comm)) = attempt.nodes.iter().find_map(|node| Some((node, node.communication.as_ref()?)))
    else {
        return Markup::default();
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
    html! {
        @if !rows.is_empty() {
            h3 { "Collectives by size, as on " (Text(&node.node)) }
            (table(&HEAD, &rows))
        }
    }
}

fn rails(attempt: &Attempt) -> Markup {
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
    html! {
        @if most > 0.0 {
            h3 { "Rails, sent and received, mean" }
            svg viewBox={ "0 0 1000 " (16 * rates.len() + 4) } role="img" aria-label="Traffic of each rail" {
                @for (row, (name, rate)) in rates.iter().enumerate() {
                    @let y = 16 * row;
                    @let width = 640.0 * rate / most;
                    text.name x="0" y=(y + 11) font-size="11" { (Text(name)) }
                    rect x="210" y=(y) width=(Tenths(width)) height="12" fill="#2e7d6b" {}
                    text x=(Tenths(216.0 + width)) y=(y + 11) font-size="11" { (Text(&byte_rate(*rate))) }
                }
            }
        }
    }
}
