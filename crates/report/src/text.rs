mod answer;
mod counters;
mod environment;
mod live;
mod summary;

pub use answer::answer;
pub use live::live;
pub use summary::summary;

use railgate_model::Fitness;
use railgate_node_report::plain::{clock, plain, stamp, wrap};
use railgate_text::{Lines, put, shorten};

use crate::redact::redact;
use crate::view::{
    AskedNode, Before, Controller, Found, GateRow, ListedRows, OfAttempt, Rails, Ran, Sentence, View, screen,
    view,
};
use crate::{Attempt, JobReport, Weight};

const WIDTH: usize = 96;
/// Maximum of healthy nodes listed; above it they are summed up. Nodes with findings are always listed.
pub(crate) const MOST_NODES: usize = 16;
/// Maximum number of nodes in the table of the gate.
const MOST_ROWS: usize = 100;

/// The report for a terminal: why the job ended, then the timeline, then details. For a job of many nodes with
/// figures, only the first screen unless `full` is set.
pub fn text(report: &JobReport, full: bool) -> Lines {
    let mut out = Text::default();
    let nodes = report.attempts.iter().map(|attempt| attempt.node_count.max(attempt.nodes.len())).max();
    let one_screen = !full && nodes > Some(MOST_NODES) && screen::telling(report).is_some();
    let view = view(report);
    head(&mut out, report, &view, one_screen);
    if one_screen {
        out.line(&format!("more: railgate report {} --full", report.job));
        return out.0;
    }
    out.section("what happened", "(times in UTC)");
    story(&mut out, report);
    for (position, (attempt, of)) in report.attempts.iter().zip(&view.attempts).enumerate() {
        one_attempt(&mut out, report, position, attempt, of);
    }
    if !view.lacking.is_empty() || !view.problems.is_empty() {
        out.section("missing from this report", "");
        for lacking in &view.lacking {
            out.item(&format!("{}: {}", lacking.what.as_str(), lacking.why.as_str()));
            out.indented(&format!("to collect it: {}", lacking.collect.as_str()), 4);
        }
        for problem in &view.problems {
            out.item(problem.as_str());
        }
    }
    out.0
}

/// The first screen without names of nodes and users and without rates, for publication.
pub fn redacted(report: &JobReport) -> Lines {
    let mut out = Text::default();
    let shown = redact(report);
    out.line(&format!("job: {}", shown.kind.title()));
    for (name, line) in &shown.screen {
        out.screen(name, line);
    }
    out.0
}

/// Three lines: the job, its end, and the next step.
pub fn brief(report: &JobReport) -> Lines {
    let whole = text(report, false);
    let mut out = Text::default();
    out.line(whole.lines().next().unwrap_or_default());
    let rows = screen::rows(report);
    let text_of = |name: &str| rows.iter().find(|row| row.name == name).map(screen::Row::text);
    let why = match &report.first_error {
        Some(_) => screen::with_error(report, report.ended.kind.title()),
        None => report.ended.why.clone(),
    };
    out.screen("VERDICT", text_of("VERDICT").as_deref().unwrap_or(&why));
    out.screen("DO", text_of("DO").as_deref().unwrap_or("nothing"));
    out.0
}

#[derive(Default)]
struct Text(Lines);

impl Text {
    fn line(&mut self, text: &str) {
        put!(self.0, "{}", shorten(text.trim_end(), 4000));
    }

    fn section(&mut self, title: &str, about: &str) {
        self.0.blank();
        self.line(&format!("{} {about}", title.to_uppercase()));
    }

    fn indented(&mut self, text: &str, by: usize) {
        for line in wrap(&shorten(text, 4000), WIDTH - by) {
            self.line(&format!("{:by$}{line}", ""));
        }
    }

    fn item(&mut self, text: &str) {
        for (number, line) in wrap(&shorten(text, 4000), WIDTH - 2).into_iter().enumerate() {
            self.line(&format!("{}{line}", if number == 0 { "- " } else { "  " }));
        }
    }

