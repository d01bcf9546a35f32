//! `railgate fleet tested`: figures of a self-test that ran on a node, for the history.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use railgate_accept::{digest, self_test_kind};
use railgate_fleet::{Event, Source, What};
use railgate_fleet_store::EnteredFile;
use railgate_model::{GpuSelfTested, PciAddress, UnixMillis, ValueCheck};
use railgate_text::{Lines, Printable, put};

use super::{Export, Known, MAX_AGO, shown, taken_in};
use crate::output::{self, Format, complain, counted};
use crate::{exit, self_test_lines};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ssh gn017 /usr/libexec/railgate/railgate-gpu-selftest --length full > gn017.jsonl
  railgate fleet tested gn017 gn017.jsonl

Of each rate that good cards of one model reach alike, the lowest one of the node is entered, with its GPU, and the number of wrong values. \
A wrong value is a self-test that failed: `railgate fleet node` shows it among the reasons, and it does not count as a fault. A rate is not \
judged: `railgate check --full` on the node does that. The same file, entered twice, changes nothing. Needs root or SlurmUser.")]
pub(super) struct TestedArgs {
    /// Slurm's name of the node
    node: String,
    /// Lines that railgate-gpu-selftest printed on it
    file: PathBuf,
    /// How long ago the test ended, up to 28days [default: when the file was last changed]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ago: Option<Duration>,
}

/// Why a test is refused.
fn refused(known: &Known, args: &TestedArgs) -> Option<String> {
    if known.judgement.node(&args.node).is_none() {
        return Some(super::no_such_node(&args.node));
    }
    args.ago.filter(|ago| *ago > MAX_AGO).map(|_| "--ago: at most 28days".to_owned())
}

/// Enters the figures in a file.
pub(super) fn enter(known: &Known, database: &Path, args: &TestedArgs, format: Format) -> anyhow::Result<u8> {
    if let Some(why) = refused(known, args) {
        complain!("{why}");
        return Ok(exit::USAGE);
    }
    let shown_path = || Printable(args.file.display()).to_string();
    let lines = self_test_lines::read(&args.file)?;
    let time = match args.ago {
        Some(ago) => known.now.saturating_sub(millis(ago)),
        None => changed(&args.file).with_context(shown_path)?,
    };
    ensure!(time <= known.now, "{}: last changed in the future, at {}", shown_path(), shown(time));
    let events = events(&args.node, &lines, time)?;
    EnteredFile::beside(database).add(&events).context("no figure was entered")?;
    if format == Format::Json {
        output::json(&Export { schema: 1, events: &events })?;
        return Ok(exit::OK);
    }
    let mut cards: Vec<PciAddress> = lines.iter().map(|line| line.gpu).collect();
    cards.sort_unstable();
    cards.dedup();
    let mut text = Lines::new();
    put!(
        text,
        "{}: {} of {} of {}, tested at {}",
        shown_path(),
        counted(events.len(), "figure"),
        counted(cards.len(), "GPU"),
        args.node,
        shown(time)
    );
    for line in lines.iter().filter(|line| wrong(line) > 0) {
        put!(text, "wrong values: {} of {}: {}", line.test, line.gpu, wrong(line));
    }
    let without = lines.iter().filter(|line| line.unknown.is_some()).count();
    if without > 0 {
        put!(text, "{} without a result", counted(without, "test"));
    }
    put!(text, "{}", taken_in(&args.node));
    output::text(&text)?;
    Ok(exit::OK)
}

fn millis(time: Duration) -> UnixMillis {
    UnixMillis::try_from(time.as_millis()).unwrap_or(UnixMillis::MAX)
}

fn changed(file: &Path) -> std::io::Result<UnixMillis> {
    let time = std::fs::metadata(file)?.modified()?;
    Ok(time.duration_since(UNIX_EPOCH).map_or(0, millis))
}

fn wrong(line: &GpuSelfTested) -> u64 {
    match line.values {
        ValueCheck::Wrong { wrong, .. } => wrong,
        _ => 0,
    }
}

