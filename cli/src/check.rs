use railgate_gate::{Memory, Seen, judge};
use railgate_model::{Action, Finding, Fitness, Phase, Profile, Severity, Snapshot, Verdict};
use railgate_runner::{Purpose, acting, check_after_step, check_node, periodic, switches};
use railgate_slurm::{Acting, Cap, Client, DrainOutcome};
use railgate_text::{Lines, put};
use serde::Serialize;

use crate::check_list::list;
use crate::node_source::{NodeArgs, origin, parts};
use crate::output::{self, Format, complain};
use crate::{Site, exit};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate check            this node, as the periodic check sees it
  railgate check --simulate h100-sxm:gpu-lost@3
      what that fault would look like
  railgate check --snapshot node.json --format json
  railgate check --list
  railgate check --history  findings of each check here, and drains
  railgate check --phase periodic --drain
      as HealthCheckProgram does
  railgate check --drain --then /usr/sbin/nhc
      the site's own check afterwards

Without --drain it changes nothing. With a non-default --config it also saves no state unless --drain is given. \
Run it as root: only root can read the kernel log and the GPUs' processes. It takes a second or less on a \
healthy node and at most `[gate] deadline` (30s).

Exit codes: 0 fit or degraded, 1 unfit, 2 wrong use or configuration, 3 could not tell.
With --drain: 0 checked, and acted as policy allows; 2 as above.")]
pub(crate) struct Args {
    #[command(flatten)]
    node: NodeArgs,
    /// Check as the gate does in this phase
    #[arg(long, value_enum, default_value_t = PhaseArg::Periodic)]
    phase: PhaseArg,
    /// Also exercise the hardware: the self-tests of GPUs and RDMA devices
    #[arg(long, conflicts_with_all = ["drain", "snapshot", "simulate"])]
    full: bool,
    /// Act on the verdict: drain this node if it is unfit and policy allows (`[gate] mode`, breaker, pause).
    /// Refuses recorded and simulated nodes
    #[arg(long)]
    drain: bool,
    /// Finally run this program, regardless of the verdict
    #[arg(long, value_name = "PATH", requires = "drain")]
    then: Option<std::path::PathBuf>,
    /// Show all checks instead: level, class, phases, subject, and whether a site check may drain
    #[arg(long, conflicts_with_all = ["drain", "phase"])]
    list: bool,
    /// Show instead how often each check found something on this node, would have drained it, and drained it
    #[arg(long, conflicts_with_all = ["drain", "phase", "list", "snapshot", "simulate"])]
    history: bool,
    /// Run by the SPANK plugin after a failed step of `railgate launch`: leaves the result for that start of the job
    #[arg(long, hide = true, value_name = "JOB:START", value_parser = after_step, requires = "drain")]
    after_step: Option<(u32, u32)>,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

fn after_step(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once(':').and_then(|(job, start)| Some((job.parse().ok()?, start.parse().ok()?)));
    parsed.ok_or_else(|| "expected JOB:START, two numbers".to_owned())
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
        return list(site, args.format);
    }
    if args.history {
        return crate::history::run(site, &site.config()?, args.format);
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
                complain!("--then {}: {why}", program.display());
            }
        }
        return drained;
    }
    let config = site.config()?;
    let phase = args.phase.into();
    let (snapshot, verdict, profile, acting) = match args.node.stand_in(site, &config)? {
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
            (seen.snapshot, verdict, seen.profile, None)
        }
        None => {
            // A different configuration than the site's.
            let trial = site.config_file != site.places.config();
            let purpose = Purpose { full: args.full, trial, ..Purpose::whole_node(phase) };
            let check_run = check_node(&config, &site.places, &site.node, &purpose);
            (check_run.snapshot, check_run.verdict, check_run.profile, Some(acting(&config, &site.places)))
        }
    };
    let breaker = || {
        let env = std::env::vars_os().collect();
        Client::new(&config.slurm, &env)
            .reached_cap(&config.breaker, &site.node)
            .map_err(|why| why.to_string())
    };
    let follows = Follows { hint: hint(&verdict, acting.as_ref(), breaker), ..Follows::default() };
    show(args.format, &snapshot, &verdict, &profile, follows)?;
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
    // Before the configuration is read, which may be invalid.
    if switches::disabled(&site.places) {
        return Ok(exit::OK);
    }
    let config = site.config()?;
    anyhow::ensure!(nix::unistd::geteuid().is_root(), "permission denied: --drain needs root");
    railgate_runner::start_logging(&config.log);
    let env = std::env::vars_os().collect();
    if let Some(of) = args.after_step {
        check_after_step(&config, &site.places, &env, &site.node, of).map_err(anyhow::Error::msg)?;
        return Ok(exit::OK);
    }
    let done = periodic(&config, &site.places, &env, &site.node, args.phase.into());
    let outcome = |outcome: Option<&DrainOutcome>| outcome.map(ToString::to_string);
    let follows = Follows {
        pending: outcome(done.settled.as_ref()),
        drain: outcome(done.drained.as_ref()),
        hint: None,
    };
    show(args.format, &done.check_run.snapshot, &done.check_run.verdict, &done.check_run.profile, follows)?;
    Ok(exit::OK)
}

