//! `railgate-gpu-selftest`: computes, copies and stores on each GPU, and compares every value; measures rates.
//!
//! Prints one line of JSON for each test as soon as it ends ([`railgate_model::GpuSelfTested`]), so that a GPU that hangs costs only
//! what comes after; a burn prints them at its end. Exit code 0: every test ran or is `unknown`; 1: a value was wrong; 2: wrong arguments;
//! 3: no GPU could be tested, or no test of a burn began; 130 and 143: ended by SIGINT or SIGTERM, without a wrong value before.
//! Only GPUs that this process sees and that no other process uses are tested, unless `--shared` is given.

mod burn;
mod card;
mod cards;
mod cublaslt;
mod cuda;
mod gemm;
mod kernels;
mod matrix;
mod memory;
mod near;
mod nvlink;
mod plan;
mod rate;
mod said;
mod series;
mod stop;
mod transfer;
mod wait;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser};
use nix::unistd::{AccessFlags, access};
use nvml_wrapper::Nvml;
use railgate_model::{GpuSelfTested, PciAddress, ValueCheck};

use cards::Work;
use cuda::{Device, Driver};
use kernels::Shape;
use plan::{Length, Plants, Times};
use said::Said;
use stop::Stop;
use wait::{Patience, Sink, Wait};

/// Tests the GPUs of this node or job: matrix products with every value compared, memory, copies, clocks, rates.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  railgate-gpu-selftest                                    all GPUs, a few seconds
  railgate-gpu-selftest --length full --gpu 0000:61:00.0   one GPU, longer
  railgate-gpu-selftest --length burn --seconds 3600       all GPUs, an hour; Ctrl-C ends it and prints the results so far

Each line is a JSON object; `unknown` is the reason why a test has no result. A burn shows its progress on standard error, prints
rounds with wrong values or without a result at once, and at its end a line for each test: the median of each figure over all rounds, with
`min_`, `max_` and `last_` before its name for the others.
Rates (gemm-rate-*) need libcublasLt of CUDA 12 or 13, in LD_LIBRARY_PATH or a folder of the system.

Exit codes: 0 done (tests without a result are `unknown`), 1 a value was wrong, 2 wrong use, 3 no GPU could be tested, 130 or 143 ended by
SIGINT or SIGTERM."
)]
struct Arguments {
    /// How long each GPU works.
    #[arg(long, value_enum, default_value = "quick")]
    length: Length,
    /// Length of a burn, from the time when the driver is loaded. Default: 600.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=30 * 86_400))]
    seconds: Option<u64>,
    /// Also tests GPUs that other processes use: their rates are then too low, and the other processes become slower. For tests by hand
    /// only.
    #[arg(long)]
    shared: bool,
    /// Products of each type. Default: 50, for `full` and `burn` 1000.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    products: Option<u32>,
    /// Tiles of 128 along a side of the products, for tests.
    #[arg(long, hide = true, default_value_t = gemm::TILES, value_parser = clap::value_parser!(u32).range(1..=32))]
    tiles: u32,
    /// Seconds after which GPUs that have not answered are `unknown`. Default: 60, for `full` 300. For `burn` the time without a result
    /// of a GPU; default: 300.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(0..=30 * 86_400))]
    deadline: Option<u64>,
    /// PCI address of a GPU to test; may be repeated. Default: all that this process sees.
    #[arg(long)]
    gpu: Vec<PciAddress>,
    /// Flips a bit, which has to be found: `register` or `memory` of a product, or `pattern`.
    #[cfg(feature = "plant")]
    #[arg(long, value_enum)]
    plant: Option<Where>,
    /// Which one: warp of the register, or word of the memory.
    #[cfg(feature = "plant")]
    #[arg(long, default_value_t = 0)]
    at: u32,
    /// Number of the bit.
    #[cfg(feature = "plant")]
    #[arg(long, default_value_t = 20)]
    bit: u32,
}

#[cfg(feature = "plant")]
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum Where {
    Register,
    Memory,
    Pattern,
}

impl Arguments {
    fn seconds_of_patience(&self) -> u64 {
        self.deadline.unwrap_or(self.length.deadline())
    }

    #[cfg(feature = "plant")]
    fn plants(&self) -> Plants {
        use gemm::Planted;

        let word = Some((u64::from(self.at), self.bit));
        match self.plant {
            Some(Where::Register) => {
                let register = Some(kernels::Plant { warp: self.at, bit: self.bit });
                Plants { product: Planted { register, memory: None }, pattern: None }
            }
            Some(Where::Memory) => {
                Plants { product: Planted { register: None, memory: word }, pattern: None }
            }
            Some(Where::Pattern) => Plants { pattern: word, ..Plants::default() },
            None => Plants::default(),
        }
    }

    #[cfg(not(feature = "plant"))]
    fn plants(&self) -> Plants {
        Plants::default()
    }
}

fn main() {
    let arguments = Arguments::parse();
    if arguments.seconds.is_some() && arguments.length != Length::Burn {
        let why = "--seconds is the length of a burn: add --length burn";
        Arguments::command().error(ErrorKind::ArgumentConflict, why).exit();
    }
    cuda::exit(run(&arguments).unwrap_or_else(|why| {
        eprintln!("error: {why}");
        3
    }))
}

