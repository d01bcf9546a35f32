use railgate_model::{Class, Gpu, PartName, Reading, RecoveryAction, Severity, XidEvent};

use crate::agreement::SIGN_WINDOW;
use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::{Scene, Whose};
use crate::settings::settings;
use crate::when::iso;

/// The check.
pub(crate) struct GpuRecoveryAction;

settings! {
    action = Drain;
    drain_p2p: Severity = Severity::Warn, "the driver asks to stop peer traffic (3)";
}

impl Check for GpuRecoveryAction {
    const ABOUT: &'static str = "the driver itself asks for a GPU reset or a reboot";
    const EXPLAIN: &'static str = "
Reads NVML field 230 (`NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`, driver 570 and later). Older drivers do not have the field: then
the last Xid 154 of the GPU since railgate last handled the kernel log (see `kernel-log`) is used (\"GPU recovery action changed
from … to …\"). That is a line of the kernel log alone, so `warn` until the driver logs it a second time within 24 hours. A
line that does not name the action is `warn`.

Why: the driver knows more about the fault than any table of Xid codes, so its request takes precedence.

Fix: do what the finding names. `reset GPU`: `nvidia-smi -r -i N` with the GPU idle (on NVSwitch machines all GPUs at once).
`reboot`: reboot the node.

Severity: reset, reboot, \"drain and reset\", bus reset, system reboot and IMEX recovery are `fail`; \"stop peer traffic\"
(3) is `drain_p2p` (default `\"warn\"`); a value that this version of railgate does not know is `warn`.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus, PartName::KernelLog];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        for gpu in scene.answering() {
            let part = gpu.index.to_string();
            let what = format!("gpu {part} recovery action");
            let field = out.value(&part, &what, FIELD, &gpu.recovery_action).copied();
            let (action, source, written) = match (field, last_record(scene, gpu)) {
                (Some(action), _) => (action, FIELD.to_owned(), None),
                (None, Some((stated, event))) => {
                    let source = format!("kmsg seq {} at {}: {}", event.seq, iso(event.time), event.text);
                    let Some(action) = stated else {
                        let found = Found::warn(Class::Node, part, "driver changed its recovery action");
                        let none = RecoveryAction::None.to_string();
                        out.add(found.fix(UNNAMED).row(what, "not stated", none, source));
                        continue;
                    };
                    (action, source, Some(event.time))
                }
                (None, None) => continue,
            };
            let severity = match action {
                RecoveryAction::None => continue,
                RecoveryAction::DrainP2p => set.drain_p2p,
                RecoveryAction::Other(number) if !(5..=7).contains(&number) => Severity::Warn,
                _ => Severity::Fail,
            };
            let found = Found::new(severity, Class::Node, part, format!("driver asks: {action}"))
                .fix(cure(action).unwrap_or(UNNAMED))
                .row(what, action.to_string(), RecoveryAction::None.to_string(), source);
            out.add(match written {
                Some(time) => found.sign(SIGN_WINDOW, vec![time]),
                None => found,
            });
        }
    }
}

const FIELD: &str = "NVML field 230";
const UNNAMED: &str = "see nvidia-smi -q";

/// The fix in two words; `None` if no fix is needed or the action is unknown.
pub(super) fn cure(action: RecoveryAction) -> Option<&'static str> {
    match action {
        RecoveryAction::None => None,
        RecoveryAction::GpuReset | RecoveryAction::DrainAndReset => Some("reset GPU"),
        RecoveryAction::NodeReboot | RecoveryAction::Other(7) => Some("reboot"),
        RecoveryAction::DrainP2p => Some("stop peer traffic, reset GPU"),
        RecoveryAction::Other(5) => Some("recover IMEX domain"),
        RecoveryAction::Other(6) => Some("reset PCIe bus"),
        RecoveryAction::Other(_) => None,
    }
}

/// The action in the last Xid 154 of the window.
pub(super) fn last_said<'s>(scene: &'s Scene<'_>, gpu: &Gpu) -> Option<(RecoveryAction, &'s XidEvent)> {
    let (action, event) = last_record(scene, gpu)?;
    Some((action?, event))
}

/// The last Xid 154 of the window, with its action if the wording is known.
fn last_record<'s>(scene: &'s Scene<'_>, gpu: &Gpu) -> Option<(Option<RecoveryAction>, &'s XidEvent)> {
    let part = Whose::Judged(gpu.index.to_string());
    let mut records = scene.xids.iter().rev();
    let event =
        records.find(|event| event.code == 154 && event.gpu.is_some() && scene.whose(event.gpu) == part)?;
    Some((stated(&event.text), event))
}

/// Parses the action of an Xid 154. Drivers 565 to 595 write
/// `…, GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)`, others
/// `…, GPU recovery action 0x1 (GPU Reset Required)`. The record is parsed from its end, because a process name, which
/// a user chooses, comes first.
fn stated(text: &str) -> Option<RecoveryAction> {
    let (before, name) = text.strip_suffix(')')?.rsplit_once(" (")?;
    let (sentence, hex) = before.rsplit_once(" 0x")?;
    let (_, sentence) = sentence.rsplit_once(", GPU recovery action")?;
    let changed = sentence.strip_prefix(" changed from 0x").and_then(|rest| rest.strip_suffix(") to"));
    let known = changed.is_some() || matches!(sentence, "" | ":" | " changed to" | " is");
    if !known || name.contains(['(', ')']) {
        return None;
    }
    Some(match u32::from_str_radix(hex, 16).ok()? {
        0 => RecoveryAction::None,
        1 => RecoveryAction::GpuReset,
        2 => RecoveryAction::NodeReboot,
        3 => RecoveryAction::DrainP2p,
        4 => RecoveryAction::DrainAndReset,
        other => RecoveryAction::Other(other),
    })
}

