//! Single texts: which row of the table they belong to, and what is shown.

use railgate_joblog::{FirstError, Kind, Log, first_error};

fn first(text: &str) -> Option<FirstError> {
    first_error(&[Log { bytes: text.as_bytes(), rank: None, cut: false }], 2).first
}

/// The row of the first error in a text.
fn rule(text: &str) -> &'static str {
    first(text).map_or("nothing", |first| first.rule.id)
}

#[test]
fn a_missing_library_or_command_is_not_missing_data() {
    for (text, id) in [
        (
            "python: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file \
             or directory",
            "import",
        ),
        (
            "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 3, in <module>\n    import apex\n\
             ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory",
            "import",
        ),
        ("slurmstepd: error: execve(): train: No such file or directory", "command-missing"),
        (
            "/var/spool/slurmd/job48213/slurm_script: line 9: torchrun: command not found",
            "shell-command-missing",
        ),
        (
            "/var/spool/slurmd/job48213/slurm_script: line 9: ./train: No such file or directory",
            "shell-command-missing",
        ),
        ("env: 'python3.12': No such file or directory", "command-missing"),
        (
            "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 3, in <module>\n    open(x)\n\
             FileNotFoundError: [Errno 2] No such file or directory: 'x'",
            "file-missing",
        ),
    ] {
        assert_eq!(rule(text), id, "{text}");
    }
}

#[test]
fn slurm_names_its_own_reason_for_an_end() {
    let cancelled = "slurmstepd: error: *** JOB 48213 ON gn1 CANCELLED AT 2026-11-23T16:57:40";
    for (end, id, kind) in [
        (" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "slurm-node-failure", Kind::Cause),
        (" DUE TO NODE gn4 FAILURE ***", "slurm-node-failure", Kind::Cause),
        (" DUE TO TIME LIMIT ***", "slurm-time-limit", Kind::Consequence),
        (" DUE TO PREEMPTION ***", "slurm-time-limit", Kind::Consequence),
        (" ***", "terminated", Kind::Consequence),
    ] {
        let found = first(&format!("{cancelled}{end}")).unwrap();
        assert_eq!((found.rule.id, found.rule.kind), (id, kind), "{end}");
    }
}

#[test]
fn a_completion_has_its_status_as_number_or_as_name() {
    let warn = "gn4:3468:3905 [1] transport/net_ib.cc:2315 NCCL WARN NET/IB: Got completion from peer 10.0.0.7<54862> with ";
    for (status, id) in [
        ("status=12 opcode=0 len=0 vendor err 129", "nccl-ib-completion"),
        (
            "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129",
            "nccl-ib-completion",
        ),
        ("status=IBV_WC_REM_ACCESS_ERR(10) opcode=IBV_WC_RDMA_WRITE(1) vendor_err=136", "nccl-ib-completion"),
        // The queue pair was closed: something else had failed before.
        ("status=5 opcode=0 len=0 vendor err 249", "nccl-ib-flushed"),
        ("status=IBV_WC_WR_FLUSH_ERR(5) opcode=IBV_WC_SEND(0) vendor_err=249", "nccl-ib-flushed"),
    ] {
        assert_eq!(rule(&format!("{warn}{status}")), id, "{status}");
    }
}

#[test]
fn a_full_gpu_is_one_whatever_xla_calls_it() {
    for text in [
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
        "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 4.00GiB (4294967296B) on device \
         ordinal 0",
    ] {
        assert_eq!(rule(text), "cuda-oom", "{text}");
    }
}

#[test]
fn the_exception_inside_a_group_is_the_error() {
    let text = r#"  + Exception Group Traceback (most recent call last):
  |   File "/home/alice/run/train.py", line 40, in main
  |     async with asyncio.TaskGroup() as group:
  |   File "/usr/lib/python3.12/asyncio/taskgroups.py", line 145, in __aexit__
  |     raise me from None
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/alice/run/loader.py", line 21, in fetch
    |     raise ValueError("bad sample in shard 17")
    | ValueError: bad sample in shard 17
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/home/alice/run/loader.py", line 30, in fetch
    |     raise KeyError("x")
    | KeyError: 'x'
    +------------------------------------
"#;
    for label in ["", "3: ", "[rank3]: "] {
        let log: String = text.lines().map(|line| format!("{label}{line}\n")).collect();
        let found = first(&log).unwrap();
        assert_eq!(found.text, "ValueError: bad sample in shard 17", "{label}");
        let place = found.place.map(|place| (place.file, place.line));
        assert_eq!(place, Some(("loader.py".to_owned(), 21)), "{label}");
    }
}

#[test]
fn a_number_of_tokens_is_no_credential() {
    for text in [
        "ValueError: max_token=4096 is larger than 2048",
        "ValueError: num_token: 123456 does not fit",
        "KeyError: pad_token=<pad>",
    ] {
        assert_eq!(first(&traceback(text)).unwrap().text, text);
    }
    for text in
        ["ValueError: token=4096abcd", "ValueError: password=40963", "ValueError: token: 123456789012345"]
    {
        let shown = first(&traceback(text)).unwrap().text;
        assert!(shown.ends_with("[masked]"), "{shown}");
    }
}

fn traceback(last: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 3, in <module>\n    main()\n{last}\n"
    )
}

