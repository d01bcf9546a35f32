//! The report as a page to read and sign.

mod chart;

use maud::{Markup, html};
use railgate_model::{Mttf, rfc3339};
use railgate_page::{Text, page, table};

use crate::figures::{Better, Figure, short};
use crate::report::{HeatMap, Inventory, Item, Overall, Report};

/// Rows that a table of the page shows; the JSON has all.
const MOST_ROWS: usize = 500;
/// Columns of a heat map.
const MOST_COLUMNS: usize = 64;

/// Returns the page: it needs no network and no script.
pub fn html(report: &Report) -> String {
    let body = html! {
        h1 { (Text(&report.title)) (pill(report.overall)) }
        p.soft {
            "Acceptance of " (report.nodes.len()) " nodes, run " (Text(&report.run)) ", from " (Text(&time(report.began)))
            ". " (report.units_done) " of " (report.units) " jobs of the plan have a result."
        }
        (checklist(report))
        (changes(report))
        @for map in &report.heat_maps { (heat_map(map)) }
        @for chart in &report.charts { (chart::chart(chart)) }
        (figures(&report.figures))
        (inventory(report))
        (reliability(report.mttf.as_ref()))
        (exceptions(report))
        (signatures(report))
    };
    let footer = html! {
        "railgate " (Text(&report.railgate)) ", made " (Text(&time(report.made))) ". Times are UTC. A value that could not be \
         determined is unknown, never good and never zero."
    };
    page(&report.title, &body, &footer)
}

fn time(at: u64) -> String {
    let text = rfc3339(at).and_then(|text| Some(text.get(..19)?.replace('T', " ")));
    text.unwrap_or_else(|| "an unknown time".to_owned())
}

fn pill(overall: Overall) -> Markup {
    let tone = match overall {
        Overall::Pass => "good",
        Overall::PassWithWaivers => "calm",
        Overall::Incomplete => "warn",
        Overall::Fail => "bad",
    };
    html! { span.pill.(tone) { (Text(overall.words())) } }
}

fn tone(word: &str) -> &'static str {
    match word {
        "pass" => "good",
        "waived" => "calm",
        "unknown" => "warn",
        _ => "bad",
    }
}

fn checklist(report: &Report) -> Markup {
    let count = |word: &str| report.items.iter().filter(|item| item.word() == word).count();
    html! {
        h2 { "Checklist" }
        p {
            @for word in ["fail", "unknown", "waived", "pass"] {
                span.(tone(word)) { strong { (count(word)) " " (Text(word)) } } " "
            }
        }
        div.card { div.scroll tabindex="0" { table {
            thead { tr { th { "Result" } th { "Item" } th { "Found" } th { "Must hold" } th { "Source" } } }
            tbody { @for item in report.items.iter().take(MOST_ROWS) { (row(item)) } }
        } } }
        (left_out(report.items.len()))
        @if !report.not_in_plan.is_empty() {
            p.soft { "Unknown, since the plan does not have these stages: " (Text(&report.not_in_plan.join("; "))) "." }
        }
    }
}

fn row(item: &Item) -> Markup {
    html! {
        tr {
            td.(tone(item.word())) { strong { (Text(item.word())) } }
            td.c.id { (Text(&item.id)) }
            td {
                (Text(&item.what))
                @if !item.details.is_empty() {
                    ul { @for detail in item.details.iter().take(20) { li { (Text(detail)) } } }
                    @if item.details.len() > 20 { p.soft { "and " (item.details.len() - 20) " more" } }
                }
                @if let Some(waiver) = &item.waiver {
                    p.calm { "Waived by " (Text(&waiver.by)) " on " (Text(&time(waiver.at))) ": " (Text(&waiver.why)) }
                }
            }
            td { (Text(&item.tolerance)) }
            td.soft { (Text(&item.source)) }
        }
    }
}

fn left_out(rows: usize) -> Markup {
    html! {
        @if rows > MOST_ROWS { p.soft { "and " (rows - MOST_ROWS) " more: --format json" } }
    }
}

