use railgate_model::{Class, Part, PartName};

use crate::judge::missing;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;

/// The check.
pub(crate) struct PartSilent;

settings! {
    action = Drain only "report, notify, drain";
}

impl Check for PartSilent {
    const ABOUT: &'static str = "a part of the node could not be read, so it could not be judged";
    const EXPLAIN: &'static str = "
Reads which of the parts of a node (`gpus`, `fabric`, `pci`, `host`) could not be read, and why. Each is read by a child
process with a deadline.

- No answer by the deadline: `unknown`; `fail` if the part did not answer at the previous check run of the same boot either.
- The child outlives SIGKILL by two seconds: `fail`. It hangs in the kernel.
- Both are `unknown` within `boot_grace` of `ib-port` after boot, when drivers are loading. The same for GPUs that had no
  persistence mode when they were last read: waking eight of them takes longer than some deadlines.
- No part answered by the deadline: the machine is overloaded: `unknown`, however often.
- An error instead of an answer: `unknown`, of class `site` for NVML (library missing, driver and library versions
  differ), otherwise `internal`.

Why: a part that was not read is not known to be healthy. If the phase's `required` names the part, the verdict is `unknown`
instead of `fit`; other parts are a note. Unknown never drains.

Fix: `dmesg`, `nvidia-smi`; a node stuck in the kernel needs a reboot. Persistence mode avoids the slow cold start of
NVML.

The check cannot be switched off; remove parts from `required` instead. With `action = \"report\"` it does not drain.

```toml
[gate.prolog]
required = [\"gpus\", \"fabric\", \"host\"]
```
";
    const CLASS: Class = Class::Node;
    // This check uses the outcome of reading the parts that other checks need, and needs none itself.
    const PARTS: &'static [PartName] = &[];
    const SCOPE: Scope = Scope::Always;
    const ALWAYS: bool = true;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, _: &Settings, out: &mut Report<'_>) {
        part(scene, PartName::Gpus, &scene.now.gpus, out);
        part(scene, PartName::Fabric, &scene.now.fabric, out);
        part(scene, PartName::Pci, &scene.now.pci, out);
        part(scene, PartName::Host, &scene.now.host, out);
    }
}

/// No part answered and none is stuck, so the whole machine is overloaded. A job that thrashes can cause that.
fn nothing_answers(scene: &Scene<'_>) -> bool {
    fn silent<T>(part: &Part<T>) -> bool {
        matches!(part, Part::Silent { .. } | Part::Skipped)
    }
    let now = scene.now;
    let all = [silent(&now.gpus), silent(&now.fabric), silent(&now.pci), silent(&now.kernel_log)];
    silent(&now.host) && all.iter().all(|silent| *silent)
}

fn part<T>(scene: &Scene<'_>, name: PartName, part: &Part<T>, out: &mut Report<'_>) {
    let Some(why) = missing(scene, name).filter(|_| scene.needed.contains(&name)) else { return };
    let again = scene.seen.memory.was_silent(name, &scene.now.boot_id);
    let found = match part {
        _ if !scene.required.contains(&name) => {
            Found::note(Class::Internal, name.as_str(), &why).fix("see log")
        }
        Part::Read { .. } => return,
        Part::Stuck { .. } | Part::Silent { .. } if scene.just_booted() => {
            Found::unknown(Class::Node, name.as_str(), format!("{why}, node just booted")).fix("check again")
        }
        Part::Silent { .. } if name == PartName::Gpus && scene.seen.memory.cold_gpus => {
            Found::unknown(Class::Site, name.as_str(), format!("{why}, persistence mode was off"))
                .fix("persistence mode")
        }
        Part::Stuck { .. } => Found::fail(Class::Node, name.as_str(), &why).fix("reboot"),
        Part::Silent { .. } if again && nothing_answers(scene) => {
            Found::unknown(Class::Node, name.as_str(), format!("{why}, like all other parts"))
                .fix("check load")
        }
        Part::Silent { .. } if again => {
            Found::fail(Class::Node, name.as_str(), format!("{why}, as before")).fix("reboot")
        }
        Part::Silent { .. } => Found::unknown(Class::Node, name.as_str(), &why).fix("check driver"),
        Part::Failed { .. } if name == PartName::Gpus => {
            Found::unknown(Class::Site, name.as_str(), &why).fix("check driver")
        }
        Part::Failed { .. } | Part::Skipped => {
            Found::unknown(Class::Internal, name.as_str(), &why).fix("see log")
        }
    };
    out.add(found.row(format!("part {name}", name = name.as_str()), why, "an answer", "snapshot"));
}

#[cfg(test)]
mod tests {
    use railgate_model::{Fitness, Part, PartName, Severity};

    use crate::Memory;
    use crate::testing::case;

    #[test]
    fn the_first_timeout_is_unknown() {
        let first = case("h100-sxm:nvml-silent");
        assert_eq!(first.summary(), "unknown: unknown part-silent@gpus: no answer in 10.0 s; check driver");
    }