#[test]
fn among_files_the_stream_that_stopped_first_failed_first() {
    let log = |stopped: &str, error: &str| {
        format!("[2026-11-23 16:42:{stopped},120] step 7 loss 2.1\n{}", traceback(error))
    };
    let (late, early) = (log("31", "KeyError: 'late'"), log("30", "ValueError: early"));
    let of = |logs: [&String; 2]| {
        let logs = [(logs[0], 0), (logs[1], 1)].map(|(log, rank)| Log {
            bytes: log.as_bytes(),
            rank: Some(rank),
            cut: false,
        });
        first_error(&logs, 2).first.unwrap()
    };
    let found = of([&late, &early]);
    assert_eq!((found.text.as_str(), found.rank), ("ValueError: early", Some(1)));
    assert_eq!(of([&early, &late]).text, "ValueError: early");
    // A traceback has no moment of its own, so the distance is not known.
    assert_eq!(found.ahead_s, None);
}

#[test]
fn a_short_log_with_sruns_own_lines_is_still_labelled() {
    let log = "loading modules\n0: step 1\n1: step 1\n1: Traceback (most recent call last):\n1:   File \"/home/a/train.py\", line 88, in main\n\
               1:     step()\n1: ValueError: bad\nsrun: error: gn2: task 1: Exited with exit code 1\n0: step 2\n\
               srun: error: gn1: task 0: Exited with exit code 1\nslurmstepd: error: *** STEP 7.0 ON gn1 CANCELLED ***\n";
    let found = first(log).unwrap();
    assert_eq!((found.text.as_str(), found.rank), ("ValueError: bad", Some(1)));
    let program = "1: first\nsecond\nthird\nValueError: x\n";
    assert_eq!(first(program).map(|first| first.rank), None);
}

/// The form of https://github.com/deepspeedai/DeepSpeed/issues/4510: pdsh puts the host in front of each line.
#[test]
fn hosts_in_front_of_lines_separate_processes() {
    let log = "192.0.2.4: step 1 loss 2.1\n192.0.2.5: step 1 loss 2.1\n192.0.2.5: Traceback (most recent call last):\n\
               192.0.2.4: step 2 loss 2.0\n192.0.2.5:   File \"/home/a/train.py\", line 88, in main\n192.0.2.5:     step()\n\
               192.0.2.4: RuntimeError: Connection closed by peer\n192.0.2.5: ValueError: bad sample\n\
               192.0.2.5: [2026-10-13 11:31:28,593] [INFO] [launch.py:315:sigkill_handler] Killing subprocess 249\n";
    for log in [log.to_owned(), log.replace("192.0.2.", "gn")] {
        let found = first(&log).unwrap();
        assert_eq!((found.text.as_str(), found.rank), ("ValueError: bad sample", None), "{log}");
        assert_eq!(found.place.map(|place| place.line), Some(88));
    }
}

