//! `railgate-gpu-selftest`: computes, copies and remembers on each GPU, and compares every value; measures rates.
//!
//! Prints one line of JSON for each test as soon as it ends ([`railgate_model::GpuSelfTested`]), so that a GPU that hangs costs only
//! what comes after. Exit code 0: every test ran or is `unknown`; 1: a value was wrong; 2: wrong arguments; 3: no GPU could be tested.
//! Only GPUs that this process sees and that no other process uses are tested.

mod card;
mod cublaslt;
mod cuda;
mod gemm;
mod kernels;
mod matrix;
mod memory;
mod near;
mod rate;
mod said;
mod transfer;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use nvml_wrapper::Nvml;
use railgate_model::{GpuSelfTested, PciAddress, ValueCheck};

use cuda::{Context, Device, Driver};
use gemm::Planted;
use kernels::{Kernels, Shape, TYPES};
use rate::Load;
use said::Said;

/// Tests the GPUs of this node or job: matrix products with every value compared, memory, copies, clocks, rates.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  railgate-gpu-selftest                                    all GPUs, a few seconds
  railgate-gpu-selftest --length full --gpu 0000:61:00.0   one GPU, longer

Each line is a JSON object; `unknown` is the reason why a test has no result.
Rates (gemm-rate-*) need libcublasLt of CUDA 12 or 13, in LD_LIBRARY_PATH or a folder of the system."
)]
struct Arguments {
    /// How long each GPU works.
    #[arg(long, value_enum, default_value = "quick")]
    length: Length,
    /// Products of each type. Default: 50, for `full` 1000.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    products: Option<u32>,
    /// Tiles of 128 along a side of the products, for tests.
    #[arg(long, hide = true, default_value_t = gemm::TILES, value_parser = clap::value_parser!(u32).range(1..=32))]
    tiles: u32,
    /// Seconds after which GPUs that have not answered are `unknown`. Default: 60, for `full` 300.
    #[arg(long, value_name = "SECONDS")]
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

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Length {
    /// At most 10 s for eight GPUs.
    Quick,
    /// At most 90 s.
    Full,
}

#[cfg(feature = "plant")]
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Where {
    Register,
    Memory,
    Pattern,
}

/// Repetitions.
#[derive(Clone, Copy, Debug)]
struct Times {
    shape: Shape,
    products: u32,
    copies: u32,
    patterns: u32,
    rate: Load,
}

impl Length {
    fn times(self, shape: Shape) -> Times {
        // Twice the side of the value check: large products reach a card's full rate.
        let load = |ms| Load { side: 2 * shape.side, measured: Duration::from_millis(ms) };
        match self {
            Length::Quick => Times { shape, products: 50, copies: 8, patterns: 1, rate: load(250) },
            Length::Full => Times { shape, products: 1000, copies: 40, patterns: 8, rate: load(2000) },
        }
    }
}

/// Bits to flip, of each test.
#[derive(Clone, Copy, Debug, Default)]
struct Plants {
    product: Planted,
    pattern: Option<(u64, u32)>,
}

impl Arguments {
    fn deadline(&self) -> Duration {
        let usual = match self.length {
            Length::Quick => 60,
            Length::Full => 300,
        };
        Duration::from_secs(self.deadline.unwrap_or(usual))
    }

