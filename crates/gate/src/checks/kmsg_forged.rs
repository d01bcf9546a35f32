use railgate_model::{Class, ForgedLine, PartName};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::Scene;
use crate::settings::settings;
use crate::when::iso;

/// The check.
pub(crate) struct ForgedRecords;

settings! {
    action = Drain, "class user never drains";
}

impl Check for ForgedRecords {
    const ABOUT: &'static str = "a process wrote a kernel log record that imitates a driver's";
    const EXPLAIN: &'static str = "
Reads the records of `/dev/kmsg` since railgate last handled the log (see `kernel-log`), and reports those that begin like a driver's
record because a process has such a name. The kernel prefixes some messages with the name of the process that caused them: a
program called `NVRM: GPU 1:0:0` that crashes logs `NVRM: GPU 1:0:0[4711]: segfault at …`.

Why: it changes no verdict, since railgate only accepts complete sentences of the driver. Other tools on the node may take
it for a hardware fault. It rarely happens by accident.

The finding names the process, and the user if the kernel's audit record of the same crash has it (`audit: type=1701`; in
the kernel log only if no audit daemon runs). Class `user`: it never drains.

Fix: ask the user. Without the uid: `sacct -N NODE -S TIME` lists the jobs that ran there.
";
    const CLASS: Class = Class::User;
    const PARTS: &'static [PartName] = &[PartName::KernelLog];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, _: &Settings, out: &mut Report<'_>) {
        let Some(log) = scene.now.kernel_log.data() else { return };
        let Some(newest) = log.forged.last() else { return };
        let times =
            if log.forged.len() > 1 { format!(" ({} records)", log.forged.len()) } else { String::new() };
        let what = format!("{} imitated a driver in the kernel log{times}", forger(newest));
        let rows = log.forged.iter().rev().take(MOST_ROWS);
        out.add(rows.fold(Found::warn(Class::User, "", what).fix("ask the user"), |found, forged| {
            let source = format!("kmsg seq {} at {}", forged.seq, iso(forged.time));
            found.row("kernel log", &forged.text, "no process with a driver's name", source)
        }));
    }
}

/// One process can write thousands of records.
const MOST_ROWS: usize = 5;

fn forger(forged: &ForgedLine) -> String {
    let pid = forged.pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
    match forged.uid {
        Some(uid) => format!("{pid} of uid {uid}"),
        None => format!("{pid}, uid unknown,"),
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Fitness, ForgedLine};

    use crate::testing::{Case, case, read};

    fn forged(uid: Option<u32>) -> Case {
        case("h100-sxm").with(|case| {
            let text = "NVRM: GPU 1:0:0[77]: segfault at 0 in fallen off the bus[1+1]".to_owned();
            let line = ForgedLine { seq: 9, time: case.now.taken, pid: Some(77), uid, text };
            read(&mut case.now.kernel_log).forged.push(line);
        })
    }

    #[test]
    fn a_forged_record_names_the_process_and_does_not_drain() {
        let told = forged(Some(1002));
        assert_eq!(
            told.summary(),
            "degraded: warn kmsg-forged: process 77 of uid 1002 imitated a driver in the kernel log; ask the user"
        );
        let untold = forged(None);
        assert!(untold.summary().contains("process 77, uid unknown, imitated"), "{}", untold.summary());
        let strict =
            forged(None).settings("[prolog]\nwarn = \"drain\"\n[checks.kmsg-forged]\naction = \"drain\"");
        assert_eq!(strict.fitness(), Fitness::Degraded);
    }
}
