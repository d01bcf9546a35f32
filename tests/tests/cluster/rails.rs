//! The NCCL environment in every kind of job, and the settings that were in effect.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use railgate_model::Part;
use railgate_tests::cluster::{Builder, Cluster};
use railgate_tests::poll;

use crate::training::{self, MINUTE, in_order, one_line};

/// Output of a task: node, the job's GPUs on it, list of ports, and the variable that the user sets in some steps.
const SHOW: &str = "echo ${SLURMD_NODENAME:-$(hostname)} ${NCCL_IB_HCA:-none} ${NCCL_SOCKET_IFNAME:-none} \
                    ${NCCL_RAS_ADDR:-none}";

/// Gives the node's HCAs names that no other node uses, in the same places.
fn rename_hcas(cluster: &Cluster, node: &str) -> Result<()> {
    cluster.hardware(node)?.change(|snapshot| {
        if let Part::Read { data, .. } = &mut snapshot.fabric {
            for hca in &mut data.hcas {
                hca.name = hca.name.replace("mlx5_", "rail");
            }
        }
    })
}

/// One line of [`SHOW`] for each task.
struct Shown {
    lines: Vec<Vec<String>>,
}

impl Shown {
    fn of(text: &str, tasks: usize) -> Result<Self> {
        let lines: Vec<Vec<String>> = text
            .lines()
            .filter(|line| line.starts_with("gn"))
            .map(|line| line.split_whitespace().map(str::to_owned).collect())
            .collect();
        ensure!(lines.len() == tasks, "{} tasks in:\n{text}", lines.len());
        Ok(Shown { lines })
    }

    /// The list of each node; all its tasks must agree.
    fn lists(&self) -> Result<BTreeMap<&str, Vec<String>>> {
        let mut lists: BTreeMap<&str, BTreeSet<&[String]>> = BTreeMap::new();
        for line in &self.lines {
            lists.entry(&line[0]).or_default().insert(&line[1..]);
        }
        lists
            .into_iter()
            .map(|(node, found)| {
                let [only] = found.iter().collect::<Vec<_>>()[..] else {
                    anyhow::bail!("{node}: its tasks differ: {found:?}");
                };
                let list = only[0].strip_prefix('=').with_context(|| format!("{node}: {}", only[0]))?;
                Ok((node, list.split(',').map(str::to_owned).collect()))
            })
            .collect()
    }
}

