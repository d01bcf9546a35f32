//! `railgate preflight` with a program in the place of srun: what stays known if Slurm starts no more steps in the middle of a preflight.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Prints what the tasks of four healthy nodes print. `$STEP` names a kind of step, and what srun does from there on.
const SRUN: &str = r#"#!/bin/bash
case $RAILGATE_PREFLIGHT in
*gpus*) kind=gpus ;;
*devices*) kind=devices ;;
*pairs*) kind=pairs ;;
esac
case $STEP in
"gone after $kind") /bin/rm "$0" ;;
"busy in $kind")
    echo 'srun: error: Unable to create step for job 7: Requested nodes are busy' >&2
    exit 1
    ;;
"one silent in $kind") silent=gn3 ;;
esac
rail='{"device":"mlx5_0","peer_device":"mlx5_0","gbps":{"write_out":391.0},"latency_us":{"median_out":2.1},"wrong_words":{"out":0,"in":0},"first_wrong":{},"error":null}'
for node in gn1 gn2 gn3 gn4; do
    [ "$node" = "$silent" ] && continue
    values='{"right":{"compared":9}}'
    [ "$node $BAD" = 'gn2 gpu' ] && values='{"wrong":{"compared":9,"wrong":1,"first":[]}}'
    case $kind in
    gpus) echo '{"gpu":{"node":"'$node'","test":{"gpu":"0000:61:00.0","model":"H","test":"gemm-bf16","seconds":0.1,"values":'$values',"measured":{}}}}' ;;
    devices) echo '{"devices":{"node":"'$node'","devices":["mlx5_0"]}}' ;;
    pairs) echo '{"rail":{"node":"'$node'","rail":0,"outcome":'$rail'}}' ;;
    esac
done
exit 0
"#;

/// Exit code, the table, and the messages.
struct Printed {
    code: Option<i32>,
    table: String,
    messages: String,
}

fn program(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the command in a job of four nodes with these further variables.
fn preflight(words: &[&str], variables: &[(&str, &str)]) -> Printed {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("railgate.toml");
    std::fs::write(&config, "").unwrap();
    program(&dir.path().join("srun"), SRUN);
    let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
    command.arg("--config").arg(&config).arg("preflight").args(words);
    // This machine may have an srun of its own.
    command.env("PATH", dir.path());
    command.envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "gn[1-4]")]);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Printed { code: output.status.code(), table: text(output.stdout), messages: text(output.stderr) }
}

const GPUS: &str = "GPUS     4 GPUs, 4 tests that compare values: every value right\n";
const GONE: &str = "cannot start srun: No such file or directory (os error 2)";
const BUSY: &str = "srun: error: Unable to create step for job 7: Requested nodes are busy";
const ANSWER: &str = "ANSWER   nothing wrong was found, but a part was not tested\n";

#[test]
fn four_healthy_nodes() {
    let all = preflight(&[], &[]);
    let want = "job 7: 4 nodes\n\
                GPUS     4 GPUs, 4 tests that compare values: every value right\n\
                RAILS    1 rail by RDMA, 2 rounds: 4 of 4 tests measured; median 391.00 Gb/s in each direction, 2.1 µs\n\
                ANSWER   nothing is wrong with the nodes of this job, as far as these tests see\n";
    assert_eq!((all.code, all.table.as_str()), (Some(0), want), "{}", all.messages);
}

#[test]
fn what_is_known_stays_when_srun_starts_no_more_steps() {
    let rounds = "RAILS    1 rail by RDMA, 2 rounds: 2 of 2 tests measured; median 391.00 Gb/s in each direction, 2.1 µs\n";
    for (step, lines) in [
        (
            "gone after gpus",
            format!(
                "{GPUS}RAILS    not tested\nUNKNOWN  gn[1-4]: no result of the search for HCAs: {GONE}\n{ANSWER}"
            ),
        ),
        (
            "gone after pairs",
            format!("{GPUS}{rounds}UNKNOWN  gn[1-4]: no result of round 2: {GONE}\n{ANSWER}"),
        ),
        (
            "busy in devices",
            format!(
                "{GPUS}RAILS    not tested\nUNKNOWN  gn[1-4]: no result of the search for HCAs: {BUSY}\n{ANSWER}"
            ),
        ),
    ] {
        let printed = preflight(&[], &[("STEP", step)]);
        assert_eq!(printed.table, format!("job 7: 4 nodes\n{lines}"), "{step}: {}", printed.messages);
        assert_eq!(printed.code, Some(3), "{step}");
    }
    // Without a result of any GPU, and with those of the rails.
    let printed = preflight(&[], &[("STEP", "busy in gpus")]);
    let unknown = format!("UNKNOWN  gn[1-4]: no result of the test of the GPUs: {BUSY}\n{ANSWER}");
    assert!(
        printed.table.contains("4 of 4 tests measured") && printed.table.ends_with(&unknown),
        "{}",
        printed.table
    );
    assert!(printed.code == Some(3) && printed.messages.contains(BUSY), "{}", printed.messages);
}

#[test]
fn a_task_that_prints_nothing_is_named() {
    let printed = preflight(&[], &[("STEP", "one silent in gpus")]);
    let unknown =
        format!("UNKNOWN  gn3: no result of the test of the GPUs: its task printed no result\n{ANSWER}");
    assert!(printed.table.ends_with(&unknown) && printed.code == Some(3), "{}", printed.table);
}

#[test]
fn a_bad_gpu_is_named_although_the_rails_are_not_tested() {
    for (words, step) in
        [(&[][..], "gone after gpus"), (&["--net", "rdma"], "gone after gpus"), (&[], "gone after devices")]
    {
        let printed = preflight(words, &[("STEP", step), ("BAD", "gpu")]);
        let bad = "BAD      gn2 GPU 0000:61:00.0: gemm-bf16: 1 of 9 values wrong\n";
        assert!(printed.table.contains(bad) && printed.table.contains("--exclude=gn2"), "{}", printed.table);
        assert!(printed.table.contains("UNKNOWN  gn[1-4]: no result of "), "{}", printed.table);
        assert_eq!(printed.code, Some(1), "{}", printed.messages);
        // Before a batch script this result still counts.
        let before = preflight(&[words, &["--before-script"]].concat(), &[("STEP", step), ("BAD", "gpu")]);
        assert_eq!(before.code, Some(86), "{}", before.messages);
        assert!(before.messages.contains(GONE), "{}", before.messages);
    }
}