    fn field(&mut self, name: &str, value: &str) {
        for (number, line) in wrap(&shorten(value, 4000), WIDTH - 14).into_iter().enumerate() {
            self.line(&format!("{:13} {line}", if number == 0 { name } else { "" }));
        }
    }

    /// Writes a field; its name precedes the first sentence.
    fn sentences(&mut self, name: &str, sentences: &[Sentence]) {
        for (number, sentence) in sentences.iter().enumerate() {
            self.field(if number == 0 { name } else { "" }, sentence.as_str());
        }
    }

    fn screen(&mut self, name: &str, value: &str) {
        if name == screen::TABLE {
            self.line(&format!("{:9}{}", "", shorten(value, WIDTH)));
            return;
        }
        for (number, line) in wrap(&shorten(value, 600), WIDTH + 8 - 9).into_iter().enumerate() {
            self.line(&format!("{:8} {line}", if number == 0 { name } else { "" }));
        }
    }

    fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let widths: Vec<usize> = (0..head.len())
            .map(|column| {
                rows.iter()
                    .filter_map(|row| row.get(column))
                    .map(|cell| cell.chars().count())
                    .chain([head[column].chars().count()])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut put = |cells: &[String]| {
            let cells: Vec<String> =
                cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            self.line(&format!("  {}", cells.join("  ")));
        };
        put(&head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>());
        for row in rows {
            put(row);
        }
    }
}

fn head(out: &mut Text, report: &JobReport, view: &View, one_screen: bool) {
    let head = &view.head;
    let restarts = match report.attempts.len() {
        0 | 1 => String::new(),
        count => format!(", {count} attempts"),
    };
    let shape = head.shape.as_ref().map(|shape| format!("; {shape}")).unwrap_or_default();
    out.line(&format!("job {}: {}{restarts}{shape}", head.job, head.ended.kind.title()));
    for row in &view.screen {
        out.screen(row.name, &row.text());
    }
    out.0.blank();
    out.field("why", head.ended.why.as_str());
    out.sentences("first error", &head.first_error);
    out.sentences("but", &head.ended.doubts);
    // With figures, the first screen contains it.
    if view.screen.is_empty() {
        out.sentences("do", &head.steps);
    }
    if !head.before.is_empty() && !one_screen {
        let one =
            |before: &Before| format!("attempt {}: {}{}", before.attempt, before.kind.title(), before.nodes);
        let before: Vec<String> = head.before.iter().map(one).collect();
        let more = match head.more_before {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        out.field("before", &format!("{}{more}", before.join("; ")));
    }
    out.sentences("rails", view.attempts.last().map_or(&[], |attempt| &attempt.warnings));
    let user = report.uid.map(|uid| format!("{} (uid {uid})", plain(&report.user)));
    let partition = Some(&report.partition).filter(|name| !name.is_empty());
    let known: Vec<String> =
        user.into_iter().chain(partition.map(|name| format!("partition {name}"))).collect();
    if !known.is_empty() {
        out.field("user", &known.join(", "));
    }
    for (name, sentence) in [("log", &head.log), ("slurm state", &head.slurm)] {
        out.sentences(name, sentence.as_slice());
    }
}

fn story(out: &mut Text, report: &JobReport) {
    const MOST: usize = 200;
    let mut day = String::new();
    let mut attempt = None;
    for event in report.timeline.iter().take(MOST) {
        if report.attempts.len() > 1 && attempt != Some(event.attempt) {
            out.line(&format!("  attempt {}", event.attempt));
            attempt = Some(event.attempt);
        }
        let stamp = stamp(event.time);
        let today = stamp.get(..10).unwrap_or_default();
        if today != day {
            today.clone_into(&mut day);
            out.line(&format!("  {day}"));
        }
        let mark = match event.weight {
            Weight::Step | Weight::Act => ' ',
            Weight::Warn => '!',
            Weight::Fail => '*',
        };
        let time = if event.by_then {
            format!("≤{}", &clock(event.time))
        } else {
            format!(" {}", clock(event.time))
        };
        let node = shorten(&event.node, 14);
        let lead = format!("{mark}{time}  {node:14} ");
        for (number, line) in wrap(&shorten(&event.what, 1000), WIDTH - 31).into_iter().enumerate() {
            out.line(&format!("{}{line}", if number == 0 { lead.clone() } else { " ".repeat(31) }));
        }
    }
    if report.timeline.len() > MOST {
        out.line(&format!("  and {} more", report.timeline.len() - MOST));
    }
    if report.timeline.is_empty() {
        out.line("  nothing was recorded");
    } else {
        out.line("  (* fault, ! worth checking, ≤ no later than this)");
    }
}

fn one_attempt(out: &mut Text, report: &JobReport, position: usize, attempt: &Attempt, of: &OfAttempt) {
    let count = report.attempts.len();
    let is_last = position + 1 == count;
    let section = format!("attempt {}", attempt.attempt);
    out.section(&section, "");
    if count > 1 {
        out.field("ended", &format!("{}. {}", of.ended.kind.title(), of.ended.why.as_str()));
    }
    // The head of the report has those of the last attempt.
    if !is_last {
        out.sentences("first error", &of.first_error);
        out.sentences("but", &of.ended.doubts);
    }
    if let Some(reported) = &of.reported {
        out.field("nodes", &format!("{}: {}", of.nodes, reported.as_str()));
    }
    match &of.ran {
        Some(Ran::Ended(ran)) => out.field("ran", ran.as_str()),
        Some(Ran::Since(since)) => out.field("began", since.as_str()),
        None => {}
    }
    out.sentences("starts", &of.starts);
    if !is_last {
        out.sentences("rails", &of.warnings);
    }
    if !of.ended.evidence.is_empty() {
        out.field("evidence", "in time order:");
        for one in of.ended.evidence.iter().take(50) {
            let time = one.time.map_or_else(|| "untimed:".to_owned(), clock);
            out.indented(&format!("{time}  {}: {}", one.node, one.what.as_str()), 14);
        }
    }
    if let Some(controller) = &of.controller {
        decision(out, controller);
    }
    if !of.gate.is_empty() {
        out.section(&format!("{section}: gate"), "");
        gate(out, &of.gate);
        for found in &of.findings {
            out.item(&finding(found));
        }
    }
    if let Some(rails) = &of.rails {
        wiring(out, &format!("{section}: rails"), rails);
    }
    if let Some(environment) = &of.environment {
        environment::environment(out, &format!("{section}: NCCL environment"), environment);
    }
    if let Some(counters) = &of.counters {
        counters::counters(out, &format!("{section}: counters"), counters, is_last);
    }
}

fn decision(out: &mut Text, controller: &Controller) {
    let (what, why, consent) = (controller.what, controller.why.as_str(), &controller.consent);
    out.field("controller", &format!("{what}: {why} (effective --railgate-requeue: {consent})"));
    out.sentences("budget", controller.budget.as_slice());
    let told = |node: &&AskedNode| node.evidence.is_some() || !node.reason.as_str().is_empty();
    for node in controller.nodes.iter().filter(told) {
        let evidence =
            node.evidence.as_ref().map(|source| format!(" (evidence from {source})")).unwrap_or_default();
        out.indented(&format!("{} {}: {}{evidence}", node.node, node.state, node.reason.as_str()), 14);
    }
}

fn gate(out: &mut Text, gate: &[GateRow]) {
    let listed = ListedRows::of(gate, MOST_NODES, MOST_ROWS);
    let word = |fitness: Option<Fitness>, has_ended: bool| match fitness {
        Some(fitness) => fitness.to_string(),
        None if has_ended => "not judged".to_owned(),
        None => "-".to_owned(),
    };
    let rows: Vec<Vec<String>> = listed
        .rows
        .iter()
        .map(|row| {
            vec![
                shorten(&row.node, 24),
                word(row.before, row.has_ended),
                word(row.after, row.has_ended),
                shorten(&row.gate, 8),
                shorten(&row.requeue, 8),
            ]
        })
        .collect();
    if !rows.is_empty() {
        out.table(&["NODE", "BEFORE", "AFTER", "GATE", "REQUEUE"], &rows);
    }
    if let Some(rest) = listed.rest() {
        out.line(&format!("  {rest}"));
    }
}

fn finding(found: &Found) -> String {
    match found {
        Found::Finding { node, phase, subject, severity, class, what, fix, .. } => {
            let (what, fix) = (what.as_str(), fix.as_str());
            format!("{node} {phase} {subject}: {what} [{severity}, {class}]; {fix}")
        }
        Found::NotRead { node, phase, part, why } => {
            format!("{node} {phase}: {part} not read: {}", why.as_str())
        }
        Found::Fault { node, what } => format!("{node}: railgate error: {}", what.as_str()),
    }
}

fn wiring(out: &mut Text, title: &str, rails: &Rails) {
    if let Some(same) = rails.as_in {
        out.section(title, &format!("as in attempt {same}"));
        return;
    }
    out.section(title, &format!("as on {}", plain(&rails.node)));
    let rows: Vec<Vec<String>> = rails
        .rows
        .iter()
        .take(64)
        .map(|row| {
            let gpus = if row.gpus.is_empty() { "-".to_owned() } else { row.gpus.clone() };
            let port = format!("{}:{}", shorten(&row.hca, 20), row.port);
            vec![row.number.to_string(), gpus, port, row.rate.clone(), row.numa.clone()]
        })
        .collect();
    match &rails.none {
        Some(none) => out.line(&format!("  {}", none.as_str())),
        None => out.table(&["RAIL", "GPU", "PORT", "RATE", "NUMA"], &rows),
    }
    for note in rails.differ.iter().chain(rails.notes.iter().take(20)) {
        out.item(note.as_str());
    }
}

#[cfg(test)]
mod tests {
    use railgate_node_report::testing::{evil_tasks, evil_transport, job, part};

    use super::*;
    use crate::testing::{merged, story};

    #[test]
    fn report_fits_a_terminal_and_begins_with_the_reason() {
        let text = text(&story(), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "job 48213 on alpha: completed, 3 attempts");
        assert!(lines.contains(&"ATTEMPT 0"), "{text}");
        assert!(lines[2].starts_with("why "), "{}", lines[2]);
        for part in [
            "WHAT HAPPENED",
            "Xid 79 on GPU 3",
            "refused by the gate",
            "36.00 GB",
            "10.00 MB/s",
            "600 W",
            "instead of",
            "  1 more node, nothing unusual",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let wide: Vec<&&str> = lines.iter().filter(|line| line.chars().count() > 110).collect();
        assert!(wide.is_empty(), "{wide:#?}");
    }

    #[test]
    fn no_foreign_text_controls_the_terminal() {
        let mut hostile = part("n1", &job(0..8), "", vec![], 256);
        hostile.job.user = "\x1b]0;owned\x07".to_owned();
        hostile.job.partition = "a\nb\x1b[2J".to_owned();
        hostile.steps[0].settings[0].value = "x\x1b[31m\r\u{202e}".to_owned();
        hostile.faults.push("\u{9b}2J".to_owned());
        hostile.tasks = Some(evil_tasks("x\x1b[31m\r\u{202e}"));
        hostile.applied = railgate_node_report::applied(&hostile, hostile.tasks.as_ref().unwrap());
        hostile.transport = Some(evil_transport("x\x1b[31m\r\u{202e}"));
        hostile.rail_map.as_mut().unwrap().notes.push("\x1b".to_owned());
        let report = merged(vec![hostile], vec![], None);
        let text = text(&report, true);
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        assert!(!text.contains('\u{202e}'));
        let mut whole = Vec::new();
        crate::json(&report, &mut whole).unwrap();
        assert!(serde_json::from_slice::<JobReport>(&whole).is_ok_and(|read| read == report));
    }

    #[test]
    fn large_job_is_summed_up() {
        let nodes: Vec<_> = (0..300).map(|n| part(&format!("n{n:03}"), &job(0..8), "", vec![], 0)).collect();
        let text = text(&merged(nodes, vec![], None), true);
        assert!(text.contains("  300 nodes without findings") && text.lines().count() < 600);
    }
}
