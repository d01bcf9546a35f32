//! The process of one GPU.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use nvidia_ml::{Work, work};
use railgate_tests::cluster::HARDWARE;
use railgate_tests::hardware::move_bytes;
use railgate_tests::training::{self, Group, Kind, NCCL, NCCL_RELEASE, SAVE_AFTER, SAVE_S, STEPS};

use crate::number;
use crate::played::{Call, Comm, Launched, Nccl};
use crate::schedule::{Planned, about, members, of_step};

/// How long a reported load lasts if the process does not renew it.
const QUEUED: Duration = Duration::from_secs(3);
/// Channels of a large collective.
const CHANNELS: u8 = 16;

/// Place of this process in the job.
struct Me {
    rank: u32,
    world: u32,
    local: u32,
    per_node: u32,
    /// GPU index on the node, from the environment that Slurm sets.
    gpu: u32,
}

pub(crate) fn train() -> Result<()> {
    let (local, visible) = (number("LOCAL_RANK")?, std::env::var("CUDA_VISIBLE_DEVICES").ok());
    let listed = visible.as_deref().and_then(|list| list.split(',').nth(usize::try_from(local).ok()?));
    let me = Me {
        rank: number("RANK")?,
        world: number("WORLD_SIZE")?,
        local,
        per_node: number("LOCAL_WORLD_SIZE")?,
        gpu: listed.map_or(Ok(local), str::parse).context("CUDA_VISIBLE_DEVICES")?,
    };
    let mut said = Said::begin(&me)?;
    me.does(&training::at_rest(), QUEUED)?;
    let rail = Rail::of(&me)?;
    let nccl = match std::env::var_os("NCCL_PROFILER_PLUGIN") {
        Some(plugin) if plugin != "none" => Nccl::load(NCCL_RELEASE, Path::new(&plugin), Path::new(NCCL)),
        _ => None,
    };
    let comms = nccl.as_ref().map(|nccl| Comms::new(nccl, &me)).transpose()?;
    let step = training::step();
    let plan = of_step(me.per_node);
    let start = meet(&me)?;
    let save = Duration::from_secs_f64(SAVE_S);
    for number in 1..=STEPS {
        let saved = if number > SAVE_AFTER { save } else { Duration::ZERO };
        let begin = start + step * (number - 1) + saved;
        let until = start + if number > SAVE_AFTER { step * STEPS + save } else { step * SAVE_AFTER };
        wait_for(begin);
        me.does(&training::in_steps(me.per_node), QUEUED.min(until.saturating_sub(now())))?;
        let launched = comms.as_ref().map(|comms| comms.launch(&plan)).transpose()?;
        wait_for(begin + step);
        if let (Some(comms), Some(launched)) = (&comms, launched) {
            comms.ended(&me, number, begin, &plan, &launched)?;
        }
        rail.move_step(&plan, &me)?;
        let end = begin + step;
        said.line(&format!(
            "input seconds=0.003\nstep n={number} tokens={} t={}",
            training::SEQUENCE,
            at(end)
        ))?;
        if number == SAVE_AFTER {
            me.does(&training::at_rest(), QUEUED)?;
            said.line(&format!("checkpoint begin t={}", at(end)))?;
            checkpoint(&me, number)?;
            wait_for(end + save);
            said.line(&format!("checkpoint end t={}", at(end + save)))?;
        }
        if me.rank == 0 && number % (STEPS / 4) == 0 {
            println!("step {number} of {STEPS}");
        }
    }
    comms.iter().flat_map(|comms| &comms.all).for_each(|(_, comm)| comm.finalize());
    said.line(&format!("end t={}", at(now())))?;
    me.does(&training::at_rest(), Duration::ZERO)
}

impl Me {
    fn does(&self, what: &Work, how_long: Duration) -> Result<()> {
        work(Path::new(HARDWARE), self.gpu, what, how_long).context("the simulated GPU")
    }
}

