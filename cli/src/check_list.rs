//! `railgate check --list`: the built-in checks and those in the directory of the site's own checks.

use std::collections::BTreeSet;

use railgate_gate::{CHECKS, GateConfig};
use railgate_model::{Action, Phase, SiteCheck, SiteOutcome};
use railgate_runner::History;
use serde::Serialize;

use crate::output::{self, Format};
use crate::{Site, exit};

/// One of the site's own checks.
#[derive(Serialize)]
struct SiteRow {
    id: String,
    path: String,
    /// Phases from the configuration.
    phases: Vec<&'static str>,
    /// The strongest action that may follow on this node.
    policy: Action,
    /// Why it does not run; `None` if it does.
    not_run: Option<String>,
}

pub(crate) fn list(site: &Site, format: Format) -> anyhow::Result<u8> {
    // The list must also be printed if the configuration is invalid.
    let gate = site.config().unwrap_or_default().gate;
    let own = site_rows(site, &gate);
    if format == Format::Json {
        let mut checks = serde_json::to_value(CHECKS)?;
        for check in checks.as_array_mut().into_iter().flatten().filter(|check| check["id"] == "site") {
            check["phases"] = serde_json::to_value(phases_of_all(&gate))?;
        }
        output::json(&serde_json::json!({ "schema": 1, "checks": checks, "site": own }))?;
        return Ok(exit::OK);
    }
    let mut rows = vec![["CHECK", "LEVEL", "CLASS", "PHASES", "WHAT IS WRONG"].map(str::to_owned).to_vec()];
    for check in CHECKS {
        let phases = if check.id == "site" { phases_of_all(&gate) } else { names(check.phases) };
        rows.push(vec![
            check.id.to_owned(),
            format!("{:?}", check.level).to_lowercase(),
            check.class.to_string(),
            joined(&phases),
            check.about.to_owned(),
        ]);
    }
    for SiteRow { id, path, phases, policy, not_run } in own {
        let about = match (not_run, policy) {
            (Some(why), _) => format!("{path}: not run: {why}"),
            (None, Action::Drain) => format!("as {path} reports; may drain"),
            (None, _) => format!("as {path} reports; never drains"),
        };
        rows.push(vec![id, "quick".to_owned(), "site's own".to_owned(), joined(&phases), about]);
    }
    output::text(&output::table(&rows))?;
    Ok(exit::OK)
}

fn site_rows(site: &Site, gate: &GateConfig) -> Vec<SiteRow> {
    let memory = History::load(&site.places).memory;
    let settings = &gate.checks.site;
    let row = |name: &str, path: String, not_run: Option<String>| {
        let id = if name.is_empty() { "site".to_owned() } else { format!("site-{name}") };
        let phases = names(gate.site_check_phases(name));
        let off = phases.is_empty().then(|| match settings.action {
            Action::Off => "[gate.checks.site] action = \"off\"".to_owned(),
            _ => format!("no phases are configured in [gate.checks.site.named.{name}] or [gate.checks.site]"),
        });
        let policy = gate.action_of_site_check(name, &memory);
        SiteRow { id, path, phases, policy, not_run: not_run.or(off) }
    };
    let there = railgate_probe::site_checks(&settings.directory);
    let mut rows: Vec<SiteRow> = there
        .iter()
        .map(|check: &SiteCheck| {
            let not_run = match &check.outcome {
                SiteOutcome::Refused(why) | SiteOutcome::NotRun(why) | SiteOutcome::Failed(why) => {
                    Some(why.clone())
                }
                SiteOutcome::Said(_) | SiteOutcome::Silent { .. } => None,
            };
            row(&check.name, check.path.display().to_string(), not_run)
        })
        .collect();
    let missing = settings.named.keys().filter(|name| there.iter().all(|check| check.name != **name));
    let wanted = missing.filter(|name| !gate.site_check_phases(name).is_empty());
    rows.extend(wanted.map(|name| {
        let path = settings.directory.join(name).display().to_string();
        row(name, path, Some("not installed, though the configuration names it".to_owned()))
    }));
    rows
}

/// Phases in which at least one of them runs.
fn phases_of_all(gate: &GateConfig) -> Vec<&'static str> {
    let settings = &gate.checks.site;
    let of_all = if settings.action == Action::Off { &[][..] } else { &settings.phases };
    let of_named = settings.named.keys().flat_map(|name| gate.site_check_phases(name));
    let any: BTreeSet<&str> = of_all.iter().chain(of_named).map(|phase| phase.as_str()).collect();
    names(&[Phase::Prolog, Phase::Epilog, Phase::Periodic])
        .into_iter()
        .filter(|name| any.contains(name))
        .collect()
}

fn names(phases: &[Phase]) -> Vec<&'static str> {
    phases.iter().map(|phase| phase.as_str()).collect()
}

fn joined(phases: &[&str]) -> String {
    if phases.is_empty() { "-".to_owned() } else { phases.join(",") }
}