#[test]
fn a_line_of_a_process_that_goes_on_is_no_error() {
    for text in [
        "/opt/venv/x.py:13: UserWarning: Failed to load: 'image.so: undefined symbol: _ZN3c10'",
        "gn4:1:1 [0] NCCL INFO NET/Plugin : libnccl-net.so: cannot open shared object file: No such file or directory",
        "INFO:root:retry of /data/x: No such file or directory",
        "2026-11-23 17:20:41,518 WARNING cache: Permission denied: '/home/a/.cache'",
        "2026-11-23 13:05:06.1: W external/xla/x.cc:7] UNIMPLEMENTED: ptxas too old",
        "WARNING:urllib3.connectionpool:Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError(x)'",
    ] {
        assert_eq!(rule(text), "nothing", "{text}");
    }
    // Of these levels, too, but a launcher's own.
    assert_eq!(
        rule("W1123 16:42:11.0 26 api.py:897] Sending process 263 closing signal SIGTERM"),
        "torchrun-closes"
    );
    assert_eq!(rule("gn4:1:1 [0] transport/net.cc:9 NCCL WARN Cuda failure 'out of memory'"), "cuda-oom");
}

#[test]
fn slurms_and_a_compilers_lines_are_no_missing_data() {
    for (text, id) in [
        (
            "slurmstepd: error: container_p_join: open failed /scratch/1/.active: No such file or directory",
            "slurm-launch",
        ),
        ("srun: error: Task launch for StepId=1.0 failed on node gn4: Job prolog failed", "slurm-launch"),
        ("slurmstepd: error: pyxis: couldn't start container: Failed to mount", "container"),
        ("helpers.cpp:12:10: fatal error: pybind11/pybind11.h: No such file or directory", "compiler"),
        (
            "open(): unable to lock file, errno = 11, error message = 'Resource temporarily unavailable'",
            "file-lock",
        ),
    ] {
        assert_eq!(rule(text), id, "{text}");
    }
}

#[test]
fn a_process_that_reports_further_steps_had_caught_its_error() {
    let caught = "step 1 loss 2\nTraceback (most recent call last):\n  File \"/home/a/up.py\", line 3, in put\n    send()\n\
                  TimeoutError: no answer\n";
    let end = "Traceback (most recent call last):\n  File \"/home/a/t.py\", line 9, in main\n    x[4]\nIndexError: x\n";
    let of = |text: &str, ranks| {
        let found = first_error(&[Log { bytes: text.as_bytes(), rank: None, cut: false }], ranks);
        found.first.map(|first| first.text)
    };
    let first = |steps: &str| of(&format!("{caught}{steps}{end}"), 1);
    assert_eq!(first("step 2 loss 2\nstep 3 loss 2\n").as_deref(), Some("IndexError: x"));
    assert_eq!(first("iteration        2/ 9\nIteration: 3\n").as_deref(), Some("IndexError: x"));
    // Clean-up names a step, too.
    assert_eq!(first("saved at step 2\nlast step 2\n").as_deref(), Some("TimeoutError: no answer"));
    // Without labels the steps may be another rank's.
    let steps = "step 2 loss 2\nstep 3 loss 2\n";
    assert_eq!(of(&format!("{caught}{steps}{end}"), 8).as_deref(), Some("TimeoutError: no answer"));
    // A port's error may take effect some steps later.
    let port = "n:1:2 [0] x.cc:9 NCCL WARN NET/IB : mlx5_3:1 Got async event : port error\n";
    assert!(of(&format!("step 1\n{port}{steps}{end}"), 1).unwrap().contains("port error"));
}

#[test]
fn an_abort_behind_a_consequence_follows_from_it() {
    let abort = "terminate called after throwing an instance of 'c10::DistBackendError'";
    let first = first(&format!("[c10d] recvValue failed on SocketImpl(fd=62)\n{abort}\n")).unwrap();
    assert_eq!((first.rule.id, first.rule.kind), ("store", Kind::Consequence));
    assert_eq!(rule(abort), "terminate");
}

#[test]
fn the_error_in_a_remote_process_of_ray_is_the_error() {
    let remote = "ray.exceptions.RayTaskError(ValueError): ray::_Inner.train() (pid=1876, ip=10.3.0.14)\n  \
                  File \"/home/a/train.py\", line 88, in loop\n    raise ValueError(x)\nValueError: batch of 0 samples\n";
    for head in [
        "",
        "Traceback (most recent call last):\n  File \"/o/site-packages/ray/worker.py\", line 9, in get\n    raise x\n",
    ] {
        let found = first(&format!("{head}{remote}")).unwrap();
        assert_eq!(found.text, "ValueError: batch of 0 samples");
        assert_eq!(found.place.unwrap().line, 88);
    }
}

