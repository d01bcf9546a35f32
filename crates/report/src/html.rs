mod chart;
mod course;
mod details;
mod environment;
mod numbers;

use std::fmt::Write as _;

use railgate_node_report::plain::{clock, span, stamp};
use railgate_store::Course;
use railgate_text::shorten;

use crate::redact::redact;
use crate::view::{Before, Ending, Lacking, Sentence, View, view};
use crate::{EndKind, JobReport, Weight};

const STYLE: &str = include_str!("html/style.css");

/// Escaped for text and for attributes in double quotes; what could turn or hide the text after it is `?`.
pub(crate) fn esc(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in shorten(text, 4000).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// A table whose cells are escaped here; columns that begin with `#` are numbers, with `` ` `` code.
pub(crate) fn table(out: &mut String, head: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let class = |column: usize| match head.get(column).and_then(|name| name.chars().next()) {
        Some('#') => " class=\"n\"",
        Some('`') => " class=\"c\"",
        Some('@') => " class=\"t\"",
        _ => "",
    };
    out.push_str("<div class=\"scroll\"><table><thead><tr>");
    for (column, name) in head.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(out, "<th{}>{}</th>", class(column), esc(name.trim_start_matches(['#', '`', '@'])));
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", class(column), esc(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

fn tone(kind: EndKind) -> &'static str {
    match kind {
        EndKind::Completed => "good",
        EndKind::Hardware | EndKind::NodeDied => "bad",
        EndKind::Running | EndKind::Waiting | EndKind::Requeued | EndKind::Cancelled | EndKind::Preempted => {
            "calm"
        }
        EndKind::Timeout
        | EndKind::Deadline
        | EndKind::OutOfMemory
        | EndKind::MovedByGate
        | EndKind::Application
        | EndKind::Unknown => "warn",
    }
}

pub(crate) fn pill(kind: EndKind) -> String {
    format!("<span class=\"pill {}\">{}</span>", tone(kind), esc(kind.title()))
}

/// Why it ended, what that stands on, what speaks against it.
pub(crate) fn ended(out: &mut String, ended: &Ending) {
    let _ = writeln!(out, "<p class=\"why\">{}</p>", esc(ended.why.as_str()));
    if !ended.evidence.is_empty() {
        out.push_str("<h3>Evidence, in time order</h3>");
        let rows: Vec<Vec<String>> = ended
            .evidence
            .iter()
            .take(100)
            .map(|one| {
                let time = one.time.map_or_else(|| "untimed".to_owned(), stamp);
                vec![time, one.node.clone(), one.what.as_str().to_owned()]
            })
            .collect();
        table(out, &["@Time", "Node", "What"], &rows);
    }
    list(out, "<h3>But</h3>", &ended.doubts);
}

/// Sentences below a heading; nothing where there are none.
fn list(out: &mut String, heading: &str, sentences: &[Sentence]) {
    if sentences.is_empty() {
        return;
    }
    let _ = write!(out, "{heading}<ul>");
    for sentence in sentences {
        let _ = write!(out, "<li>{}</li>", esc(sentence.as_str()));
    }
    out.push_str("</ul>\n");
}

/// The report as one page that needs nothing else: no network, no script, light and dark.
pub fn html(report: &JobReport) -> String {
    html_with(report, &[], &[])
}

/// The same with time lines of GPUs, and why some are lacking.
pub fn html_with(report: &JobReport, courses: &[Course], problems: &[String]) -> String {
    let mut out = String::with_capacity(64 * 1024);
    let view = view(report);
    let head = &view.head;
    let title = format!("Job {}", head.job);
    begin(&mut out, &title);
    let _ = writeln!(out, "<h1>{}{}</h1>", esc(&title), pill(head.ended.kind));
    let user = if report.user.is_empty() { "unknown user" } else { &report.user };
    let uid = report.uid.map(|uid| format!(" (uid {uid})")).unwrap_or_default();
    let attempts = match report.attempts.len() {
        1 => "1 attempt".to_owned(),
        count => format!("{count} attempts"),
    };
    let started = report.attempts.first().and_then(|attempt| attempt.start);
    let finished = report.attempts.last().and_then(|attempt| attempt.end);
    let lasted = match (started, finished) {
        (Some(start), Some(end)) => {
            format!(
                ", {} from {}",
                span(railgate_node_report::plain::float(end.saturating_sub(start)) / 1000.0),
                stamp(start)
            )
        }
        _ => String::new(),
    };
    let _ = writeln!(
        out,
        "<p class=\"soft\">{}{}, partition {}, {attempts}{}</p>",
        esc(user),
        esc(&uid),
        esc(if report.partition.is_empty() { "unknown" } else { &report.partition }),
        esc(&lasted)
    );
    out.push_str("<div class=\"card\">\n");
    ended(&mut out, &head.ended);
    if !head.before.is_empty() {
        let one = |before: &Before| {
            format!("attempt {} {}{}", before.attempt, pill(before.kind), esc(&before.nodes))
        };
        let before: Vec<String> = head.before.iter().map(one).collect();
        let more = match head.more_before {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let _ = writeln!(out, "<p>Before: {}{more}</p>", before.join(", "));
    }
    list(&mut out, "<h3>What to do</h3>", &head.steps);
    if let Some(log) = &head.log {
        let _ = writeln!(out, "<p class=\"soft\">Log: <code>{}</code></p>", esc(log.as_str()));
    }
    if let Some(slurm) = &head.slurm {
        let _ = writeln!(out, "<p class=\"soft\">Slurm reports {}</p>", esc(slurm.as_str()));
    }
    out.push_str("</div>\n");

    numbers::numbers(&mut out, report, &view);
    course::courses(&mut out, courses, problems);
    out.push_str("<h2>What happened</h2>\n<div class=\"card\">\n");
    chart::chart(&mut out, report);
    story(&mut out, report);
    out.push_str("</div>\n");

    for (attempt, of) in report.attempts.iter().zip(&view.attempts) {
        details::attempt(&mut out, attempt, of, report.attempts.len() > 1);
    }
    lacking(&mut out, &view);
    end(&mut out, report);
    out
}

fn begin(out: &mut String, title: &str) {
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"referrer\" content=\"no-referrer\">\
         <title>{}</title>\n<style>\n{STYLE}</style></head><body><main>\n",
        esc(title)
    );
}

fn end(out: &mut String, report: &JobReport) {
    let _ = write!(
        out,
        "<footer>railgate {}, report schema {}. Times are UTC. Rates are means over the stated window; a counter \
         that went backwards or crossed a boot is unknown, never zero.</footer>\n</main></body></html>\n",
        esc(&report.railgate),
        report.schema
    );
}

/// The page without names and rates: how it ended, the first screen, what stands out.
pub fn redacted_html(report: &JobReport) -> String {
    let shown = redact(report);
    let mut out = String::with_capacity(16 * 1024);
    begin(&mut out, "Job");
    let _ = writeln!(out, "<h1>Job{}</h1>", pill(shown.kind));
    let _ = writeln!(out, "<div class=\"card\"><p class=\"why\">{}</p>", esc(&shown.why));
    numbers::of_the_job(&mut out, shown.screen.into_iter());
    out.push_str("</div>\n");
    numbers::diagnoses(&mut out, &shown.diagnoses);
    end(&mut out, report);
    out
}

fn story(out: &mut String, report: &JobReport) {
    const MOST: usize = 300;
    if report.timeline.is_empty() {
        out.push_str("<p class=\"soft\">Nothing was recorded.</p>");
        return;
    }
    out.push_str("<div class=\"scroll\"><table><thead><tr><th>Attempt</th><th>Time</th><th>Node</th><th>What</th></tr></thead><tbody>\n");
    let mut day = String::new();
    for event in report.timeline.iter().take(MOST) {
        let stamp = stamp(event.time);
        let today = stamp.get(..10).unwrap_or_default();
        let date = if today == day { String::new() } else { format!("{today} ") };
        today.clone_into(&mut day);
        let bound = if event.by_then { "by " } else { "" };
        let class = match event.weight {
            Weight::Step => "",
            Weight::Act => " class=\"calm\"",
            Weight::Warn => " class=\"warn\"",
            Weight::Fail => " class=\"bad\"",
        };
        let _ = writeln!(
            out,
            "<tr><td>{}</td><td class=\"t\">{}{bound}{}</td><td>{}</td><td{class}>{}</td></tr>",
            event.attempt,
            esc(&date),
            clock(event.time),
            esc(&event.node),
            esc(&event.what)
        );
    }
    out.push_str("</tbody></table></div>\n");
    if report.timeline.len() > MOST {
        let _ = writeln!(out, "<p class=\"soft\">and {} more</p>", report.timeline.len() - MOST);
    }
}

fn lacking(out: &mut String, view: &View) {
    if view.lacking.is_empty() && view.problems.is_empty() {
        return;
    }
    out.push_str("<h2>Missing from this report</h2>\n<div class=\"card\">\n");
    let cells = |one: &Lacking| {
        [&one.what, &one.why, &one.collect].into_iter().map(|cell| cell.as_str().to_owned()).collect()
    };
    let rows: Vec<Vec<String>> = view.lacking.iter().map(cells).collect();
    table(out, &["Part", "Why", "`To collect it"], &rows);
    list(out, "", &view.problems);
    out.push_str("</div>\n");
}

#[cfg(test)]
mod tests {
    use railgate_node_report::testing::{evil_tasks, evil_transport, job, part};

    use super::*;
    use crate::testing::{merged, story};

    #[test]
    fn the_page_needs_nothing_else() {
        let page = html(&story());
        for outside in ["http://", "https://", "<script", "<link", "url(", "@import", "<img"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("prefers-color-scheme: dark") && page.contains("<svg viewBox"));
        for part in ["Xid 79", "Attempt 2", "36.00 GB", "Restarts".to_lowercase().as_str()] {
            assert!(page.contains(part), "{part}");
        }
        assert!(page.contains("Before: attempt 0"));
    }

    /// Tags open and close in order; what is between quotes is no tag.
    fn balanced(page: &str) -> Result<(), String> {
        let mut open: Vec<&str> = Vec::new();
        let body = page.split_once("</style>").map_or(page, |(_, body)| body);
        for piece in body.split('<').skip(1) {
            let tag = piece.split('>').next().unwrap_or_default();
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
            if matches!(name, "line" | "circle" | "br" | "meta" | "!doctype")
                && (tag.ends_with('/') || name == "br")
            {
                continue;
            }
            if tag.starts_with('/') {
                // html and head were opened before the part that is looked at.
                match open.pop() {
                    Some(last) if last == name => {}
                    None if matches!(name, "head" | "html") => {}
                    other => return Err(format!("</{name}> after {other:?}")),
                }
            } else {
                open.push(name);
            }
        }
        if open.is_empty() { Ok(()) } else { Err(format!("{open:?} stay open")) }
    }

    #[test]
    fn no_foreign_text_becomes_a_tag() {
        assert_eq!(balanced(&html(&story())), Ok(()));
        let evil = "\"><script>alert(1)</script><b onmouseover='x'>\u{202e}\0&amp;";
        let mut hostile = part("n1", &job(0..8), "gpu-xid-31@1", vec![], 256);
        for text in [
            &mut hostile.job.user,
            &mut hostile.job.partition,
            &mut hostile.job.nodelist,
            &mut hostile.options.gate,
            &mut hostile.steps[0].settings[0].value,
            &mut hostile.settings[0].value,
            &mut hostile.node,
        ] {
            evil.clone_into(text);
        }
        evil.clone_into(&mut hostile.steps[0].step);
        hostile.options.profile = Some(evil.to_owned());
        hostile.faults.push(evil.to_owned());
        hostile.kernel.xids[0].text = evil.to_owned();
        let map = hostile.rail_map.as_mut().unwrap();
        map.notes.push(evil.to_owned());
        map.method = evil.to_owned();
        map.rails[0].hca = evil.to_owned();
        hostile.ports[0].hca = evil.to_owned();
        hostile.tasks = Some(evil_tasks(evil));
        hostile.applied = railgate_node_report::applied(&hostile, hostile.tasks.as_ref().unwrap());
        hostile.transport = Some(evil_transport(evil));
        let rank = railgate_node_report::application::RankApplication {
            file: evil.to_owned(),
            rank: Some(3),
            steps: 2,
            course: Some(railgate_node_report::application::Course {
                start: 1,
                span_s: 1.0,
                step_s: vec![Some(1.0), None, Some(2.0)],
            }),
            model: Some(railgate_node_report::application::Model {
                dtype: evil.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        };
        hostile.application =
            Some(railgate_node_report::Application { ranks: vec![rank], problems: vec![evil.to_owned()] });
        hostile.communication = Some(railgate_node_report::Communication {
            collectives: vec![railgate_node_report::comm::Collective {
                op: evil.to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        });
        let mut report = merged(vec![hostile], vec![], None);
        report.problems.push(evil.to_owned());
        report.cluster = evil.to_owned();
        let page = html(&report);
        assert_eq!(balanced(&page), Ok(()));
        assert!(!page.contains("<script") && !page.contains("<b ") && !page.contains('\u{202e}'));
        assert!(page.contains("&lt;script&gt;") && page.contains("Step time of each rank"));
    }
}