/// Time since the epoch.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn wait_for(moment: Duration) {
    sleep(moment.saturating_sub(now()));
}

/// Seconds as the lines of an application report have them.
fn at(moment: Duration) -> String {
    format!("{:.6}", moment.as_secs_f64())
}

/// Waits for all ranks, as making communicators does. Returns the time at which the first step begins.
fn meet(me: &Me) -> Result<Duration> {
    let attempt = std::env::var("SLURM_RESTART_COUNT").unwrap_or_else(|_| "0".to_owned());
    let place = PathBuf::from(format!("/shared/.training-{}-{attempt}", number("SLURM_JOB_ID")?));
    fs::create_dir_all(&place)?;
    fs::write(place.join(me.rank.to_string()), "")?;
    let start = place.join("start");
    let deadline = now() + Duration::from_secs(120);
    while now() < deadline {
        if me.rank == 0 && (0..me.world).all(|rank| place.join(rank.to_string()).exists()) {
            let first = now() + Duration::from_millis(300);
            fs::write(place.join("first"), first.as_nanos().to_string())?;
            fs::rename(place.join("first"), &start)?;
        }
        if let Ok(text) = fs::read_to_string(&start) {
            return Ok(Duration::from_nanos(text.parse()?));
        }
        sleep(Duration::from_millis(20));
    }
    bail!("the other ranks did not start")
}

fn checkpoint(me: &Me, number: u32) -> Result<()> {
    let Some(folder) = std::env::var_os("CHECKPOINTS").filter(|_| me.rank == 0) else { return Ok(()) };
    fs::create_dir_all(&folder)?;
    Ok(fs::write(Path::new(&folder).join(format!("step-{number:06}.ckpt")), "")?)
}

/// The application report of this program (docs/application-reports.md).
struct Said(Option<File>);

impl Said {
    fn begin(me: &Me) -> Result<Self> {
        let Some(dir) = std::env::var_os("RAILGATE_JOB_DIR") else { return Ok(Said(None)) };
        let dir = Path::new(&dir).join("user/app");
        fs::create_dir_all(&dir)?;
        let file = File::options().create(true).append(true).open(dir.join(format!("lines.{}", me.rank)))?;
        let mut said = Said(Some(file));
        said.line(&format!(
            "railgate-app 1 rank={} world={} local_rank={} t={}",
            me.rank,
            me.world,
            me.local,
            at(now())
        ))?;
        said.line(&format!(
            "model convention=palm dtype=bf16 params={} layers={} heads={} head_dim={} seq_len={}",
            training::PARAMETERS,
            training::LAYERS,
            training::HEADS,
            training::HEAD_DIM,
            training::SEQUENCE
        ))?;
        Ok(said)
    }

    fn line(&mut self, line: &str) -> Result<()> {
        let Said(Some(file)) = self else { return Ok(()) };
        file.write_all(format!("{line}\n").as_bytes()).context("the application report")
    }
}

/// The port that carries this rank's data between nodes: the port at the GPU's position in NCCL's list.
struct Rail {
    port: Option<(String, u32)>,
    /// Kept open, as NCCL does.
    _device: Option<File>,
}