#[test]
fn a_private_exception_ends_a_traceback_and_built_code_is_no_place() {
    let found = first(
        "Traceback (most recent call last):\n  File \"/home/a/data.py\", line 41, in load\n    zeros(n)\n  \
         File \"h5py/h5f.pyx\", line 106, in open\n\
         numpy.core._exceptions._ArrayMemoryError: Unable to allocate 59.6 GiB\n",
    )
    .unwrap();
    let place = found.place.unwrap();
    assert_eq!((found.rule.id, place.file.as_str(), place.line), ("host-allocation", "data.py", 41));
}

#[test]
fn processes_that_a_watchdog_ended_are_no_cause() {
    let timeout = "[rank0]:[E1123 16:42:10.408271257 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: \
                   WorkNCCL(SeqNum=1580, OpType=ALLREDUCE) ran for 600060 milliseconds before timing out.\n\
                   terminate called after throwing an instance of 'c10::DistBackendError'\n";
    let table = "E1123 16:42:13.100000 2606 api.py:869] failed (exitcode: -6) local_rank: 0 (pid: 2630) of binary: python\n\
                 [0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : -6 (pid: 2630)\n  error_file: <N/A>\n  \
                 traceback : Signal 6 (SIGABRT) received by PID 2630\n";
    let bash = "/var/spool/slurmd/job48213/slurm_script: line 20: 12345 Aborted                 (core dumped) python train.py\n";
    let srun = "srun: error: gn4: task 2: Aborted (core dumped)\n";
    for end in [table, bash, srun] {
        let found = first(&format!("step 1 loss 2\n{timeout}{end}")).unwrap();
        assert_eq!((found.rule.id, found.rank), ("nccl-watchdog", Some(0)), "{end}");
        let found = first(end).unwrap();
        assert_eq!(found.rule.kind, Kind::Exit, "{end}");
    }
    // A rank that had ended before made the others wait.
    let killed = "srun: error: gn4: task 2: Killed\n";
    assert_eq!(first(&format!("{killed}{timeout}{table}")).unwrap().text, killed.trim_end());
    // The ranks write to files of their own, srun to the job's.
    let of_files = |end: &str| {
        let logs = [(timeout, Some(0)), (end, None)];
        let logs = logs.map(|(text, rank)| Log { bytes: text.as_bytes(), rank, cut: false });
        first_error(&logs, 8).first.unwrap()
    };
    assert_eq!(
        (of_files(srun).rule.id, of_files(killed).text.as_str()),
        ("nccl-watchdog", killed.trim_end())
    );
    // So had one that ended hours after a timeout, from which the launcher had started the ranks again.
    let hours: String = (0..4000).map(|step| format!("step {step} loss 2\n")).collect();
    assert_eq!(first(&format!("{timeout}{hours}{killed}")).unwrap().text, killed.trim_end());
    // A closed connection may be noticed before the launcher reports the process.
    let closed = "gn1:12:15 [0] misc/socket.cc:881 NCCL WARN socketProgress: Connection closed by remote peer gn1<41232>\n";
    assert_eq!(rule(&format!("{closed}{killed}")), "srun-task");
}

/// The form of tqdm: the bar stands in the line in which a failing process begins its traceback.
#[test]
fn a_traceback_behind_a_progress_bar_keeps_its_label() {
    let bar = "  1%|          | 10/1000 [00:06<09:58,  1.65it/s]\r  1%|          | 11/1000 [00:06<09:50,  1.67it/s]";
    let lines = traceback("KeyError: 'tokens'");
    let labelled = |label: &str, bar: &str| {
        let mut lines = lines.lines().map(|line| format!("{label}{line}\n"));
        // srun puts its number in front of the bar, Python its rank behind it.
        let head = lines.next().unwrap_or_default();
        let head = if label.starts_with('[') {
            format!("{bar}{head}")
        } else {
            head.replacen(label, &format!("{label}\r{bar}"), 1)
        };
        format!("{head}{}", lines.collect::<String>())
    };
    let steps = (1..6).map(|step| format!("0: step {step}\n1: step {step}\n")).collect::<String>();
    let end = "srun: error: gn2: task 1: Exited with exit code 1\n";
    for log in [labelled("[rank1]: ", bar), format!("{steps}{}{end}", labelled("1: ", bar))] {
        let found = first(&log).unwrap();
        assert_eq!((found.text.as_str(), found.rank), ("KeyError: 'tokens'", Some(1)), "{log}");
        assert_eq!(found.place.map(|place| place.line), Some(3), "{log}");
    }
}