/// Ports of these GPUs' rails with the node's own names. On this machine type GPU and rail have the same number.
fn expected(
    all: &BTreeMap<String, Vec<String>>,
    node: &str,
    gpus: impl IntoIterator<Item = usize>,
) -> Vec<String> {
    gpus.into_iter().map(|gpu| all[node][gpu].clone()).collect()
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn every_kind_of_job_gets_the_rails_of_its_gpus() -> Result<()> {
    Builder::new(2).config("[rails]\nsocket_ifname = 'eth0'\n")?.test(|cluster| {
        rename_hcas(cluster, "gn2")?;
        let (alice, bob) = (cluster.alice(), cluster.bob());
        let show = ["bash", "-c", SHOW];

        // Whole nodes: one list for each node, and the k-th port is the same under each node's own name.
        let full = alice.srun(&[&["-N2", "--ntasks-per-node=4", "--gres=gpu:8"][..], &show].concat())?.ok()?;
        let full = Shown::of(&full, 8)?;
        let lists = full.lists()?;
        assert_eq!(lists.len(), 2);
        let all: BTreeMap<String, Vec<String>> =
            lists.into_iter().map(|(node, list)| (node.to_owned(), list)).collect();
        assert_eq!((all["gn1"].len(), all["gn2"].len()), (8, 8));
        let renamed: Vec<String> = all["gn1"].iter().map(|port| port.replace("mlx5_", "rail")).collect();
        assert_eq!(all["gn2"], renamed);

        // Half nodes, two jobs on each: every job gets the rails of its half, the same on both nodes.
        let script = format!("srun bash -c '{SHOW}' > half.$SLURM_JOB_ID; until [ -e go ]; do sleep 0.1; done");
        let words = ["-N2", "--ntasks-per-node=2", "--gres=gpu:4"];
        let halves = [(alice.sbatch(&words, &script)?, "rgalice"), (bob.sbatch(&words, &script)?, "rgbob")];
        let mut seen = BTreeSet::new();
        for (id, home) in halves {
            let text = poll::until(MINUTE, "both halves", || {
                let text = cluster.output(&format!("/home/{home}/half.{id}")).unwrap_or_default();
                Ok((text.lines().count() == 4).then_some(text))
            })?;
            let half = Shown::of(&text, 4)?;
            let lists = half.lists()?;
            let first = if lists["gn1"][0] == all["gn1"][0] { 0 } else { 4 };
            for node in ["gn1", "gn2"] {
                assert_eq!(lists[node], expected(&all, node, first..first + 4), "{text}");
            }
            seen.insert((first, half.lines[0][3].clone()));
        }
        // Their RAS ports differ as well.
        assert_eq!(seen.len(), 2);
        assert_eq!(seen.iter().map(|(_, ras)| ras).collect::<BTreeSet<_>>().len(), 2, "{seen:?}");
        for (_, home) in halves {
            cluster.write("ctl", &format!("/home/{home}/go"), "")?;
        }
        for (id, _) in halves {
            cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        }

        // An array whose tasks have one GPU each.
        let beside = "for n in 0 1 2; do until [ -e member.$n ]; do sleep 0.1; done; done";
        let script = format!(
            "touch member.$SLURM_ARRAY_TASK_ID; echo gpus $SLURM_JOB_GPUS; {SHOW}; srun bash -c '{SHOW}'; {beside}"
        );
        let id = alice.sbatch(&["--array=0-2", "--gres=gpu:1", "-w", "gn2", "-o", "array.%a"], &script)?;
        let mut used = BTreeSet::new();
        for member in 0..3 {
            cluster.wait_job(format!("{id}_{member}"), &["COMPLETED"], MINUTE)?;
            let text = cluster.output(&format!("/home/rgalice/array.{member}")).unwrap_or_default();
            let gpu: usize = text.trim_start_matches("gpus ").lines().next().unwrap_or_default().parse()?;
            let shown = Shown::of(&text, 2)?;
            assert_eq!(shown.lists()?["gn2"], expected(&all, "gn2", [gpu]), "{text}");
            used.insert(gpu);
        }
        assert_eq!(used.len(), 3, "{used:?}");

        // A step inside an allocation, and another one with a value set by the user.
        let inner = format!(
            "srun bash -c '{SHOW}'; \
             NCCL_IB_HCA=mlx5_7 NCCL_RAS_ADDR=localhost:7 srun -n2 --ntasks-per-node=1 bash -c '{SHOW}' | sed s/^/own:/"
        );
        let said = alice.salloc(&["-N2", "--ntasks-per-node=2", "--gres=gpu:2", "bash", "-c", &inner])?.ok()?;
        let shown = Shown::of(&said, 4)?;
        for node in ["gn1", "gn2"] {
            assert_eq!(shown.lists()?[node], expected(&all, node, 0..2), "{said}");
        }
        let own: Vec<&str> = said.lines().filter(|line| line.starts_with("own:")).collect();
        assert_eq!(own.len(), 2, "{said}");
        for line in own {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!((words[1], words[3]), ("mlx5_7", "localhost:7"), "{said}");
            assert_eq!(words[2], "=eth0", "{said}");
        }

        // GPUs bound to tasks: every task still gets the rails of all the job's GPUs on the node.
        let words = ["-N2", "-n4", "--ntasks-per-node=2", "--gpus-per-task=2", "--cpus-per-task=1"];
        let said = alice.srun(&[&words[..], &show].concat())?.ok()?;
        let shown = Shown::of(&said, 4)?;
        for node in ["gn1", "gn2"] {
            assert_eq!(shown.lists()?[node].len(), 4, "{said}");
            assert_eq!(shown.lists()?[node], expected(&all, node, 0..4), "{said}");
        }
        Ok(())
    })
}

/// Stand-in for a rank that has loaded NCCL: a small library under NCCL's name, preloaded.
const RANK: &str = "export LD_PRELOAD=/shared/libnccl.so.2; exec bash -c";

/// Provides the library for [`RANK`], and a device on each node.
fn stage(cluster: &Cluster) -> Result<()> {
    let library = "for lib in /lib/x86_64-linux-gnu/libutil.so.1 /lib/x86_64-linux-gnu/libdl.so.2 /lib64/libdl.so.2; \
                   do [ -e $lib ] && cp $lib /shared/libnccl.so.2 && exit 0; done; exit 1";
    cluster.root().run(&["sh", "-c", library])?.ok()?;
    for node in cluster.nodes() {
        let device =
            "mkdir -p /dev/infiniband && echo > /dev/infiniband/uverbs0 && chmod 666 /dev/infiniband/uverbs0";
        cluster.root().on(node).run(&["sh", "-c", device])?.ok()?;
    }
    Ok(())
}

/// Waits until the sampler has read the tasks this often with NCCL loaded; returns its file.
fn sampler_readings(cluster: &Cluster, node: &str, id: u32, looks: u64) -> Result<String> {
    let path = format!("/run/railgate/jobs/{id}/current/tasks.json");
    let mut first = None;
    poll::until(MINUTE, "readings of the sampler", || {
        let Ok(text) = cluster.root().on(node).run(&["cat", &path])?.ok() else { return Ok(None) };
        let tasks: serde_json::Value = serde_json::from_str(&text)?;
        let nccl =
            tasks["groups"].as_array().is_some_and(|groups| groups.iter().any(|group| group["nccl"] != 0));
        let Some(now) = tasks["looks"].as_u64().filter(|_| nccl) else { return Ok(None) };
        Ok((now + 1 >= *first.get_or_insert(now) + looks).then_some(text))
    })
}

fn samplers(cluster: &Cluster, node: &str) -> Result<Vec<String>> {
    training::samplers(cluster, node, None)
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn the_report_shows_effective_settings_and_nccls_transport() -> Result<()> {
    Builder::new(2).config("[stats]\ntask_look = '1s'\n")?.test(|cluster| {
        stage(cluster)?;
        let alice = cluster.alice();
        let report = |id: u32| -> Result<(String, serde_json::Value)> {
            let text = alice.run(&["railgate", "report", &id.to_string()])?.ok()?;
            let json = alice.run(&["railgate", "report", &id.to_string(), "--format", "json"])?.ok()?;
            Ok((one_line(&text), serde_json::from_str(&json)?))
        };
        let node = |json: &serde_json::Value, node: usize| json["attempts"][0]["nodes"][node].clone();

        // Ranks without a device, whose script overrides one variable.
        let script = format!(
            "export NCCL_SOCKET_IFNAME=eth9\n\
             srun bash -c 'export NCCL_IB_HCA=mlx5_77; unset NCCL_RAS_ADDR; {RANK} \"until [ -e go ]; do sleep 0.2; done\"'\n"
        );
        let id = alice.sbatch(&["-N2", "--gres=gpu:8"], &script)?;
        for name in ["gn1", "gn2"] {
            sampler_readings(cluster, name, id, 2)?;
            assert_eq!(samplers(cluster, name)?.len(), 1);
        }
        // slurmd restarts while the sampler keeps running. A killed sampler loses no data; a hung one delays no job.
        cluster.kill_slurmd("gn1")?;
        cluster.start_slurmd("gn1")?;
        let kept = samplers(cluster, "gn1")?;
        assert_eq!(kept.len(), 1);
        cluster.root().on("gn1").run(&["kill", "-9", &kept[0]])?.ok()?;
        cluster.root().on("gn2").run(&["kill", "-STOP", &samplers(cluster, "gn2")?[0]])?.ok()?;
        cluster.write("ctl", "/home/rgalice/go", "")?;
        cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        for name in ["gn1", "gn2"] {
            cluster.wait_node(name, "idle", MINUTE, |node| node.state() == "IDLE")?;
            assert_eq!(samplers(cluster, name)?, Vec::<String>::new());
            assert!(!cluster.node(name)?.drained());
        }
        let (text, json) = report(id)?;
        in_order(
            &text,
            &[
                "rails NCCL possibly ran over sockets, not over the rails, on gn1, gn2",
                "cause: NCCL_IB_HCA=mlx5_77 names no rail of this node",
                "in use (",
                "! NCCL_IB_HCA=mlx5_77 (set by the user; railgate wanted =mlx5_0:1",
                "! NCCL_RAS_ADDR=(not set) (unset by a script, or never set; railgate wanted localhost:",
                "NCCL_SOCKET_IFNAME=eth9 (set by the user",
            ],
        );
        for number in 0..2 {
            let part = node(&json, number);
            assert_eq!(part["transport"]["over"], "sockets", "{part:#}");
            let rows = part["applied"].as_array().context("rows")?;
            let by = |name: &str| rows.iter().find(|row| row["name"] == name).map(|row| row["by"].clone());
            assert_eq!(by("NCCL_SOCKET_IFNAME"), Some("user".into()), "{part:#}");
            assert_eq!(by("NCCL_IB_HCA"), Some("user".into()), "{part:#}");
        }
        cluster.root().run(&["rm", "/home/rgalice/go"])?.ok()?;

        // The same with an open device and the unchanged environment.
        let script = format!("srun bash -c '{RANK} \"exec 9</dev/infiniband/uverbs0; until [ -e go ]; do sleep 0.2; done\"'\n");
        let id = alice.sbatch(&["-N2", "--gres=gpu:8"], &script)?;
        for name in ["gn1", "gn2"] {
            sampler_readings(cluster, name, id, 2)?;
        }
        // The sampler ends also if the job is cancelled.
        cluster.root().run(&["scancel", &id.to_string()])?.ok()?;
        cluster.wait_job(id, &["CANCELLED"], MINUTE)?;
        for name in ["gn1", "gn2"] {
            cluster.wait_node(name, "idle", MINUTE, |node| node.state() == "IDLE")?;
            assert_eq!(samplers(cluster, name)?, Vec::<String>::new());
        }
        let (text, json) = report(id)?;
        assert!(!text.contains("over sockets"), "{text}");
        assert!(text.contains("NCCL ran over the rails: "), "{text}");
        let part = node(&json, 1);
        let rows = part["applied"].as_array().context("rows")?;
        assert!(!rows.is_empty() && rows.iter().all(|row| row["by"] == "railgate"), "{part:#}");
        Ok(())
    })
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn processes_that_hide_from_the_sampler_cause_no_harm() -> Result<()> {
    Builder::new(1).config("[stats]\ntask_look = '1s'\n")?.test(|cluster| {
        stage(cluster)?;
        // Values of ten thousand bytes, control characters, a stopped process, many processes.
        let script = format!(
            "export NCCL_DEBUG_SUBSYS=$(printf '%10000s' x | tr ' ' y) NCCL_ALGO=$(printf 'a\\033[2J\\nb')\n\
             for i in $(seq 200); do NCCL_NTHREADS=$i sleep 600 & done\n\
             sleep 600 & kill -STOP $!\n\
             bash -c '{RANK} \"until [ -e go ]; do sleep 0.2; done\"'\n"
        );
        let id = cluster.alice().sbatch(&["-N1", "--gres=gpu:8"], &script)?;
        let found = sampler_readings(cluster, "gn1", id, 2)?;
        assert!(found.len() < 1 << 20, "{}", found.len());
        let own = samplers(cluster, "gn1")?;
        let socket = format!("/run/railgate/jobs/{id}/current/sampler.sock");
        let attack = format!("! kill -9 {} && [ -S {socket} ] && ! [ -w {socket} ]", own[0]);
        cluster.alice().on("gn1").run(&["bash", "-c", &attack])?.ok()?;
        assert_eq!(samplers(cluster, "gn1")?, own);
        let status = cluster.root().on("gn1").run(&["cat", &format!("/proc/{}/status", own[0])])?.ok()?;
        // The capabilities setgid, setuid and kill. The one to trace is permitted, for the stacks of a hung job.
        in_order(
            &one_line(&status),
            &["CapPrm: 00000000000800e0", "CapEff: 00000000000000e0", "NoNewPrivs: 1"],
        );
        cluster.write("ctl", "/home/rgalice/go", "")?;
        cluster.wait_job(id, &["COMPLETED"], MINUTE)?;
        cluster.wait_node("gn1", "idle", MINUTE, |node| node.state() == "IDLE")?;
        let text = cluster.alice().run(&["railgate", "report", &id.to_string()])?.ok()?;
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
        assert!(one_line(&text).contains("NCCL_ALGO=a?[2J?b (set by the user"), "{text}");
        Ok(())
    })
}
