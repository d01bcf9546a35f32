//! The loop of a sampling child. Cheap values (clock, power and throttle reasons are in shared memory and take a
//! microsecond each on an H200) are read every [`TICK`]. GPM takes a millisecond. It is read for each sample and, as
//! often as [`BUDGET`] allows, in between, to tell the clock under load from the idle clock. One thread reads all GPUs,
//! because NVML has crashed when several GPUs were sampled at once. If Xids are requested, a second thread waits for
//! them, so that a reading that hangs (for example because a GPU has fallen off the bus) does not delay them.

mod clocks;
mod gpm;
mod gpu;
mod host_side;
mod pauses;

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use gpu::{Gpu, Now};
use nix::sys::resource::{UsageWho, getrusage};
use nvml_wrapper::Nvml;
use railgate_child::{Line, drop_clean_pages};
use railgate_model::{GpuSamples, Watched};

use super::chain;
use super::events::Waiting;
use crate::gpu_watch::{GpuWatch, own_memory_mib};

const TICK: Duration = Duration::from_millis(50);
/// GPM refreshes itself every 100 ms: samples must be further apart.
const SHORTEST: Duration = Duration::from_millis(200);
/// Share of one core that the windows within a sample may use, for all GPUs together.
const BUDGET: f64 = 0.002;
/// Records of utilisation that are read per sample; the driver keeps 14 s, almost three samples.
const RECORDS: usize = 4;

/// Samples until the other side asks for an end.
pub(crate) fn watch(order: &GpuWatch, line: &mut Line) -> Result<(), String> {
    let library = &order.library;
    let nvml = Nvml::builder()
        .lib_path(library.as_os_str())
        .init()
        .map_err(|why| format!("{}: {}", library.display(), chain(&why)))?;
    let nvml = ManuallyDrop::new(nvml);
    let lib = nvml.lib();
    let mut gpus: Vec<Gpu<'_>> = order.gpus.iter().map(|id| Gpu::open(lib, id)).collect();
    let line = RwLock::new(line);
    say(&line, &Watched::Gpus(gpus.iter().map(Gpu::describe).collect()))?;
    // Registered before the first reading, since the two must not run at the same time.
    let waiting = match order.xids.then(|| Waiting::begin(lib)) {
        Some(Ok(waiting)) => {
            say(&line, &Watched::Xids(Vec::new()))?;
            Some(waiting)
        }
        Some(Err(why)) => {
            say(&line, &Watched::NoXids(why))?;
            None
        }
        None => None,
    };
    // What NVML, and libcuda which it loads, needed only to start is not kept.
    let _ = drop_clean_pages();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        if let Some(waiting) = waiting {
            let wait = || tell(waiting, &line, &over);
            if let Err(why) = thread::Builder::new().name("xids".to_owned()).spawn_scoped(scope, wait) {
                say(&line, &Watched::NoXids(why.to_string()))?;
            }
        }
        let read = read(order, &mut gpus, &line);
        over.store(true, Ordering::Relaxed);
        read
    })
}

/// Reports each Xid as it comes, even if a reading hangs.
fn tell(waiting: Waiting<'_>, line: &SharedLine<'_>, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        let said = match waiting.next() {
            Ok(None) => continue,
            Ok(Some(event)) => say(line, &Watched::Xids(vec![event])),
            Err(why) => say(line, &Watched::NoXids(why.clone())).and(Err(why)),
        };
        if said.is_err() {
            return;
        }
    }
}

/// Waiting for input takes the lock shared, sending takes it exclusively, so that messages are not interleaved.
type SharedLine<'l> = RwLock<&'l mut Line>;

fn read(order: &GpuWatch, gpus: &mut [Gpu<'_>], line: &SharedLine<'_>) -> Result<(), String> {
    let interval = Duration::try_from_secs_f64(order.interval_s.max(0.2)).map_err(|why| why.to_string())?;
    let mut begun = Instant::now();
    let mut window = begun;
    let mut length = SHORTEST.min(interval);
    for gpu in &mut *gpus {
        gpu.begin();
    }
    let (mut turn, mut count, mut memory_mib) = (0, 0_u32, 0.0_f64);
    loop {
        let go_on = line.read().unwrap_or_else(PoisonError::into_inner).wait(TICK.min(interval));
        for gpu in &mut *gpus {
            gpu.tick();
        }
        let now = Instant::now();
        let full = !go_on || now.duration_since(begun) >= interval;
        let spent = window.elapsed();
        // The rest of the interval becomes a window of its own if it is long enough for GPM.
        if spent >= length || (full && spent >= SHORTEST / 2) {
            let before = cpu_s();
            for gpu in &mut *gpus {
                gpu.window(spent.as_secs_f64());
            }
            window = now;
            let cost = (cpu_s() - before).max(0.0);
            length = Duration::try_from_secs_f64(cost / BUDGET).unwrap_or(interval).clamp(SHORTEST, interval);
        }
        if full {
            for (place, gpu) in gpus.iter_mut().enumerate() {
                if !go_on || place == turn {
                    gpu.read_energy();
                }
            }
            let mine = turn;
            turn = (turn + 1) % gpus.len().max(1);
            let seconds = now.duration_since(begun).as_secs_f64();
            let rounds = u32::try_from(gpus.len().div_ceil(RECORDS)).unwrap_or(u32::MAX).max(1);
            let sample = |(place, gpu): (u32, &mut Gpu<'_>)| {
                let turn = !go_on || usize::try_from(place) == Ok(mine);
                let record = !go_on || place.wrapping_add(count).is_multiple_of(rounds);
                gpu.sample(Now { seconds, turn, record })
            };
            let samples = (0..).zip(gpus.iter_mut()).map(sample).collect();
            // Summing up the pages takes longer than the rest of a sample.
            if count.is_multiple_of(12) {
                memory_mib = memory_mib.max(own_memory_mib().unwrap_or(0.0));
            }
            count = count.wrapping_add(1);
            let sample = GpuSamples { seconds, gpus: samples, cpu_s: cpu_s(), memory_mib };
            say(line, &Watched::Sample(sample))?;
            begun = now;
            window = now;
        }
        if !go_on {
            return Ok(());
        }
    }
}

fn say(line: &SharedLine<'_>, what: &Watched) -> Result<(), String> {
    let text = serde_json::to_vec(what).map_err(|why| why.to_string())?;
    line.write().unwrap_or_else(PoisonError::into_inner).say(&text).map_err(|why| why.to_string())
}

fn cpu_s() -> f64 {
    getrusage(UsageWho::RUSAGE_SELF)
        .map_or(0.0, |usage| [usage.user_time(), usage.system_time()].iter().map(seconds).sum())
}

#[expect(clippy::cast_precision_loss, reason = "a process lives no 285 years")]
fn seconds(time: &nix::sys::time::TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}
