//! `railgate calibrate`: measures the factor by which the reported tensor activity × clock of a GPU exceeds the work
//! done, and stores it for that card. The clock is read as faster than that of the SMs under tensor load.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use nix::unistd::geteuid;
use railgate_child::Said;
use railgate_fsutil::read;
use railgate_model::{GpuField, GpuId, Reading, Watched, WatchedGpu};
use railgate_node_report::usage::peaks::Model;
use railgate_node_report::usage::{Card, GpuFigures};
use railgate_probe::GpuWatch;
use railgate_runner::{Config, calibrated_cards, keep_calibration, now};
use railgate_text::{Lines, put, toml_text};

use crate::output::say;
use crate::{Site, exit, output, self_test_lines};

mod self_test;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  railgate calibrate -- python3 /usr/share/railgate/python/gemm_load.py bf16 8192
  railgate calibrate --gpu 3 --for 60s -- ./my_load
  railgate calibrate --no-save -- ./my_load    only show the factor
  railgate-gpu-selftest --length full > lines    all GPUs, without PyTorch
  railgate calibrate --self-test lines

PROGRAM loads that GPU. Several times a second it prints what it has computed since its last such line: a type \
(bf16, fp16, tf32, fp8) and a number of FLOP, for example `bf16 1.37e13`. Other lines are ignored. As root, the \
factor is stored for this GPU, by its UUID, in /var/lib/railgate/calibrations.json; reports and metrics of later \
jobs use it before [stats.models] and the built-in factor of its model. The output ends with a table for \
railgate.toml, for GPUs of this model that were not measured. Use sizes and types like those of your jobs, on a \
GPU that no other process uses. Measure again after a driver update.

With --self-test no program is needed: the self-test counts the cycles of the SMs while cuBLASLt multiplies. \
cuBLASLt must be installed. The factor is NVML's clock divided by the counted clock. It is taken for each GPU in FILE.

Exit codes: 0 done, 2 wrong use, 3 could not tell (no GPM, no load)")]
pub(crate) struct Args {
    /// NVML index of the GPU
    #[arg(long, value_name = "INDEX", default_value_t = 0)]
    gpu: u32,
    /// How long to measure after the load has begun
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = humantime::parse_duration)]
    length: Duration,
    /// Only print the factor; do not store it
    #[arg(long)]
    no_save: bool,
    /// Take the factors from lines that `railgate-gpu-selftest --length full` printed on this node
    #[arg(long, value_name = "FILE", conflicts_with_all = ["gpu", "length", "program"])]
    self_test: Option<PathBuf>,
    /// Program that loads the GPU, and its arguments
    #[arg(required_unless_present = "self_test", last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Time after which the load runs steadily: the GPU is warm and its clock has settled.
const WARM: Duration = Duration::from_secs(4);
/// Longest wait for the first line of the load: frameworks are slow to start.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn run(site: &Site, args: &Args) -> anyhow::Result<u8> {
    ensure!(args.length >= Duration::from_secs(10), "--for: must be at least 10s");
    let config = site.config()?;
    if let Some(file) = &args.self_test {
        return from_self_test(site, &config, args, file);
    }
    let mut load = Load::start(&args.program)?;
    let measured = measure(&config.source.nvml_library, args, &mut load);
    load.stop();
    let (gpu, windows) = match measured? {
        Ok(measured) => measured,
        Err(why) => {
            say!("could not tell: {why}")?;
            return Ok(exit::UNKNOWN);
        }
    };
    let name = gpu.name.known().cloned().unwrap_or_default();
    let (cards, problems) = calibrated_cards(&site.places);
    let figures = GpuFigures { site: config.stats.models.clone(), cards };
    let uuid = gpu.uuid.known().cloned().unwrap_or_default();
    let Some(model) = figures.of(&name, &uuid) else {
        bail!(
            "the peak of '{name}' is not known: set bf16_tflops and clock_mhz in [stats.models.'{name}'] first"
        );
    };
    match judged(&windows, &model, &load.done) {
        Ok(result) => {
            let mut text = result.text(&name, &model, problems);
            if !args.no_save {
                save(site, &config, &uuid, result.card(&name), &mut text);
            }
            text.blank();
            result.table(&name, &mut text);
            output::text(&text)?;
        }
        Err(why) => {
            say!("could not tell: {why}")?;
            return Ok(exit::UNKNOWN);
        }
    }
    Ok(exit::OK)
}

