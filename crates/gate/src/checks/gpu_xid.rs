use std::collections::BTreeMap;

use railgate_model::xid_catalogue::{
    Bucket, Judgement, Nvlink5, Nvlink5Line, Origin, Owner, Xid, departure, judge, lookup, nvlink5_line,
};
use railgate_model::{Class, Evidence, Gpu, PartName, RecoveryAction, Severity, XidEvent};

use crate::register::{Check, Scope};
use crate::report::{Found, Report};
use crate::scene::{Scene, Whose};
use crate::settings::{is_code, keys, settings};
use crate::when::iso;

use super::gpu_recovery_action::{asked, cure, last_said};
use super::xid_counterparts::counterparts;
use crate::agreement::{Nvml, grade, of_gpu};

/// The check.
pub(crate) struct GpuXid;

settings! {
    action = Drain;
    unknown_code: Severity = Severity::Warn, "a code that is in neither NVIDIA's catalogue nor the driver's source";
    #[serde(skip_serializing_if = "Option::is_none")]
    nvlink_fatal: Option<Severity> = None, "an NVLink 5 record (144 to 150) marked Fatal; unset: the decode table decides";
    codes: BTreeMap<String, Severity> = BTreeMap::new(), limit keys(is_code, not_an_xid), "severities of single codes: { \"94\" = \"fail\", \"119\" = \"warn\" }";
}

fn not_an_xid(code: &str) -> String {
    format!("'{code}' is not an Xid code (want \"94\" = \"fail\")")
}