/// The action that the driver asks for: NVML field 230, otherwise the last Xid 154 in the kernel log.
pub(super) fn asked(scene: &Scene<'_>, gpu: &Gpu) -> Option<RecoveryAction> {
    match &gpu.recovery_action {
        Reading::Known(action) => Some(*action),
        Reading::Unsupported | Reading::Failed(_) => last_said(scene, gpu).map(|(action, _)| action),
    }
}

#[cfg(test)]
mod tests {
    use railgate_model::{Reading, RecoveryAction, Severity};

    use crate::testing::case;

    fn asked(action: RecoveryAction) -> String {
        case("h100-sxm").gpu(2, |gpu| gpu.recovery_action = Reading::Known(action)).summary()
    }

    #[test]
    fn the_finding_states_the_drivers_recovery_action() {
        assert_eq!(asked(RecoveryAction::None), "fit");
        assert_eq!(
            asked(RecoveryAction::GpuReset),
            "unfit: fail gpu-recovery-action@2: driver asks: GPU reset; reset GPU"
        );
        assert!(asked(RecoveryAction::NodeReboot).ends_with("node reboot; reboot"));
        assert!(asked(RecoveryAction::DrainAndReset).starts_with("unfit"));
        assert!(asked(RecoveryAction::DrainP2p).starts_with("degraded: warn"));
        assert!(asked(RecoveryAction::Other(7)).starts_with("unfit"));
        assert!(asked(RecoveryAction::Other(99)).starts_with("degraded: warn"));
    }

    const RESET: &str = "pid=1, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";
    const NONE: &str = "pid=1, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)";

    #[test]
    fn without_field_230_the_kernel_log_gives_the_action() {
        let old = |case: crate::testing::Case| case.gpu(2, |gpu| gpu.recovery_action = Reading::Unsupported);
        assert_eq!(old(case("h100-sxm")).summary(), "fit");
        let once = old(case("h100-sxm").xid(2, 154, RESET));
        assert!(once.summary().starts_with("degraded: warn gpu-recovery-action@2"), "one line of the log");
        let twice = once.again().xid(2, 154, NONE).xid(2, 154, RESET);
        assert!(twice.summary().starts_with("unfit: fail gpu-recovery-action@2"));
        assert_eq!(old(case("h100-sxm").xid(2, 154, RESET).xid(2, 154, NONE)).summary(), "fit");
        assert_eq!(case("h100-sxm").xid(2, 154, RESET).summary(), "fit", "the field is the newer word");
    }

    #[test]
    fn an_action_in_a_process_name_is_ignored() {
        for name in [" to 0x2 (x)", ") to 0x2 (x)", "from 0x0 to 0x2"] {
            let line = format!(
                "pid=1, name={name}, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
            );
            let case = case("h100-sxm").gpu(2, |gpu| gpu.recovery_action = Reading::Unsupported);
            assert_eq!(case.xid(2, 154, &line).summary(), "fit", "{name}");
        }
        let other = case("h100-sxm").gpu(2, |gpu| gpu.recovery_action = Reading::Unsupported);
        let unstated = other.xid(2, 154, "pid=1, name=x (None) to 0x2 (Reboot)").summary();
        assert!(unstated.starts_with("degraded: warn gpu-recovery-action@2: driver changed"), "{unstated}");
    }

    #[test]
    fn other_wordings_of_xid_154_are_parsed() {
        let old = || case("h100-sxm").gpu(2, |gpu| gpu.recovery_action = Reading::Unsupported);
        for stated in [
            "GPU recovery action 0x2 (Node Reboot Required)",
            "GPU recovery action: 0x2 (OS Reboot)",
            "GPU recovery action changed to 0x2 (OS Reboot)",
        ] {
            let says = old().xid(2, 154, &format!("pid=1, name=x, {stated}")).summary();
            assert!(says.contains("driver asks: node reboot, strike 1 of 2"), "{stated}: {says}");
        }
        for unstated in ["GPU recovery action changed", "GPU Recovery Action", "recovery 0x2 (OS Reboot)"] {
            let says = old().xid(2, 154, &format!("pid=1, name=x, {unstated}")).summary();
            let want =
                "degraded: warn gpu-recovery-action@2: driver changed its recovery action; see nvidia-smi -q";
            assert_eq!(says, want, "{unstated}");
        }
        let later = old().xid(2, 154, "GPU recovery action changed").xid(2, 154, NONE);
        assert_eq!(later.summary(), "fit", "the newest record counts");
    }

    #[test]
    fn a_failed_read_is_unknown() {
        let failed = case("h100-sxm").gpu(2, |gpu| gpu.recovery_action = Reading::Failed("999".to_owned()));
        assert_eq!(failed.of("gpu-recovery-action"), [Severity::Unknown]);
        assert!(failed.summary().starts_with("degraded"));
    }
}