    #[cfg(feature = "plant")]
    fn plants(&self) -> Plants {
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
    cuda::exit(match run(&arguments) {
        Ok(false) => 0,
        Ok(true) => 1,
        Err(why) => {
            eprintln!("error: {why}");
            3
        }
    })
}

/// Tests all GPUs at once, then the copies between them. Returns whether a value was wrong.
fn run(arguments: &Arguments) -> Result<bool, String> {
    // From here on, since a driver that is not loaded takes seconds to start.
    let until = Instant::now() + arguments.deadline();
    let (devices, absent) = wanted(Driver::load()?.devices()?, &arguments.gpu)?;
    let devices: Arc<[Device]> = devices.into();
    for gpu in absent {
        print(&not_shown(gpu))?;
    }
    let nvml = Nvml::init().ok().map(Arc::new);
    let usual = arguments.length.times(Shape::new(arguments.tiles));
    let times = Times { products: arguments.products.unwrap_or(usual.products), ..usual };
    let plants = arguments.plants();
    let mut wait = Wait { until, seconds: arguments.deadline().as_secs(), any_wrong: false };
    let each = (0..devices.len()).map(|place| {
        let (devices, nvml) = (devices.clone(), nvml.clone());
        let test = move |say: &dyn Fn(GpuSelfTested)| {
            let Some(device) = devices.get(place) else { return };
            test_one(nvml.as_deref(), device, times, plants, &|one| say(one.line(device, None)));
        };
        (place, test)
    });
    let unanswered = wait.all(each)?;
    for device in unanswered.iter().filter_map(|place| devices.get(*place)) {
        print(&Said::unknown("end", &wait.why()).line(device, None))?;
    }
    if unanswered.is_empty() {
        let there = devices.clone();
        let copies =
            move |say: &dyn Fn(GpuSelfTested)| one_after_another(nvml.as_deref(), &there, times, say);
        if let (false, Some(first)) = (wait.all([(0, copies)])?.is_empty(), devices.first()) {
            print(&Said::unknown("copies", &wait.why()).line(first, None))?;
        }
    }
    Ok(wait.any_wrong)
}

/// Waits for tests, until one time for all of them.
struct Wait {
    until: Instant,
    seconds: u64,
    any_wrong: bool,
}

impl Wait {
    /// Runs tests at the same time, prints their lines, and returns the numbers of those that did not end in time. A thread in a
    /// driver that hangs is not joined: it ends with the process.
    fn all<T>(&mut self, tests: impl IntoIterator<Item = (usize, T)>) -> Result<BTreeSet<usize>, String>
    where
        T: FnOnce(&dyn Fn(GpuSelfTested)) + Send + 'static,
    {
        let (sender, lines) = mpsc::channel::<(usize, Option<GpuSelfTested>)>();
        let mut open = BTreeSet::new();
        for (number, test) in tests {
            open.insert(number);
            let sender = sender.clone();
            std::thread::spawn(move || {
                test(&|line| drop(sender.send((number, Some(line)))));
                drop(sender.send((number, None)));
            });
        }
        while !open.is_empty() {
            match lines.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
                Ok((_, Some(line))) => self.any_wrong |= print(&line)?,
                Ok((number, None)) => drop(open.remove(&number)),
                Err(_) => break,
            }
        }
        Ok(open)
    }

