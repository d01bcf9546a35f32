//! `railgate fleet checks`: how often what followed a drain confirmed its check.

use railgate_fleet::{CheckRecord, confirmed_drains};
use serde::Serialize;

use super::{Known, rows};
use crate::output::{self, Format, say};

#[derive(Serialize)]
struct Checks {
    schema: u32,
    checks: Vec<CheckRecord>,
}

pub(super) fn print(known: &Known, format: Format) -> anyhow::Result<()> {
    let checks = confirmed_drains(&known.history, &known.judgement, &known.settings);
    if format == Format::Json {
        return output::json(&Checks { schema: 1, checks });
    }
    if checks.is_empty() {
        return say!("no node was drained after a finding of a check");
    }
    let mut table =
        rows(&["CHECK", "DRAINS", "CONFIRMED", "NOT CONFIRMED", "UNDECIDED", "CONFIRMED SHARE (90 %)"]);
    for record in &checks {
        let share = match record.share {
            Some(share) => format!("{:.0} to {:.0} %", 100.0 * share.low, 100.0 * share.high),
            None => "too few".to_owned(),
        };
        table.push(vec![
            record.check.clone(),
            record.drains.to_string(),
            record.confirmed.to_string(),
            record.unconfirmed.to_string(),
            record.undecided().to_string(),
            share,
        ]);
    }
    output::text(&output::table(&table))
}