/// Takes the factor of each card from its self-test.
fn from_self_test(site: &Site, config: &Config, args: &Args, file: &Path) -> anyhow::Result<u8> {
    let found = self_test::cards(&self_test_lines::read(file)?, driver(&config.source.sysfs).as_ref());
    let (mut text, mut any) = (Lines::new(), false);
    for (uuid, card) in found {
        match card {
            Ok(card) => {
                any = true;
                let Card { model, activity_per_work, band, .. } = &card;
                put!(
                    text,
                    "{uuid} ({model}): NVML's clock is {activity_per_work:.3} times the counted one, within {:.1} %",
                    band * 100.0
                );
                if !args.no_save {
                    save(site, config, &uuid, card, &mut text);
                }
            }
            Err(why) => put!(text, "{uuid}: could not tell: {why}"),
        }
    }
    output::text(&text)?;
    Ok(if any { exit::OK } else { exit::UNKNOWN })
}

/// Stores the factor for this card. That it was not stored does not spoil the measurement: it is printed.
fn save(site: &Site, config: &Config, uuid: &str, card: Card, text: &mut Lines) {
    if !geteuid().is_root() {
        put!(text, "not stored: only root can store it");
        return;
    }
    if uuid.is_empty() {
        put!(text, "not stored: the GPU's UUID could not be read");
        return;
    }
    let card = Card { driver: driver(&config.source.sysfs), ..card };
    match keep_calibration(&site.places, uuid, card) {
        Ok(aside) => {
            put!(text, "stored for {uuid}: reports and metrics of later jobs use it");
            if let Some(aside) = aside {
                put!(text, "the earlier file could not be used; it is kept as {}", aside.display());
            }
        }
        Err(why) => put!(text, "not stored: {why}"),
    }
}

