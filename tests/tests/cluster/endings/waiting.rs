//! Jobs that never start.

use super::row::{CPU, Ending, GPU, When};

const WAITING: &str = "waiting to start";
const CANCELLED: &str = "cancelled";

pub(super) fn endings() -> Vec<Ending> {
    let job = |name, words: &[&'static str], says| {
        Ending::batch(name, &[GPU, words].concat(), "exit 0", says).never_began()
    };
    let never = When::Waits("dependencyneversatisfied");
    vec![
        job("held by its owner", &["--hold"], WAITING)
            .when(When::Waits("held"), |_| Ok(()))
            .waits()
            .after(|stage| stage.owner(&["scancel"]), CANCELLED),
        job("cancelled before its start", &["--begin=tomorrow"], CANCELLED)
            .when(When::Waits("begintime"), |stage| stage.owner(&["scancel"])),
        job("dependency fails, left waiting", &["--dependency=afterok:FAILED"], WAITING)
            .when(never, |_| Ok(()))
            .waits()
            .after(|stage| stage.owner(&["scancel"]), CANCELLED),
        job(
            "dependency fails, cancelled",
            &["--dependency=afterok:FAILED", "--kill-on-invalid-dep=yes"],
            CANCELLED,
        ),
        // A job of one minute with little more time until its deadline, on a node that is busy and then dies.
        Ending::batch(
            "too late for its deadline",
            &["-p", "mortal", "-w", "gn10", "--gres=gpu:8", "--time=1", "--deadline=now+70seconds"],
            "exit 0",
            "past its deadline",
        )
        .never_began(),
        Ending::batch("released after a while", CPU, "exit 0", "completed")
            .with(&["--hold"])
            .when(When::Waits("held"), |stage| stage.owner(&["scontrol", "release"])),
    ]
}
