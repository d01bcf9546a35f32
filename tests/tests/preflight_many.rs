//! `railgate preflight` in a job of 64 nodes with 8 rails each, on one machine: the command itself, a program in the place of srun that
//! starts 64 tasks, and programs in the place of the tests of GPUs and rails, which take the time that they take on real
//! nodes. One rail is slow, so that three rounds are needed.
//!
//! `cargo test -p railgate-tests --test preflight_many -- --ignored --nocapture`, as root, prints the figures of docs/performance.md. It changes
//! mounts in a namespace of its own only.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use railgate_tests::hardware::{Hardware, gpu_self_test};

const NODES: usize = 64;
/// Seconds of the GPU test: its limit for eight GPUs.
const GPU_S: &str = "10";
/// Seconds of a pair, all of its rails at once.
const PAIR_S: &str = "5";

/// Everything is mounted in a namespace of its own. Arguments: the folder of the programs, the one of the configuration, the command.
const NAMESPACE: &str = r#"
set -eu
[ "$(readlink /proc/self/ns/mnt)" != "$(readlink /proc/$PPID/ns/mnt)" ]
mount -t tmpfs programs /usr/libexec
mkdir -m 755 /usr/libexec/railgate
cp "$1"/railgate-* /usr/libexec/railgate/
mkdir "$2/up" "$2/work"
mount -t tmpfs up "$2/up"
mkdir "$2/up/etc" "$2/up/work"
mount -t overlay -o "lowerdir=/etc,upperdir=$2/up/etc,workdir=$2/up/work" overlay /etc
mkdir -p /etc/railgate
cp "$2/railgate.toml" /etc/railgate/railgate.toml
shift 2
exec "$@"
"#;

/// Starts a task for each node, all at once; with `--nodelist=n[2,17-18]` only on these.
const SRUN: &str = r#"#!/bin/bash
numbers=$(seq 1 NODES)
while [[ $1 == --* ]]; do
    case $1 in
    --nodes | --ntasks | --jobid) shift 2 ;;
    --nodelist=*)
        list=${1#--nodelist=n}
        list=${list//[][]/}
        numbers=
        for range in ${list//,/ }; do numbers+=" $(seq "${range%-*}" "${range#*-}")"; done
        shift
        ;;
    *) shift ;;
    esac
done
for number in $numbers; do
    SLURMD_NODENAME=n$number "$@" &
done
wait
"#;

/// Rail 3 of n17 sends at a quarter of the rate; the others have 391 Gb/s and some noise.
const RDMA_PROGRAM: &str = r#"#!/bin/bash
sleep SECONDS
rate=$((388 + RANDOM % 5)).$((RANDOM % 10))
[[ $SLURMD_NODENAME/$2 == n17/mlx5_3 ]] && rate=96.5
echo '{"device":"'$2'","peer_device":"'$2'","gbps":{"write_out":'$rate',"write_in":null,"read_out":'$rate',"read_in":null},
"latency_us":{"median_out":2.'$((RANDOM % 5))',"p99_out":4.5,"median_in":2.1,"p99_in":4.5},
"wrong_words":{"out":0,"in":0},"first_wrong":{"out":null,"in":null},"error":null}' | tr -d '\n'
echo
"#;

fn program(dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    Ok(std::fs::set_permissions(&path, Permissions::from_mode(0o755))?)
}

#[test]
#[ignore = "a measurement: needs root and a minute"]
fn preflight_of_64_nodes() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (programs, site) = (dir.path().join("programs"), dir.path().join("site"));
    std::fs::create_dir(&programs)?;
    std::fs::create_dir(&site)?;
    program(&programs, "srun", &SRUN.replace("NODES", &NODES.to_string()))?;
    program(&programs, "railgate-gpu-selftest", &gpu_self_test(GPU_S))?;
    program(&programs, "railgate-rdma-selftest", &RDMA_PROGRAM.replace("SECONDS", PAIR_S))?;
    let hardware = Hardware::create(&dir.path().join("node"), "h100-sxm", "n1")?;
    let config = format!("profile = \"h100-sxm\"\n{}", hardware.source(hardware.dir()));
    std::fs::write(site.join("railgate.toml"), config)?;
    let built = std::env::current_exe()?;
    let railgate = built.ancestors().nth(2).context("no target folder")?.join("railgate");
    ensure!(railgate.is_file(), "{} is not built (cargo build -p railgate-cli)", railgate.display());

    let began = Instant::now();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", NAMESPACE, "sh"])
        .args([&programs, &site, &railgate])
        .arg("preflight")
        .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", programs.display()))
        .env("SLURM_JOB_ID", "7")
        .env("SLURM_JOB_NODELIST", format!("n[1-{NODES}]"))
        .output()?;
    let took = began.elapsed();
    let text = String::from_utf8_lossy(&output.stdout);
    let largest = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
    print!("{text}{}", String::from_utf8_lossy(&output.stderr));
    println!(
        "{NODES} nodes with 8 GPUs and 8 rails: {:.1} s, GPU test of {GPU_S} s, pair of {PAIR_S} s; largest process {} MiB",
        took.as_secs_f64(),
        largest >> 10
    );
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("GPUS     512 GPUs, 3584 tests that compare values: every value right"));
    assert!(text.contains("RAILS    8 rails by RDMA, 3 rounds: "));
    let again = "AGAIN    slow pairs were measured again, and the best measurement counts: 2 times in round 1, 2 times in round 2\n";
    assert!(text.contains(again));
    assert!(text.contains("BAD      rail 3 of n17: 96") && text.matches("BAD ").count() == 1);
    assert!(!text.contains("UNKNOWN"));
    Ok(())
}
