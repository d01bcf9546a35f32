//! What is done with each card, and between cards.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};

use nvml_wrapper::Nvml;
use railgate_model::{GpuSelfTested, PciAddress};

use crate::cuda::{Context, Device};
use crate::kernels::{Kernels, TYPES};
use crate::plan::{Plants, Times};
use crate::said::{Outcome, Said};
use crate::stop::Stop;
use crate::{card, gemm, memory, near, nvlink, rate, transfer};

/// Bytes of each copy between the host and a GPU alone: a millisecond, so that eight GPUs take a second.
const ALONE_BYTES: usize = 64 << 20;

/// The cards, and what they are to do.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) devices: Vec<Device>,
    /// NVML, or why it is not available.
    pub(crate) nvml: Result<Nvml, String>,
    pub(crate) times: Times,
    pub(crate) plants: Plants,
    /// Whether GPUs are tested that other processes use.
    pub(crate) shared: bool,
    pub(crate) stop: Stop,
}

impl Work {
    fn nvml(&self) -> Option<&Nvml> {
        self.nvml.as_ref().ok()
    }

    /// The number of other processes on a GPU; an error if it must not be tested.
    fn others(&self, device: &Device) -> Result<usize, String> {
        let nvml = self.nvml.as_ref().map_err(|why| {
            format!("NVML is not available ({why}): whether another process uses the GPU is not known")
        })?;
        if card::is_partitioned(nvml, device) {
            return Err("MIG is on: its devices are not tested".to_owned());
        }
        let pids = card::other_processes(nvml, device)?;
        if pids.is_empty() || self.shared {
            return Ok(pids.len());
        }
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        Err(format!("in use by process {}", pids.join(", ")))
    }

    /// Tests one card. Returns early when the tests are to stop.
    pub(crate) fn one(&self, device: &Device, say: &dyn Fn(GpuSelfTested)) {
        let say = |said: Said| say(said.line(device, None));
        let others = match self.others(device) {
            Ok(others) => others,
            Err(why) => return say(Said::unknown("start", &why)),
        };
        if let Some(uuid) = self.nvml().and_then(|nvml| card::uuid(nvml, device)) {
            let _ = device.uuid.set(uuid);
        }
        // With a shared GPU each line tells that its rate is no rate of the whole card.
        let say = |said: Said| say(said.beside(others));
        let _alone = match alone(device) {
            Ok(held) => held,
            Err(why) => return say(Said::unknown("start", &why)),
        };
        let ready = Context::of(device).and_then(|context| {
            memory::is_free(&context)?;
            Ok(context)
        });
        let context = match ready {
            Ok(context) => context,
            Err(why) => return say(Said::unknown("start", &why)),
        };
        let kernels = match Kernels::compile(&context, device.capability, device.multiprocessors) {
            Ok(kernels) => kernels,
            Err(why) => return say(Said::unknown("start", &why)),
        };
        self.tests(device, &context, &kernels, &say);
    }

    fn tests(&self, device: &Device, context: &Context, kernels: &Kernels<'_>, say: &dyn Fn(Said)) {
        let Times { shape, products, copies, patterns, .. } = self.times;
        let run = |test: &str, run: &dyn Fn() -> Result<Outcome, String>| {
            if !self.stop.is_due() {
                say(Said::of(test, run));
            }
        };
        for of in TYPES {
            if device.capability < of.since {
                say(gemm::absent(of));
                continue;
            }
            run(&format!("gemm-{}", of.name), &|| {
                let products = gemm::products(of, products);
                gemm::test(context, kernels, of, (shape, products), self.plants.product)
            });
        }
        run("clock", &|| card::clock(self.nvml(), device, context, kernels, shape));
        run("memory-bandwidth", &|| memory::bandwidth(context, kernels, copies));
        run("memory-pattern", &|| memory::pattern(context, kernels, patterns, self.plants.pattern));
        near::go_near(device.pci);
        run(GpuSelfTested::LAST, &|| transfer::host(context, kernels, transfer::MOST, copies));
        // The last: an error in a library that others wrote costs no other result of this card.
        rate::test(self.nvml(), device, context, kernels, (self.times.rate, &self.stop), say);
    }

    /// Copies between the host and each GPU, then from each GPU to each other one, while no other GPU copies.
    pub(crate) fn copies(&self, leave_out: &[PciAddress], say: &dyn Fn(GpuSelfTested)) {
        let copies = self.times.copies;
        let is_idle = |device: &&Device| !leave_out.contains(&device.pci) && self.others(device).is_ok();
        let idle: Vec<&Device> = self.devices.iter().filter(is_idle).collect();
        let contexts: Vec<_> = idle.iter().map(|device| Context::of(device)).collect();
        // Compiled once for each card, not for each pair.
        let ready: Vec<_> =
            idle.iter().zip(&contexts).map(|(device, context)| End::new(device, context)).collect();
        for end in ready.iter().take_while(|_| !self.stop.is_due()) {
            let said = Said::of("host-copy-alone", || {
                let (context, kernels, _) = end.ready.as_ref().map_err(Clone::clone)?;
                context.enter()?;
                let node = near::go_near(end.device.pci);
                let outcome = transfer::host(context, kernels, ALONE_BYTES, copies)?;
                Ok(node.into_iter().fold(outcome, |outcome, node| outcome.with("numa_node", f64::from(node))))
            });
            say(said.line(end.device, None));
        }
        if ready.len() < 2 || self.stop.is_due() {
            return;
        }
        let before: Vec<_> = ready.iter().map(|end| nvlink::read(self.nvml(), end.device)).collect();
        for (place, from) in ready.iter().enumerate() {
            let others = ready.iter().enumerate().filter(|(other, _)| *other != place);
            for (_, to) in others.take_while(|_| !self.stop.is_due()) {
                let said = Said::of("peer-copy", || match (&from.ready, &to.ready) {
                    (Ok((one, of_one, _)), Ok((other, of_other, _))) => {
                        transfer::peer((one, of_one), (other, of_other), copies)
                    }
                    (Err(why), _) | (_, Err(why)) => Err(why.clone()),
                });
                say(said.line(from.device, Some(to.device)));
            }
        }
        for (end, before) in ready.iter().zip(&before) {
            let said =
                Said::of("nvlink-errors", || nvlink::grown(before, &nvlink::read(self.nvml(), end.device)));
            say(said.line(end.device, None));
        }
    }
}

/// Held while a GPU is tested: a second test would share the card with the first, and both would measure half of it. Any user could
/// hold it: the result is then `unknown`.
fn alone(device: &Device) -> Result<UnixListener, String> {
    let name = format!("railgate-gpu-selftest-{}", device.pci);
    let place = SocketAddr::from_abstract_name(name).map_err(|why| why.to_string())?;
    UnixListener::bind_addr(&place).map_err(|_| "another self-test of this GPU is running".to_owned())
}

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