/// Tests all GPUs at once, then the copies between them. Returns the exit code.
fn run(arguments: &Arguments) -> Result<i32, String> {
    // From here on, since a driver that is not loaded takes seconds to start.
    let (begun, patience) = (Instant::now(), arguments.seconds_of_patience());
    let burn = (arguments.length == Length::Burn).then(|| arguments.seconds.unwrap_or(burn::SECONDS));
    let patience = match burn {
        Some(_) => Patience::Silence(patience),
        None => Patience::Until(begun + Duration::from_secs(patience), patience),
    };
    let stop = Stop::on_signals()?;
    let mut wait = Wait::new(patience, stop.clone());
    let asked = wait.for_one(|| {
        let devices = Driver::load()?.devices()?;
        Ok((devices, Nvml::init().map_err(|why| why.to_string())))
    });
    let Some(asked) = asked else {
        let why = format!("the driver: {}", wait.why());
        if stop.signal().is_none() {
            return Err(why);
        }
        eprintln!("error: {why}");
        return Ok(stop.exit_code());
    };
    // The time of a burn does not include the start of the driver.
    let begun = Instant::now();
    let end = burn.map(|seconds| begun + Duration::from_secs(seconds));
    let stop = stop.at(end);
    let (devices, nvml) = asked.map_err(|why: String| why + &not_permitted())?;
    let (devices, absent) = wanted(devices, &arguments.gpu)?;
    for gpu in absent {
        print(&not_shown(gpu))?;
    }
    let usual = arguments.length.times(Shape::new(arguments.tiles));
    let times = Times { products: arguments.products.unwrap_or(usual.products), ..usual };
    let (plants, shared) = (arguments.plants(), arguments.shared);
    let work = Arc::new(Work { devices, nvml, times, plants, shared, stop });
    match burn {
        Some(seconds) => burn::run(&work, &mut wait, (begun, seconds))?,
        None => drop(round(&work, &mut wait, &BTreeSet::new(), &mut Printed)?),
    }
    Ok(work.stop.exit_code())
}

/// All tests once, without the GPUs that were given up before. Returns the numbers of those that did not answer.
fn round(
    work: &Arc<Work>,
    wait: &mut Wait,
    given_up: &BTreeSet<usize>,
    sink: &mut dyn Sink,
) -> Result<BTreeSet<usize>, String> {
    let each = (0..work.devices.len()).filter(|place| !given_up.contains(place)).map(|place| {
        let work = work.clone();
        let test = move |say: &dyn Fn(GpuSelfTested)| {
            if let Some(device) = work.devices.get(place) {
                work.one(device, say);
            }
        };
        (place, test)
    });
    let unanswered = wait.all(each, sink)?;
    for device in unanswered.iter().filter_map(|place| work.devices.get(*place)) {
        sink.line(Said::unknown("end", &wait.why()).line(device, None))?;
    }
    // Without a burn the time is over for all GPUs.
    if (unanswered.is_empty() || wait.is_per_gpu()) && !work.stop.is_due() {
        let left_out: Vec<PciAddress> = (given_up.union(&unanswered))
            .filter_map(|place| work.devices.get(*place))
            .map(|device| device.pci)
            .collect();
        let there = work.clone();
        let copies = move |say: &dyn Fn(GpuSelfTested)| there.copies(&left_out, say);
        if let (false, Some(first)) = (wait.all([(0, copies)], sink)?.is_empty(), work.devices.first()) {
            sink.line(Said::unknown("copies", &wait.why()).line(first, None))?;
        }
    }
    Ok(unanswered)
}

/// The devices whose address is wanted, and the addresses that the driver does not show.
fn wanted(devices: Vec<Device>, addresses: &[PciAddress]) -> Result<(Vec<Device>, Vec<PciAddress>), String> {
    if devices.is_empty() {
        return Err("the driver shows no GPU to this process".to_owned());
    }
    let is_shown = |wanted: &PciAddress| devices.iter().any(|device| device.pci == *wanted);
    let absent: Vec<PciAddress> = addresses.iter().copied().filter(|wanted| !is_shown(wanted)).collect();
    if let (Some(first), true) = (absent.first(), absent.len() == addresses.len()) {
        let known: Vec<String> = devices.iter().map(|device| device.pci.to_string()).collect();
        return Err(format!("no GPU {first} here; this process sees {}", known.join(", ")));
    }
    let is_wanted = |device: &Device| addresses.is_empty() || addresses.contains(&device.pci);
    Ok((devices.into_iter().filter(is_wanted).collect(), absent))
}

/// The line of a wanted GPU that the driver does not show. It costs the other GPUs nothing.
fn not_shown(gpu: PciAddress) -> GpuSelfTested {
    GpuSelfTested {
        gpu,
        uuid: None,
        to: None,
        model: String::new(),
        test: "start".to_owned(),
        seconds: 0.0,
        values: ValueCheck::None,
        measured: BTreeMap::new(),
        unknown: Some("the driver does not show this GPU to CUDA programs".to_owned()),
        not_applicable: None,
    }
}

/// The device files that this process may not open, for an error of the driver, which does not name them. A control group or a
/// container's device list forbids as well as file permissions.
fn not_permitted() -> String {
    let files = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"];
    let closed = |file: &&str| {
        matches!(
            access(*file, AccessFlags::R_OK | AccessFlags::W_OK),
            Err(nix::errno::Errno::EACCES | nix::errno::Errno::EPERM)
        )
    };
    let closed: Vec<&str> = files.into_iter().filter(closed).collect();
    if closed.is_empty() { String::new() } else { format!("; no permission for {}", closed.join(", ")) }
}

/// Prints lines at once.
#[derive(Debug)]
struct Printed;

impl Sink for Printed {
    fn line(&mut self, line: GpuSelfTested) -> Result<(), String> {
        print(&line)
    }
}

fn print(line: &GpuSelfTested) -> Result<(), String> {
    let text = serde_json::to_string(line).map_err(|why| why.to_string())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|why| format!("standard output: {why}"))
}
