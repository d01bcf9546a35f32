mod rates;

use std::path::PathBuf;

use railgate_model::{
    Class, FollowUp, Gpu, GpuSelfTest as Results, GpuSelfTested, Part, PartName, PciAddress, Phase, Reading,
    SelfTestLength, Severity, ValueCheck, WrongValue,
};

use crate::gpu_counters::{CRC_PER_HOUR, MAX_RECOVERIES, REPLAYS_PER_HOUR};
use crate::plan::Need;
use crate::register::{Check, Level, Scope};
use crate::report::{Found, Report};
use crate::scene::{Scene, covers_whole_node};
use crate::settings::{Value, absolute, amount, settings, within};

use rates::FIGURES;
pub use rates::baseline;

/// The check.
pub(crate) struct GpuSelfTest;

settings! {
    action = Drain;
    severity: Severity = Severity::Fail, "a wrong value";
    below_median_percent: f64 = 10.0, limit within(0.0..=100.0), "a rate so far below the profile's recorded median, without one below the median of the node's GPUs, is warn; 0: not judged";
    min_memory_copy_gb_s: f64 = 0.0, limit amount("rate"), "GB/s, read and written bytes; less is warn; 0: not judged";
    min_memory_read_gb_s: f64 = 0.0, limit amount("rate"), "GB/s; less is warn; 0: not judged";
    min_memory_write_gb_s: f64 = 0.0, limit amount("rate"), "GB/s; less is warn; 0: not judged";
    min_host_to_device_gb_s: f64 = 0.0, limit amount("rate"), "GB/s; less is warn; 0: not judged";
    min_device_to_host_gb_s: f64 = 0.0, limit amount("rate"), "GB/s; less is warn; 0: not judged";
    min_peer_gb_s: f64 = 0.0, limit amount("rate"), "GB/s, the slowest direct copy to another GPU; less is warn; 0: the built-in floor of H100 and A100 SXM";
    min_bf16_tflops: f64 = 0.0, limit amount("rate"), "TFLOP/s of bf16 products with cuBLASLt; less is warn; 0: the built-in floor of H100, H200 and A100 SXM";
    max_nvlink_recoveries: u64 = MAX_RECOVERIES, "recoveries (trained again) of an NVLink during the copies between GPUs; more is warn";
    max_nvlink_replays: u64 = REPLAYS_PER_HOUR, "replays of an NVLink during these copies; more is warn";
    max_nvlink_crc: u64 = CRC_PER_HOUR, "checksum errors of an NVLink during these copies; more is warn";
    shared: bool = false, "`railgate check --full` also tests GPUs that processes use, whose rates are then low; a prolog never does";
    length: SelfTestLength = SelfTestLength::Quick, "full: more products; needs `gate.deadline` of at least 2m";
    program: PathBuf = PathBuf::from("/usr/libexec/railgate/railgate-gpu-selftest"), limit absolute(), "the test program";
}

impl Value for SelfTestLength {
    const CHOICES: &'static str = "quick, full";

    fn toml(&self) -> Option<String> {
        Some(format!("\"{}\"", self.as_str()))
    }
}

