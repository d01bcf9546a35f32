use super::Diagnosis;
use super::facts::Facts;
use crate::application::AppEventKind;

/// The loss was not a number: the first rank and step that said so.
pub(super) fn find(facts: &Facts<'_>) -> Vec<Diagnosis> {
    let mut first = None;
    let mut ranks = 0;
    for (unit, rank) in facts.reporting() {
        let Some(event) = rank.events.iter().find(|event| event.what == AppEventKind::Nan) else { continue };
        ranks += 1;
        if first
            .as_ref()
            .is_none_or(|(_, earliest): &(String, &crate::application::AppEvent)| event.step < earliest.step)
        {
            first = Some((unit.name(), event));
        }
    }
    let Some((part, event)) = first else { return Vec::new() };
    let others = if ranks > 1 { format!(", later on {ranks} ranks in all") } else { String::new() };
    let what = format!("the loss was not a number (NaN or infinite) in step {}{others}", event.step);
    let fix = "go back to a checkpoint before that step; on one rank alone, again and again: test its GPU";
    let mut found = Diagnosis::new("application", "high", part, what, fix);
    found.since = Some(event.time);
    vec![found]
}
