mod counters;
mod environment;
mod live;
mod summary;

pub use live::live;
pub use summary::summary;

use railgate_text::{Lines, put, shorten};

use crate::plain::{clock, float, plain, span, stamp, wrap};
use crate::redact::redact;
use crate::view::nccl::warnings;
use crate::view::{OfAttempt, Rails, View, screen, view};
use crate::why::decided;
use crate::{Attempt, EndKind, JobReport, NodeReport, Weight};

const WIDTH: usize = 96;
/// Beyond so many healthy nodes they are summed up; those with something to say are always listed.
pub(crate) const MOST_NODES: usize = 16;

/// The report for a terminal: why it ended first, then what happened, then the details. Of a job of many nodes that has
/// numbers only the first screen, unless `full` is asked for.
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
    if !report.missing.is_empty() || !report.problems.is_empty() {
        out.section("what this report lacks", "");
        for missing in &report.missing {
            out.item(&format!("{}: {}", missing.what, missing.why));
            out.indented(&format!("to collect it: {}", missing.collect), 4);
        }
        for problem in &report.problems {
            out.item(problem);
        }
    }
    out.0
}

/// The screen alone, without what names a node, a user or a rate: to be pasted where others read.
pub fn redacted(report: &JobReport) -> Lines {
    let mut out = Text::default();
    let shown = redact(report);
    out.line(&format!("job: {}", shown.kind.title()));
    for (name, line) in &shown.screen {
        out.screen(name, line);
    }
    out.0
}

/// Three lines: what it was, what became of it, what to do.
pub fn brief(report: &JobReport) -> Lines {
    let whole = text(report, false);
    let mut out = Text::default();
    out.line(whole.lines().next().unwrap_or_default());
    let rows = screen::rows(report);
    let text_of = |name: &str| rows.iter().find(|row| row.name == name).map(screen::Row::text);
    out.screen("VERDICT", text_of("VERDICT").as_deref().unwrap_or(&report.ended.why));
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
    let restarts = match report.attempts.len() {
        0 | 1 => String::new(),
        count => format!(", {count} attempts"),
    };
    let kind = report.ended.kind.title();
    let components: Vec<String> = report.components.iter().map(u32::to_string).collect();
    let het = match components.as_slice() {
        [] => String::new(),
        ids => format!(" (heterogeneous: {})", ids.join(", ")),
    };
    let cluster = plain(&report.cluster);
    let place = if cluster.is_empty() { String::new() } else { format!(" on {cluster}") };
    let shape = screen::shape(report).map(|shape| format!("; {shape}")).unwrap_or_default();
    let name = report.name.as_ref().map(|name| format!(" '{}'", shorten(name, 40))).unwrap_or_default();
    out.line(&format!("job {}{name}{het}{place}: {kind}{restarts}{shape}", report.job));
    let numbers = screen::telling(report).is_some();
    if numbers {
        for row in &view.screen {
            out.screen(row.name, &row.text());
        }
    }
    out.0.blank();
    out.field("why", &report.ended.why);
    for (number, doubt) in report.ended.doubts.iter().enumerate() {
        out.field(if number == 0 { "but" } else { "" }, doubt);
    }
    // With numbers the screen has said it.
    for (number, step) in report.next_steps.iter().filter(|_| !numbers).enumerate() {
        out.field(if number == 0 { "do" } else { "" }, step);
    }
    if let [earlier @ .., _] = report.attempts.as_slice()
        && !earlier.is_empty()
        && !one_screen
    {
        let told: Vec<String> = earlier
            .iter()
            .take(12)
            .map(|attempt| {
                let blamed = blamed(attempt);
                format!("attempt {}: {}{blamed}", attempt.attempt, attempt.ended.kind.title())
            })
            .collect();
        let more =
            if earlier.len() > 12 { format!("; and {} more", earlier.len() - 12) } else { String::new() };
        out.field("before", &format!("{}{more}", told.join("; ")));
    }
    if let Some(attempt) = report.attempts.last() {
        for (number, warning) in warnings(attempt).iter().enumerate() {
            out.field(if number == 0 { "rails" } else { "" }, warning);
        }
    }
    let user = report.uid.map(|uid| format!("{} (uid {uid})", plain(&report.user)));
    let partition = Some(&report.partition).filter(|name| !name.is_empty());
    let known: Vec<String> =
        user.into_iter().chain(partition.map(|name| format!("partition {name}"))).collect();
    if !known.is_empty() {
        out.field("user", &known.join(", "));
    }
    if let Some(log) = &report.log {
        out.field("log", log);
    }
    if let Some(slurm) = &report.slurm {
        let reason = if slurm.reason.is_empty() || slurm.reason == "None" {
            String::new()
        } else {
            format!(", reason {}", slurm.reason)
        };
        out.field("slurm says", &format!("{}{reason}", slurm.state));
    }
}