impl Check for GpuSelfTest {
    const ABOUT: &'static str =
        "a GPU computes, copies or keeps values wrongly, or is slower than the others";
    const EXPLAIN: &'static str = "
Reads what `program` reports about each GPU: matrix products in each type of the card, a pattern over almost all free memory,
copies from and to the host, and copies between the GPUs; every value is compared. Where cuBLASLt is installed on the node, it also
measures the rate of products. Runs only if a job asked for
`--railgate-gate=full` and holds the whole node, for the next such job after a job's preflight named the node (at most once in an hour),
with `railgate check --full`, and before a node is resumed (`railgate readmit`). A GPU
with MIG, or that a process uses, is not tested.

Why: a GPU can compute wrongly without an ECC error or Xid. A training job then diverges, or writes wrong weights.

Fix: run the test again by hand, `railgate-gpu-selftest --length full --gpu ADDRESS`. If a value is wrong again, replace the card
(RMA). `dcgmi diag -r 3` is a second opinion.

- A wrong value: `severity`, with the number of wrong values and the place of the first. If all GPUs of a node, two or more, have the
  same wrong values in a test, the driver or the test is the likelier cause: class `site`, `warn`.
- No result (no answer by the deadline, a crash, an error of CUDA, a missing program): `unknown`. Results before that count. A node that this
  check drained is not resumed while the GPU has no result.
- Slow: `warn`. The first of these that exists is the measure: a `min_…` of the site; the profile's recorded rates of good cards
  (`railgate profile record --self-test`, with the same `length`), which also judge one GPU alone; from three GPUs on the median of the node, for
  memory copy, read and write, device to host, and products; a built-in floor. A recorded rate allows what its slowest card had. The
  message has the clock, the reasons of a slowdown and the number of other processes. The
  source of `below_median_percent` is gpu-fryer, which accepts products at 10 % below the best GPU of the node. On four healthy H100 SXM the spread of
  three runs was 0.6 % (copy), 2.7 % (read), 0.5 % (write) and 0.4 % (device to host). Host to device is not judged by it: in 3 of 13 tests
  of these cards, and on two of four H200, it was half of the usual 55 GB/s while all GPUs copied at once. The copies that are judged are those of
  one GPU at a time; whether the rate varies there too is not known yet.
- The built-in floors: 335 GB/s to a peer on H100 SXM and 238 on A100 SXM (Azure's health checks; judged with all NVLinks only), and for bf16 products on
  H100, H200 and A100 SXM half of the profile's `gpus.bf16_tflops`: healthy H100 and H200 reach 66 to 71 % of it, A100 87 % (MAMF of
  stas00/ml-engineering). Other models, and profiles with a `gpus.power_limit_w` below 700 W (A100: 400 W), have no floor of products. Azure also asks
  for 48 GB/s host to device on H100 and 21 on A100; that rate has no built-in floor, because healthy cards are below it at times. Measured on H100 SXM: memory copy
  2,820 GB/s, read 3,060, write 3,180, device to host 55, peer 396, bf16 684 to 695 TFLOP/s; on H200 SXM: memory copy 3,970, read
  4,450, write 4,210 to 4,300, device to host 55, peer 394, bf16 676 to 683 (`quick`, four at once).
- A slowdown because of heat or power during the test: `note`.
- Errors of an NVLink while the GPUs copy to each other: `warn` if it has more recoveries, replays or checksum errors than the three
  `max_nvlink_…`. Their defaults are those of `gpu-link-errors`: no recovery, and in these copies of some seconds each link may have what that check
  allows it in an hour, because that check counts a shorter window as an hour, too. Sources: healthy links send some packets again (Imbue's
  host-health checks only have a silenced warning for such counts, because they did not seem to affect training); DCGM allows 100 checksum errors per
  second. DCGM is stricter about replays: it warns from one on. Up to Ampere the driver counts all links together: the sum is judged.
  A driver without these counters is not judged.
";
    const CLASS: Class = Class::Node;
    const PARTS: &'static [PartName] = &[PartName::Gpus];
    const NEEDS: &'static [Need<Settings>] = &[Need::follow_up(request)];
    const SCOPE: Scope = Scope::Gpus;
    const PHASES: &'static [Phase] = &[Phase::Prolog, Phase::Periodic];
    const LEVEL: Level = Level::Full;
    const COST: &'static str = "ten to fifteen seconds, all GPUs at the same time";
    type Settings = Settings;

