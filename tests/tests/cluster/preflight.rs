//! `railgate preflight` in a job of four nodes, over TCP: all well, a node that sends slowly, and the GPU test where no driver is; and
//! `--railgate-gate=preflight`, which moves a job away from a slow node before its script starts.

use std::io::Write as _;
use std::time::Duration;

use anyhow::Result;
use railgate_tests::cluster::{Builder, CONTROLLER, Cluster};
use railgate_tests::{poll, skipped};

const MINUTE: Duration = Duration::from_secs(60);
/// Four nodes on two processors have no rate of their own. This one takes a hundredth of a processor, so that other work on the
/// machine does not slow a pair down.
const RATE: &str = "100mbit";
/// The rate of the measurements in docs/accuracy.md.
const NOISE_RATE: &str = "800mbit";

/// Limits what a node sends.
fn limit(cluster: &Cluster, node: &str, rate: &str) -> Result<()> {
    let words = [
        "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "1mb", "latency",
        "50ms",
    ];
    cluster.root().on(node).run(&words)?.ok()?;
    Ok(())
}

/// What the command prints in a job of all nodes, and its exit code.
fn preflight(cluster: &Cluster, options: &str) -> Result<String> {
    let script = format!("railgate preflight {options}; echo \"exit code $?\"");
    let id = cluster.alice().sbatch(&["-N4", "-o", "preflight.%j"], &script)?;
    cluster.wait_job(id, &["COMPLETED"], 4 * MINUTE)?;
    cluster.read(CONTROLLER, &format!("/home/rgalice/preflight.{id}"))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn nodes_test_each_other_before_the_first_step() -> Result<()> {
    Builder::new(4).test(|cluster| {
        let nodes = ["gn1", "gn2", "gn3", "gn4"];
        nodes.iter().try_for_each(|node| limit(cluster, node, RATE))?;
        let said = preflight(cluster, "--net tcp --gpus none")?;
        assert!(
            said.contains("RAILS    1 rail by TCP, one connection, 2 rounds: 4 of 4 tests measured; median "),
            "{said}"
        );
        assert!(said.contains("ANSWER   nothing is wrong with the nodes of this job"), "{said}");
        assert!(said.contains("exit code 0"), "{said}");

        limit(cluster, "gn2", "25mbit")?;
        let said = preflight(cluster, "--net tcp --gpus none")?;
        let bad = said.lines().find(|line| line.starts_with("BAD      rail 0 of gn2: ")).unwrap_or_default();
        assert!(bad.contains(" Mb/s to gn") && bad.contains(", where the median is "), "{said}");
        assert_eq!(said.matches("BAD ").count(), 1, "{said}");
        assert!(said.contains("--exclude=gn2; an admin: railgate check --full on gn2"), "{said}");
        assert!(said.contains("exit code 1"), "{said}");
        assert!(nodes.iter().all(|node| cluster.node(node).is_ok_and(|node| !node.drained())));

        limit(cluster, "gn2", RATE)?;
        let said = preflight(cluster, "--net tcp")?;
        let missing =
            "UNKNOWN  gn[1-4]: cannot start /usr/libexec/railgate/railgate-gpu-selftest: No such file";
        assert!(said.contains(missing) && said.contains("exit code 3"), "{said}");

        let outside = cluster.alice().run(&["railgate", "preflight"])?;
        assert_eq!(outside.code, 2);
        assert!(outside.both().contains("not inside a job: SLURM_JOB_ID is not set"), "{}", outside.both());
        Ok(())
    })
}

/// Stands in for the RDMA test of a pair: the nodes have simulated HCAs. On a node with this file rail 3 sends at a quarter of the rate.
const SLOW: &str = "/etc/slow-rail";
const PAIR: &str = r#"#!/bin/bash
rate=391.5
[ -e /etc/slow-rail ] && [ "$2" = mlx5_3 ] && rate=96.5
echo '{"device":"'$2'","peer_device":"'$2'","gbps":{"write_out":'$rate',"write_in":null,"read_out":'$rate',"read_in":null},"latency_us":{"median_out":2.1,"p99_out":4.5,"median_in":2.1,"p99_in":4.5},"wrong_words":{"out":0,"in":0},"first_wrong":{"out":null,"in":null},"error":null}'
"#;

/// Reads a job's output.
fn output(cluster: &Cluster, id: u32) -> Result<String> {
    cluster.read(CONTROLLER, &format!("/home/rgalice/gate.{id}"))
}

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn a_job_whose_preflight_names_a_node_starts_on_others() -> Result<()> {
    Builder::new(5).file("/usr/libexec/railgate/railgate-rdma-selftest", PAIR).test(|cluster| {
        let nodes = ["gn1", "gn2", "gn3", "gn4", "gn5"];
        let submit = |more: &[&str]| {
            let words = ["-o", "gate.%j", "--open-mode=append", "--railgate-gate=preflight"];
            cluster.alice().sbatch(&[&words, more].concat(), "echo \"script runs on $SLURM_JOB_NODELIST\"")
        };
        let healthy = submit(&["-N4", "--railgate-requeue=auto"])?;
        let job = cluster.wait_job(healthy, &["COMPLETED"], 4 * MINUTE)?;
        let said = output(cluster, healthy)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[1-4]", 0), "{said}");
        // No node of this cluster has the program for its GPUs.
        assert!(
            said.contains("railgate: preflight: a part could not be tested; the script starts"),
            "{said}"
        );
        assert!(said.contains("RAILS    8 rails by RDMA, 2 rounds: 32 of 32 tests measured"), "{said}");
        assert!(said.ends_with("script runs on gn[1-4]\n"), "{said}");

        cluster.write("gn2", SLOW, "")?;
        let without_consent = submit(&["-N4", "-w", "gn[1-4]", "--railgate-requeue=never", "--export=NONE"])?;
        cluster.wait_job(without_consent, &["FAILED"], 4 * MINUTE)?;
        let said = output(cluster, without_consent)?;
        assert!(said.contains("railgate: preflight: the script is not started on gn2. "), "{said}");
        assert!(!said.contains("script runs"), "{said}");

        let asked = "/var/lib/railgate/full-check-asked";
        poll::until(MINUTE, "a full check of gn2", || Ok(cluster.read("gn2", asked).ok()))?;
        assert!(cluster.read("gn1", asked).is_err());

        // A job without GPUs cannot run the check and leaves it.
        let cpu = cluster.alice().sbatch(&["-N1", "-w", "gn2", "-o", "/dev/null"], "true")?;
        cluster.wait_job(cpu, &["COMPLETED"], 4 * MINUTE)?;
        assert!(cluster.read("gn2", asked).is_ok());

        let moved = submit(&["-N4", "--gres=gpu:8", "--railgate-requeue=auto"])?;
        let job = cluster.wait_job(moved, &["COMPLETED"], 6 * MINUTE)?;
        let said = output(cluster, moved)?;
        assert_eq!((job.nodes(), job.restarts()), ("gn[1,3-5]", 1), "{said}");
        assert_eq!(said.matches("script runs").count(), 1, "{said}");
        assert!(said.contains("BAD      rail 3 of gn2: 96 Gb/s to gn"), "{said}");
        let report = cluster.alice().run(&["railgate", "report", &moved.to_string()])?.ok()?;
        assert!(report.contains("preflight on gn2; restart 1 of 3"), "{report}");
        // The prolog of that job took the check that was asked for, and no result of a user drains.
        assert!(cluster.read("gn2", "/var/lib/railgate/full-check-taken").is_ok());
        let report = cluster.alice().run(&["railgate", "report", &without_consent.to_string()])?.ok()?;
        assert!(report.contains("its own preflight named a node"), "{report}");
        assert!(!report.contains("first error") && !report.contains("hardware fault"), "{report}");

        // It could only start on the same node again.
        let required = submit(&["-N4", "-w", "gn2", "--railgate-requeue=auto"])?;
        cluster.wait_job(required, &["FAILED"], 4 * MINUTE)?;
        poll::until(MINUTE, "the decision about the job", || {
            let report = cluster.alice().run(&["railgate", "report", &required.to_string()])?.ok()?;
            let words: Vec<&str> = report.split_whitespace().collect();
            let left =
                "the job was not requeued: the job requires gn2 (--nodelist), which its preflight names";
            Ok(words.join(" ").contains(left).then_some(()))
        })?;
        assert!(nodes.iter().all(|node| cluster.node(node).is_ok_and(|node| !node.drained())));
        Ok(())
    })
}

/// Stands in for `all_reduce_perf` with MPI: the first task prints the table of all. On a node with the file the task fails.
const ALL_REDUCE: &str = r##"#!/bin/bash
[ -e /etc/fails ] && exit 3
[ "$SLURM_PROCID" = 0 ] || exit 0
gpus=${*: -1} rank=0
echo '# nccl-tests version 2.17.9 nccl-headers=22809 nccl-library=22809'
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    for ((device = 0; device < gpus; device++)); do
        echo "#  Rank  $rank Group  0 Pid 193812 on        $node device  $device [0000:61:00] NVIDIA H100"
        rank=$((rank + 1))
    done
done
echo '#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong '
echo '  1073741824     268435456     float     sum      -1  5456.40  196.79  381.28       0  5455.00  196.84  381.38       0'
"##;

const REFERENCE: &str =
    "[[stats.references]]\nop = 'AllReduce'\nranks = 32\nnodes = 4\nbytes = 1073741824\nbusbw_gb_s = 400.0\n";

#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn nccl_itself_runs_over_all_nodes_after_the_pairs() -> Result<()> {
    let program = "/opt/nccl-tests/all_reduce_perf";
    Builder::new(4).config(REFERENCE)?.file(program, ALL_REDUCE).test(|cluster| {
        ["gn1", "gn2", "gn3", "gn4"].iter().try_for_each(|node| limit(cluster, node, RATE))?;
        let run = || {
            let script = "PATH=/opt/nccl-tests:$PATH railgate preflight --net tcp --gpus none; echo \"exit code $?\"";
            let id = cluster.alice().sbatch(&["-N4", "--gres=gpu:8", "-o", "nccl.%j"], script)?;
            cluster.wait_job(id, &["COMPLETED"], 4 * MINUTE)?;
            cluster.read(CONTROLLER, &format!("/home/rgalice/nccl.{id}"))
        };
        let said = run()?;
        let line = "NCCL     all_reduce_perf, 1024 MiB, 32 ranks on 4 nodes: 381.28 GB/s bus bandwidth (NCCL 2.28.9); \
                    95 % of 400.00 GB/s, the site's reference";
        assert!(said.contains(line) && said.contains("exit code 0"), "{said}");
        cluster.write("gn3", "/etc/fails", "")?;
        let said = run()?;
        assert!(said.contains(&format!("UNKNOWN  {program}: srun: error: gn3: task 2: Exited with exit code 3")), "{said}");
        assert!(said.contains("ANSWER   nothing wrong was found, but a part was not tested"), "{said}");
        assert!(!said.contains("BAD ") && said.contains("exit code 3"), "{said}");
        Ok(())
    })
}

