use std::collections::BTreeMap;

use railgate_node::{Action, Class, Evidence, Gpu, PartName, RecoveryAction, Severity, XidEvent};
use serde::{Deserialize, Serialize};

use crate::register::{Check, Scope, Table};
use crate::report::{Found, Report};
use crate::scene::{Scene, Whose};
use crate::when::iso;

use super::gpu_recovery_action::{asked, cure, last_said};
use super::nvlink5;
use super::xid_table::lookup;
use crate::agreement::{Counterpart, Nvml, grade, of_gpu};

/// The check.
pub(crate) struct GpuXid;

/// `[gate.checks.gpu-xid]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The strongest thing that may follow: `off`, `report`, `notify`, `drain`.
    pub action: Action,
    /// How bad a code is that railgate does not know.
    pub unknown_code: Severity,
    /// How bad an NVLink 5 event (144 to 150) is that calls itself fatal; others are a note.
    pub nvlink_fatal: Severity,
    /// The site's own judgement of single codes: `"94" = "fail"`. A code that fails is then the node's.
    pub codes: BTreeMap<String, Severity>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            action: Action::Drain,
            unknown_code: Severity::Warn,
            nvlink_fatal: Severity::Warn,
            codes: BTreeMap::new(),
        }
    }
}

impl Table for Settings {
    fn action(&self) -> Action {
        self.action
    }

    fn problems(&self) -> Vec<String> {
        // "013" would never be found under the code 13.
        let plain = |code: &str| code.parse::<u32>().is_ok_and(|number| number.to_string() == code);
        self.codes
            .keys()
            .filter(|code| !plain(code))
            .map(|code| format!("codes: '{code}' is not an Xid code (want \"94\" = \"fail\")"))
            .collect()
    }
}

impl Check for GpuXid {
    const ABOUT: &'static str = "the driver reported a fatal error (Xid) since the last clean look";
    const EXPLAIN: &'static str = "
Reads the NVIDIA driver's lines in the kernel log (`NVRM: Xid (PCI:0000:9b:00): 79, …`) since the last clean look of
this boot, and finds the GPU by its PCI address. On a shared node only the job's GPUs are judged.

Why: the driver sees hardware faults before anything else does; and most of its lines are an application's own errors,
for which a node must not be drained.

A table says what each code means:
- `fail`, class `node`: 46, 48, 54, 62, 64, 74, 95, 110, 119, 120, 136, 140, 143, 151, 155-158, 167-169, 171-173.
  79 is reported by `gpu-lost`, 154 by `gpu-recovery-action`, where those are on.
- `warn`: 63 (row remap recorded), 92, 94 (contained ECC error: only the application dies, counted), 109 (a context that
  did not yield: a program can do that; a driver that wants a reset for it says so), 121, 137, and codes that the table does not know (`unknown_code`).
- 144-150 (NVLink 5) say themselves whether they are fatal: `nvlink_fatal`, otherwise a note. A link that is really down
  is `gpu-nvlink`'s.
- `note`, class `user` (an application's own error, never a drain): 8, 11, 13, 25, 31, 32, 39-41, 43, 45, 68-72, 75-77,
  80, 82-86, 88, 89, 96-105, 126-135, 139.

A line of the kernel log alone drains no node. For each code that fails the table names the NVML readings that change with
such a fault: uncorrected ECC errors (48, 94, 95, 140, 171, 172), row remap (64, 156, 157), NVLinks (74, 136, 155), whether
the GPU answers (79), and for all of them the recovery action (field 230, R570 and later).

- NVML confirms the fault, or no longer answers: `fail`.
- NVML has no such reading (54; before R570 also the codes whose only reading is the recovery action), or could not be asked:
  `fail` when the driver writes it a second time within 24 hours (`[gate] strikes`), until then `warn`.
- NVML reads no fault: `warn`. A link that recovered, a peer that was reset and a timeout that passed look like this.
- A code that a program can raise never fails without NVML, also where `codes` says `fail`.

What field 230 or Xid 154 asks for is the fix; where the driver asked for a reset after the error and asks for none now, the
error is cured and only a warning. `codes` overrides single codes; a code that a site makes `fail` is of class `node`.
Only the driver's own whole sentences count; a record that a process worded through its name is reported by `kmsg-forged`.

Fix: as said; `nvidia-smi -r -i N` with the GPU idle, or reboot. The same code again after two resets: RMA.

```toml
[gate.checks.gpu-xid]
action = \"drain\"        # off, report, notify, drain
unknown_code = \"warn\"   # note, unknown, warn, fail
nvlink_fatal = \"warn\"   # note, unknown, warn, fail
codes = {}              # { \"94\" = \"fail\", \"119\" = \"warn\" }
```";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::KernelLog, PartName::Gpus];
    const SCOPE: Scope = Scope::Gpus;
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let elsewhere =
            |code| code == 79 && scene.runs("gpu-lost") || code == 154 && scene.runs("gpu-recovery-action");
        let mut groups: BTreeMap<(u32, String, bool), Vec<&XidEvent>> = BTreeMap::new();
        for event in scene.xids.iter().filter(|event| !elsewhere(event.code)) {
            let (part, certain) = match scene.whose(event.gpu) {
                Whose::Judged(part) => (part, true),
                Whose::Unclear(part) => (part, false),
                Whose::Other => continue,
            };
            groups.entry((event.code, part, certain)).or_default().push(event);
        }
        for ((code, part, certain), events) in groups {
            out.add(group(scene, set, code, &part, certain, &events));
        }
    }
}