/// Version of the loaded driver.
fn driver(sysfs: &Path) -> Option<String> {
    let text = read::prefix(&sysfs.join("module/nvidia/version"), 64).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The running load program, and the work that it has reported.
struct Load {
    child: Child,
    said: Receiver<(Instant, f64)>,
    /// Cumulative work at each time, as bf16 FLOP: a tf32 FLOP occupies the pipe like two of them, an fp8 FLOP like
    /// half of one.
    done: Vec<(Instant, f64)>,
}

impl Load {
    fn start(words: &[String]) -> anyhow::Result<Self> {
        let (program, arguments) = words.split_first().context("no program")?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {program}"))?;
        let out = child.stdout.take().context("no output")?;
        let (tell, said) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(work) = work(&line)
                    && tell.send((Instant::now(), work)).is_err()
                {
                    break;
                }
            }
        });
        Ok(Load { child, said, done: Vec::new() })
    }

    /// Collects the reported work; returns `false` once the program has closed its output.
    fn listen(&mut self) -> bool {
        loop {
            match self.said.try_recv() {
                Ok((at, work)) => {
                    let before = self.done.last().map_or(0.0, |(_, done)| *done);
                    self.done.push((at, before + work));
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Parses a line of the load, for example `bf16 1.37e13`, to bf16 FLOP.
fn work(line: &str) -> Option<f64> {
    let (kind, flop) = line.trim().split_once(' ')?;
    let rate = match kind {
        "bf16" | "fp16" => 1.0,
        "tf32" => 0.5,
        "fp8" => 2.0,
        _ => return None,
    };
    let flop: f64 = flop.trim().parse().ok()?;
    (flop.is_finite() && flop >= 0.0).then_some(flop / rate)
}

/// End of a window, its length in seconds, and the tensor activity × clock in it, percent MHz: the total, and the
/// part with tensor kernels.
type Window = (Instant, f64, (f64, f64));

/// Measures windows of one second under load; the inner error gives the reason why there are none.
fn measure(
    library: &Path,
    args: &Args,
    load: &mut Load,
) -> anyhow::Result<Result<(WatchedGpu, Vec<Window>), String>> {
    let watch = GpuWatch {
        library: library.to_owned(),
        gpus: vec![GpuId::Index(args.gpu)],
        interval_s: 1.0,
        xids: false,
    };
    let mut stream = watch.start().map_err(anyhow::Error::msg)?;
    let (mut gpu, mut windows) = (None, Vec::new());
    let begun = Instant::now();
    loop {
        let goes_on = load.listen();
        let first = load.done.first().map(|(at, _)| *at);
        if !goes_on && first.is_none_or(|first| first.elapsed() < WARM + args.length) {
            return Ok(Err("the load ended before it was measured".to_owned()));
        }
        match stream.listen() {
            Said::Nothing => std::thread::sleep(Duration::from_millis(5)),
            Said::Ended(why) => return Ok(Err(why)),
            Said::This(what) => match serde_json::from_slice(&what).context("answer of the GPU reader")? {
                Watched::Gpus(gpus) => gpu = gpus.into_iter().next(),
                Watched::Sample(sample) => {
                    let work = sample.gpus.first().map_or(Reading::Unsupported, |gpu| {
                        let [all, slowed] = [GpuField::TensorWork, GpuField::TensorWorkSlowed]
                            .map(|field| gpu.get(field).clone());
                        all.zip(slowed)
                    });
                    let work = match work {
                        Reading::Known(work) => work,
                        Reading::Failed(why) => return Ok(Err(why)),
                        Reading::Unsupported => return Ok(Err("this GPU has no GPM".to_owned())),
                    };
                    if first.is_some_and(|first| first.elapsed() > WARM) {
                        windows.push((Instant::now(), sample.seconds, work));
                    }
                }
                // Not requested.
                Watched::Xids(_) | Watched::NoXids(_) => {}
            },
        }
        match first {
            Some(first) if first.elapsed() > WARM + args.length + Duration::from_secs(1) => break,
            None if begun.elapsed() > PATIENCE => {
                return Ok(Err("the load has not reported what it computed".to_owned()));
            }
            _ => {}
        }
    }
    load.listen();
    Ok(gpu.map(|gpu| (gpu, windows)).ok_or_else(|| "no GPU was read".to_owned()))
}

/// Result of the measurement.
#[derive(Debug, PartialEq)]
struct Calibrated {
    activity_per_work: f64,
    band: f64,
    tflops: f64,
    seconds: f64,
}

fn judged(windows: &[Window], model: &Model, done: &[(Instant, f64)]) -> Result<Calibrated, String> {
    // The last line of the load must come after the end of a window.
    let last = done.last().map(|(at, _)| *at).ok_or("no load")?;
    let inside: Vec<&Window> = windows.iter().filter(|(end, _, _)| *end < last).collect();
    // Converts bf16 work to percent MHz over the window's length.
    let pipe = |work: f64, length: f64| work / 100.0 / model.clock_mhz * length * model.bf16 * 1e12;
    // Time under load is counted too high by the ratio: the true value is `all - slowed × (1 - 1 / ratio)`.
    let ratio = |all: f64, slowed: f64, truth: f64| slowed / (slowed - (all - truth));
    let (mut ratios, mut sums, mut seconds) = (Vec::new(), (0.0, 0.0, 0.0), 0.0);
    for chunk in inside.chunks_exact(5) {
        let (Some((first, length, _)), Some((end, _, _))) = (chunk.first(), chunk.last()) else { continue };
        let start = first.checked_sub(Duration::try_from_secs_f64(*length).unwrap_or_default());
        let work = start.map_or(0.0, |start| at(done, *end) - at(done, start));
        if work <= 0.0 {
            return Err("the load reported no work for five seconds".to_owned());
        }
        let all: f64 = chunk.iter().map(|(_, length, (all, _))| pipe(*all, *length)).sum();
        let slowed: f64 = chunk.iter().map(|(_, length, (_, slowed))| pipe(*slowed, *length)).sum();
        ratios.push(ratio(all, slowed, work));
        sums = (sums.0 + all, sums.1 + slowed, sums.2 + work);
        seconds += chunk.iter().map(|(_, length, _)| length).sum::<f64>();
    }
    if ratios.len() < 2 {
        return Err("too few windows under load".to_owned());
    }
    let (all, slowed, truth) = sums;
    let mean = ratio(all, slowed, truth);
    if !(0.2..=5.0).contains(&mean) {
        return Err(format!(
            "activity × clock is {mean:.2} times the work: the load's FLOP count is wrong, or it uses another GPU"
        ));
    }
    let off = ratios.iter().map(|ratio| (ratio / mean - 1.0).abs()).fold(0.0, f64::max);
    // Data types and matrix sizes differ among themselves by about this much.
    let band = (off + 0.03) * 200.0;
    Ok(Calibrated {
        activity_per_work: (mean * 1000.0).round() / 1000.0,
        band: (band - 1e-6).ceil() / 200.0,
        tflops: truth / seconds / 1e12,
        seconds,
    })
}

/// Work done up to a moment, interpolated linearly.
fn at(done: &[(Instant, f64)], moment: Instant) -> f64 {
    let next = done.partition_point(|(at, _)| *at <= moment);
    match (next.checked_sub(1).and_then(|before| done.get(before)), done.get(next)) {
        (Some((t0, f0)), Some((t1, f1))) => {
            let (passed, whole) = (moment.duration_since(*t0), t1.duration_since(*t0));
            f0 + (f1 - f0) * (passed.as_secs_f64() / whole.as_secs_f64().max(1e-9))
        }
        (Some((_, done)), None) => *done,
        (None, _) => 0.0,
    }
}

impl Calibrated {
    fn text(&self, name: &str, model: &Model, problems: Vec<String>) -> Lines {
        let mut text = Lines::new();
        put!(
            text,
            "{name}: {:.1} TFLOP/s as bf16 over {:.0} s; activity × clock is {:.3} times that, within {:.1} %",
            self.tflops,
            self.seconds,
            self.activity_per_work,
            self.band * 100.0
        );
        match model.calibration {
            Some((factor, band, from)) => {
                put!(text, "in force before: {factor:.3} within {:.1} % ({from})", band * 100.0);
            }
            None => put!(text, "in force before: none"),
        }
        for why in problems {
            put!(text, "not in force: {why}");
        }
        text
    }

    /// The table for other GPUs of this model.
    fn table(&self, name: &str, text: &mut Lines) {
        put!(text, "# railgate.toml, for GPUs of this model that were not measured");
        put!(text, "[stats.models.{}]", toml_text(&toml::Value::from(name).to_string()));
        put!(text, "activity_per_work = {}", self.activity_per_work);
        put!(text, "band = {}", self.band);
    }

    /// What is stored, without the driver's version.
    fn card(&self, name: &str) -> Card {
        Card {
            model: name.to_owned(),
            activity_per_work: self.activity_per_work,
            band: self.band,
            driver: None,
            measured: now(),
            railgate: env!("CARGO_PKG_VERSION").to_owned(),
            by: "calibrate".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use railgate_node_report::usage::peaks::model;
    use railgate_runner::Places;
    use std::collections::BTreeMap;

    use super::*;

    /// What `save` prints, with the state directory at this place.
    fn saved(state: &Path, uuid: &str) -> String {
        let site = Site {
            places: Places { state: state.to_owned(), ..Places::default() },
            config_file: "/none".into(),
            config_required: false,
            node: "n1".to_owned(),
        };
        let result = Calibrated { activity_per_work: 1.1, band: 0.034, tflops: 640.0, seconds: 30.0 };
        let mut text = Lines::new();
        save(&site, &Config::default(), uuid, result.card("NVIDIA H200"), &mut text);
        text.to_string()
    }

    #[test]
    fn root_stores_the_factor_of_the_card_and_says_if_it_could_not() {
        let place = tempfile::tempdir().unwrap();
        let state = place.path().join("state");
        if !geteuid().is_root() {
            assert_eq!(saved(&state, "GPU-1"), "not stored: only root can store it\n");
            assert!(!state.exists());
            return;
        }
        assert!(saved(&state, "GPU-1").starts_with("stored for GPU-1: "));
        let places = Places { state: state.clone(), ..Places::default() };
        let (cards, _) = calibrated_cards(&places);
        let card = cards.get("GPU-1").unwrap();
        assert_eq!((card.activity_per_work, card.band, card.by.as_str()), (1.1, 0.034, "calibrate"));
        assert!(saved(&state, "").starts_with("not stored: the GPU's UUID"));
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(saved(&file, "GPU-1").starts_with("not stored: "), "{}", saved(&file, "GPU-1"));
    }

    #[test]
    fn lines_of_the_load_are_parsed() {
        assert_eq!(work("bf16 2e12"), Some(2e12));
        assert_eq!(work(" tf32 1e12\n"), Some(2e12));
        assert_eq!(work("fp8 4e12"), Some(2e12));
        for bad in ["", "bf16", "fp64 1e12", "bf16 -1", "bf16 nan", "step 3 loss 2.1"] {
            assert_eq!(work(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_factor_is_activity_divided_by_work() {
        let model = model("NVIDIA H200", &BTreeMap::new()).unwrap();
        let start = Instant::now();
        let second = |k: u32| start + Duration::from_secs(k.into());
        // Half of the peak's cycles, with 1/1.1 of the work that they would do.
        let done: Vec<_> = (0..40).map(|k| (second(k), f64::from(k) * 989.4e12 * 0.5 / 1.1)).collect();
        let windows: Vec<_> = (5..36).map(|k| (second(k), 1.0, (50.0 * 1830.0, 50.0 * 1830.0))).collect();
        let found = judged(&windows, &model, &done).unwrap();
        assert_eq!((found.activity_per_work, found.band, found.seconds), (1.1, 0.03, 30.0));
        let mut table = Lines::new();
        found.table("NVIDIA H200", &mut table);
        assert!(table.contains("activity_per_work = 1.1\nband = 0.03\n"));
        let text = found.text("NVIDIA H200", &model, vec!["a bad file".to_owned()]);
        assert!(text.contains("in force before: 1.103 within 3.0 % (built-in)\nnot in force: a bad file\n"));
        assert!(judged(&windows[..6], &model, &done).is_err());
        // Half of the activity is from time without tensor load, in which the clock is read correctly.
        let done: Vec<_> = done.iter().map(|(at, work)| (*at, work * 1.1 * (0.5 + 0.5 / 1.1))).collect();
        let windows: Vec<_> =
            windows.into_iter().map(|(at, s, (all, _))| (at, s, (all, all / 2.0))).collect();
        assert_eq!(judged(&windows, &model, &done).unwrap().activity_per_work, 1.1);
        let idle: Vec<_> = (0..40).map(|k| (second(k), 0.0)).collect();
        assert!(judged(&windows, &model, &idle).is_err());
    }
}
