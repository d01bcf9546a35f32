mod chart;
mod course;
mod details;
mod environment;
#[cfg(test)]
mod foreign;
mod numbers;

use std::fmt::Write as _;

use maud::{Markup, Render, html};
use railgate_model::UnixMillis;
use railgate_node_report::plain::{clock, span, stamp};
pub(crate) use railgate_page::{Text, table};
use railgate_store::Course;

use crate::redact::redact;
use crate::view::{Ending, Lacking, Sentence, View, view};
use crate::{EndKind, Event, JobReport, Weight};

impl Render for Sentence {
    fn render_to(&self, page: &mut String) {
        Text(self.as_str()).render_to(page);
    }
}

/// A length in a drawing: a tenth of a unit is less than a pixel.
#[derive(Clone, Copy, Debug)]
struct Tenths(f64);

impl Render for Tenths {
    fn render_to(&self, page: &mut String) {
        // Writing to a String cannot fail.
        let _ = write!(page, "{:.1}", self.0);
    }
}

fn tone(kind: EndKind) -> &'static str {
    match kind {
        EndKind::Completed => "good",
        EndKind::Hardware | EndKind::Hung | EndKind::NodeDied => "bad",
        EndKind::Running | EndKind::Waiting | EndKind::Requeued | EndKind::Cancelled | EndKind::Preempted => {
            "calm"
        }
        EndKind::Timeout
        | EndKind::Deadline
        | EndKind::OutOfMemory
        | EndKind::MovedByGate
        | EndKind::Preflight
        | EndKind::Application
        | EndKind::Unknown => "warn",
    }
}

pub(crate) fn pill(kind: EndKind) -> Markup {
    html! { span.pill.(tone(kind)) { (Text(kind.title())) } }
}

/// Why it ended, what that stands on, what speaks against it.
pub(crate) fn ended(ended: &Ending) -> Markup {
    let rows: Vec<Vec<String>> = ended
        .evidence
        .iter()
        .take(100)
        .map(|one| {
            let time = one.time.map_or_else(|| "untimed".to_owned(), stamp);
            vec![time, one.node.clone(), one.what.as_str().to_owned()]
        })
        .collect();
    html! {
        p.why { (ended.why) }
        @if !rows.is_empty() {
            h3 { "Evidence, in time order" }
            (table(&["@Time", "Node", "What"], &rows))
        }
        @if !ended.doubts.is_empty() {
            h3 { "But" }
            (list(&ended.doubts))
        }
    }
}

/// The first error in a job's own logs.
pub(crate) fn first_error(sentences: &[Sentence]) -> Markup {
    html! {
        @if !sentences.is_empty() {
            h3 { "First error in the job's log" }
            (list(sentences))
        }
    }
}

fn list(sentences: &[Sentence]) -> Markup {
    html! {
        ul { @for sentence in sentences { li { (sentence) } } }
    }
}

/// The report as one page that needs nothing else: no network, no script, light and dark.
pub fn html(report: &JobReport) -> String {
    html_with(report, &[], &[])
}

/// The same with time lines of GPUs, and why some are lacking.
pub fn html_with(report: &JobReport, courses: &[Course], problems: &[String]) -> String {
    let view = view(report);
    let title = format!("Job {}", view.head.job);
    let body = html! {
        h1 { (Text(&title)) (pill(view.head.ended.kind)) }
        (about(report))
        (head(&view))
        (numbers::numbers(report, &view))
        (course::courses(courses, problems))
        h2 { "What happened" }
        div.card {
            (chart::chart(report))
            (story(&report.timeline))
        }
        @for (attempt, of) in report.attempts.iter().zip(&view.attempts) {
            (details::attempt(attempt, of, report.attempts.len() > 1))
        }
        (lacking(&view))
    };
    page(report, &title, &body)
}

/// Why the job stands or ended, as one page: the answer first, then what shows it, then what happened on all nodes.
pub fn answer_html(report: &JobReport, now: UnixMillis) -> String {
    let answer = crate::view::answer::answer(report, now);
    let body = html! {
        h1 { (Text(&answer.job)) }
        div.card {
            @for (place, (name, text)) in answer.rows.iter().enumerate() {
                p class=[(place == 0).then_some("why")] { strong { (Text(name)) } " " (Text(text)) }
            }
        }
        h2 { "What happened" }
        div.card { (story(&report.timeline)) }
    };
    page(report, &format!("Job {}: why", report.job), &body)
}

