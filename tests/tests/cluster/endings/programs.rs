//! Programs and scripts that end without intervention.

use anyhow::Result;

use railgate_tests::cluster::memory_kill;

use super::row::{CPU, Ending, GPU, How, Stage, When};

const APPLICATION: &str = "looks like the application";
const MEMORY: &str = "out of memory";

const OF_PROGRAMS: [(&str, &str); 9] = [
    ("program TERM", "TERM"),
    ("program INT", "INT"),
    ("program HUP", "HUP"),
    ("program KILL", "KILL"),
    ("program SEGV", "SEGV"),
    ("program ABRT", "ABRT"),
    ("program BUS", "BUS"),
    ("program FPE", "FPE"),
    ("program PIPE", "PIPE"),
];
const OF_SCRIPTS: [(&str, &str); 9] = [
    ("script TERM", "TERM"),
    ("script INT", "INT"),
    ("script HUP", "HUP"),
    ("script KILL", "KILL"),
    ("script SEGV", "SEGV"),
    ("script ABRT", "ABRT"),
    ("script BUS", "BUS"),
    ("script FPE", "FPE"),
    ("script PIPE", "PIPE"),
];
const CODES: [(&str, &str); 6] = [
    ("exit 1", "exit 1"),
    ("exit 2", "exit 2"),
    ("exit 126", "./marks"),
    ("exit 127", "no-such-program"),
    ("exit 139", "bash -c 'kill -SEGV $$'; exit $?"),
    ("exit 255", "exit 255"),
];

const CUDA: &str = "\
echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB'
exit 1";

pub(super) fn endings() -> Vec<Ending> {
    let mut all = vec![
        Ending::batch("success", GPU, "srun true", "completed"),
        Ending::batch("success without GPUs", CPU, "srun true", "completed"),
        Ending::batch("success without a step", GPU, "true", "completed"),
        Ending::batch("failed step", GPU, "srun false\ntrue", "completed"),
        Ending::batch("failed step without GPUs", CPU, "srun false\ntrue", "completed"),
        Ending::batch("killed step", GPU, "srun bash -c 'kill -KILL $$' || exit 3", APPLICATION),
        Ending::batch("cuda memory", GPU, CUDA, APPLICATION),
        Ending::batch("memory by the kernel", GPU, "go; exit 137", MEMORY)
            .when(When::Began(0), |stage| kernel_kills(stage, "step_batch")),
        Ending::batch("memory of a step by the kernel", CPU, "srun bash -c 'exit 137' & go; wait $!", MEMORY)
            .when(When::Began(0), |stage| kernel_kills(stage, "step_0")),
    ];
    // GPU and CPU nodes alternately.
    let mut turn = [GPU, CPU].into_iter().cycle();
    for (name, signal) in OF_PROGRAMS {
        let script = format!("srun bash -c 'kill -{signal} $$'");
        all.push(Ending::batch(name, turn.next().unwrap_or(GPU), &script, APPLICATION));
    }
    for (name, signal) in OF_SCRIPTS {
        let script = format!("kill -{signal} $$; sleep 60");
        all.push(Ending::batch(name, turn.next().unwrap_or(GPU), &script, APPLICATION));
    }
    for (name, script) in CODES {
        all.push(Ending::batch(name, turn.next().unwrap_or(GPU), script, APPLICATION));
    }
    all.extend(array());
    all.extend(by_hand());
    all.extend(het());
    all
}

/// Real out-of-memory kills, on machines with memory control groups. The test copies the kernel's messages to the log that the
/// node reads.
pub(super) fn memory() -> Vec<Ending> {
    let hungry = "head -c 150000000 /dev/zero | tail > /dev/null";
    let script = format!("{hungry}; go; exit 1");
    let step = format!("srun bash -c 'set -o pipefail; {hungry}'; go; exit 1");
    let job = |name, words, script: &str| {
        Ending::batch(name, words, script, MEMORY).with(&["--mem=40"]).when(When::Began(0), kernel_killed)
    };
    vec![
        job("memory of the script", GPU, &script),
        job("memory of a step", GPU, &step),
        job("memory of a step without GPUs", CPU, &step),
    ]
}

/// Copies the messages about a killed process of the job from this machine's kernel log to the node's.
fn kernel_killed(stage: &Stage<'_>) -> Result<()> {
    let node = stage.cluster.job(stage.name)?.field("BatchHost").to_owned();
    let mut hardware = stage.cluster.hardware(&node)?;
    for line in memory_kill(&node, stage.job)? {
        hardware.log_kernel_line(&line)?;
    }
    drop(hardware);
    stage.go()
}

/// Tasks of one array, each with a different ending.
fn array() -> [Ending; 4] {
    let script = "case $SLURM_ARRAY_TASK_ID in 1) exit 0 ;; 2) exit 9 ;; *) go ;; esac";
    let words = [GPU, &["--array=1-4"]].concat();
    let task = |name, number, says| Ending::batch(name, &words, script, says).how(How::Task(number));
    [
        task("sweep, task succeeds", 1, "completed"),
        task("sweep, task fails", 2, APPLICATION),
        task("sweep, task cancelled", 3, "cancelled").when(When::Began(0), |stage| stage.owner(&["scancel"])),
        task("sweep, task out of time", 4, "ran into its time limit")
            .when(When::Began(0), |stage| stage.update("EndTime=now+1")),
    ]
}

/// Jobs of srun and salloc, without a batch script.
fn by_hand() -> [Ending; 6] {
    let srun = |name, script, says| Ending::batch(name, GPU, script, says).how(How::Srun);
    let salloc = |name, script, says| Ending::batch(name, CPU, script, says).how(How::Salloc);
    [
        srun("srun succeeds", "true", "completed"),
        srun("srun fails", "exit 3", APPLICATION),
        srun("srun SEGV", "kill -SEGV $$", APPLICATION),
        salloc("salloc succeeds", "srun true", "completed"),
        salloc("salloc fails", "srun false", APPLICATION),
        salloc("salloc cancelled", "mark began; sleep 120", "cancelled")
            .when(When::Began(0), |stage| stage.owner(&["scancel"])),
    ]
}

fn het() -> [Ending; 2] {
    let words = ["-p", "gpu", "--gres=gpu:1", ":", "-p", "cpu"];
    [
        Ending::batch("het succeeds", &words, "srun true", "completed"),
        Ending::batch("het fails", &words, "srun true; exit 4", APPLICATION),
    ]
}

/// Writes the kernel's messages about a process of the job that was killed for its memory.
fn kernel_kills(stage: &Stage<'_>, step: &str) -> Result<()> {
    let node = stage.cluster.job(stage.name)?.field("BatchHost").to_owned();
    let path = format!("/slurm_{node}/uid_5001/job_{}", stage.job);
    let mut hardware = stage.cluster.hardware(&node)?;
    hardware.log_kernel_line(&format!(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={path},\
         task_memcg={path}/{step},task=python,pid=4711,uid=5001"
    ))?;
    hardware.log_kernel_line(
        "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:9kB, file-rss:0kB, \
         shmem-rss:0kB, UID:5001 pgtables:4kB oom_score_adj:0",
    )?;
    drop(hardware);
    stage.go()
}