    fn judge(scene: &Scene<'_>, set: &Settings, out: &mut Report<'_>) {
        let Some(part) = &scene.now.extras.gpu_self_test else { return };
        let program = set.program.display().to_string();
        let Part::Read { data, .. } = part else {
            let why = part.missing().unwrap_or_default();
            let found = Found::unknown(Class::Internal, "", format!("not run: {why}")).fix("check program");
            out.add(found.row("self-test", why, "an answer", program));
            return;
        };
        let tested: Vec<Tested<'_>> = data.asked.iter().map(|gpu| Tested::new(scene, data, *gpu)).collect();
        let view = View { set, program: &program, tested: &tested };
        view.values(out);
        view.rates(scene, out);
        view.links(out);
        let mut explained = false;
        for gpu in &tested {
            explained |= view.completeness(gpu, data, out);
        }
        if let Some(why) = data.incomplete.as_deref().filter(|_| !explained) {
            let found = Found::unknown(Class::Node, "", format!("results may be missing: {why}"));
            out.add(found.fix("run it by hand").row("self-test", why, "all results", &program));
        }
        if let Some(other) = data.tests.iter().find(|test| !data.asked.contains(&test.gpu)) {
            let what = format!("result of {}, which was not to be tested", other.gpu);
            let found = Found::unknown(Class::Internal, "", &what).fix("check program");
            out.add(found.row("self-test", what, "results of the requested GPUs", &program));
        }
        for gpu in scene.answering() {
            not_tested(gpu, data, (&program, is_shared(set, scene)), out);
        }
    }
}

/// Requests the test for the GPUs that no process uses, and leaves out nodes that other jobs may use.
fn request(set: &Settings, scene: &Scene<'_>) -> Option<FollowUp> {
    if !covers_whole_node(&scene.seen) {
        return None;
    }
    // Requested also if no GPU can be tested, so that this is reported.
    scene.answering().next()?;
    let shared = is_shared(set, scene);
    let gpus = scene.answering().filter_map(|gpu| testable(gpu, shared).ok()).collect();
    Some(FollowUp::GpuSelfTest { program: set.program.clone(), gpus, length: set.length, shared })
}

/// Whether GPUs that processes use are tested. A prolog would load the GPU of another job.
fn is_shared(set: &Settings, scene: &Scene<'_>) -> bool {
    set.shared && scene.seen.phase == Phase::Periodic
}

/// The address of a GPU that can be tested; else why it cannot, and whether that is as it should be.
fn testable(gpu: &Gpu, shared: bool) -> Result<PciAddress, (Severity, String)> {
    let unknown = |what: &str, why: &str| Err((Severity::Unknown, format!("{what} unreadable: {why}")));
    match &gpu.mig {
        Reading::Known(true) => return Err((Severity::Note, "MIG is on".to_owned())),
        Reading::Failed(why) => return unknown("MIG mode", why),
        Reading::Known(false) | Reading::Unsupported => {}
    }
    match &gpu.processes {
        Reading::Known(_) if shared => {}
        Reading::Known(processes) => {
            if let Some(process) = processes.first() {
                return Err((Severity::Unknown, format!("in use by process {}", process.pid)));
            }
        }
        Reading::Unsupported => return unknown("processes", "not supported"),
        Reading::Failed(why) => return unknown("processes", why),
    }
    match &gpu.pci {
        Reading::Known(pci) => Ok(*pci),
        Reading::Unsupported => unknown("PCI address", "not supported"),
        Reading::Failed(why) => unknown("PCI address", why),
    }
}

fn not_tested(gpu: &Gpu, data: &Results, (program, shared): (&str, bool), out: &mut Report<'_>) {
    if gpu.pci.known().is_some_and(|pci| data.asked.contains(pci)) {
        return;
    }
    let (severity, why) =
        testable(gpu, shared).err().unwrap_or((Severity::Unknown, "not requested".to_owned()));
    let part = gpu.index.to_string();
    let found = Found::new(severity, Class::Node, &part, format!("not tested: {why}")).fix("none");
    out.add(found.row(format!("gpu {part} self-test"), why, "a GPU that no process uses", program));
}

