use railgate_gate::{CHECKS, CheckInfo};
use railgate_model::{Action, rfc3339};
use railgate_runner::{Config, Count, FindingHistory, History};
use railgate_text::put;
use serde::Serialize;

use crate::output::{self, Format};
use crate::{Site, exit};

#[derive(Serialize)]
struct Row {
    id: String,
    /// The strongest action that may follow on this node now.
    policy: Action,
    /// Whether an upgrade added the check.
    new: bool,
    seen: u64,
    would_drain: u64,
    drained: u64,
    last: Option<u64>,
}

#[derive(Serialize)]
struct Shown<'a> {
    schema: u32,
    node: &'a str,
    since: Option<u64>,
    checks: Vec<Row>,
}

/// Prints how often each check has found something on this node, would have drained it, and did.
pub(crate) fn run(site: &Site, config: &Config, format: Format) -> anyhow::Result<u8> {
    let (past, memory) = (FindingHistory::load(&site.places), History::load(&site.places).memory);
    let row = |id: &str, check: &CheckInfo| {
        let Count { seen, would_drain, drained, last } = past.counts.get(id).copied().unwrap_or_default();
        let policy = match id.strip_prefix("site-") {
            Some(name) => config.gate.action_of_site_check(name, &memory),
            None if id == "site" => config.gate.action_of_site_check("", &memory),
            None => config.gate.action_of(check, &memory),
        };
        let (last, new) = ((seen > 0).then_some(last * 1000), memory.is_new(check.id));
        Row { id: id.to_owned(), policy, new, seen, would_drain, drained, last }
    };
    let mut rows: Vec<Row> = CHECKS.iter().map(|check| row(check.id, check)).collect();
    // All of a site's own checks share one row of the register.
    if let Some(site) = CHECKS.iter().find(|check| check.id == "site") {
        rows.extend(past.counts.keys().filter(|id| id.starts_with("site-")).map(|id| row(id, site)));
    }
    let since = (past.begun > 0).then_some(past.begun);
    if format == Format::Json {
        let since = since.map(|since| since * 1000);
        output::json(&Shown { schema: 1, node: &site.node, since, checks: rows })?;
        return Ok(exit::OK);
    }
    let mut table =
        vec![["CHECK", "POLICY", "SEEN", "WOULD DRAIN", "DRAINED", "LAST"].map(str::to_owned).to_vec()];
    let (told, silent): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| row.seen > 0 || row.policy == Action::Shadow);
    for row in &told {
        table.push(vec![
            row.id.to_owned(),
            policy_text(row),
            row.seen.to_string(),
            row.would_drain.to_string(),
            row.drained.to_string(),
            row.last.map_or_else(|| "never".to_owned(), |last| time(last / 1000)),
        ]);
    }
    let mut text = output::table(&table);
    match since {
        Some(since) => put!(
            text,
            "{}: counted since {}; a finding that stays counts once; {} other checks found nothing",
            site.node,
            time(since),
            silent.len()
        ),
        None => put!(text, "{}: nothing was found yet, or /var/lib/railgate was lost", site.node),
    }
    if told.iter().any(|row| row.new && row.policy == Action::Shadow) {
        put!(
            text,
            "shadow (new): an upgrade brought it; set its `action` in [gate.checks.<id>] to let it act"
        );
    }
    output::text(&text)?;
    Ok(exit::OK)
}

fn policy_text(row: &Row) -> String {
    let policy = match row.policy {
        Action::Off => "off",
        Action::Shadow if row.new => "shadow (new)",
        Action::Shadow => "shadow",
        Action::Report => "report",
        Action::Notify => "notify",
        Action::Drain => "drain",
    };
    policy.to_owned()
}

/// Formats Unix seconds as a date and time.
pub(crate) fn time(seconds: u64) -> String {
    let known = rfc3339(seconds.saturating_mul(1000));
    known.map_or_else(|| "after the year 9999".to_owned(), |text| format!("{}Z", &text[..19]))
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn a_time_far_in_the_future_is_formatted() {
        assert_eq!(time(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(
            (time(284_012_524_800), time(u64::MAX)),
            (time(u64::MAX), "after the year 9999".to_owned())
        );
    }
}