/// Bandwidths in Gb/s and latencies in µs of healthy pairs, each list of one preflight.
type Measured = (Vec<Vec<f64>>, Vec<Vec<f64>>);

/// Runs so many preflights over TCP and returns what they measured.
fn healthy(cluster: &Cluster, runs: usize) -> Result<Measured> {
    let script = format!(
        "for n in $(seq {runs}); do railgate preflight --net tcp --gpus none --nccl none --repeats 0 --format json; done; true"
    );
    let id = cluster.alice().sbatch(&["-N4", "-o", "noise.%j", "-e", "/dev/null"], &script)?;
    cluster.wait_job(id, &["COMPLETED"], 60 * MINUTE)?;
    let text = cluster.read(CONTROLLER, &format!("/home/rgalice/noise.{id}"))?;
    let mut all = Measured::default();
    for run in serde_json::Deserializer::from_str(&text).into_iter::<serde_json::Value>() {
        let run = run?;
        let rounds = run["rounds"].as_array().into_iter().flatten();
        let tests = || rounds.clone().flat_map(|round| round["tested"].as_array().into_iter().flatten());
        let measured = tests().map(|test| &test["outcome"]["measured"]);
        let numbers = |value: &serde_json::Value| {
            value.as_array().into_iter().flatten().filter_map(serde_json::Value::as_f64).collect::<Vec<_>>()
        };
        all.0.push(measured.clone().flat_map(|one| numbers(&one["gbps"])).collect());
        all.1.push(measured.filter_map(|one| one["latency_us"].as_f64()).collect());
    }
    Ok(all)
}

