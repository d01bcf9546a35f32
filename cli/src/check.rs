use std::fmt::Write as _;

use railgate_gate::{CHECKS, Memory, Seen, judge};
use railgate_node::{Finding, Fitness, Phase, Profile, Snapshot, Verdict};
use railgate_runner::{Purpose, look, periodic, switches};
use serde::Serialize;

use crate::node_source::{NodeArgs, origin, parts};
use crate::output::{self, Format};
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate check                                       this node, as the periodic check sees it
  railgate check --simulate h100-sxm:gpu-lost@3        what that fault would look like
  railgate check --snapshot node.json --format json
  railgate check --list
  railgate check --phase periodic --drain              as HealthCheckProgram

Exit codes: 0 fit or degraded, 1 unfit, 2 usage or configuration, 3 could not tell")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,
    /// Judge as the gate does at this moment
    #[arg(long, value_enum, default_value_t = PhaseArg::Periodic)]
    phase: PhaseArg,
    /// Do what the verdict says: drain this node if it is unfit and policy allows. Exit code 0 then means done
    #[arg(long)]
    drain: bool,
    /// After everything else, run this program (the HealthCheckProgram that was there before)
    #[arg(long, value_name = "PATH", requires = "drain")]
    then: Option<std::path::PathBuf>,
    /// The register of checks
    #[arg(long, conflicts_with_all = ["drain", "phase"])]
    list: bool,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PhaseArg {
    Prolog,
    Epilog,
    Periodic,
}

impl From<PhaseArg> for Phase {
    fn from(phase: PhaseArg) -> Self {
        match phase {
            PhaseArg::Prolog => Phase::Prolog,
            PhaseArg::Epilog => Phase::Epilog,
            PhaseArg::Periodic => Phase::Periodic,
        }
    }
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    if args.list {
        return list(args.format);
    }
    if args.drain {
        anyhow::ensure!(
            args.node.snapshot.is_none() && args.node.simulate.is_none(),
            "--drain acts on this node: it refuses recorded and simulated ones"
        );
        let drained = drain(site, args);
        if let Some(program) = &args.then {
            let status = std::process::Command::new(program).status();
            if let Err(why) = status {
                eprintln!("railgate: --then {}: {why}", program.display());
            }
        }
        return drained;
    }
    let config = site.config()?;
    let phase = args.phase.into();
    let (snapshot, verdict, profile) = match args.node.stand_in(site, &config)? {
        Some(seen) => {
            let verdict = judge(
                &config.gate,
                &Seen {
                    phase,
                    now: &seen.snapshot,
                    before: None,
                    job: None,
                    profile: Some(&seen.profile),
                    memory: &Memory::default(),
                },
            );
            (seen.snapshot, verdict, seen.profile)
        }
        None => {
            let purpose = Purpose { phase, job: None, before: None, kernel_since: None, everything: false };
            let look = look(&config, &site.places, &site.node, &purpose);
            (look.snapshot, look.verdict, look.profile)
        }
    };
    show(args.format, &snapshot, &verdict, &profile)?;
    Ok(code(verdict.fitness))
}

fn code(fitness: Fitness) -> u8 {
    match fitness {
        Fitness::Fit | Fitness::Degraded => exit::OK,
        Fitness::Unfit => exit::UNFIT,
        Fitness::Unknown => exit::UNKNOWN,
    }
}

fn drain(site: &Site, args: &Args) -> anyhow::Result<u8> {
    railgate_runner::own_process();
    let config = site.config()?;
    railgate_runner::start_logging(&config.log);
    if switches::disabled(&site.places) {
        return Ok(exit::OK);
    }
    let env = std::env::vars_os().collect();
    let done = periodic(&config, &site.places, &env, &site.node, args.phase.into());
    show(args.format, &done.look.snapshot, &done.look.verdict, &done.look.profile)?;
    for (what, outcome) in [("pending reason", &done.settled), ("drain", &done.drained)] {
        if let Some(outcome) = outcome {
            output::text(&format!("{what}: {outcome}"))?;
        }
    }
    Ok(exit::OK)
}

#[derive(Serialize)]
struct Shown<'a> {
    schema: u32,
    node: &'a str,
    origin: &'a str,
    profile: &'a str,
    verdict: &'a Verdict,
    parts: Vec<PartShown>,
}

#[derive(Serialize)]
struct PartShown {
    part: &'static str,
    missing: Option<String>,
    took_ms: f64,
}

fn show(format: Format, snapshot: &Snapshot, verdict: &Verdict, profile: &Profile) -> anyhow::Result<()> {
    let profile = profile.id.as_str();
    if format == Format::Json {
        let parts = parts(snapshot)
            .into_iter()
            .map(|(part, missing, took_ms)| PartShown { part: part.as_str(), missing, took_ms })
            .collect();
        let shown =
            Shown { schema: 1, node: &snapshot.node, origin: origin(snapshot), profile, verdict, parts };
        output::json(&shown)?;
        return Ok(());
    }
    let mut text = format!(
        "{} ({}, {}), {}: {}\n",
        if snapshot.node.is_empty() { "this node" } else { &snapshot.node },
        profile,
        origin(snapshot),
        verdict.phase,
        verdict.fitness,
    );
    for finding in &verdict.findings {
        text.push_str(&finding_text(finding));
    }
    let parts: Vec<String> = parts(snapshot)
        .into_iter()
        .map(|(part, missing, took_ms)| match missing {
            None => format!("{} {took_ms:.1} ms", part.as_str()),
            Some(why) => format!("{} {took_ms:.1} ms ({why})", part.as_str()),
        })
        .collect();
    let _ = writeln!(text, "read: {}", parts.join(", "));
    output::text(&text)?;
    Ok(())
}

fn finding_text(finding: &Finding) -> String {
    let mut text = format!(
        "{:<7}  {:<8}  {}: {}; {}\n",
        finding.severity.to_string(),
        finding.class.to_string(),
        finding.subject(),
        finding.what,
        finding.fix
    );
    for row in &finding.evidence {
        let _ = writeln!(text, "         {}: {} (want {}) [{}]", row.what, row.got, row.want, row.source);
    }
    text
}

fn list(format: Format) -> anyhow::Result<u8> {
    if format == Format::Json {
        output::json(&serde_json::json!({ "schema": 1, "checks": CHECKS }))?;
        return Ok(exit::OK);
    }
    let mut rows = vec![["check", "level", "class", "phases", "about"].map(str::to_owned).to_vec()];
    for check in CHECKS {
        let phases: Vec<_> = check.phases.iter().map(|phase| phase.as_str()).collect();
        rows.push(vec![
            check.id.to_owned(),
            format!("{:?}", check.level).to_lowercase(),
            check.class.to_string(),
            phases.join(","),
            check.about.to_owned(),
        ]);
    }
    output::text(&output::table(&rows))?;
    Ok(exit::OK)
}
