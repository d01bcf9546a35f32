//! The tests of the nodes again and again: what fails only after hours, and how warm it gets.

use super::{Of, Stage, node, of_each_node};
use crate::report::Build;

pub(super) const STAGE: Stage = Stage {
    id: "soak",
    about: "the tests of stage node again and again: faults that come with time, power and temperature over time",
    units: |plan| of_each_node("soak", plan, plan.soak, 15),
    commands: |_, _, _| node::commands(),
    judge,
};

fn judge(build: &mut Build<'_>, results: &[Of<'_>]) {
    node::judge(build, results, "soak");
    for (name, title) in [
        ("power_w", "Highest power in each round, W"),
        ("temperature_c", "Highest temperature in each round, °C"),
    ] {
        build.course(&format!(".{name}"), "soak.", title);
    }
}