    #[test]
    fn a_second_timeout_in_one_boot_fails() {
        let first = case("h100-sxm:nvml-silent");
        let memory = Memory::default().after(&first.now, false);
        assert_eq!(memory.silent, [PartName::Gpus]);
        let second = case("h100-sxm:nvml-silent").with(|case| case.memory = memory.clone());
        assert_eq!(second.summary(), "unfit: fail part-silent@gpus: no answer in 10.0 s, as before; reboot");
        let rebooted = second.with(|case| case.now.boot_id = "another".to_owned());
        assert_eq!(rebooted.fitness(), Fitness::Unknown);
    }

    #[test]
    fn a_second_timeout_after_boot_or_without_persistence_mode_is_unknown() {
        let booted = |node: &str| {
            case(node).with(|case| {
                let now = case.now.taken / 1000;
                crate::testing::read(&mut case.now.host).boot_time = railgate_model::Reading::Known(now - 60);
            })
        };
        assert_eq!(booted("h100-sxm:nvml-stuck").fitness(), Fitness::Unknown);
        let mut again = booted("h100-sxm:nvml-silent");
        again.memory = again.memory.after(&again.now, false);
        assert_eq!(again.fitness(), Fitness::Unknown);

        let cold = |persistence_off: &str| {
            let before = case(&format!("h100-sxm:{persistence_off}"));
            let first = case("h100-sxm:nvml-silent");
            let memory = Memory::default().after(&before.now, true).after(&first.now, false);
            first.with(|case| case.memory = memory)
        };
        assert_eq!(cold("gpu-persistence-off@2").fitness(), Fitness::Unknown);
        assert_eq!(cold("").fitness(), Fitness::Unfit);
    }

    #[test]
    fn an_overloaded_machine_does_not_fail() {
        let thrashing = |case: crate::testing::Case| {
            case.with(|case| {
                let after_ms = 30_000.0;
                case.now.gpus = Part::Silent { after_ms };
                case.now.fabric = Part::Silent { after_ms };
                case.now.pci = Part::Silent { after_ms };
                case.now.kernel_log = Part::Silent { after_ms };
                case.now.host = Part::Silent { after_ms };
                case.memory = case.memory.after(&case.now, false);
            })
        };
        assert_eq!(thrashing(case("h100-sxm")).fitness(), Fitness::Unknown);
        let log = case("h100-sxm").now.kernel_log;
        let one_answers = thrashing(case("h100-sxm")).with(|case| case.now.kernel_log = log);
        assert_eq!(one_answers.fitness(), Fitness::Unfit);
    }

    #[test]
    fn a_check_run_that_skips_the_gpus_keeps_their_timeout() {
        let memory = Memory::default().after(&case("h100-sxm:nvml-silent").now, false);
        let skipped = case("h100-sxm").with(|case| case.now.gpus = Part::Skipped);
        assert_eq!(memory.after(&skipped.now, true).silent, [PartName::Gpus]);
        assert!(memory.after(&case("h100-sxm").now, true).silent.is_empty());
    }

    #[test]
    fn a_read_stuck_in_the_kernel_fails_at_once() {
        assert!(case("h100-sxm:nvml-stuck").summary().starts_with("unfit: fail part-silent@gpus"));
    }

    #[test]
    fn without_a_number_of_hcas_a_fabric_timeout_is_found() {
        let hangs = |fabric| {
            case("h100-sxm").with(|case| {
                case.now.fabric = fabric;
                case.profile.iter_mut().for_each(|profile| profile.fabric.hcas = None);
            })
        };
        let silent = hangs(Part::Silent { after_ms: 4000.0 });
        assert_eq!(silent.summary(), "unknown: unknown part-silent@fabric: no answer in 4.0 s; check driver");
        assert_eq!(hangs(Part::Stuck { after_ms: 4000.0 }).fitness(), Fitness::Unfit);
        let failed = Part::Failed { why: "no such file".to_owned(), took_ms: 0.1 };
        assert_eq!(hangs(failed).of("part-silent"), []);
    }

    #[test]
    fn a_failed_read_never_drains() {
        assert_eq!(case("h100-sxm:nvml-missing").fitness(), Fitness::Unknown);
        let sysfs = case("h100-sxm")
            .with(|case| case.now.fabric = Part::Failed { why: "no such file".to_owned(), took_ms: 0.1 });
        assert_eq!(sysfs.fitness(), Fitness::Unknown);
        assert_eq!(sysfs.of("part-silent"), [Severity::Unknown]);
    }

    #[test]
    fn a_timeout_of_a_part_that_is_not_required_is_a_note() {
        let pci = case("h100-sxm").with(|case| case.now.pci = Part::Silent { after_ms: 1000.0 });
        assert_eq!(pci.summary(), "fit");
        assert_eq!(pci.of("part-silent"), [Severity::Note]);
        let gpus = case("h100-sxm:nvml-silent").settings("[prolog]\nrequired = [\"host\"]");
        assert_eq!(gpus.summary(), "fit", "the site does not want to know");
    }

    #[test]
    fn parts_that_the_machine_lacks_or_the_job_does_not_need_are_not_required() {
        let no_fabric = case("l40s").with(|case| case.now.fabric = Part::Skipped);
        assert_eq!(no_fabric.summary(), "fit");
        assert_eq!(case("h100-sxm:nvml-stuck").holding(&[]).summary(), "fit");
    }
}
