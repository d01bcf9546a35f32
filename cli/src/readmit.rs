use railgate_runner::{Readmit, Readmitted, readmit};
use railgate_slurm::Env;
use railgate_text::{Lines, put};

use crate::check::findings_text;
use crate::{Site, exit, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate readmit gn7          on gn7, as root, after the repair
  ssh gn7 railgate readmit gn7  from anywhere else
  railgate readmit gn7 --repaired
      the part was reset or replaced without a reboot

Runs the checks of the prolog and of the periodic check. If both find the node fit or degraded, it resumes the \
node and records your name. It only resumes nodes that railgate drained, and none in a maintenance reservation \
or about to reboot.
Exit codes: 0 back in service (or it was not drained); 1 not resumed, with the reason; 2 wrong use.")]
pub(crate) struct Args {
    /// Name of this node in Slurm
    node: String,
    /// Confirm a repair that no check can see: the cause of an Xid of this boot was repaired
    #[arg(long)]
    repaired: bool,
}

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    let node = &args.node;
    anyhow::ensure!(
        *node == site.node,
        "run this on {node}; this is {}: ssh {node} railgate readmit {node}",
        site.node
    );
    let config = site.config()?;
    anyhow::ensure!(nix::unistd::geteuid().is_root(), "permission denied: readmit needs root");
    railgate_runner::own_process();
    railgate_runner::start_logging(&config.log);
    let env: Env = std::env::vars_os().collect();
    let by = crate::pause::who();
    let how = Readmit { by: &by, repaired: args.repaired };
    let mut text = Lines::new();
    let code = match readmit(&config, &site.places, &env, node, how)? {
        Readmitted::Back(reason, check_run) => {
            put!(text, "{node}: {}, back in service", check_run.verdict.fitness);
            text.add(&findings_text(&check_run.verdict));
            put!(text, "was: {reason}");
            exit::OK
        }
        Readmitted::InService => {
            put!(text, "{node}: not drained");
            exit::OK
        }
        Readmitted::Left(why) => {
            put!(text, "{node}: left as it is: {why}");
            exit::UNFIT
        }
        Readmitted::Unfit(check_run) => {
            put!(text, "{node}: {} ({}), stays drained", check_run.verdict.fitness, check_run.verdict.phase);
            text.add(&findings_text(&check_run.verdict));
            exit::UNFIT
        }
    };
    output::text(&text)?;
    Ok(code)
}