#[test]
fn what_a_script_survived_at_its_start_is_no_cause() {
    let fatal = traceback("ValueError: num_samples=0");
    for noise in [
        "/bin/bash: warning: setlocale: LC_ALL: cannot change locale (en_US.UTF-8): No such file or directory",
        "ERROR: ld.so: object '/usr/lib/libtcmalloc.so.4' from LD_PRELOAD cannot be preloaded (cannot open shared object \
         file): ignored.",
        "/usr/bin/ld: cannot find -laio: No such file or directory",
        "[gn4:12345] mca_base_component_repository_open: unable to open mca_btl_openib: librdmacm.so.1: cannot open shared \
         object file: No such file or directory (ignored)",
        "ls: cannot access 'checkpoints/run7/*.pt': No such file or directory",
        "/usr/bin/cat: /etc/job-notes: Permission denied",
    ] {
        assert_eq!(first(&format!("{noise}\n{fatal}")).unwrap().text, "ValueError: num_samples=0", "{noise}");
    }
    // Not even before the end of a rank, of which it is not the reason.
    let end = "srun: error: gn4: task 2: Killed";
    let log = format!("ls: cannot access 'checkpoints/*.pt': No such file or directory\n{end}\n");
    assert_eq!(first(&log).unwrap().text, end);
    // What a command reports of a file system is one.
    assert_eq!(rule("cp: error writing '/scratch/data.tar': No space left on device"), "disk-full");
    assert_eq!(rule("/bin/ls: cannot access '/lustre/run7': Input/output error"), "storage-io");
    assert_eq!(rule("cp: cannot stat '/data/shards': No such file or directory"), "shell-command");
    for text in ["head: mlp", "cat: 0.93"] {
        assert_eq!(rule(text), "nothing");
    }
}

#[test]
fn the_error_that_a_watchdog_quotes_is_its_own_ranks() {
    let quote = |rank: u32, error: &str| {
        let what = format!(
            "[PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: {error}\n"
        );
        format!(
            "[rank{rank}]:[E1123 16:42:10.565224069 ProcessGroupNCCL.cpp:1896] {what}CUDA kernel errors might be \
             asynchronously reported at some other API call\n\nterminate called after throwing an instance of \
             'c10::DistBackendError'\n  what():  {what}"
        )
    };
    let end = "srun: error: gn4: task 2: Aborted (core dumped)\n";
    for (error, id) in [
        ("CUDA error: an illegal memory access was encountered", "cuda-illegal-address"),
        ("CUDA error: uncorrectable ECC error encountered", "cuda-ecc"),
        ("CUDA error: unspecified launch failure", "cuda-launch-failure"),
    ] {
        let found = first(&format!("step 1 loss 2\n{}{end}", quote(2, error))).unwrap();
        assert_eq!((found.rule.id, found.text.as_str(), found.rank), (id, error, Some(2)));
    }
    let timeout = "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580) ran for 600060 milliseconds";
    assert_eq!(rule(&quote(2, timeout)), "nccl-watchdog");
}

/// Each line `log` behind a label.
fn labelled(label: &str, log: &str) -> String {
    log.lines().map(|line| format!("{label}{line}\n")).collect()
}