fn changes(report: &Report) -> Markup {
    let Some(changes) = &report.changes else { return html! {} };
    html! {
        h2 { "What changed since the earlier run" }
        div.card {
            @if changes.is_empty() { p { "No item, version or median differs." } }
            @else {
                div.scroll tabindex="0" { table {
                    thead { tr { th { "What" } th { "Before" } th { "Now" } } }
                    tbody {
                        @for change in changes.iter().take(MOST_ROWS) {
                            @let class = match change.better { Some(true) => "good", Some(false) => "bad", None => "" };
                            tr { td { (Text(&change.what)) } td { (Text(&change.before)) } td.(class) { (Text(&change.now)) } }
                        }
                    }
                } }
                (left_out(changes.len()))
            }
        }
    }
}

/// Class of a cell by its distance from the usual value in the bad direction.
fn heat(map: &HeatMap, value: f64, usual: Option<f64>) -> &'static str {
    let Some(usual) = usual.filter(|usual| *usual > 0.0) else { return "" };
    let worse = match map.better {
        Better::Higher => 1.0 - value / usual,
        Better::Lower => value / usual - 1.0,
        Better::Neither => 0.0,
    };
    match worse {
        worse if worse > 0.20 => "heat4",
        worse if worse > 0.10 => "heat3",
        worse if worse > 0.05 => "heat2",
        worse if worse > 0.02 => "heat1",
        _ => "heat0",
    }
}

fn heat_map(map: &HeatMap) -> Markup {
    let columns: Vec<&String> = map.columns.iter().take(MOST_COLUMNS).collect();
    let usual: Vec<Option<f64>> = (0..columns.len()).map(|column| map.usual(column)).collect();
    html! {
        h2 { (Text(&map.title)) }
        div.card {
            p.soft {
                "Compared with the median of the " @if map.by_column { "column" } @else { "map" } ": "
                span.key.heat0 { "up to 2 % worse" } " " span.key.heat1 { "2 to 5 %" } " " span.key.heat2 { "5 to 10 %" } " "
                span.key.heat3 { "10 to 20 %" } " " span.key.heat4 { "more" }
            }
            div.scroll tabindex="0" { table.heat {
                thead { tr { td {} @for column in &columns { th.n { (Text(column)) } } } }
                tbody {
                    @for row in map.rows.iter().take(MOST_ROWS) {
                        tr {
                            th { (Text(&row.name)) }
                            @for (value, usual) in row.values.iter().zip(&usual) {
                                @if let Some(value) = value { td.n.(heat(map, *value, *usual)) { (Text(&short(*value))) } }
                                @else { td.n.soft { "unknown" } }
                            }
                        }
                    }
                }
            } }
            (left_out(map.rows.len()))
            @if map.columns.len() > MOST_COLUMNS { p.soft { (map.columns.len() - MOST_COLUMNS) " more columns: --format json" } }
        }
    }
}

fn figures(figures: &[Figure]) -> Markup {
    let row = |figure: &Figure| {
        let outliers: Vec<String> =
            figure.outliers.iter().take(5).map(|one| format!("{} {}", one.part, short(one.value))).collect();
        let more = figure.outliers.len().saturating_sub(outliers.len());
        let mut outliers = outliers.join("; ");
        if more > 0 {
            outliers.push_str(&format!("; {more} more"));
        }
        let tolerance = if figure.tolerance.is_empty() {
            "none: the figure is shown".to_owned()
        } else {
            format!("{} ({})", figure.tolerance, figure.source)
        };
        vec![
            figure.id.clone(),
            figure.unit.clone(),
            figure.values.len().to_string(),
            short(figure.min),
            short(figure.median),
            short(figure.max),
            figure
                .spread_percent
                .map_or_else(|| "not repeated".to_owned(), |spread| format!("{spread:.1} %")),
            tolerance,
            outliers,
        ]
    };
    let rows: Vec<Vec<String>> = figures.iter().take(MOST_ROWS).map(row).collect();
    html! {
        @if !rows.is_empty() {
            h2 { "Figures" }
            div.card {
                (table(&["`Figure", "Unit", "#Values", "#Lowest", "#Median", "#Highest", "#Repeatability", "Tolerance", "Outliers"], &rows))
                (left_out(figures.len()))
                p.soft { "Repeatability: the largest difference between two repetitions of one part, per cent of the part's own median." }
            }
        }
    }
}

