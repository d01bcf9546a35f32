use std::time::Duration;

use railgate_model::{Class, PartName, Severity};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::{at_least, settings};

/// The check.
pub(crate) struct Tasks;

settings! {
    action = Drain;
    severity: Severity = Severity::Warn, "stuck processes, or too many zombies";
    #[serde(with = "railgate_model::duration_text")]
    blocked: Duration = Duration::from_secs(300), limit at_least(Duration::from_secs(60)), "a process in the same uninterruptible sleep for this long is stuck";
    zombies: u32 = 1_000, "more zombies are a finding";
}

/// Number of process names in a finding; further processes are only counted.
const NAMED: usize = 3;

impl Check for Tasks {
    const ABOUT: &'static str = "processes are stuck in the kernel (state D), or there are too many zombies";
    const EXPLAIN: &'static str = "
Reads the state of every process in `/proc`. A process in state D is stuck only if an earlier check run of this boot saw
the same process in the same sleep (its count of context switches has not changed) at least `blocked` ago: a process that
waits for a disk is not stuck. Kernel threads are left out. Zombies are counted.

Why: a process that hangs in the kernel holds its files, GPUs and memory, and no signal ends it: Slurm's \"Kill task failed\".

Fix: find what it waits for (`cat /proc/PID/wchan`, `/proc/PID/stack`). If that is a server, it ends once the server is back;
otherwise reboot. Zombies: end their parent.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Host];
    const SCOPE: Scope = Scope::Always;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(host) = scene.now.host.data() else { return };
        let Some(processes) = out.value("", "processes", "/proc", &host.system.processes) else { return };
        let stuck: Vec<(&railgate_model::BlockedProcess, Duration)> = processes
            .blocked
            .iter()
            .filter_map(|process| Some((process, scene.seen.memory.blocked_for(process, scene.now)?)))
            .filter(|(_, time)| *time >= set.blocked)
            .collect();
        if !stuck.is_empty() {
            let names: Vec<String> = stuck
                .iter()
                .take(NAMED)
                .map(|(process, _)| format!("{} ({})", process.name, process.pid))
                .collect();
            let what = format!("{} stuck in the kernel: {}", stuck.len(), names.join(", "));
            let mut found = Found::new(set.severity, Class::Node, "blocked", what).fix("see wchan; reboot");
            for (process, time) in stuck.iter().take(NAMED) {
                let got = format!(
                    "state D for {}",
                    humantime::format_duration(Duration::from_secs(time.as_secs()))
                );
                let want = format!("less than {}", humantime::format_duration(set.blocked));
                found = found.row(format!("{} ({})", process.name, process.pid), got, want, "/proc");
            }
            out.add(found);
        }
        if processes.zombies > set.zombies {
            let got = format!("{} zombies", processes.zombies);
            out.add(Found::new(set.severity, Class::Node, "zombies", &got).fix("end their parent").row(
                "state Z",
                got,
                format!("{} at most", set.zombies),
                "/proc",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{BlockedProcess, Processes, Reading};

    use super::*;
    use crate::Memory;
    use crate::testing::{Case, case};

    fn process(pid: u32, switches: u64) -> BlockedProcess {
        BlockedProcess { pid, started: 900, name: "python3".to_owned(), switches }
    }

    fn with(blocked: Vec<BlockedProcess>, minutes: u64) -> Case {
        case("h100-sxm").with(|case| {
            case.now.taken += minutes * 60_000;
            let host = crate::testing::read(&mut case.now.host);
            host.system.processes = Reading::Known(Processes { total: 300, zombies: 1, blocked });
        })
    }

    fn after(earlier: &Case, later: Case) -> Case {
        let memory = Memory::default().after(&earlier.now, true);
        later.with(|case| case.memory = memory)
    }

    #[test]
    fn only_one_long_uninterruptible_sleep_is_stuck() {
        let first = with(vec![process(77, 5)], 0);
        assert_eq!(first.summary(), "fit", "the duration is unknown");
        let stuck = after(&first, with(vec![process(77, 5)], 5));
        assert_eq!(
            stuck.summary(),
            "degraded: warn tasks@blocked: 1 stuck in the kernel: python3 (77); see wchan; reboot"
        );
        assert_eq!(after(&first, with(vec![process(77, 5)], 4)).summary(), "fit", "not long enough");
        assert_eq!(after(&first, with(vec![process(77, 6)], 5)).summary(), "fit", "it woke up meanwhile");
        assert_eq!(after(&first, with(vec![process(78, 5)], 5)).summary(), "fit", "another one");
        let rebooted = stuck.with(|case| case.now.boot_id = "another".to_owned());
        assert_eq!(rebooted.summary(), "fit");
    }

    #[test]
    fn check_runs_in_between_do_not_reset_the_time_asleep() {
        let first = with(vec![process(77, 5)], 0);
        let memory = Memory::default().after(&first.now, true);
        let second = with(vec![process(77, 5)], 3);
        let memory = memory.after(&second.now, true);
        let third = with(vec![process(77, 5)], 6).with(|case| case.memory = memory);
        assert_eq!(third.of("tasks"), [Severity::Warn]);
    }

    #[test]
    fn many_zombies_warn() {
        let many = case("h100-sxm").host(|host| {
            host.system.processes =
                Reading::Known(Processes { total: 3_000, zombies: 1_001, blocked: Vec::new() });
        });
        assert_eq!(many.summary(), "degraded: warn tasks@zombies: 1001 zombies; end their parent");
    }
}
