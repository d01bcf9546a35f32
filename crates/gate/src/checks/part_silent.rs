use railgate_node::{Class, Part, PartName};

use crate::judge::missing;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;

pub(super) use crate::register::ActionOnly as Settings;

/// The check.
pub(crate) struct PartSilent;

impl Check for PartSilent {
    const ABOUT: &'static str = "a part of the node gave nothing, so it could not be judged";
    const EXPLAIN: &'static str = "
Each part of a look (`gpus`, `fabric`, `pci`, `host`) is read by a child process with a deadline. Here is said which
ones gave nothing, and how.

- No answer by the deadline: `unknown`; `fail` when the part gave no answer at the previous look of the same boot too.
- The child outlives SIGKILL by two seconds: `fail`. Something hangs in the kernel.
- An error instead of an answer: `unknown`, of class `site` for NVML (library missing, driver and library versions
  differ), else `internal`.

Why: what was not read is not healthy. Where the phase's `required` names the part, the verdict is `unknown` rather than
`fit`; other parts are a note. Unknown never drains.

Fix: `dmesg`, `nvidia-smi`; a node stuck in the kernel needs a reboot. Persistence mode avoids the slow cold start of
NVML.

It cannot be off; take parts out of `required` instead. `report` keeps silence from draining.

```toml
[gate.prolog]
required = [\"gpus\", \"fabric\", \"host\"]
[gate.checks.part-silent]
action = \"drain\"   # report, notify, drain
```";
    const CLASS: Class = Class::Node;
    // It reads how the others' parts went, and asks for none itself.
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

fn part<T>(scene: &Scene<'_>, name: PartName, part: &Part<T>, out: &mut Report<'_>) {
    let Some(why) = missing(scene, name).filter(|_| scene.needed.contains(&name)) else { return };
    let again = scene.seen.memory.was_silent(name, &scene.now.boot_id);
    let found = match part {
        _ if !scene.required.contains(&name) => {
            Found::note(Class::Internal, name.as_str(), &why).fix("see log")
        }
        Part::Read { .. } => return,
        Part::Stuck { .. } => Found::fail(Class::Node, name.as_str(), &why).fix("reboot"),
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
