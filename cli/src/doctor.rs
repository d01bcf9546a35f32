//! `railgate doctor`: compares the settings of Slurm, of the plugin stack and of this machine's files with those that
//! railgate needs.

pub(crate) mod facts;
mod files;
mod hints;
mod plugstack;
mod rules;
mod slurm_file;
#[cfg(test)]
mod testing;
mod uninstall;

use railgate_text::{Lines, put};
use serde::Serialize;

use crate::output::{self, Format};
use crate::{Site, exit};
use facts::Facts;
use rules::{Finding, Level, RULES};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate doctor  on a compute node, the controller or a login node
  railgate doctor --fix-hints
      lines for slurm.conf and plugstack.conf, ready to paste
  railgate doctor --fix-hints=slurm.conf > /etc/slurm/railgate.conf
  railgate doctor --uninstall
      where Slurm still starts railgate, and how to remove it
  railgate doctor --format json

It changes nothing. As root it checks more.

Exit codes: 0 nothing is wrong, 1 something is, 2 wrong use, 3 nothing is wrong but something is unknown.
With --uninstall: 0 no hook starts railgate, 1 at least one does, 3 none was found, and not everything could be \
read")]
pub(crate) struct Args {
    /// Print the fragments of slurm.conf and plugstack.conf that railgate needs, and nothing else
    #[arg(long, value_name = "FILE", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "both")]
    fix_hints: Option<Hints>,
    /// List the hooks of Slurm that start railgate, and the steps to remove it; changes nothing
    #[arg(long, conflicts_with_all = ["fix_hints", "format"])]
    uninstall: bool,
    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Which fragments to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Hints {
    /// slurm.conf and plugstack.conf
    Both,
    /// slurm.conf, for a file that it includes; needs slurmctld's answer
    #[value(name = "slurm.conf")]
    Slurm,
    /// plugstack.conf
    #[value(name = "plugstack.conf")]
    Plugstack,
}

#[derive(Debug, Serialize)]
struct Diagnosis<'a> {
    schema: u32,
    node: &'a str,
    roles: Vec<&'static str>,
    slurm: Option<&'a str>,
    jobs_now: String,
    findings: Vec<Finding>,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    if args.uninstall {
        let hooked = uninstall::find_hooks(site);
        output::text(&hooked.text())?;
        return Ok(hooked.code());
    }
    let facts = facts::gather(site);
    if let Some(of) = args.fix_hints {
        return print_hints(&facts, of);
    }
    let findings = judge(&facts);
    let has = |level| findings.iter().any(|finding: &Finding| finding.level == level);
    let code = if has(Level::Wrong) {
        exit::UNFIT
    } else if has(Level::Unknown) {
        exit::UNKNOWN
    } else {
        exit::OK
    };
    let diagnosis = Diagnosis {
        schema: 1,
        node: &facts.node,
        roles: facts.roles.names(),
        slurm: facts.slurm.as_ref().ok().and_then(|conf| conf.get("SLURM_VERSION")),
        jobs_now: jobs_now(&facts),
        findings,
    };
    match args.format {
        Format::Json => output::json(&diagnosis)?,
        Format::Table => output::text(&shown(&diagnosis))?,
    }
    Ok(code)
}

/// This output replaces slurmctld's settings without a person in between, so no line may be guessed.
fn print_hints(facts: &Facts, of: Hints) -> anyhow::Result<u8> {
    if let (Hints::Slurm, Err(why)) = (of, &facts.slurm) {
        anyhow::bail!(
            "the lines of slurm.conf cannot be merged with this site's: {why}; \
             /usr/share/railgate/slurm.conf has them for a site without any of its own"
        );
    }
    let mut text = Lines::new();
    if of != Hints::Plugstack {
        text.add(&hints::slurm_conf(facts));
    }
    if of == Hints::Both {
        text.blank();
    }
    if of != Hints::Slurm {
        text.add(&hints::plugstack_conf());
    }
    output::text(&text)?;
    Ok(exit::OK)
}

/// Findings of all rules that apply to this machine, the most severe first.
fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings: Vec<Finding> =
        RULES.iter().filter(|rule| rule.concerns(facts.roles)).flat_map(|rule| rule.judge(facts)).collect();
    findings.sort_by_key(|finding| finding.level);
    findings
}

/// The line about railgate's effect on a job that starts on this node now.
fn jobs_now(facts: &Facts) -> String {
    if !facts.roles.compute {
        return "no job runs on this machine".to_owned();
    }
    if let Some(why) = &facts.stopped {
        return why.clone();
    }
    match &facts.config {
        Err(_) => "jobs run unchecked: the configuration cannot be used".to_owned(),
        Ok(config) if config.gate.mode == railgate_gate::Mode::Report => {
            "jobs are checked and reported, and nothing is changed ([gate] mode = \"report\")".to_owned()
        }
        Ok(_) => "jobs are checked, and an unfit node is drained (`railgate check` judges it now)".to_owned(),
    }
}

fn shown(diagnosis: &Diagnosis<'_>) -> Lines {
    let slurm = diagnosis.slurm.map_or_else(|| "Slurm does not answer".to_owned(), |v| format!("Slurm {v}"));
    let mut text = Lines::new();
    put!(text, "{}: {}, {slurm}", diagnosis.node, diagnosis.roles.join(" and "));
    put!(text, "now: {}", diagnosis.jobs_now);
    text.blank();
    for finding in &diagnosis.findings {
        put!(text, "{:<8} {}: {}", finding.level.word(), finding.rule, finding.what);
        if !finding.why.is_empty() {
            put!(text, "         {}", finding.why);
        }
        if !finding.put.is_empty() {
            put!(text, "         do: {}", finding.put);
        }
    }
    let count = |level| diagnosis.findings.iter().filter(|finding| finding.level == level).count();
    let (wrong, unknown) = (count(Level::Wrong), count(Level::Unknown));
    if wrong + unknown == 0 {
        put!(text, "nothing is wrong");
    } else {
        text.blank();
        put!(text, "{wrong} wrong, {unknown} unknown");
    }
    text
}
