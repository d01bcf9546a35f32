//! `railgate preflight` with a program in the place of srun: what stays known if Slurm starts no more steps in the middle of a preflight.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Stands in for `all_reduce_perf` on four nodes with two GPUs each. `$NCCL` names what it does.
const ALL_REDUCE: &str = r##"#!/bin/bash
[ "$*" = '-b 1073741824 -e 1073741824 -w 2 -n 10 -g 2' ] || exit 9
echo '# nccl-tests version 2.17.9 nccl-headers=22809 nccl-library=22809'
rank=0
for node in gn1 gn2 gn3 gn4; do
    [ "$NCCL" = alone ] && rank=0
    if [ "$NCCL $node" = 'cut gn2' ]; then
        echo 'srun: error: gn3: task 2: Exited with exit code 3' >&2
        exit 3
    fi
    for device in 0 1; do
        echo "#  Rank  $rank Group  0 Pid 193812 on        $node device  $device [0000:61:00] NVIDIA H200"
        rank=$((rank + 1))
    done
done
if [ "$NCCL" = fails ]; then
    echo "gn3: Test NCCL failure common.cu:1005 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '"
    exit 3
fi
wrong=0
[ "$NCCL" = wrong ] && wrong=12
echo '#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong '
echo "  1073741824     268435456     float     sum      -1  39041.0   27.50   48.13       0  38994.1   27.54   48.19       $wrong"
[ "$wrong" = 0 ] || exit 1
"##;

/// Prints what the tasks of four healthy nodes print. `$STEP` names a kind of step, and what srun does from there on. `$SLOW` are the numbers
/// of the steps in which pairs are tested and gn2 sends at a quarter of the rate, `$REPEATS` those
/// of the steps that are repeats.
const SRUN: &str = r#"#!/bin/bash
for word; do
    case $word in
    */all_reduce_perf)
        [[ $* = *--kill-on-bad-exit=1* && $* = *--ntasks\ 4* ]] || exit 9
        [ -z "$RAILGATE_PREFLIGHT$RAILGATE_PAIR_KEY" ] || exit 9
        shift $(($# - 10))
        exec "$word" "$@"
        ;;
    esac
done
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
rail_of() {
    local rate=391.0
    [[ $1 = gn2 && " $SLOW " = *" $count "* ]] && rate=96.5
    echo '{"device":"mlx5_0","peer_device":"mlx5_0","gbps":{"write_out":'$rate'},"latency_us":{"median_out":2.1},"wrong_words":{"out":0,"in":0},"first_wrong":{},"error":null}'
}
if [ "$kind" = pairs ]; then
    count=0
    [ -e "$0.count" ] && read -r count <"$0.count"
    count=$((count + 1))
    echo "$count" >"$0.count"
    # A repeat starts tasks only on the nodes of its pairs.
    if [[ " $REPEATS " = *" $count "* ]]; then
        [[ $* = *'--nodes 2 --ntasks 2'*--nodelist=gn[[]* ]] || exit 9
    else
        [[ $* = *'--nodes 4 --ntasks 4'* && $* != *--nodelist* ]] || exit 9
    fi
fi
for node in gn1 gn2 gn3 gn4; do
    [ "$node" = "$silent" ] && continue
    # Tasks of nodes that are in no pair print nothing.
    [[ $kind = pairs && $RAILGATE_PREFLIGHT != *"\"$node\""* ]] && continue
    values='{"right":{"compared":9}}'
    [ "$node $BAD" = 'gn2 gpu' ] && values='{"wrong":{"compared":9,"wrong":1,"first":[]}}'
    case $kind in
    gpus) echo '{"gpu":{"node":"'$node'","test":{"gpu":"0000:61:00.0","model":"H","test":"gemm-bf16","seconds":0.1,"values":'$values',"measured":{}}}}' ;;
    devices) echo '{"devices":{"node":"'$node'","devices":["mlx5_0"]}}' ;;
    pairs) echo '{"rail":{"node":"'$node'","rail":0,"outcome":'$(rail_of "$node")'}}' ;;
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
    with_config("", words, variables)
}

