//! `cargo xtask bench reports`: `railgate report` for a job of many nodes. The report of one node is recorded on the cluster, its
//! figures are extended to a day on eight GPUs, and the result is copied for each node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use railgate_node_report::application::{Course, RankApplication, StepTimes};
use railgate_node_report::comm::{Collective, Communicator, LastOp, NcclProcess, RankTime};
use railgate_node_report::usage::format::{End, Head, HeadGpu, HeadRail, Record};
use railgate_node_report::usage::{Field, GpuField, HostField, RailField, Sample, Value, Values};
use railgate_node_report::{Application, Communication, NodeReport};
use railgate_tests::cluster::Builder;

const NODES: [usize; 3] = [64, 256, 1024];
const JOB: u32 = 48_213;
const GPUS: u32 = 8;
const DAY: u64 = 24 * 3600;
const MINUTE: Duration = Duration::from_secs(60);
/// Maximum size of a sampler's file for a day. The file exists, but `railgate report` does not read it.
const SAMPLES: u64 = 4 << 20;
/// Limits of a report on two cores in any format: seconds and MB.
const GOAL: (f64, f64) = (5.0, 500.0);
const CORES: usize = 2;

pub(super) fn run(programs: &Path, count: u32) -> Result<()> {
    let recorded = recorded(programs)?;
    let place = tempfile::tempdir()?;
    println!("\n`railgate report` of a job of many nodes, 8 GPUs each, 24 h; load {}\n", load());
    println!(
        "| nodes | parts | text: median s | most s | most memory | JSON: median s | most s | most memory |\n\
         |---|---|---|---|---|---|---|---|"
    );
    let mut over = Vec::new();
    for nodes in NODES {
        let dir = place.path().join(nodes.to_string());
        let bytes = many(&recorded, nodes, &dir)?;
        let mut line = format!("| {nodes} | {:.0} MB |", bytes as f64 / 1e6);
        for format in ["text", "json"] {
            let runs = measured(programs, &dir, format, count.clamp(3, 9))?;
            let mut times: Vec<f64> = runs.iter().map(|run| run.0).collect();
            times.sort_by(f64::total_cmp);
            let megabytes = runs.iter().map(|run| run.1).fold(0.0, f64::max);
            let (seconds, slowest) = (times[times.len() / 2], times[times.len() - 1]);
            line += &format!(" {seconds:.2} | {slowest:.2} | {megabytes:.0} MB |");
            if seconds > GOAL.0 || megabytes > GOAL.1 {
                over.push(format!("{format} of {nodes} nodes: {seconds:.2} s, {megabytes:.0} MB"));
            }
        }
        println!("{line}");
        fs::remove_dir_all(&dir)?;
    }
    ensure!(
        over.is_empty(),
        "over the limit of {} s and {} MB: {} (load {}; times on a busy machine mean nothing)",
        GOAL.0,
        GOAL.1,
        over.join("; "),
        load()
    );
    Ok(())
}

/// Load average of the last minute.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("?").to_owned()
}

/// A node report that a real epilog wrote.
pub(super) fn recorded(programs: &Path) -> Result<NodeReport> {
    let cluster = Builder::new(1).programs(programs).start()?;
    let id = cluster.alice().sbatch(&["-N1", "--gres=gpu:8"], "srun hostname")?;
    cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
    cluster.wait_node("gn1", "idle", MINUTE, |node| node.state() == "IDLE")?;
    let found =
        cluster.root().run(&["sh", "-c", &format!("cat /shared/railgate/*/{id}/0/gn1.json")])?.ok()?;
    let mut report: NodeReport = serde_json::from_str(&found)?;
    ensure!(report.end.is_some() && report.gpus.len() == 8, "not a node report of an epilog: {found}");
    a_day(&mut report)?;
    Ok(report)
}