/// Which nodes an attempt left behind.
fn blamed(attempt: &Attempt) -> String {
    if !matches!(attempt.ended.kind, EndKind::Hardware | EndKind::MovedByGate | EndKind::NodeDied) {
        return String::new();
    }
    let mut names: Vec<&str> = attempt.ended.proof.iter().map(|proof| proof.node.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    match names.as_slice() {
        [] => String::new(),
        names if names.len() > 4 => format!(" ({} nodes)", names.len()),
        names => format!(" ({})", names.join(", ")),
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
        out.line("  (* broke, ! worth a look, ≤ had happened by then)");
    }
}

fn one_attempt(out: &mut Text, report: &JobReport, position: usize, attempt: &Attempt, of: &OfAttempt) {
    let number = if report.attempts.len() > 1 { format!("(#{})", position + 1) } else { String::new() };
    out.section(&format!("attempt {}", attempt.attempt), &number);
    if report.attempts.len() > 1 {
        out.field("ended", &format!("{}. {}", attempt.ended.kind.title(), attempt.ended.why));
    }
    let nodes = if attempt.nodelist.is_empty() { "unknown".to_owned() } else { attempt.nodelist.clone() };
    if attempt.ended.kind != EndKind::Waiting {
        out.field(
            "nodes",
            &format!(
                "{nodes}: {} of {} reported",
                attempt.nodes.len(),
                attempt.node_count.max(attempt.nodes.len())
            ),
        );
    }
    match (attempt.start, attempt.end) {
        (Some(start), Some(end)) => {
            let length = span(float(end.saturating_sub(start)) / 1000.0);
            let from = stamp(start);
            out.field("ran", &format!("{length} from {from}, from the first prolog to the last epilog"));
        }
        (Some(start), None) => out.field("began", &stamp(start)),
        (None, _) => {}
    }
    if position + 1 < report.attempts.len() {
        for (number, warning) in warnings(attempt).iter().enumerate() {
            out.field(if number == 0 { "rails" } else { "" }, warning);
        }
    }
    if !attempt.ended.proof.is_empty() {
        out.field("evidence", "in time order:");
        for proof in attempt.ended.proof.iter().take(50) {
            let time = proof.time.map_or_else(|| "between the looks:".to_owned(), clock);
            out.indented(&format!("{time}  {}: {}", proof.node, proof.what), 14);
        }
    }
    if let Some(decision) = &attempt.decision {
        out.field(
            "controller",
            &format!(
                "{}: {} (consent {})",
                decision.what.title(),
                decided(attempt, decision),
                if decision.consent.is_empty() { "unknown" } else { &decision.consent }
            ),
        );
        if let Some(budget) = decision.budget {
            out.field(
                "budget",
                &format!(
                    "deaths during a run: {} (restarts allowed: {}); moves by the gate: {}",
                    budget.restarts, budget.max_restarts, budget.moves
                ),
            );
        }
        for node in decision.nodes.iter().filter(|node| node.evidence || !node.reason.is_empty()) {
            let evidence =
                if node.evidence { format!(" (evidence by {})", node.source) } else { String::new() };
            out.indented(&format!("{} {}: {}{evidence}", node.node, node.state, node.reason), 14);
        }
    }
    gate(out, attempt);
    if let Some(rails) = &of.rails {
        wiring(out, &format!("attempt {}: rails", attempt.attempt), rails);
    }
    if let Some(environment) = &of.environment {
        environment::environment(out, &format!("attempt {}: NCCL environment", attempt.attempt), environment);
    }
    counters::counters(out, attempt, position + 1 == report.attempts.len());
}

fn has_news(node: &NodeReport) -> bool {
    let bad = |look: &Option<crate::Look>| {
        look.as_ref().is_none_or(|look| !look.verdict.findings.is_empty() || !look.missing.is_empty())
    };
    bad(&node.prolog) || bad(&node.epilog) || !node.acts.is_empty() || !node.faults.is_empty()
}

fn gate(out: &mut Text, attempt: &Attempt) {
    if attempt.nodes.is_empty() {
        return;
    }
    out.section(&format!("attempt {}: gate", attempt.attempt), "");
    let listed = |node: &&NodeReport| attempt.nodes.len() <= MOST_NODES || has_news(node);
    let word = |look: &Option<crate::Look>, ended: bool| match look {
        Some(look) => look.verdict.fitness.to_string(),
        None if ended => "not judged".to_owned(),
        None => "-".to_owned(),
    };
    let rows: Vec<Vec<String>> = attempt
        .nodes
        .iter()
        .filter(listed)
        .take(100)
        .map(|node| {
            let options = &node.options;
            vec![
                shorten(&node.node, 24),
                word(&node.prolog, node.end.is_some()),
                word(&node.epilog, node.end.is_some()),
                shorten(&options.gate, 8),
                shorten(&options.requeue, 8),
            ]
        })
        .collect();
    out.table(&["NODE", "BEFORE", "AFTER", "GATE", "REQUEUE"], &rows);
    let rest = attempt.nodes.len() - attempt.nodes.iter().filter(listed).count();
    if rest > 0 {
        out.line(&format!("  and {} with nothing found", more_nodes(rest)));
    }
    for node in attempt.nodes.iter().filter(|node| has_news(node)).take(100) {
        for look in [&node.prolog, &node.epilog].into_iter().flatten() {
            for finding in look.verdict.findings.iter().take(20) {
                out.item(&format!(
                    "{} {} {}: {} [{}, {}]; {}",
                    node.node,
                    look.verdict.phase,
                    finding.subject(),
                    finding.what,
                    finding.severity,
                    finding.class,
                    finding.fix
                ));
            }
            for part in &look.missing {
                out.item(&format!(
                    "{} {}: {} not read: {}",
                    node.node,
                    look.verdict.phase,
                    part.part.as_str(),
                    part.why
                ));
            }
        }
        for fault in node.faults.iter().take(20) {
            out.item(&format!("{}: railgate's own fault: {fault}", node.node));
        }
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

/// `1 more node`, `300 more nodes`
fn more_nodes(count: usize) -> String {
    format!("{count} more node{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{evil_tasks, evil_transport, job, merged, part, story};

    #[test]
    fn the_story_fits_a_terminal_and_says_why_first() {
        let text = text(&story(), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "job 48213 on alpha: completed, 3 attempts");
        assert!(lines[2].starts_with("why "), "{}", lines[2]);
        for part in [
            "WHAT HAPPENED",
            "Xid 79 on GPU 3",
            "refused by the gate",
            "36.00 GB",
            "10.00 MB/s",
            "600 W",
            "instead of",
            "  1 more node, nothing odd",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let wide: Vec<&&str> = lines.iter().filter(|line| line.chars().count() > 110).collect();
        assert!(wide.is_empty(), "{wide:#?}");
    }

    #[test]
    fn no_foreign_text_drives_the_terminal() {
        let mut hostile = part("n1", &job(0..8), "", vec![], 256);
        hostile.job.user = "\x1b]0;owned\x07".to_owned();
        hostile.job.partition = "a\nb\x1b[2J".to_owned();
        hostile.steps[0].settings[0].value = "x\x1b[31m\r\u{202e}".to_owned();
        hostile.faults.push("\u{9b}2J".to_owned());
        hostile.tasks = Some(evil_tasks("x\x1b[31m\r\u{202e}"));
        hostile.applied = crate::applied(&hostile, hostile.tasks.as_ref().unwrap());
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
    fn a_large_job_is_summed_up() {
        let nodes: Vec<_> = (0..300).map(|n| part(&format!("n{n:03}"), &job(0..8), "", vec![], 0)).collect();
        let text = text(&merged(nodes, vec![], None), true);
        assert!(text.contains("and 300 more nodes with nothing found") && text.lines().count() < 600);
    }
}