fn group(
    scene: &Scene<'_>,
    set: &Settings,
    code: u32,
    part: &str,
    certain: bool,
    events: &[&XidEvent],
) -> Found {
    let row = lookup(code);
    let mut severity = row.map_or(set.unknown_code, |row| row.severity);
    let mut class = row.map_or(Class::Node, |row| row.class);
    let by_site = set.codes.get(&code.to_string());
    if let Some(wanted) = by_site {
        severity = *wanted;
        if severity >= Severity::Warn {
            class = Class::Node;
        }
    }
    let name = row.map_or("not in the table", |row| row.name);
    let mut what = format!("Xid {code} ({name})");
    let links: Vec<_> = events.iter().filter_map(|event| nvlink5::event(code, &event.text)).collect();
    if let Some(link) = links.iter().max_by_key(|link| link.fatal) {
        // One line in words that nobody knows may be the fatal one.
        let told = links.len() == events.len();
        if by_site.is_none() && (link.fatal || told) {
            severity = if link.fatal { set.nvlink_fatal } else { Severity::Note };
        }
        let fatal = if link.fatal { "fatal" } else { "not fatal" };
        let at = link.link.map_or_else(String::new, |number| format!(", link {number}"));
        let subcode = link.subcode.map_or_else(String::new, |number| format!(" {number}"));
        what = format!("Xid {code} ({}{subcode}, {fatal}{at})", link.unit);
    }
    if events.len() > 1 {
        what.push_str(&format!(" x{}", events.len()));
    }
    let mut fix = row.map_or("look it up", |row| row.fix);
    let gpu = scene.all_gpus().iter().find(|gpu| gpu.index.to_string() == part);
    if let Some(gpu) = gpu.filter(|_| class == Class::Node && severity >= Severity::Warn) {
        if let Some(driver) = asked(scene, gpu).and_then(cure) {
            fix = driver;
        }
        if by_site.is_none() && row.is_some_and(|row| row.curable) && is_cured(scene, gpu, events) {
            severity = severity.min(Severity::Warn);
            what.push_str(", reset since");
        }
    }
    if !certain && severity > Severity::Unknown {
        severity = Severity::Unknown;
        what.push_str(", unclear whose");
    }
    let source = match (by_site, row) {
        (Some(_), _) => "meaning: gate.checks.gpu-xid.codes".to_owned(),
        (None, Some(row)) => format!("meaning: {}", row.source),
        (None, None) => "not in the table".to_owned(),
    };
    let found = Found::new(severity, class, part, what).fix(fix);
    let found = events.iter().take(MOST_ROWS).fold(found, |found, event| {
        found.row(
            "kernel log",
            &event.text,
            "no such event since the last clean look",
            format!("kmsg seq {} at {}; {source}", event.seq, iso(event.time)),
        )
    });
    // A code that is not in the table may be one that a program raises.
    let raisable = row.is_none_or(|row| row.raisable);
    let counterparts = row.map_or(&[Counterpart::RecoveryAction][..], |row| row.counterparts);
    let written = events.iter().map(|event| event.time).collect();
    let nvml = match scene.told_by_nvml() && !raisable {
        true => Nvml::Confirms(told_by_nvml(part, code)),
        false => of_gpu(scene, part, counterparts),
    };
    grade(found, nvml, raisable, written)
}