/// Shares of the values below which a measured value is printed, in 1,000.
const SHARES: [usize; 15] = [0, 1, 5, 10, 20, 50, 100, 250, 500, 750, 900, 950, 980, 990, 1000];

/// Prints the values as shares of the median of their own preflight, where the harness does not capture it.
fn print_spread(what: &str, runs: &[Vec<f64>]) -> Result<()> {
    let middle = |values: &[f64]| {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let medians: Vec<f64> = runs.iter().map(|run| middle(run)).collect();
    let mut shares: Vec<f64> = runs
        .iter()
        .zip(&medians)
        .flat_map(|(run, median)| run.iter().map(move |value| value / median))
        .collect();
    shares.sort_by(f64::total_cmp);
    let of: Vec<String> =
        SHARES.iter().map(|share| format!("{:.4}", shares[(shares.len() - 1) * share / 1000])).collect();
    let (count, median) = (shares.len(), middle(&medians));
    let text = format!(
        "{what}: {count} values, median of the medians {median:.4}; below which are 0, 0.1, 0.5, 1, 2, 5, 10, 25, 50, 75, 90, 95, 98, 99, 100 %: {}",
        of.join(", ")
    );
    Ok(writeln!(std::io::stderr(), "{text}")?)
}

/// The spread of healthy results, for docs/accuracy.md and the simulated allocations of crates/preflight.
#[test]
#[ignore = "needs root and Slurm: cargo xtask test"]
fn noise_of_healthy_pairs() -> Result<()> {
    let Some(runs) = std::env::var("RAILGATE_PREFLIGHT_NOISE").ok().and_then(|runs| runs.parse().ok()) else {
        return skipped("RAILGATE_PREFLIGHT_NOISE=60 measures");
    };
    Builder::new(4).test(|cluster| {
        for rate in [Some(NOISE_RATE), None] {
            for node in ["gn1", "gn2", "gn3", "gn4"] {
                match rate {
                    Some(rate) => limit(cluster, node, rate)?,
                    None => {
                        cluster.root().on(node).run(&["tc", "qdisc", "del", "dev", "eth0", "root"])?.ok()?;
                    }
                }
            }
            let (gbps, us) = healthy(cluster, runs)?;
            let limited =
                rate.map_or_else(|| "without a limit".to_owned(), |rate| format!("limited to {rate}"));
            print_spread(&format!("TCP {limited}, bandwidth, Gb/s"), &gbps)?;
            print_spread(&format!("TCP {limited}, latency, us"), &us)?;
        }
        Ok(())
    })
}