/// As [`preflight`], with this configuration. If `$NCCL` is set, `all_reduce_perf` is in PATH.
fn with_config(config: &str, words: &[&str], variables: &[(&str, &str)]) -> Printed {
    let dir = tempfile::tempdir().unwrap();
    let text = config.replace("DIR", &dir.path().display().to_string());
    let config = dir.path().join("railgate.toml");
    std::fs::write(&config, text).unwrap();
    if variables.iter().any(|(name, _)| *name == "NCCL") {
        program(&dir.path().join("all_reduce_perf"), ALL_REDUCE);
    }
    program(&dir.path().join("srun"), SRUN);
    let mut command = Command::new(env!("CARGO_BIN_EXE_railgate"));
    command.arg("--config").arg(&config).arg("preflight").args(words);
    // This machine may have an srun of its own.
    command.env("PATH", dir.path());
    command.envs([("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "gn[1-4]"), ("SLURM_GPUS_ON_NODE", "2")]);
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
                RAILS    1 rail by RDMA, 2 rounds: 4 of 4 tests measured; median 391 Gb/s in each direction, 2.1 µs\n\
                NCCL     not run: no all_reduce_perf in PATH (--nccl PATH or selftest.all_reduce_perf names one)\n\
                ANSWER   nothing is wrong with the nodes of this job, as far as these tests see\n";
    assert_eq!((all.code, all.table.as_str()), (Some(0), want), "{}", all.messages);
}

const AGAIN: &str = "AGAIN    slow pairs were measured again, and the best measurement counts: ";

/// The `RAILS` line of so many rounds of four nodes with one rail, and so many tests.
fn rails(rounds: usize, tests: usize) -> String {
    format!(
        "RAILS    1 rail by RDMA, {rounds} rounds: {tests} of {tests} tests measured; median 391 Gb/s in each direction, 2.1 µs\n"
    )
}

#[test]
fn a_slow_pair_is_measured_again_in_the_same_round() {
    let all = preflight(&["--nccl", "none"], &[("SLOW", "1"), ("REPEATS", "2")]);
    let answer = "ANSWER   nothing is wrong with the nodes of this job, as far as these tests see\n";
    let want = format!("job 7: 4 nodes\n{GPUS}{}{AGAIN}1 time in round 1\n{answer}", rails(2, 4));
    assert_eq!((all.code, all.table), (Some(0), want), "{}", all.messages);
    let messages: Vec<&str> = all.messages.lines().collect();
    let at = messages.iter().position(|line| line.ends_with("preflight: round 1, 2 pairs of nodes"));
    let next = at.and_then(|at| messages.get(at + 1)).copied().unwrap_or_default();
    assert!(next.ends_with("preflight: round 1 again, 1 slow pair of nodes"), "{}", all.messages);
    let before = preflight(&["--nccl", "none", "--before-script"], &[("SLOW", "1"), ("REPEATS", "2")]);
    assert!(before.code == Some(0) && before.table.contains(AGAIN), "{}", before.table);

    // Each pair once: the same pause needs a third round.
    let once = preflight(&["--nccl", "none", "--repeats", "0"], &[("SLOW", "1")]);
    let note = "NOTE     rail 0, round 1: 96 Gb/s from gn2 to gn1, where the median is 391 Gb/s; another test of the pair was good\n";
    let want = format!("job 7: 4 nodes\n{GPUS}{}{note}{answer}", rails(3, 5));
    assert_eq!((once.code, once.table), (Some(0), want), "{}", once.messages);

    let json = preflight(&["--nccl", "none", "--format", "json"], &[("SLOW", "1 2"), ("REPEATS", "2 3")]);
    let results: serde_json::Value = serde_json::from_str(&json.table).unwrap();
    let again: Vec<_> =
        results["rounds"].as_array().unwrap().iter().map(|round| &round["measured_again"]).collect();
    assert_eq!(again, [2, 0]);
    assert_eq!(
        results["rounds"][0]["tested"][0]["outcome"]["measured"]["gbps"],
        serde_json::json!([391.0, 391.0])
    );
}

#[test]
fn a_slow_rail_stays_slow_when_it_is_measured_again() {
    let always = [("SLOW", "1 2 3 4 5 6 7"), ("REPEATS", "2 3 5 6")];
    let all = preflight(&["--nccl", "none"], &always);
    assert_eq!(all.code, Some(1), "{}", all.messages);
    let again = format!("{AGAIN}2 times in round 1, 2 times in round 2\n");
    assert!(all.table.contains("3 rounds: 5 of 5 tests measured"), "{}", all.table);
    assert!(all.table.contains(&again), "{}", all.table);
    let bad = "BAD      rail 0 of gn2: 96 Gb/s to gn1, 96 Gb/s to gn4 and 96 Gb/s to gn3, where the median is 391 Gb/s\n";
    assert!(all.table.contains(bad) && all.table.matches("BAD ").count() == 1, "{}", all.table);
    let before = preflight(&["--nccl", "none", "--before-script"], &always);
    assert_eq!(before.code, Some(86), "{}", before.messages);
}

#[test]
fn a_repeat_that_srun_does_not_start_leaves_the_first_result() {
    let printed = preflight(&["--nccl", "none"], &[("STEP", "gone after pairs"), ("SLOW", "1")]);
    let unknown = format!("UNKNOWN  gn[1-2]: no result of round 1, measured again: {GONE}\n");
    assert!(printed.table.contains(&unknown), "{}", printed.table);
    let bad = "BAD      rail 0 of gn1 or gn2, or the path between gn1 and gn2: 96 Gb/s from gn2 to gn1, where the median is 391 Gb/s; not confirmed\n";
    assert!(printed.table.contains(bad) && printed.code == Some(1), "{}", printed.table);
}

#[test]
fn what_is_known_stays_when_srun_starts_no_more_steps() {
    let rounds = "RAILS    1 rail by RDMA, 2 rounds: 2 of 2 tests measured; median 391 Gb/s in each direction, 2.1 µs\n";
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
        let printed = preflight(&["--nccl", "none"], &[("STEP", step)]);
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

/// The lines about NCCL, and the exit code.
fn nccl(config: &str, words: &[&str], what: &str) -> (String, Option<i32>) {
    let printed = with_config(config, words, &[("NCCL", what)]);
    let is_of_nccl = |line: &&str| line.contains("all_reduce_perf") || line.starts_with("NCCL");
    let lines: Vec<&str> = printed.table.lines().filter(is_of_nccl).collect();
    (lines.join("\n"), printed.code)
}

#[test]
fn nccl_itself_is_compared_and_accuses_no_node() {
    let good =
        "NCCL     all_reduce_perf, 1024 MiB, 8 ranks on 4 nodes: 48.13 GB/s bus bandwidth (NCCL 2.28.9); ";
    let rails = format!("{good}the rails of a node carry 48.88 GB/s in each direction");
    assert_eq!(nccl("", &[], "good"), (rails, Some(0)));
    let reference = |gb_s: &str| {
        format!(
            "[[stats.references]]\nop = 'AllReduce'\nranks = 8\nnodes = 4\nbytes = 1073741824\nbusbw_gb_s = {gb_s}\n"
        )
    };
    let compared = format!("{good}98 % of 49.00 GB/s, the site's reference");
    assert_eq!(nccl(&reference("49.0"), &[], "good"), (compared, Some(0)));
    let (lines, code) = nccl(&reference("90.0"), &[], "good");
    assert!(
        lines.contains("53 % of 90.00 GB/s") && lines.contains("\nNOTE     all_reduce_perf is slow "),
        "{lines}"
    );
    assert_eq!(code, Some(0));

    let (lines, code) = nccl("", &[], "wrong");
    assert!(lines.ends_with("\nBAD      all_reduce_perf: 12 values wrong (this names no node)"), "{lines}");
    assert_eq!(code, Some(1));
    let (lines, code) = nccl("", &[], "fails");
    let why = "/all_reduce_perf: gn3: Test NCCL failure common.cu:1005 'unhandled system error";
    assert!(
        lines.starts_with("UNKNOWN  /") && lines.contains(why) && lines.ends_with("(this names no node)"),
        "{lines}"
    );
    assert_eq!((lines.lines().count(), code), (1, Some(3)));
    // A task fails before rank 0 has listed all ranks.
    let (lines, code) = nccl("", &[], "cut");
    assert!(
        lines.ends_with(
            "/all_reduce_perf: srun: error: gn3: task 2: Exited with exit code 3 (this names no node)"
        ),
        "{lines}"
    );
    assert_eq!((lines.lines().count(), code), (1, Some(3)));
    let (lines, code) = nccl("", &[], "alone");
    assert!(lines.starts_with("NCCL     not run: ") && lines.contains("each task ran alone"), "{lines}");
    assert_eq!(code, Some(0));

    // No node may be left out for any of it.
    for what in ["wrong", "fails"] {
        let before = with_config("", &["--before-script"], &[("NCCL", what)]);
        assert_eq!(before.code, Some(0), "{}", before.messages);
        assert!(
            before.messages.contains("the script starts") && !before.table.contains("--exclude"),
            "{}",
            before.table
        );
    }
}

#[test]
fn the_program_of_nccl_is_chosen_by_option_configuration_and_path() {
    let none = nccl("", &["--nccl", "none"], "good");
    assert_eq!(none, (String::new(), Some(0)));
    let (lines, code) = nccl("[selftest]\nall_reduce_perf = 'DIR/absent'\n", &[], "good");
    assert!(lines.is_empty() && code == Some(3), "{lines}");
    let (lines, _) = nccl("[selftest]\nall_reduce_perf = 'DIR/all_reduce_perf'\n", &[], "good");
    assert!(lines.contains("48.13 GB/s"), "{lines}");
    // An option wins over the configuration.
    let (lines, code) =
        nccl("[selftest]\nall_reduce_perf = 'DIR/absent'\n", &["--nccl", "/all_reduce_perf"], "good");
    let why = "UNKNOWN  /all_reduce_perf: not a program that this user can start (this names no node)";
    assert_eq!((lines.as_str(), code), (why, Some(3)));
}

#[test]
fn nccl_is_not_run_where_it_can_show_nothing() {
    let printed = preflight(&[], &[("NCCL", "good"), ("BAD", "gpu")]);
    assert!(printed.table.contains("NCCL     not run: something is named already\n"), "{}", printed.table);
    // The stand-in accepts two GPUs of each node alone; here each has one that was tested.
    let printed = preflight(&["--gpus", "none"], &[("NCCL", "good"), ("SLURM_GPUS_ON_NODE", "x")]);
    let unknown = "NCCL     not run: the number of GPUs of the nodes is not known\n";
    assert!(printed.table.contains(unknown), "{}", printed.table);
    let printed = preflight(&[], &[("NCCL", "good"), ("SLURM_GPUS_ON_NODE", "x")]);
    assert!(printed.table.contains("UNKNOWN  ") && printed.code == Some(3), "{}", printed.table);
    let one = [("NCCL", "good"), ("SLURM_GPUS_ON_NODE", "1"), ("SLURM_JOB_NODELIST", "gn1")];
    let printed = preflight(&[], &one);
    assert!(printed.table.contains("NCCL     not run: one GPU has no other one\n"), "{}", printed.table);
}