/// A GPU and the results about it.
struct Tested<'a> {
    pci: PciAddress,
    /// Its index, or its address if NVML lists no such GPU.
    part: String,
    /// The GPU is one of this job's, or there is no job.
    judged: bool,
    tests: Vec<&'a GpuSelfTested>,
}

impl<'a> Tested<'a> {
    fn new(scene: &Scene<'_>, data: &'a Results, pci: PciAddress) -> Tested<'a> {
        let listed = scene.all_gpus().iter().find(|gpu| gpu.pci.known() == Some(&pci));
        let part = listed.map_or_else(|| pci.to_string(), |gpu| gpu.index.to_string());
        let judged = listed.map_or_else(|| scene.whole(), |gpu| scene.judges(gpu));
        Tested { pci, part, judged, tests: data.tests.iter().filter(|test| test.gpu == pci).collect() }
    }

    /// The lowest of the figures of a test.
    fn figure(&self, of: (&str, &str)) -> Option<f64> {
        rates::lowest(self.tests.iter().copied(), of)
    }

    /// NVML's reasons for slowdowns in any of the tests.
    fn slowdowns(&self) -> u64 {
        self.tests.iter().fold(0, |all, test| all | reasons_of(test))
    }
}

/// NVML's reasons for slowdowns in a test.
fn reasons_of(test: &GpuSelfTested) -> u64 {
    let mask = test.measured.get("throttle_reasons_mask").copied().unwrap_or_default();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "NVML's bits; the conversion saturates"
    )]
    let bits = mask as u64;
    bits
}

struct View<'a> {
    set: &'a Settings,
    program: &'a str,
    tested: &'a [Tested<'a>],
}