fn inventory(report: &Report) -> Markup {
    let row = |one: &Inventory| vec![one.key.clone(), one.machine.clone(), one.words()];
    let rows: Vec<Vec<String>> = report.inventory.iter().map(row).collect();
    html! {
        @if !rows.is_empty() {
            h2 { "Inventory" }
            div.card { (table(&["`What", "Machine type", "Value (nodes)"], &rows)) }
        }
    }
}

fn reliability(mttf: Option<&Mttf>) -> Markup {
    let hours = |hours: f64| format!("{} h", short(hours));
    html! {
        h2 { "Mean time to failure of a node" }
        div.card {
            @if let Some(mttf) = mttf {
                p.why {
                    @if let (Some(mean), Some(upper)) = (mttf.hours, mttf.upper) {
                        (Text(&hours(mean))) ", 90 % interval from " (Text(&hours(mttf.lower))) " to " (Text(&hours(upper)))
                    } @else { "above " (Text(&hours(mttf.lower))) " with 95 % confidence: no failure was seen" }
                }
                p.soft {
                    (Text(&short(mttf.node_hours))) " node hours of work, " (mttf.failures) @if mttf.failures == 1 { " failure" } @else { " failures" } ": jobs that a failed node ended, \
                     and rounds in which a check of a node failed or one of its GPUs computed a wrong value. Warnings and rounds with \
                     injected faults do not count. "
                    @if mttf.unknown == 1 { "1 lost job of unknown cause is not counted. " }
                    @else if mttf.unknown > 1 { (mttf.unknown) " lost jobs of unknown cause are not counted. " }
                    "The interval is 2T/χ²(0.95; 2r+2) to 2T/χ²(0.05; 2r) for T hours and r \
                     failures (exponential distribution, test ended at a time)."
                }
            } @else { p { "Unknown: no job of the plan has a result." } }
        }
    }
}

fn exceptions(report: &Report) -> Markup {
    html! {
        h2 { "Exceptions" }
        div.card {
            @if report.exceptions.is_empty() {
                p { "None: no unit was repeated, no job was lost, and the run was not interrupted." }
            } @else {
                ul { @for exception in report.exceptions.iter().take(MOST_ROWS) { li { (Text(exception)) } } }
                (left_out(report.exceptions.len()))
            }
        }
    }
}

fn signatures(report: &Report) -> Markup {
    html! {
        // Not part of the block that is kept on one page.
        details {
            summary { "Result files that the journal names: " (report.results.len()) }
            ul { @for one in &report.results { li { code { (Text(&one.sha256)) "  " (Text(&one.name)) } } } }
        }
        section.sign {
            h2 { "Signatures" }
            div.card {
                dl {
                    dt { "Answer" } dd { (Text(report.overall.words())) }
                    dt { "SHA-256 of the plan" } dd { code { (Text(&report.plan_digest)) } }
                    dt { "SHA-256 of the journal" } dd { code { (Text(&report.journal_digest)) } }
                    dt { "SHA-256 of the raw results" } dd { code { (Text(&report.results_digest)) } }
                    dt { "Nodes" } dd { (report.nodes.len()) ": " (Text(&report.hostlist)) }
                }
                p.soft {
                    "The journal: its whole lines when this page was made. The raw results: the lines `SHA256  FILE` of the result files \
                     that the journal names, sorted by name, as listed above. Other files in the directory are not covered."
                }
                div.parties {
                    @for party in ["Supplier", "Customer"] {
                        div {
                            h3 { (Text(party)) }
                            @for line in ["Accepted / accepted with the waivers above / not accepted", "Name, role", "Date", "Signature"] {
                                p.line { (Text(line)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