fn told_by_nvml(part: &str, code: u32) -> Evidence {
    let source = "nvmlEventSetWait".to_owned();
    Evidence { what: format!("gpu {part} Xid event"), got: code.to_string(), want: "none".to_owned(), source }
}

/// A user's loop can write thousands of them.
const MOST_ROWS: usize = 5;

/// The driver can say that it wants a reset (field 230), and does not.
fn none_asked(gpu: &Gpu) -> bool {
    gpu.recovery_action.known() == Some(&RecoveryAction::None)
}

/// The driver asked for a reset after the error, and asks for none now.
fn is_cured(scene: &Scene<'_>, gpu: &Gpu, events: &[&XidEvent]) -> bool {
    let last = events.iter().map(|event| event.seq).max();
    none_asked(gpu)
        && last_said(scene, gpu)
            .is_some_and(|(asked, event)| asked != RecoveryAction::None && Some(event.seq) > last)
}

#[cfg(test)]
mod tests {
    use railgate_node::{Class, Fitness, Reading, RecoveryAction, Severity};

    use crate::testing::{Look, look};

    const RESET: &str = "pid=1, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)";

    fn xid(code: u32) -> Look {
        look("h100-sxm").xid(3, code, "pid=4711, name=python3, Ch 00000010")
    }

    /// The same, and NVML reads it as well.
    fn confirmed(code: u32) -> Look {
        xid(code).gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset))
    }

    /// NVML of a driver before R570 has no recovery action.
    fn old_driver(look: Look) -> Look {
        look.gpu(3, |gpu| gpu.recovery_action = Reading::Unsupported)
    }

    #[test]
    fn the_table_decides_where_nvml_agrees() {
        let confirmed_by_ecc = xid(48).gpu(3, |gpu| gpu.ecc.volatile_uncorrected = Reading::Known(1));
        assert_eq!(
            confirmed_by_ecc.says(),
            "unfit: fail gpu-xid@3: Xid 48 (double-bit ECC error); reset GPU"
        );
        for code in [64, 95, 119, 120, 140, 143] {
            assert_eq!(confirmed(code).of("gpu-xid"), [Severity::Fail], "{code}");
        }
        for code in [63, 92, 94, 109, 145, 4242] {
            assert_eq!(confirmed(code).of("gpu-xid"), [Severity::Warn], "{code}");
        }
    }

    #[test]
    fn a_line_that_nvml_denies_drains_nothing() {
        for code in [48, 62, 64, 74, 95, 119, 140, 143, 155, 157, 172] {
            let denied = xid(code).again().with(|look| look.config.strikes = 1);
            assert_eq!(denied.fitness(), Fitness::Degraded, "{code}");
            assert!(denied.says().contains(", NVML reports no fault"), "{}", denied.says());
        }
    }

    #[test]
    fn a_line_that_nvml_cannot_confirm_drains_when_it_is_written_again() {
        let once = old_driver(xid(119));
        assert!(once.says().contains("Xid 119 (GSP RPC timeout), strike 1 of 2"), "{}", once.says());
        assert_eq!(
            old_driver(xid(119)).again().again().fitness(),
            Fitness::Degraded,
            "one record is one sight"
        );
        let twice = old_driver(xid(119)).again().xid(3, 119, "pid=4711, name=python3, Timeout");
        assert_eq!(twice.fitness(), Fitness::Unfit);
        let other = old_driver(xid(119)).again().with(|look| look.now.taken += 25 * 3600 * 1000);
        let other = other.xid(3, 119, "pid=4711, name=python3, Timeout");
        assert_eq!(other.fitness(), Fitness::Degraded, "the day before");
        let power = xid(54);
        assert!(power.says().contains("strike 1 of 2"), "NVML has no such reading: {}", power.says());
    }

    #[test]
    fn what_a_program_can_raise_fails_only_where_nvml_agrees() {
        for code in [13, 31, 43, 69, 109, 4242] {
            let strict = |look: Look| look.settings(&format!("[checks.gpu-xid.codes]\n{code} = \"fail\""));
            let again = |look: Look| look.again().xid(3, code, "pid=4711, name=python3, Ch 00000010");
            assert_eq!(strict(again(xid(code))).fitness(), Fitness::Degraded, "{code}");
            assert_eq!(strict(again(old_driver(xid(code)))).fitness(), Fitness::Degraded, "{code}");
            assert_eq!(strict(confirmed(code)).of("gpu-xid"), [Severity::Fail], "{code}");
        }
    }

    #[test]
    fn an_applications_own_error_is_a_users_note() {
        for code in [13, 31, 43, 45] {
            let look = xid(code);
            assert_eq!(look.fitness(), Fitness::Fit, "{code}");
            let finding = look.judge().findings.remove(0);
            assert_eq!((finding.class, finding.severity), (Class::User, Severity::Note), "{code}");
        }
    }

    #[test]
    fn a_co_tenants_xid_is_not_this_jobs() {
        assert_eq!(xid(48).holding(&[0, 1]).findings(), Vec::<String>::new());
        assert_eq!(confirmed(48).holding(&[3]).fitness(), Fitness::Unfit);
    }

    #[test]
    fn events_are_counted_and_told_once_for_each_gpu() {
        let twice = xid(94).xid(3, 94, "pid=2, Contained").xid(1, 94, "pid=2, Contained");
        assert_eq!(
            twice.findings(),
            [
                "warn gpu-xid@3: Xid 94 (contained ECC error) x2; watch",
                "warn gpu-xid@1: Xid 94 (contained ECC error); watch"
            ]
        );
    }

    #[test]
    fn the_site_goes_before_the_table() {
        let fail = confirmed(94).settings("[checks.gpu-xid.codes]\n94 = \"fail\"");
        assert_eq!(fail.of("gpu-xid"), [Severity::Fail]);
        let user = confirmed(31).settings("[checks.gpu-xid.codes]\n31 = \"fail\"");
        assert_eq!(user.of("gpu-xid"), [Severity::Fail], "the site says that it is the node's");
        let warn = xid(119).settings("[checks.gpu-xid.codes]\n119 = \"warn\"");
        assert_eq!(warn.fitness(), Fitness::Degraded);
        let strict = confirmed(4242).settings("[checks.gpu-xid]\nunknown_code = \"fail\"");
        assert_eq!(strict.of("gpu-xid"), [Severity::Fail]);
        let config: crate::GateConfig =
            toml::from_str("[checks.gpu-xid.codes]\n013 = \"fail\"\nall = \"note\"").unwrap();
        assert_eq!(config.problems().len(), 2);
    }

    #[test]
    fn the_drivers_own_word_is_the_fix() {
        let asks = xid(48).gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::NodeReboot));
        let findings = asks.findings();
        assert!(findings.contains(&"fail gpu-xid@3: Xid 48 (double-bit ECC error); reboot".to_owned()));
        assert!(asks.says().starts_with("unfit: fail gpu-recovery-action@3"));
    }

    #[test]
    fn what_was_reset_since_is_cured() {
        let cured = xid(95).xid(3, 154, RESET);
        assert_eq!(
            cured.says(),
            "degraded: warn gpu-xid@3: Xid 95 (uncontained ECC error), reset since; reset GPU"
        );
        let before = look("h100-sxm").xid(3, 154, RESET).xid(3, 95, "pid=1, Uncontained");
        assert!(!before.says().contains("reset since"), "the error came after the driver's word");
        let old = old_driver(xid(95).xid(3, 154, RESET));
        assert!(!old.says().contains("reset since"), "nothing says that it was reset");
        let still = xid(95)
            .xid(3, 154, RESET)
            .gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset));
        assert_eq!(still.of("gpu-xid"), [Severity::Fail], "the driver still asks for it");
    }

    #[test]
    fn a_link_that_recovered_is_no_fault() {
        let recovered = "degraded: warn gpu-xid@3: Xid 74 (NVLink error), NVML reports no fault; reset GPUs";
        assert_eq!(xid(74).says(), recovered);
        assert_eq!(old_driver(xid(74)).says(), recovered, "its links are up");
        assert_eq!(confirmed(74).fitness(), Fitness::Unfit);
        let down = xid(74).gpu(3, |gpu| gpu.nvlinks[4].up = Reading::Known(false));
        assert_eq!(down.says(), "unfit: fail gpu-xid@3: Xid 74 (NVLink error); reset GPUs");
    }

    #[test]
    fn an_nvlink_5_event_says_itself_whether_it_is_fatal() {
        let fatal = look("b200:gpu-nvlink5-fatal@3");
        assert_eq!(
            fatal.says(),
            "degraded: warn gpu-xid@3: Xid 149 (NETIR_LINK_EVT 33, fatal, link 1); watch"
        );
        let asks = fatal.gpu(3, |gpu| gpu.recovery_action = Reading::Known(RecoveryAction::GpuReset));
        let strict = asks.settings("[checks.gpu-xid]\nnvlink_fatal = \"fail\"");
        assert_eq!(strict.of("gpu-xid"), [Severity::Fail]);
        let other = look("b200:gpu-nvlink5-nonfatal@3");
        assert_eq!((other.says(), other.of("gpu-xid")), ("fit".to_owned(), vec![Severity::Note]));
        let unclear = other.xid(3, 145, "in words of tomorrow");
        assert_eq!(unclear.of("gpu-xid"), [Severity::Warn]);
    }

    #[test]
    fn the_evidence_says_when_and_by_whom() {
        let finding = xid(48).judge().findings.remove(0);
        assert!(
            finding.evidence[0]
                .source
                .ends_with(" at 2026-01-05T08:00:00.000Z; meaning: NVIDIA Xid catalogue"),
            "{}",
            finding.evidence[0].source
        );
    }

    #[test]
    fn without_nvml_the_memory_says_whose_it_is() {
        let blind = || look("h100-sxm:nvml-silent").xid(3, 48, "pid=1, DBE").remembering();
        assert!(blind().says().starts_with("unfit: fail gpu-xid@3"));
        assert_eq!(blind().holding(&[0]).of("gpu-xid"), []);
        let forgotten = look("h100-sxm:nvml-silent").xid(3, 48, "pid=1, DBE").holding(&[0]);
        assert_eq!(forgotten.of("gpu-xid"), [Severity::Unknown]);
    }

    #[test]
    fn a_storm_of_events_stays_small() {
        let storm = (0..200).fold(look("h100-sxm"), |look, _| look.xid(3, 31, "pid=1, MMU Fault"));
        let finding = storm.judge().findings.remove(0);
        assert!(finding.what.ends_with("x200"));
        assert_eq!(finding.evidence.len(), super::MOST_ROWS);
    }
}