    fn why(&self) -> String {
        format!("no answer within {} s", self.seconds)
    }
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

/// Why a GPU must not be tested.
fn in_use(nvml: Option<&Nvml>, device: &Device) -> Option<String> {
    let Some(nvml) = nvml else {
        return Some("NVML is not available: whether another process uses the GPU is not known".to_owned());
    };
    if card::is_partitioned(nvml, device) {
        return Some("MIG is on: its devices are not tested".to_owned());
    }
    match card::other_processes(nvml, device) {
        Err(why) => Some(why),
        Ok(pids) if pids.is_empty() => None,
        Ok(pids) => Some(format!(
            "in use by process {}",
            pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
        )),
    }
}

/// Held while a GPU is tested: a second test would share the card with the first, and both would measure half of it. Any user could
/// hold it: the result is then `unknown`.
fn alone(device: &Device) -> Result<UnixListener, String> {
    let name = format!("railgate-gpu-selftest-{}", device.pci);
    let place = SocketAddr::from_abstract_name(name).map_err(|why| why.to_string())?;
    UnixListener::bind_addr(&place).map_err(|_| "another self-test of this GPU is running".to_owned())
}

fn test_one(nvml: Option<&Nvml>, device: &Device, times: Times, plants: Plants, say: &dyn Fn(Said)) {
    if let Some(why) = in_use(nvml, device) {
        return say(Said::unknown("start", &why));
    }
    let _alone = match alone(device) {
        Ok(held) => held,
        Err(why) => return say(Said::unknown("start", &why)),
    };
    let context = match Context::of(device) {
        Ok(context) => context,
        Err(why) => return say(Said::unknown("start", &why)),
    };
    let kernels = match Kernels::compile(&context, device.capability, device.multiprocessors) {
        Ok(kernels) => kernels,
        Err(why) => return say(Said::unknown("start", &why)),
    };
    for of in TYPES {
        if device.capability < of.since {
            say(gemm::absent(of));
            continue;
        }
        say(Said::of(format!("gemm-{}", of.name), || {
            let products = gemm::products(of, times.products);
            gemm::test(&context, &kernels, of, (times.shape, products), plants.product)
        }));
    }
    say(Said::of("clock", || card::clock(nvml, device, &context, &kernels, times.shape)));
    say(Said::of("memory-bandwidth", || memory::bandwidth(&context, &kernels, times.copies)));
    say(Said::of("memory-pattern", || memory::pattern(&context, &kernels, times.patterns, plants.pattern)));
    near::go_near(device.pci);
    say(Said::of(GpuSelfTested::LAST, || transfer::host(&context, &kernels, transfer::MOST, times.copies)));
    // The last: an error in a library that others wrote costs no other result of this card.
    rate::test(nvml, device, &context, times.rate, say);
}

/// Copies between the host and each GPU, then from each GPU to each other one, while no other GPU copies.
fn one_after_another(nvml: Option<&Nvml>, devices: &[Device], times: Times, say: &dyn Fn(GpuSelfTested)) {
    let idle: Vec<&Device> = devices.iter().filter(|device| in_use(nvml, device).is_none()).collect();
    let contexts: Vec<_> = idle.iter().map(|device| Context::of(device)).collect();
    // Compiled once for each card, not for each pair.
    let ready: Vec<_> =
        idle.iter().zip(&contexts).map(|(device, context)| End::new(device, context)).collect();
    for end in &ready {
        let said = Said::of("host-copy-alone", || {
            let (context, kernels, _) = end.ready.as_ref().map_err(Clone::clone)?;
            context.enter()?;
            let node = near::go_near(end.device.pci);
            let outcome = transfer::host(context, kernels, ALONE_BYTES, times.copies)?;
            Ok(node.into_iter().fold(outcome, |outcome, node| outcome.with("numa_node", f64::from(node))))
        });
        say(said.line(end.device, None));
    }
    for (place, from) in ready.iter().enumerate() {
        for (_, to) in ready.iter().enumerate().filter(|(other, _)| *other != place) {
            let said = Said::of("peer-copy", || match (&from.ready, &to.ready) {
                (Ok((one, of_one, _)), Ok((other, of_other, _))) => {
                    transfer::peer((one, of_one), (other, of_other), times.copies)
                }
                (Err(why), _) | (_, Err(why)) => Err(why.clone()),
            });
            say(said.line(from.device, Some(to.device)));
        }
    }
}

/// Bytes of each copy between the host and a GPU alone: a millisecond, so that eight GPUs take a second.
const ALONE_BYTES: usize = 64 << 20;

/// A card that copies, held until the end of all copies.
struct End<'c> {
    device: &'c Device,
    ready: Result<(&'c Context, Kernels<'c>, UnixListener), String>,
}

impl<'c> End<'c> {
    fn new(device: &'c Device, context: &'c Result<Context, String>) -> Self {
        let ready = || {
            let context = context.as_ref().map_err(Clone::clone)?;
            let held = alone(device)?;
            context.enter()?;
            Ok((context, Kernels::compile(context, device.capability, device.multiprocessors)?, held))
        };
        End { device, ready: ready() }
    }
}

/// Prints a line at once. Returns whether it has a wrong value.
fn print(line: &GpuSelfTested) -> Result<bool, String> {
    let text = serde_json::to_string(line).map_err(|why| why.to_string())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|why| format!("standard output: {why}"))?;
    Ok(matches!(line.values, ValueCheck::Wrong { .. }))
}