impl View<'_> {
    fn values(&self, out: &mut Report<'_>) {
        for gpu in self.tested {
            for test in &gpu.tests {
                if let ValueCheck::Wrong { compared, wrong, first } = &test.values {
                    self.wrong(gpu, test, (*wrong, *compared), first, out);
                }
            }
        }
        let mut names: Vec<&str> = self.results().map(|test| test.test.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let Some(alike) = self.wrong_alike(name) else { continue };
            let what = format!("the same wrong values of {name} on all {alike} GPUs");
            let found = Found::warn(Class::Site, "", &what).fix("check driver");
            out.add(found.row(name, what, "right values", self.program));
        }
    }

    fn wrong(
        &self,
        gpu: &Tested<'_>,
        test: &GpuSelfTested,
        (wrong, compared): (u64, u64),
        first: &[WrongValue],
        out: &mut Report<'_>,
    ) {
        let Tested { pci, part, .. } = gpu;
        let name = self.name_of(test);
        let what = format!("{pci}: {wrong} of {compared} values of {name} wrong");
        let row = |found: Found| {
            let place = first.first();
            let got =
                place.map_or_else(|| format!("{wrong} wrong"), |one| format!("{} at {}", one.got, one.place));
            let want = place.map_or("right values", |one| one.want.as_str());
            found.row(format!("gpu {part} {name}"), got, want, self.program)
        };
        if wrong == 0 || wrong > compared {
            out.add(row(Found::unknown(Class::Internal, part, what).fix("check program")));
        } else if self.wrong_alike(&test.test).is_none() {
            let found = Found::new(self.set.severity, Class::Node, part, what).fix("test again, then RMA");
            out.add(row(if gpu.judged { found } else { found.another_jobs() }));
        }
    }

    fn results(&self) -> impl Iterator<Item = &GpuSelfTested> {
        self.tested.iter().flat_map(|gpu| gpu.tests.iter().copied())
    }

    /// The number of GPUs, if several have the same wrong values in a test and no GPU has right ones. Defects of hardware differ.
    fn wrong_alike(&self, name: &str) -> Option<usize> {
        let mut wrong: Vec<&[WrongValue]> = Vec::new();
        for test in self.results().filter(|test| test.test == name) {
            match &test.values {
                ValueCheck::None => {}
                ValueCheck::Wrong { first, .. } if test.to.is_none() && !first.is_empty() => {
                    wrong.push(first)
                }
                ValueCheck::Right { .. } | ValueCheck::Wrong { .. } => return None,
            }
        }
        (wrong.len() > 1 && wrong.windows(2).all(|pair| pair.first() == pair.last())).then_some(wrong.len())
    }

    /// The name of a test, with the GPU that a copy goes to.
    fn name_of(&self, test: &GpuSelfTested) -> String {
        let Some(to) = test.to else { return test.test.clone() };
        let other = self.tested.iter().find(|gpu| gpu.pci == to);
        let other = other.map_or_else(|| to.to_string(), |gpu| format!("gpu {}", gpu.part));
        format!("{} to {other}", test.test)
    }

    /// Reports what has no result; returns whether that explains why the results are incomplete. A GPU that passed is a
    /// note with its rates.
    fn completeness(&self, gpu: &Tested<'_>, data: &Results, out: &mut Report<'_>) -> bool {
        let Tested { pci, part, tests, .. } = gpu;
        let unknown = |what: String, why: &str| {
            let found = Found::unknown(Class::Node, part, format!("{pci}: {what}")).fix("run it by hand");
            found.row(format!("gpu {part} self-test"), why, "a result", self.program)
        };
        let open: Vec<&&GpuSelfTested> = tests.iter().filter(|test| test.unknown.is_some()).collect();
        if let Some(first) = open.first() {
            let why = first.unknown.as_deref().unwrap_or_default();
            let more = if open.len() > 1 { format!(" (and {} more)", open.len() - 1) } else { String::new() };
            out.add(unknown(format!("no result of {}{more}: {why}", self.name_of(first)), why));
            return false;
        }
        if !tests.iter().any(|test| test.test == GpuSelfTested::LAST) {
            let why = data.incomplete.as_deref().unwrap_or("the program ended without one");
            let after = tests.last().map_or_else(String::new, |test| format!(" after {}", test.test));
            out.add(unknown(format!("no result{after}: {why}"), why));
            return data.incomplete.is_some();
        }
        self.slowed(gpu, out);
        if !tests.iter().any(|test| matches!(test.values, ValueCheck::Wrong { .. })) {
            let counted = tests.iter().filter(|test| test.not_applicable.is_none()).count();
            let mut found =
                Found::note(Class::Node, part, format!("{pci}: {counted} tests, all values right"))
                    .fix("none");
            for figure in &FIGURES {
                if let Some(rate) = gpu.figure(figure.of) {
                    let name = format!("gpu {part} {}", figure.text);
                    found =
                        found.row(name, format!("{rate:.1} {}", figure.unit), "right values", self.program);
                }
            }
            out.add(found);
        }
        false
    }

    /// A slowdown during the test. `gpu-throttle` judges slowdowns; here the GPU was loaded on purpose.
    fn slowed(&self, gpu: &Tested<'_>, out: &mut Report<'_>) {
        let bits = gpu.slowdowns();
        let named = slowdowns(bits & !POWER_CAP);
        if !named.is_empty() {
            let what = format!("{}: slowdown in the test: {}", gpu.pci, named.join(", "));
            let found = Found::note(Class::Node, &gpu.part, what).fix("check cooling, power");
            let name = format!("gpu {} clock reasons", gpu.part);
            out.add(found.row(name, format!("{bits:#x}"), "none of 0x8, 0x20, 0x40, 0x80", self.program));
        }
    }
}

/// The limit of the power, which a healthy card reaches under full load.
const POWER_CAP: u64 = 0x4;

/// NVML's reasons for slowdowns in a mask.
fn slowdowns(bits: u64) -> Vec<&'static str> {
    let reasons = [
        (POWER_CAP, "power limit"),
        (0x8, "hardware"),
        (0x20, "software thermal"),
        (0x40, "hardware thermal"),
        (0x80, "power brake"),
    ];
    reasons.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect()
}

#[cfg(test)]
mod tests;