fn page(report: &JobReport, title: &str, body: &Markup) -> String {
    let footer = html! {
        "railgate " (Text(&report.railgate)) ", report schema " (report.schema) ". Times are UTC. Rates are means over the \
         stated window; a counter that went backwards or crossed a boot is unknown, never zero."
    };
    railgate_page::page(title, body, &footer)
}

/// Whose job it is, and when it ran.
fn about(report: &JobReport) -> Markup {
    let user = if report.user.is_empty() { "unknown user" } else { &report.user };
    let partition = if report.partition.is_empty() { "unknown" } else { &report.partition };
    let started = report.attempts.first().and_then(|attempt| attempt.start);
    let finished = report.attempts.last().and_then(|attempt| attempt.end);
    html! {
        p.soft {
            (Text(user))
            @if let Some(uid) = report.uid { " (uid " (uid) ")" }
            ", partition " (Text(partition)) ", "
            @match report.attempts.len() { 1 => "1 attempt", count => { (count) " attempts" } }
            @if let (Some(start), Some(end)) = (started, finished) {
                @let seconds = railgate_node_report::plain::float(end.saturating_sub(start)) / 1000.0;
                ", " (Text(&span(seconds))) " from " (Text(&stamp(start)))
            }
        }
    }
}

fn head(view: &View) -> Markup {
    let head = &view.head;
    html! {
        h2 { "Verdict" }
        div.card {
            (ended(&head.ended))
            (first_error(&head.first_error))
            @if !head.before.is_empty() {
                p {
                    "Before: "
                    @for (place, before) in head.before.iter().enumerate() {
                        @if place > 0 { ", " }
                        "attempt " (before.attempt) " " (pill(before.kind)) (Text(&before.nodes))
                    }
                    @if head.more_before > 0 { " and " (head.more_before) " more" }
                }
            }
            @if !head.steps.is_empty() {
                h3 { "What to do" }
                (list(&head.steps))
            }
            @if let Some(log) = &head.log {
                p.soft { "Log: " code { (log) } }
            }
            @if let Some(slurm) = &head.slurm {
                p.soft { "Slurm reports " (slurm) }
            }
        }
    }
}

/// The page without names and rates: how it ended, the first screen, what stands out.
pub fn redacted_html(report: &JobReport) -> String {
    let shown = redact(report);
    let body = html! {
        h1 { "Job" (pill(shown.kind)) }
        h2 { "Verdict" }
        div.card {
            p.why { (Text(&shown.why)) }
            (numbers::of_the_job(shown.screen.into_iter()))
        }
        (numbers::diagnoses(&shown.diagnoses))
    };
    page(report, "Job", &body)
}

fn story(timeline: &[Event]) -> Markup {
    const MOST: usize = 300;
    let day = |event: &Event| stamp(event.time).get(..10).unwrap_or_default().to_owned();
    html! {
        @if timeline.is_empty() {
            p.soft { "Nothing was recorded." }
        } @else {
            div.scroll tabindex="0" { table {
                thead { tr { th { "Attempt" } th { "Time" } th { "Node" } th { "What" } } }
                tbody {
                    @for (place, event) in timeline.iter().take(MOST).enumerate() {
                        @let today = day(event);
                        @let earlier = place.checked_sub(1).and_then(|place| timeline.get(place));
                        tr {
                            td { (event.attempt) }
                            td.t {
                                @if earlier.map(day).as_ref() != Some(&today) { (Text(&today)) " " }
                                @if event.by_then { "by " }
                                (Text(&clock(event.time)))
                            }
                            td { (Text(&event.node)) }
                            td class=[class(event.weight)] { (Text(&event.what)) }
                        }
                    }
                }
            } }
            @if timeline.len() > MOST {
                p.soft { "and " (timeline.len() - MOST) " more" }
            }
        }
    }
}

fn class(weight: Weight) -> Option<&'static str> {
    match weight {
        Weight::Step => None,
        Weight::Act => Some("calm"),
        Weight::Warn => Some("warn"),
        Weight::Fail => Some("bad"),
    }
}

fn lacking(view: &View) -> Markup {
    let cells = |one: &Lacking| {
        [&one.what, &one.why, &one.collect].into_iter().map(|cell| cell.as_str().to_owned()).collect()
    };
    let rows: Vec<Vec<String>> = view.lacking.iter().map(cells).collect();
    html! {
        @if !rows.is_empty() || !view.problems.is_empty() {
            h2 { "Missing from this report" }
            div.card {
                (table(&["Part", "Why", "`To collect it"], &rows))
                @if !view.problems.is_empty() { (list(&view.problems)) }
            }
        }
    }
}

/// Text as it is on the page.
#[cfg(test)]
pub(crate) fn esc(text: &str) -> String {
    Text(text).render().into_string()
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