impl Check for GpuXid {
    const ABOUT: &'static str =
        "the driver reported a fatal error (Xid) since railgate last handled the kernel log";
    const EXPLAIN: &'static str = "
Reads the NVIDIA driver's lines in the kernel log (`NVRM: Xid (PCI:0000:9b:00): 79, …`) since railgate
last handled the log (see `kernel-log`), and finds the GPU by its PCI address. On a shared node only the job's GPUs are judged.

Why: the driver reports hardware faults first. But most Xids report application errors, which must not drain a node.

NVIDIA's Xid catalogue (`Xid-Catalog.xlsx` of 2025-09-30, 172 codes) gives the severity of a record. The catalogue's
immediate action decides: RESET_GPU, RESTART_BM, RESTART_VM, CHECK_UVM, CHECK_MECHANICALS and the workflows of 48 and 74 are `fail`;
CONTACT_SUPPORT, UPDATE_SWFW, XID_154 and an empty cell are `warn`; IGNORE, RESTART_APP and the workflow of 45 are `note`.
The result for codes that the catalogue's GPUs (A100, H100, B100, GB200) report, and for newer codes:

- `fail`: 46, 48, 54, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158, 159, 167-169,
  171-173.
- `warn`: 63, 78, 92, 94, 121, 154, 166, 170, 175, 176.
- `note`: 37, 38, 44, 66, 67, 93, 106-108, 137, 141, 157, 160-165, 174.
- `note`, class `user` (an application error, which never drains): 8, 11, 13, 14, 25, 31, 32, 39-41, 43, 45, 60,
  68-72, 75-77, 80, 82-86, 88, 89, 96-105, 126-135, 139, 142.

`gpu-lost` reports 79 and `gpu-recovery-action` reports 154, unless these checks are off. The other codes of the catalogue,
which only older GPUs report, are `warn`, except 152 and 153 (IGNORE): `note`.
A code that is in neither the catalogue nor the driver's source (595) has the severity `unknown_code`.

144-150 (NVLink 5) are decoded: the first number of the record (`intrInfo`) and the second (error status) select a row of the
catalogue's decode table. The immediate action of that row decides, whether the record is marked \"Fatal\" or \"Nonfatal\". For
example, 149 with subcode 33 is RESET_GPU, and with subcode 38 or 40 IGNORE. 145 RLW_RXPIPE is IGNORE, or RESET_GPU if the
record has the bit of the second action. A record without a row is `warn` if it is marked \"Fatal\", otherwise `note`.
If `nvlink_fatal` is set, it is the severity of every record marked \"Fatal\"; the table judges the others.

Where railgate departs from the catalogue, and why:

- 47, 65, 73, 142: `note` (catalogue: CONTACT_SUPPORT): video encoder errors are like video decoder errors, which are
  RESTART_APP in the catalogue.
- 63: `warn` (catalogue: IGNORE): a recorded remap takes effect only when the GPU is reset.
- 92: `warn` (catalogue: IGNORE): many corrected errors often come before uncorrected ones.
- 94: `warn` (catalogue: RESTART_APP): only the affected application has to restart, but the cause is the GPU's memory.
- 121: `warn` (catalogue: IGNORE): a reset at the next service window trains the link again.
- 162-165: `note` (catalogue: no action): a change of power smoothing does not end a job.
- 167: `fail` (catalogue: no action): a GPU that PCIe no longer reaches is judged like one off the bus (Xid 79).
- 168: `fail` (catalogue: no action): only a restart of the driver moves the protected region.
- 169: `fail` (catalogue: no action): the catalogue describes the halt like Xid 62, which is RESET_GPU.
- 171, 172: `fail` (catalogue: no action): the catalogue calls them details of Xid 48, which resets the GPU.
- 173: `fail` (catalogue: no action): newer than the catalogue; the driver reports a fatal failure of the link between
  CPU and GPU.
- 174: `note` (catalogue: no action): newer than the catalogue; the driver reports that a process was ended
  silently, which is not a fault.

A line in the kernel log alone never drains a node: NVML must confirm it. The readings that change with a fault, by code:
uncorrected ECC errors (48, 95, 140, 171, 172), row remap (64, 156), NVLinks (74, 136, 144-150, 155), whether
the GPU answers (79), and for all of them the recovery action (field 230, R570 and later).

- NVML confirms the fault, or no longer answers: `fail`.
- NVML has no such reading (54; before R570 also the codes whose only reading is the recovery action), or could not be
  queried: `fail` when the driver logs it a second time within 24 hours (`[gate] strikes`), until then `warn`.
- NVML shows no fault: `warn`. For example, the link recovered, a peer was reset, or a timeout passed.
- A code that a program can raise never fails without NVML, even if `codes` sets it to `fail`. These are 109, 159, and errors
  of 144-150 whose origin in the catalogue is neither hardware nor firmware.

The finding names the fix that field 230 or Xid 154 requests. If the driver requested a reset after the error and no longer
does, the GPU has been reset: `warn`. `codes` overrides single codes; a code that a site sets to `warn` or `fail` has the
class `node`. Only complete driver messages count; `kmsg-forged` reports a process whose name imitates one.

Fix: apply the fix in the finding: `nvidia-smi -r -i N` with the GPU idle, or a reboot. If the code occurs again after two
resets, replace the GPU (RMA).
";
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

/// The judgement of one record, before NVML's readings are compared.
struct Meaning {
    judgement: Judgement,
    /// A user program can make the driver write the record.
    raisable: bool,
    /// The source of the judgement, for the evidence.
    source: String,
}

/// The judgement of a code: its row of the table, otherwise the site's setting for unknown codes.
fn of_code(set: &Settings, row: Option<&Xid>) -> Meaning {
    let Some(row) = row else {
        // A user program may be able to raise an unknown code.
        let judgement = Judgement { severity: set.unknown_code, class: Class::Node, fix: "look up the code" };
        return Meaning { judgement, raisable: true, source: "not in the table".to_owned() };
    };
    let catalogue = row.immediate.map_or_else(|| "no action".to_owned(), |action| action.to_string());
    let source = match departure(row.code) {
        Some(departure) => format!("meaning: {} (NVIDIA Xid catalogue: {catalogue})", departure.reason),
        None => format!("meaning: NVIDIA Xid catalogue, {catalogue}"),
    };
    Meaning { judgement: row.judgement, raisable: row.raisable, source }
}

/// The judgement of an NVLink 5 record by the catalogue's decode table. Without a row there, a record marked "Fatal" is
/// a warning.
fn of_link(set: &Settings, line: &Nvlink5Line<'_>) -> Meaning {
    let node = |severity, fix| Judgement { severity, class: Class::Node, fix };
    let (mut judgement, raisable, source) = match line.decode() {
        Some(Nvlink5 { immediate, origin, .. }) => {
            let judgement = match immediate {
                // If Xid 154 asks for more than this, it is a finding of its own.
                Bucket::Xid154Eval => judge(Some(immediate), Owner::Application),
                _ => judge(Some(immediate), Owner::Hardware),
            };
            let source = format!("meaning: NVIDIA Xid catalogue, {immediate}");
            (judgement, !matches!(origin, Origin::Hw | Origin::Fw), source)
        }
        None => {
            let judgement = match line.fatal {
                true => node(Severity::Warn, "watch"),
                false => node(Severity::Note, "none"),
            };
            (judgement, true, "no row in the decode table of NVIDIA's Xid catalogue".to_owned())
        }
    };
    if let Some(severity) = set.nvlink_fatal.filter(|_| line.fatal) {
        judgement = node(severity, judgement.fix);
    }
    Meaning { judgement, raisable, source }
}

/// For example `NETIR_LINK_EVT 33, fatal, link 1`.
fn link_name(line: &Nvlink5Line<'_>) -> String {
    let subcode = line.subcode().map_or_else(String::new, |number| format!(" {number}"));
    let fatal = if line.fatal { "fatal" } else { "not fatal" };
    let at = line.link.map_or_else(String::new, |number| format!(", link {number}"));
    format!("{}{subcode}, {fatal}{at}", line.unit)
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
    let mut name = row.map_or_else(|| "not in the table".to_owned(), |row| row.name.to_owned());
    let mut meaning = of_code(set, row.as_ref());
    let links = events.iter().filter_map(|event| nvlink5_line(code, &event.text));
    let links: Vec<_> = links.map(|line| (of_link(set, &line), line)).collect();
    // A record with an unknown wording may be the fatal one.
    let all_read = links.len() == events.len();
    if let Some((worst, line)) =
        links.into_iter().max_by_key(|(link, line)| (link.judgement.severity, !link.raisable, line.fatal))
    {
        name = link_name(&line);
        if all_read || worst.judgement.severity > meaning.judgement.severity {
            meaning = worst;
        }
    }
    let Meaning { judgement: Judgement { mut severity, mut class, mut fix }, raisable, mut source } = meaning;
    let by_site = set.codes.get(&code.to_string());
    if let Some(wanted) = by_site {
        severity = *wanted;
        if severity >= Severity::Warn {
            class = Class::Node;
        }
        source = "meaning: gate.checks.gpu-xid.codes".to_owned();
    }
    let mut what = format!("Xid {code} ({name})");
    if events.len() > 1 {
        what.push_str(&format!(" x{}", events.len()));
    }
    let gpu = scene.all_gpus().iter().find(|gpu| gpu.index.to_string() == part);
    if let Some(gpu) = gpu.filter(|_| class == Class::Node && severity >= Severity::Warn) {
        if let Some(driver) = asked(scene, gpu).and_then(cure) {
            fix = driver;
        }
        if by_site.is_none() && meaning.judgement.curable() && is_cured(scene, gpu, events) {
            severity = severity.min(Severity::Warn);
            what.push_str(", reset since");
        }
    }
    if !certain && severity > Severity::Unknown {
        severity = Severity::Unknown;
        what.push_str(", may not be the job's");
    }
    let found = Found::new(severity, class, part, what).fix(fix);
    let found = events.iter().take(MOST_ROWS).fold(found, |found, event| {
        found.row(
            "kernel log",
            &event.text,
            "no such event since railgate last handled the log",
            format!("kmsg seq {} at {}; {source}", event.seq, iso(event.time)),
        )
    });
    let written = events.iter().map(|event| event.time).collect();
    let nvml = match scene.reported_by_nvml() && !raisable {
        true => Nvml::Confirms(reported_by_nvml(part, code)),
        false => of_gpu(scene, part, counterparts(code)),
    };
    grade(found, nvml, raisable, written)
}

fn reported_by_nvml(part: &str, code: u32) -> Evidence {
    let source = "nvmlEventSetWait".to_owned();
    Evidence { what: format!("gpu {part} Xid event"), got: code.to_string(), want: "none".to_owned(), source }
}

/// A user's program can raise thousands of records in a loop.
const MOST_ROWS: usize = 5;

/// The driver can ask for a reset (NVML field 230) and does not.
fn none_asked(gpu: &Gpu) -> bool {
    gpu.recovery_action.known() == Some(&RecoveryAction::None)
}

/// The driver asked for a reset after the error, and no longer does.
fn is_cured(scene: &Scene<'_>, gpu: &Gpu, events: &[&XidEvent]) -> bool {
    let last = events.iter().map(|event| event.seq).max();
    none_asked(gpu)
        && last_said(scene, gpu)
            .is_some_and(|(asked, event)| asked != RecoveryAction::None && Some(event.seq) > last)
}

#[cfg(test)]
mod tests;