/// Extends a node report to a run of a day.
fn a_day(report: &mut NodeReport) -> Result<()> {
    let start = report.start;
    let end = start + DAY * 1000;
    report.end = Some(end);
    let mut head = Head::new(&report.node, report.job.id, report.attempt);
    (head.start, head.interval_s) = (start, 5.0);
    head.gpus = (0..GPUS)
        .map(|index| HeadGpu {
            index,
            uuid: format!("GPU-00000000-0000-0000-0000-00000000000{index}"),
            model: "NVIDIA H200".to_owned(),
            memory_total_mib: Some(143_771),
            ..HeadGpu::default()
        })
        .collect();
    head.rails =
        (0..8).map(|rail| HeadRail { hca: format!("mlx5_{rail}"), port: 1, rail: Some(rail) }).collect();
    let mut stream = Vec::new();
    let write = |record: Record, stream: &mut Vec<u8>| record.write(stream).map_err(anyhow::Error::msg);
    write(Record::Head(head), &mut stream)?;
    for minute in 0..DAY / 60 {
        let sample = Sample {
            start: start + minute * 60_000,
            seconds: 60.0,
            folded: 12,
            gpus: (0..GPUS).map(|gpu| noise::<GpuField>(minute, gpu)).collect(),
            rails: (0..8).map(|rail| noise::<RailField>(minute, rail)).collect(),
            host: noise::<HostField>(minute, 0),
            ..Sample::default()
        };
        write(Record::Sample(sample), &mut stream)?;
    }
    let last = End {
        at: end,
        cpu_s: 140.0,
        memory_mib: 21.0,
        oom_kills: Some(0),
        memory_peak_mib: Some(400_000),
        cpus_allowed: Some(96.0),
    };
    write(Record::End(last), &mut stream)?;
    report.add_usage(&[&stream], end, &Default::default());
    ensure!(report.usage.as_ref().is_some_and(|usage| usage.gpus.len() == 8), "no summary of the samples");
    report.communication = Some(communication(start, end));
    report.application = Some(application(start, end));
    Ok(())
}

