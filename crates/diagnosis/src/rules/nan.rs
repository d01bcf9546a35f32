use railgate_node_report::application::AppEventKind;

use crate::facts::Facts;
use crate::register::{Class, Explains, Found, Line, Over, Rule, Table as _, thresholds};

pub(crate) const RULE: Rule = Rule {
    id: "nan",
    about: "the loss was not a number (NaN or infinite)",
    class: Class::Application,
    evidence: "the loss that the program reports (docs/application-reports.md). The earliest step of any rank counts, and how many
ranks reported one.",
    why: "all later steps are wasted. Weights and checkpoints saved from then on are useless.",
    look_alikes: "a learning rate that is too high, an overflow in fp16, a bad batch: several ranks report it within a step or
two. A faulty GPU: the same rank reports it first, in each run.",
    fix: "go back to a checkpoint before that step; if the same rank is first again and again, test its GPU",
    thresholds: Settings::KEYS,
    line: Line::Verdict,
    over: Over::AllTime,
    explains: Explains::Nothing,
    find,
};

thresholds! {}

/// Reports the first rank and step with a NaN loss.
fn find(facts: &Facts<'_>) -> Vec<Found> {
    let mut first = None;
    let mut ranks = 0;
    for (unit, rank) in facts.reporting() {
        let Some(event) = rank.events.iter().find(|event| event.what == AppEventKind::Nan) else { continue };
        ranks += 1;
        if first.as_ref().is_none_or(
            |(_, earliest): &(String, &railgate_node_report::application::AppEvent)| {
                event.step < earliest.step
            },
        ) {
            first = Some((unit.name(), event));
        }
    }
    let Some((part, event)) = first else { return Vec::new() };
    let others = if ranks > 1 { format!(", later on {ranks} ranks in total") } else { String::new() };
    let what = format!("the loss was not a number (NaN or infinite) in step {}{others}", event.step);
    let mut found = Found::new("high", part, what);
    found.since = Some(event.time);
    vec![found]
}
