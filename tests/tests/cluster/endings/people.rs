//! Jobs that a user, an admin or a limit ends or requeues.

use anyhow::Result;
use nix::sys::signal::Signal;

use super::row::{CPU, Ending, GPU, How, Stage, When};

const CANCELLED: &str = "cancelled";
const TIMEOUT: &str = "ran into its time limit";
const AGAIN: &str = "completed, 2 attempts";
const WORK: &str = "again; mark began; sleep 120";
const DEFIANT: &str = "trap '' TERM USR1; mark began; while :; do sleep 1; done";

/// As in the templates: on the warning signal the program saves, and the job is requeued.
const TEMPLATE: &str = "\
again
trap 'scontrol requeue $SLURM_JOB_ID' USR1
mark began
sleep 120 & wait $!; wait";

pub(super) fn endings() -> Vec<Ending> {
    let job = |name, says| Ending::batch(name, GPU, WORK, says);
    let began = When::Began(0);
    let mut all = vec![
        job("cancelled", CANCELLED).when(began, |stage| stage.owner(&["scancel"])),
        Ending::batch("cancelled without GPUs", CPU, WORK, CANCELLED)
            .when(began, |stage| stage.owner(&["scancel"])),
        Ending::batch(
            "cancelled and defiant",
            CPU,
            "trap 'exit 7' TERM; mark began; sleep 120 & wait",
            CANCELLED,
        )
        .when(began, |stage| stage.owner(&["scancel"])),
        job("cancelled by an admin", CANCELLED).when(began, |stage| stage.admin(&["scancel"])),
        job("scancel KILL", CANCELLED).when(began, |stage| stage.owner(&["scancel", "--signal=KILL"])),
        // Signals to processes, which do not cancel the job.
        Ending::batch("scancel KILL to the script", CPU, WORK, "looks like the application")
            .when(began, |stage| stage.owner(&["scancel", "--batch", "--signal=KILL"])),
        Ending::batch(
            "scancel USR1, program ends well",
            GPU,
            "trap 'exit 0' USR1; mark began; sleep 120 & wait",
            "completed",
        )
        .when(began, |stage| stage.owner(&["scancel", "--batch", "--signal=USR1"])),
        job("cancelled in the prolog", CANCELLED)
            .with(&["--comment=wait-in-prolog_slurmd"])
            .when(When::In("prolog_slurmd"), cancel_and_go),
        Ending::batch("cancelled while completing", GPU, "exit 0", "completed")
            .with(&["--comment=wait-in-epilog_slurmd"])
            .when(When::In("epilog_slurmd"), cancel_and_go),
        Ending::batch("cancelled while failing", CPU, "exit 5", "looks like the application")
            .with(&["--comment=wait-in-epilog_slurmd"])
            .when(When::In("epilog_slurmd"), cancel_and_go),
        // srun forwards SIGINT before it calls the job cancelled: a program that died of it at once could end the job before.
        Ending::batch("srun interrupted", GPU, "trap '' INT; mark began; sleep 120", CANCELLED)
            .with(&["--quit-on-interrupt"])
            .how(How::Srun)
            .when(began, |stage| stage.process.map_or(Ok(()), |srun| srun.signal(Signal::SIGINT))),
        job("out of time", TIMEOUT).when(began, |stage| stage.update("EndTime=now+1")),
        Ending::batch("out of time and defiant", CPU, DEFIANT, TIMEOUT)
            .with(&["--time=10", "--signal=B:USR1@600"])
            .when(began, |stage| stage.update("EndTime=now+1")),
        Ending::batch("warned, saved and back", GPU, TEMPLATE, AGAIN)
            .with(&["--time=60", "--signal=B:USR1@600"])
            .when(began, warn),
        Ending::batch(
            "warned and done",
            CPU,
            "trap 'exit 0' USR1; mark began; sleep 120 & wait",
            "completed",
        )
        .with(&["--time=60", "--signal=B:USR1@600"])
        .when(began, warn),
    ];
    all.extend(put_back());
    all
}

/// Slurm sends the signal of `--signal=B:USR1@600` now, since ten minutes are left. Earlier the script might not run yet.
fn warn(stage: &Stage<'_>) -> Result<()> {
    stage.update("TimeLimit=10")
}

fn put_back() -> Vec<Ending> {
    let job = |name, says| Ending::batch(name, GPU, WORK, says);
    let began = When::Began(0);
    vec![
        job("requeued by its owner", AGAIN).when(began, |stage| stage.owner(&["scontrol", "requeue"])),
        Ending::batch("requeued by an admin", CPU, WORK, AGAIN)
            .when(began, |stage| stage.admin(&["scontrol", "requeue"])),
        job("requeued and held", "waiting to start, 2 attempts")
            .when(began, |stage| stage.owner(&["scontrol", "requeuehold"]))
            .when(When::Waits("held"), |_| Ok(()))
            .waits()
            .after(|stage| stage.owner(&["scontrol", "release"]), AGAIN),
        Ending::batch("requeued and held, then cancelled", CPU, WORK, "waiting to start, 2 attempts")
            .when(began, |stage| stage.owner(&["scontrol", "requeuehold"]))
            .when(When::Waits("held"), |_| Ok(()))
            .waits()
            .after(|stage| stage.owner(&["scancel"]), "cancelled, 2 attempts")
            // The database does not record the number of restarts.
            .forgotten("could not tell", "cancelled"),
        Ending::batch("requeued, then cancelled", CPU, "mark began; sleep 120", "cancelled, 2 attempts")
            .when(began, |stage| stage.owner(&["scontrol", "requeue"]))
            .when(When::Began(1), |stage| stage.owner(&["scancel"])),
        Ending::batch("preempted and requeued", &["-p", "backed", "--gres=gpu:1"], WORK, AGAIN)
            .when(began, |stage| urgent(stage, "gn6")),
        Ending::batch("preempted and cancelled", &["-p", "scavenge", "--gres=gpu:1"], WORK, "preempted")
            .when(began, |stage| urgent(stage, "gn7")),
    ]
}

fn cancel_and_go(stage: &Stage<'_>) -> anyhow::Result<()> {
    stage.owner(&["scancel"])?;
    stage.go()
}

/// A job of another user with higher priority preempts the node.
fn urgent(stage: &Stage<'_>, node: &str) -> anyhow::Result<()> {
    let words = ["-p", "urgent", "-w", node, "--exclusive", "-o", "/dev/null"];
    stage.cluster.bob().sbatch(&words, "sleep 2").map(drop)
}