/// Eight ranks in the communicators of a job with data, tensor and pipeline parallelism, with as many collective signatures as
/// such a job has.
fn communication(start: u64, end: u64) -> Communication {
    const KINDS: u32 = 96;
    let rank_time = |rank| RankTime { rank, calls: 2_810_000, timed: 168_600, gpu_s: 1_234.567_89 };
    Communication {
        processes: (0..u64::from(GPUS))
            .map(|rank| NcclProcess {
                pid: 100_000 + rank,
                start,
                nccl: Some("2.28.9".to_owned()),
                api: 5,
                plugin: env!("CARGO_PKG_VERSION").to_owned(),
                mode: Some("sample".to_owned()),
                duty: 16,
                ..NcclProcess::default()
            })
            .collect(),
        communicators: (0..GPUS * 6)
            .map(|number| Communicator {
                hash: format!("{:016x}", u64::from(number / GPUS).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                name: "data_parallel_group".to_owned(),
                size: 8192,
                rank: number % GPUS,
                nodes: 1024,
                pid: 100_000 + u64::from(number % GPUS),
                start,
                ops: 2_810_000,
                last: Some(LastOp {
                    op: "AllReduce".to_owned(),
                    seq: Some(2_809_999),
                    bytes: 1 << 30,
                    time: end,
                    time_is_earliest: false,
                }),
                timed_begun: 168_600,
                timed_done: 168_600,
                done_op: Some(2_809_990),
                done_time: Some(end),
                ..Communicator::default()
            })
            .collect(),
        collectives: (0..KINDS)
            .map(|kind| Collective {
                communicator: format!("{:016x}", u64::from(kind % 6).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
                size: 8192,
                nodes: 1024,
                op: "ReduceScatter".to_owned(),
                from_bytes: 1 << (kind % 30),
                datatype: "Bfloat16".to_owned(),
                algorithm: "RING".to_owned(),
                protocol: "SIMPLE".to_owned(),
                ranks: GPUS,
                calls: 22_480_000,
                bytes: 22_480_000 << (kind % 30),
                timed: 1_348_800,
                timed_bytes: 1_348_800 << (kind % 30),
                gpu_s: 9_876.543_21,
                min_s: Some(0.000_012_3),
                max_s: Some(0.123_456),
                busbw_gb_s: Some(338.12),
                error_percent: Some(1.73),
                by_rank: (0..GPUS).map(rank_time).collect(),
                ..Collective::default()
            })
            .collect(),
        ..Communication::default()
    }
}

fn application(start: u64, end: u64) -> Application {
    let times = StepTimes {
        count: 8800,
        total: 86_064.0,
        mean: 9.78,
        min: 9.6,
        max: 71.2,
        p50: 9.7,
        p90: 9.9,
        p99: 12.4,
    };
    let ranks = (0..GPUS).map(|rank| RankApplication {
        file: format!("{rank}.jsonl"),
        rank: Some(rank),
        local_rank: Some(rank),
        world: Some(8192),
        starts: 1,
        started: start,
        first_step: Some(start + 60_000),
        last_step: Some(end),
        last_seen: end,
        steps: 8801,
        step_s: Some(times),
        tokens: Some(3.7e10),
        timed_tokens: Some(3.69e10),
        last_number: Some(11_400),
        checkpoints: 22,
        checkpoint_s: 1180.5,
        input_s: Some(77.1),
        start_up_s: 61.2,
        course: Some(Course { start, span_s: 360.0, step_s: vec![Some(9.78); 240] }),
        ..RankApplication::default()
    });
    Application { ranks: ranks.collect(), ..Application::default() }
}

/// Numbers that compress as badly as measured ones.
fn noise<F: Field>(minute: u64, thing: u32) -> Values<F> {
    let mut values = Values::default();
    for (place, field) in F::ALL.iter().enumerate() {
        let mix = (minute * 2_654_435_761 + u64::from(thing) * 97 + place as u64 * 31) % 9973;
        let mean = 20.0 + mix as f32 / 173.0;
        values.set(*field, Some(Value { mean, min: mean * 0.7, max: mean * 1.2 }));
    }
    values
}

/// Writes a directory of reports; returns the size of all node reports in bytes.
fn many(recorded: &NodeReport, nodes: usize, dir: &Path) -> Result<u64> {
    let attempt = dir.join("bench").join(JOB.to_string()).join("0");
    fs::create_dir_all(&attempt)?;
    let mut bytes = 0;
    let mut report = recorded.clone();
    report.cluster = "bench".to_owned();
    report.attempt = 0;
    (report.job.id, report.job.restarts) = (JOB, 0);
    report.job.nodelist = format!("gn[0001-{nodes:04}]");
    for number in 1..=nodes {
        report.node = format!("gn{number:04}");
        let content = serde_json::to_vec(&report)?;
        bytes += content.len() as u64;
        fs::write(attempt.join(format!("{}.json", report.node)), content)?;
        fs::File::create(attempt.join(format!("{}.samples", report.node)))?.set_len(SAMPLES)?;
    }
    Ok(bytes)
}

/// Seconds and MB of each run; the memory is that of the program and its child together.
fn measured(programs: &Path, dir: &Path, format: &str, count: u32) -> Result<Vec<(f64, f64)>> {
    let config: PathBuf = dir.join("railgate.toml");
    // Slurm is not queried, since its response time is not part of the measurement.
    fs::write(&config, "[slurm]\nbin_dir = \"/nonexistent\"\n")?;
    let mut runs = Vec::new();
    for _ in 0..count {
        let start = Instant::now();
        let out = dir.join("out");
        let mut command = on_two_cores(&programs.join("railgate"));
        let mut child = command
            .args(["--config".as_ref(), config.as_os_str(), "report".as_ref(), JOB.to_string().as_ref()])
            .args(["--dir".as_ref(), dir.as_os_str(), "--format".as_ref(), format.as_ref()])
            .args(["--out".as_ref(), out.as_os_str()])
            .stdin(Stdio::null())
            .spawn()
            .context("railgate")?;
        let mut most = 0;
        let status = loop {
            most = most.max(resident_kib(child.id()));
            if let Some(status) = child.try_wait()? {
                break status;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let took = start.elapsed().as_secs_f64();
        if !status.success() {
            bail!("railgate report: {status}");
        }
        let said = fs::read_to_string(&out)?;
        ensure!(
            said.len() > 200 && !said.contains("left out"),
            "{}",
            said.chars().take(3000).collect::<String>()
        );
        runs.push((took, most as f64 / 1000.0));
    }
    Ok(runs)
}

/// Restricts the program to two cores, as the limit assumes.
fn on_two_cores(program: &Path) -> Command {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() <= CORES) {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", "0,1"]).arg(program);
    command
}

/// Resident memory of a process and its children, KiB.
fn resident_kib(pid: u32) -> u64 {
    let own = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let own =
        own.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse().ok());
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    own.unwrap_or(0) + children.map(resident_kib).sum::<u64>()
}