/// The events of one test of a node. The same lines make the same events.
fn events(node: &str, lines: &[GpuSelfTested], time: UnixMillis) -> anyhow::Result<Vec<Event>> {
    let run = digest(&serde_json::to_vec(lines)?);
    let run = run.get(..16).unwrap_or(&run);
    let event = |name: &str, part: Option<PciAddress>, value: f64, unit: &str, passed: Option<bool>| Event {
        id: format!("tested/{run}/{node}/{name}"),
        time,
        source: Source::Root,
        what: What::SelfTested {
            node: node.to_owned(),
            figure: part.map_or_else(|| name.to_owned(), |gpu| format!("{name}@{gpu}")),
            value: Some(value),
            unit: unit.to_owned(),
            passed,
        },
    };
    let mut events = Vec::new();
    for (test, figure) in GpuSelfTested::COMPARABLE {
        let rate = |line: &GpuSelfTested| line.measured.get(figure).copied().filter(|rate| rate.is_finite());
        let of_cards = lines.iter().filter(|line| line.test == test);
        let rates = of_cards.filter_map(|line| Some((line.gpu, rate(line)?)));
        if let Some((gpu, lowest)) = rates.min_by(|(_, one), (_, other)| one.total_cmp(other)) {
            let (unit, _) = self_test_kind(figure);
            events.push(event(&format!("{test}.{figure}"), Some(gpu), lowest, unit, None));
        }
    }
    if lines.iter().any(|line| line.values != ValueCheck::None) {
        let all: u64 = lines.iter().map(wrong).sum();
        let first = lines.iter().find(|line| wrong(line) > 0).map(|line| line.gpu);
        events.push(event("wrong-values", first, all as f64, "", Some(all == 0)));
    }
    ensure!(!events.is_empty(), "no test has a result");
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(gpu: &str, test: &str, measured: &[(&str, f64)], values: ValueCheck) -> GpuSelfTested {
        GpuSelfTested {
            gpu: gpu.parse().unwrap(),
            uuid: None,
            to: None,
            model: "NVIDIA H200".to_owned(),
            test: test.to_owned(),
            seconds: 1.0,
            values,
            measured: measured.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            unknown: None,
            not_applicable: None,
        }
    }

    fn told(lines: &[GpuSelfTested]) -> Vec<String> {
        let told = |event: Event| match event.what {
            What::SelfTested { figure, value, unit, passed, .. } => {
                format!("{figure} {} {unit} {passed:?}", value.unwrap())
            }
            what => panic!("{what:?}"),
        };
        events("gn1", lines, 7).unwrap().into_iter().map(told).collect()
    }

    #[test]
    fn the_lowest_rate_of_a_node_and_its_wrong_values_are_entered() {
        let right = || ValueCheck::Right { compared: 10, digest: None };
        let mut lines = vec![
            line("0000:61:00.0", "gemm-rate-bf16", &[("rate_tflops", 661.0), ("power_w", 690.0)], right()),
            line("0000:1b:00.0", "gemm-rate-bf16", &[("rate_tflops", 590.0)], right()),
            line("0000:1b:00.0", "memory-bandwidth", &[("copy_gb_s", f64::NAN)], ValueCheck::None),
        ];
        let rate = "gemm-rate-bf16.rate_tflops@0000:1b:00.0 590 TFLOP/s None";
        assert_eq!(told(&lines), [rate, "wrong-values 0  Some(true)"]);
        lines[0].values = ValueCheck::Wrong { compared: 10, wrong: 3, first: Vec::new() };
        assert_eq!(told(&lines), [rate, "wrong-values@0000:61:00.0 3  Some(false)"]);
        let ids = |lines: &[GpuSelfTested]| {
            events("gn1", lines, 7).unwrap().into_iter().map(|event| event.id).collect::<Vec<_>>()
        };
        lines.truncate(2);
        assert_eq!(ids(&lines), ids(&lines.clone()), "the same lines, entered twice");
        assert_ne!(ids(&lines), ids(&lines[..1]));
        assert!(events("gn1", &[line("0000:1b:00.0", "x", &[], ValueCheck::None)], 7).is_err());
    }
}