#[test]
fn processes_of_vllm_and_ray_have_labels() {
    let error = "ValueError: Free memory on device (3.22/79.1 GiB) on startup is less than desired GPU memory utilization";
    let engine = labelled(
        "ERROR 10-15 08:32:29 [core.py:708] ",
        &format!("EngineCore failed to start.\n{}", traceback(error)),
    );
    let again = format!("Process EngineCore_DP0:\n{}", traceback(error));
    let engine = labelled("(EngineCore_DP0 pid=59619) ", &format!("{engine}{again}"));
    let caller = traceback(
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    );
    for caller in [caller.clone(), labelled("(APIServer pid=1200) ", &caller)] {
        let found = first(&format!("{engine}{caller}")).unwrap();
        assert_eq!((found.text.as_str(), found.line), (error, 2));
        assert_eq!(found.place.map(|place| place.file), Some("train.py".to_owned()));
    }
    // Several workers: their lines are told apart.
    let worker = |rank: u32, line: &str| {
        format!("(Worker_TP{rank} pid=200{rank}) ERROR 10-15 08:32:20 [multiproc_executor.py:597] {line}\n")
    };
    let lines = traceback("torch.OutOfMemoryError: CUDA out of memory.");
    let mixed: String = lines.lines().flat_map(|line| (0..4).map(move |rank| worker(rank, line))).collect();
    let end = "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for \
               root cause.";
    let found =
        first(&format!("{mixed}{}", labelled("(EngineCore_DP0 pid=1999) ", &traceback(end)))).unwrap();
    assert_eq!((found.rule.id, found.place.map(|place| place.line)), ("cuda-oom", Some(3)));
    // Ray's form.
    let ray = labelled("(RayTrainWorker pid=1942, ip=10.3.0.14) ", &traceback("KeyError: 'tokens'"));
    assert_eq!(first(&ray).unwrap().text, "KeyError: 'tokens'");
    assert_eq!(rule(&traceback(end)), "wrapper");
}

const RAISED_FROM: &str = "\nThe above exception was the direct cause of the following exception:\n\n";

#[test]
fn a_crashed_worker_of_a_data_loader_is_not_one_that_memory_ended() {
    let chain = |signal: &str| {
        format!(
            "Traceback (most recent call last):\n  File \"/o/site-packages/torch/utils/data/dataloader.py\", line 1133, in \
             _try_get_data\n    data = self._data_queue.get(timeout=timeout)\nRuntimeError: DataLoader worker (pid 4711) is \
             killed by signal: {signal}. \n{RAISED_FROM}{}",
            traceback("RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly")
        )
    };
    for (signal, id) in [
        ("Segmentation fault", "segfault"),
        ("Aborted", "aborted"),
        ("Killed", "host-oom"),
        ("Bus error. It is possible that dataloader's workers are out of shared memory", "shm-bus-error"),
    ] {
        let found = first(&chain(signal)).unwrap();
        assert_eq!(found.rule.id, id);
        assert!(found.text.contains(signal), "{}", found.text);
        // Only the second exception was raised in the user's own code.
        assert_eq!(found.place.map(|place| place.line), Some(3), "{signal}");
    }
    let alone = traceback("RuntimeError: DataLoader worker (pid(s) 4711, 4712) exited unexpectedly");
    assert_eq!(first(&alone).unwrap().rule.kind, Kind::Exit);
}

#[test]
fn an_exception_that_only_wraps_another_is_no_cause() {
    let first_one = "OSError: [Errno 122] Disk quota exceeded";
    for wrapper in [
        "RuntimeError: Failed to import transformers.models.llama because of the following error (look up to see its traceback):",
        "datasets.exceptions.DatasetGenerationError: An error occurred while generating the dataset",
        "hydra.errors.InstantiationException: Error in call to target 'model.GPT':",
        "tenacity.RetryError: RetryError[<Future at 0x7f2c state=finished raised OSError>]",
        "concurrent.futures.process.BrokenProcessPool: A process in the process pool was terminated abruptly",
    ] {
        let found = first(&format!("{}{RAISED_FROM}{}", traceback(first_one), traceback(wrapper))).unwrap();
        assert_eq!((found.rule.id, found.text.as_str()), ("disk-full", first_one), "{wrapper}");
        assert_eq!(rule(&traceback(wrapper)), "wrapper", "{wrapper}");
    }
}

