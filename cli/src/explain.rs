use railgate_diagnosis as diagnosis;
use railgate_text::{Lines, did_you_mean};

use crate::offered::Offered;
use crate::output::Format;
use crate::{Site, exit, node_story, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate explain gpu-lost
  railgate explain gpu-lost@3  as in `sinfo -R`
  railgate explain slow-clock  a diagnosis rule, as in a report
  railgate explain gn7
      a node: its state, its findings, and jobs that failed on it

`railgate check --list` shows the ids of checks, `railgate report --rules` those of rules; docs/checks.md and \
docs/rules.md describe them all. For a node run it on the node itself (what its checks found) and on the \
controller (the ledger of jobs).")]
pub(crate) struct Args {
    /// Id of a check, as in a drain reason (`gpu-lost`, also `gpu-lost@3`), id of a diagnosis rule, as in a report
    /// (`slow-clock`), or the name of a node
    #[arg(hide_possible_values = true)]
    #[arg(value_parser = Offered::new(ids()))]
    subject: String,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    // An id copied from a drain reason may still have the leader and the colon.
    let subject = args.subject.trim().trim_start_matches("railgate:").trim().trim_end_matches(':');
    let id = subject.split('@').next().unwrap_or_default();
    if let Some(text) = railgate_gate::explain(id) {
        // All of a site's own checks share one row of the register.
        let row = if id.starts_with("site-") { "site" } else { id };
        let check = railgate_gate::CHECKS.iter().find(|check| check.id == row);
        if args.format == Format::Json {
            output::json(&serde_json::json!({ "schema": 1, "check": check, "text": text.trim() }))?;
        } else {
            output::text(&Lines::kept(text.trim_start()))?;
        }
        return Ok(exit::OK);
    }
    if let Some((rule, text)) = diagnosis::by_id(id).zip(diagnosis::explain(id)) {
        if args.format == Format::Json {
            output::json(&serde_json::json!({ "schema": 1, "rule": rule, "text": text.trim() }))?;
        } else {
            output::text(&Lines::kept(&text))?;
        }
        return Ok(exit::OK);
    }
    let node = node_story::run(site, subject, args.format);
    match node {
        Ok(Some(code)) => Ok(code),
        Err(why) => {
            let meant = meant(id);
            Err(why.context(format!(
                "no check or rule '{id}'{meant} (railgate check --list, railgate report --rules)"
            )))
        }
        Ok(None) => {
            let meant = meant(id);
            anyhow::bail!(
                "no check, rule or node '{subject}'{meant} (railgate check --list; railgate report --rules; sinfo -N)"
            )
        }
    }
}

/// Ids of the checks and the diagnosis rules.
fn ids() -> impl Iterator<Item = &'static str> {
    let checks = railgate_gate::CHECKS.iter().map(|check| check.id);
    checks.chain(diagnosis::RULES.iter().map(|rule| rule.id))
}

fn meant(id: &str) -> String {
    did_you_mean(id, ids())
}