impl Rail {
    fn of(me: &Me) -> Result<Self> {
        let list = std::env::var("NCCL_IB_HCA").unwrap_or_default();
        let place = usize::try_from(me.gpu)?;
        let entry =
            list.trim_start_matches('=').split(',').nth(place).and_then(|entry| entry.split_once(':'));
        let port =
            entry.map(|(hca, port)| Ok::<_, anyhow::Error>((hca.to_owned(), port.parse()?))).transpose()?;
        let open = || File::open(format!("/dev/infiniband/uverbs{place}")).context("the RDMA device");
        let device = port.is_some().then(open).transpose()?;
        Ok(Rail { port, _device: device })
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of a step")]
    fn move_step(&self, plan: &[Planned], me: &Me) -> Result<()> {
        let Some((hca, port)) = &self.port else { return Ok(()) };
        let between = plan.iter().filter(|planned| planned.kind.group == Group::Rail);
        let nodes = me.world / me.per_node;
        let bytes: f64 = between.map(|planned| planned.kind.wire_bytes(nodes)).sum();
        move_bytes(Path::new(HARDWARE), hca, *port, bytes as u64).with_context(|| format!("{hca}:{port}"))
    }
}

/// The communicators of this rank.
struct Comms<'n> {
    per_node: u32,
    all: Vec<(Group, Comm<'n>)>,
}

impl<'n> Comms<'n> {
    fn new(nccl: &'n Nccl, me: &Me) -> Result<Self> {
        let nodes = me.world / me.per_node;
        let job = u64::from(number("SLURM_JOB_ID")?);
        let groups: [(Group, &CStr, u32); 3] =
            [(Group::World, c"world", nodes), (Group::Node, c"shard", 1), (Group::Rail, c"replicate", nodes)];
        let mut all = Vec::new();
        for (kind, (group, name, of_nodes)) in (1_u64..).zip(groups) {
            let (ranks, own, which) = members(group, me.rank, me.world, me.per_node);
            let hash = job << 32 | kind << 16 | u64::from(which);
            let (of_nodes, ranks) = (i32::try_from(of_nodes)?, i32::try_from(ranks)?);
            all.push((group, nccl.communicator_of(name, hash, of_nodes, ranks, i32::try_from(own)?)));
        }
        Ok(Comms { per_node: me.per_node, all })
    }

    fn of(&self, group: Group) -> Result<&Comm<'n>> {
        let found = self.all.iter().find(|(of, _)| *of == group);
        found.map(|(_, comm)| comm).context("no such communicator")
    }

    /// Enqueues all collectives of a step, ahead of the GPU.
    fn launch(&self, plan: &[Planned]) -> Result<Vec<Launched>> {
        plan.iter().map(|one| Ok(self.of(one.kind.group)?.launch(call(&one.kind, self.per_node)?))).collect()
    }

    /// Reports the ends of the collectives, as the GPU would.
    fn ended(&self, me: &Me, step: u32, begin: Duration, plan: &[Planned], all: &[Launched]) -> Result<()> {
        // The ranks of a node begin a collective in turn, within 1 % of its duration, and end it together.
        let part = (f64::from(me.local) + 0.5) / f64::from(me.per_node);
        let own = 1.0 + 0.02 * (part - 0.5);
        for ((place, planned), launched) in (0..).zip(plan).zip(all) {
            let (ranks, ..) = members(planned.kind.group, me.rank, me.world, me.per_node);
            let took = about(own * planned.kind.seconds(ranks), [me.rank, step, place]);
            let from = begin + Duration::from_secs_f64(planned.at_s);
            let to = from + Duration::from_secs_f64(took);
            let nanos = |moment: Duration| u64::try_from(moment.as_nanos());
            self.of(planned.kind.group)?.gpu(*launched, nanos(from)?, nanos(to)?);
        }
        Ok(())
    }
}

/// The call as NCCL's descriptor counts it: an all-gather in bytes of one rank, all others in elements.
fn call(kind: &Kind, per_node: u32) -> Result<Call> {
    let bytes = usize::try_from(kind.bytes)?;
    let ranks = usize::try_from(per_node)?;
    let (func, datatype, count) = match (kind.op, kind.group) {
        ("AllGather", _) => (c"AllGather", c"ncclInt8", bytes / ranks),
        ("ReduceScatter", _) => (c"ReduceScatter", c"ncclBfloat16", bytes / ranks / 2),
        (_, Group::World) => (c"AllReduce", c"ncclFloat32", bytes / 4),
        _ => (c"AllReduce", c"ncclBfloat16", bytes / 2),
    };
    let channels = if kind.group == Group::World { 1 } else { CHANNELS };
    Ok(Call { func, datatype, algorithm: c"RING", count, channels })
}