#[test]
fn the_traceback_of_an_ignored_exception_is_no_cause() {
    let head = "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f62eb6ed630>\n";
    let error = "AssertionError: can only test a child process";
    let ignored = format!("{head}{}", traceback(error));
    let fatal = traceback("RuntimeError: The size of tensor a (512) must match the size of tensor b (511)");
    // As Python 3.14 writes it.
    let newer = ignored.replace("ignored in", "ignored while calling deallocator");
    for label in ["", "3: ", "[rank3]: "] {
        let found = first(&labelled(label, &format!("{ignored}{newer}{fatal}"))).unwrap();
        assert!(found.text.starts_with("RuntimeError: The size"), "{label}{}", found.text);
        let found = first(&labelled(label, &ignored)).unwrap();
        assert_eq!(found.rule.kind, Kind::Consequence, "{label}");
    }
    let chain = format!("{ignored}{RAISED_FROM}{}", traceback("RuntimeError: cannot join"));
    assert_eq!(first(&chain).unwrap().rule.kind, Kind::Consequence);
    let srun = "srun: error: gn1: task 0: Killed";
    assert_eq!(first(&format!("{ignored}{srun}\n")).unwrap().text, srun);
    // Another line between: the traceback may be another process's. Below `Exception in thread` it may be the real one.
    assert_eq!(first(&format!("{head}step 7 loss 2\n{}", traceback(error))).unwrap().text, error);
    assert_eq!(first(&format!("Exception in thread Thread-2:\n{}", traceback(error))).unwrap().text, error);
    // Two processes without labels: which of the tracebacks was ignored is not known.
    let mixed = format!("{head}Traceback (most recent call last):\n{fatal}{error}\n");
    assert!(first(&mixed).unwrap().text.starts_with("RuntimeError: The size"));
}

#[test]
fn iterations_and_epochs_are_steps_as_well() {
    let caught = traceback("TimeoutError: no answer from mlflow");
    let fatal = traceback("IndexError: x");
    let of = |before: &str, after: &str| {
        let log = format!("{before}\n{caught}{after}\n{fatal}");
        first_error(&[Log { bytes: log.as_bytes(), rank: None, cut: false }], 1).first.map(|first| first.text)
    };
    for (before, after) in [
        ("iter 1: loss 2.1, time 512ms", "iter 2: loss 2.0, time 512ms\niter 3: loss 1.9, time 512ms"),
        ("Iter: [10/500]", "Iter: [20/500]\nIter: [30/500]"),
        ("Epoch 1/90 loss 2.1", "Epoch 2/90 loss 2.0\nEpoch 3/90 loss 1.9"),
        ("{'loss': 2.3, 'epoch': 0.12}", "{'loss': 2.2, 'epoch': 0.14}\n{'loss': 2.1, 'epoch': 0.16}"),
        ("Epoch: [3]  [ 1/5]", "Epoch: [4]  [ 1/5]\nEpoch: [5]  [ 1/5]"),
    ] {
        assert_eq!(of(before, after).as_deref(), Some("IndexError: x"), "{after}");
    }
    // A clean-up names the last epoch and step, and words with `iter` in them.
    for (before, after) in [
        ("Epoch 1/90 step 500", "best epoch: 1\nsaved at step 500\nbest epoch: 1\nsaved at step 500"),
        ("loading", "last epoch 5\nlast iter 900"),
        ("Epoch 4/9 loss 1.9", "history: epoch 1\nhistory: epoch 2\nhistory: epoch 3"),
        ("step 7", "filter 8\nwriter 9\nn_iter 20\nn_iter 30"),
    ] {
        assert_eq!(of(before, after).as_deref(), Some("TimeoutError: no answer from mlflow"), "{after}");
    }
}

#[test]
fn warnings_about_a_peer_that_ended_are_no_cause() {
    for warn in [
        "[0] proxy.cc:1497 NCCL WARN [Service thread] Could not receive type from localRank 2, res=3, closed=0",
        "[1] proxy.cc:1143 NCCL WARN Socket recv failed while polling for opId=0x7f4774cc9620",
        "[0] proxy.cc:1614 NCCL WARN [Service thread] Error encountered progressing operation=Connect, res=3, closed=0",
        "[0] proxy.cc:1521 NCCL WARN [Proxy Service 0] Failed to execute operation Close from rank 0, retcode 3",
    ] {
        let log = format!("step 1\ngn4:2211:2290 {warn}\nsrun: error: gn4: task 2: Segmentation fault\n");
        assert_eq!(rule(&log), "srun-task", "{warn}");
    }
    // A process without a free descriptor is a cause, not a peer's end.
    let open = "gn4:2211:2290 [0] proxy.cc:1611 NCCL WARN [Service thread] Accept failed Too many open files";
    assert_eq!(first(open).unwrap().rule.kind, Kind::Cause);
}