/// Actions that followed from a verdict, or would follow.
#[derive(Debug, Default)]
struct Follows {
    /// Outcome of a pending drain reason that slurmctld had not received.
    pending: Option<String>,
    /// Outcome of the drain.
    drain: Option<String>,
    /// Hint for a run without --drain.
    hint: Option<String>,
}

/// What a prolog or the periodic check would do now with this verdict. slurmctld is queried about the breaker only if
/// a drain would follow.
fn hint(
    verdict: &Verdict,
    acting: Option<&Acting>,
    breaker: impl FnOnce() -> Result<Option<Cap>, String>,
) -> Option<String> {
    let (Action::Drain, Some(cause)) = (verdict.action, verdict.cause()) else { return None };
    let drain = format!("policy: drain for {}", cause.subject());
    Some(match acting {
        None => format!("{drain}; simulated or recorded node: no action"),
        Some(Acting::Forbidden(why)) => format!("{drain}, but nothing is done: {why}"),
        Some(Acting::Allowed) => match breaker() {
            Ok(None) => {
                format!("{drain}; this check changed nothing; the next prolog or periodic check acts")
            }
            Ok(Some(cap)) => format!(
                "{drain}, but the breaker is open: nodes drained by railgate in the {}: {} of {} (at most {})",
                cap.scope, cap.held, cap.nodes, cap.limit
            ),
            Err(why) => {
                format!(
                    "{drain}; the next prolog or periodic check acts if [breaker] allows it (not known: {why})"
                )
            }
        },
    })
}

#[derive(Serialize)]
struct Shown<'a> {
    schema: u32,
    node: &'a str,
    origin: &'a str,
    profile: &'a str,
    verdict: &'a Verdict,
    parts: Vec<PartShown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending_reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    drain: Option<String>,
}

#[derive(Serialize)]
struct PartShown {
    part: &'static str,
    missing: Option<String>,
    took_ms: f64,
}

fn show(
    format: Format,
    snapshot: &Snapshot,
    verdict: &Verdict,
    profile: &Profile,
    follows: Follows,
) -> anyhow::Result<()> {
    let profile = profile.id.as_str();
    if format == Format::Json {
        let parts = parts(snapshot)
            .into_iter()
            .map(|(part, missing, took_ms)| PartShown { part: part.as_str(), missing, took_ms })
            .collect();
        let Follows { pending: pending_reason, drain, .. } = follows;
        let node = &snapshot.node;
        let origin = origin(snapshot);
        let shown = Shown { schema: 1, node, origin, profile, verdict, parts, pending_reason, drain };
        output::json(&shown)?;
        return Ok(());
    }
    let mut text = Lines::new();
    put!(
        text,
        "{} ({}, {}), {}: {}",
        if snapshot.node.is_empty() { "this node" } else { &snapshot.node },
        profile,
        origin(snapshot),
        verdict.phase,
        verdict.fitness,
    );
    for finding in &verdict.findings {
        add_finding(&mut text, finding);
    }
    for finding in verdict.shadow.iter().filter(|finding| finding.severity > Severity::Note) {
        let (subject, what, severity) = (finding.subject(), &finding.what, finding.severity);
        put!(text, "shadow   {subject}: {what} ({severity}; only counted, no action)");
    }
    let parts: Vec<String> = parts(snapshot)
        .into_iter()
        .map(|(part, missing, took_ms)| match missing {
            None => format!("{} {took_ms:.1} ms", part.as_str()),
            Some(_) => format!("{} nothing after {took_ms:.1} ms", part.as_str()),
        })
        .collect();
    put!(text, "read: {}", parts.join(", "));
    if let Some(hint) = follows.hint {
        put!(text, "{hint}");
    }
    for (what, outcome) in [("pending reason", follows.pending), ("drain", follows.drain)] {
        if let Some(outcome) = outcome {
            put!(text, "{what}: {outcome}");
        }
    }
    output::text(&text)?;
    Ok(())
}

/// All findings of a verdict, as text.
pub(crate) fn findings_text(verdict: &Verdict) -> Lines {
    let mut text = Lines::new();
    verdict.findings.iter().for_each(|finding| add_finding(&mut text, finding));
    text
}

fn add_finding(text: &mut Lines, finding: &Finding) {
    let subject = finding.subject();
    put!(text, "{:<7}  {subject}: {}", finding.severity.to_string(), finding.what);
    put!(text, "         fix: {} (class {}; railgate explain {})", finding.fix, finding.class, finding.check);
    for row in &finding.evidence {
        put!(text, "         {}: {}; want {} [{}]", row.what, row.got, row.want, row.source);
    }
}
