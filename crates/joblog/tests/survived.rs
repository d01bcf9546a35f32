//! Errors that the job survived, and errors after its end: another one is the first that counts.

use railgate_joblog::{Log, first_error};

/// The rule, the message and the rank of the first error in the log of four ranks.
fn first(text: &str) -> Option<(&'static str, String, Option<u32>)> {
    let found = first_error(&[Log { bytes: text.as_bytes(), rank: None, cut: false }], 4);
    found.first.map(|first| (first.rule.id, first.text, first.rank))
}

fn is(text: &str, rule: &'static str, message: &str) {
    let found = first(text).map(|(rule, message, _)| (rule, message));
    assert_eq!(found, Some((rule, message.to_owned())), "{text}");
}

/// A traceback of a rank.
fn traceback(rank: u32, last: &str) -> String {
    ["Traceback (most recent call last):", "  File \"/home/a/train.py\", line 3, in f", "    f()", last]
        .map(|line| format!("{rank}: {line}\n"))
        .concat()
}

/// Further steps that a rank reports.
fn steps(rank: u32, from: u32, to: u32) -> String {
    (from..to).map(|step| format!("{rank}: iteration {step} | loss 2.1\n")).collect()
}

const LATER: &str = "ERROR: LoadError: DomainError with -3.2:\nStacktrace:\n [1] sqrt\n";

#[test]
fn a_program_may_say_below_a_stack_that_it_continues() {
    let julia = "ERROR: LoadError: UndefVarError: `libhdf5` not defined\nStacktrace:\n [1] top-level scope\n   @ a.jl:12\n\
                 in expression starting at /home/a/a.jl:1\n";
    let goes_on = "┌ Warning: Precompilation failed, falling back to JLD2\n";
    is(&format!("{julia}{goes_on}{LATER}"), "program-error", "ERROR: LoadError: DomainError with -3.2:");
    is(&format!("{julia}{LATER}"), "program-error", "ERROR: LoadError: UndefVarError: `libhdf5` not defined");
    // Of another rank.
    let rust = "1: thread 'denoise' panicked at src/a.rs:88:18:\n1: no device\n1: note: run with `RUST_BACKTRACE=1`\n\
                1: WARN thread died, falling back to the CPU\n2: thread 'main' panicked at src/b.rs:12:5:\n2: index out of bounds\n";
    let (_, text, rank) = first(rust).unwrap();
    assert_eq!(
        (text.as_str(), rank),
        ("thread 'main' panicked at src/b.rs:12:5: index out of bounds", Some(2))
    );
}

#[test]
fn a_training_that_any_rank_continues_had_survived_the_error() {
    let missing = "0: apex not found (ModuleNotFoundError: No module named 'apex')\n";
    let lost = "srun: error: Node failure on gn4\n";
    is(&format!("{missing}{}{lost}", steps(3, 1, 9)), "slurm-node-failure", lost.trim());
    // Others may be on their way to the next collective.
    assert_eq!(first(&format!("{missing}{}{lost}", steps(3, 1, 3))).unwrap().0, "import");
    // Reports of the same two steps, not in order.
    let two = [1, 2, 3].map(|rank| format!("{}{}", steps(rank, 2, 3), steps(rank, 1, 2))).concat();
    assert_eq!(first(&format!("{missing}{two}{lost}")).unwrap().0, "import");
    // There is no other error.
    assert_eq!(first(&format!("{missing}{}", steps(3, 1, 9))).unwrap().0, "import");
}

/// Tasks of a step may be independent: each trains a model of its own.
#[test]
fn a_rank_whose_end_a_launcher_reports_did_not_survive() {
    let (own, other) = (traceback(1, "ValueError: bad"), traceback(2, "KeyError: 'x'"));
    let exit = |rank| format!("srun: error: gn1: task {rank}: Exited with exit code 1\n");
    let both = |exit_1: &str| format!("{own}{exit_1}{}{other}{}", steps(0, 1, 9), exit(2));
    assert_eq!(first(&both(&exit(1))).unwrap().2, Some(1));
    assert_eq!(first(&both("")).unwrap().2, Some(2));
}

#[test]
fn errors_after_slurm_has_ended_the_job_follow_from_it() {
    let cancelled = "slurmstepd: error: *** JOB 7 ON gn1 CANCELLED AT 2026-11-01T10:00:00 ***";
    let closing = traceback(0, "OSError: Timed out trying to connect to tcp://10.0.0.1:8786 after 30 s");
    let before = "2026-11-01 09:59:59 - worker - ERROR - failed during get data\n";
    is(&format!("{before}{cancelled}\n{closing}"), "terminated", cancelled);
    // Its cause may have been why the job was cancelled.
    let own = traceback(0, "ValueError: bad");
    assert_eq!(first(&format!("{own}{cancelled}\n{closing}")).unwrap().1, "ValueError: bad");
    // All else is chatter, or ended with it.
    let chatter = "wandb: Currently logged in as: a\n0: EOFError\n";
    let limit = cancelled.replace("00:00 ***", "00:00 DUE TO TIME LIMIT ***");
    is(&format!("{chatter}{limit}\n"), "slurm-time-limit", &limit);
    assert_eq!(first("wandb: Currently logged in as: a\n"), None);
    // A step is cancelled after one of its tasks has failed.
    let step = cancelled.replace("JOB 7", "STEP 7.0");
    assert_eq!(first(&format!("{step}\n{own}")).unwrap().1, "ValueError: bad");
}

#[test]
fn a_transfer_of_mpi_fails_after_a_task_has_crashed() {
    let mpi = "MPICH ERROR [Rank 1] [job id 7.0] - Abort(807014415) (rank 1 in comm 0): Fatal error in PMPI_Waitall: Other MPI error, error stack:\n\
               MPIDI_OFI_handle_cq_error(1067): OFI poll failed (ofi_events.c:1069:Input/output error - OK)\n";
    let task = |how: &str| format!("{mpi}srun: error: gn1: task 3: {how}\n");
    assert_eq!(first(&task("Segmentation fault (core dumped)")).unwrap().0, "srun-task");
    assert_eq!(first(&task("Exited with exit code 255")).unwrap().0, "mpi-error");
}

/// Lines of a log are not always in the order of time.
#[test]
fn a_transfer_fails_because_the_gpu_of_a_peer_did() {
    let transfer = "3: NET/IB : Got completion from peer 10.0.0.2<5> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n";
    let ecc = traceback(1, "RuntimeError: CUDA error: uncorrectable ECC error encountered");
    assert_eq!(first(&format!("{transfer}{ecc}")).unwrap().0, "cuda-ecc");
    assert_eq!(first(transfer).unwrap().0, "nccl-ib-completion");
}

#[test]
fn the_error_of_a_task_in_julia_is_below_the_stack() {
    is(
        "ERROR: LoadError: TaskFailedException\nStacktrace:\n  [1] wait\n    @ ./task.jl:352\n\n\
         \u{20}   nested task error: BoundsError: attempt to access 4-element Vector{Float64} at index [5]\n",
        "program-error",
        "ERROR: LoadError: TaskFailedException: BoundsError: attempt to access 4-element Vector{Float64} at index [5]",
    );
}

#[test]
fn the_message_of_r_is_on_the_next_line() {
    is(
        "Error in solve.default(H) : \n  Lapack routine dgesv: system is exactly singular: U[6,6] = 0\nExecution halted\n\
         slurmstepd: error: task_p_post_term: rmdir(/sys/fs/cgroup/cpuset/slurm/job_7): Device or resource busy\n",
        "program-error",
        "Error in solve.default(H) : Lapack routine dgesv: system is exactly singular: U[6,6] = 0",
    );
    assert_eq!(first("warning: truncated image a.jpg (OSError: image file is truncated), replaced\n"), None);
}

/// The error of a job with one rank.
fn alone(text: &str) -> (&'static str, String) {
    let found = first_error(&[Log { bytes: text.as_bytes(), rank: None, cut: false }], 1);
    found.first.map_or_else(Default::default, |first| (first.rule.id, first.text))
}

/// A traceback that Python prints of an exception that nothing caught.
fn uncaught(last: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 90, in <module>\n    main()\n  \
         File \"/home/a/train.py\", line 41, in main\n    step()\n{last}\n"
    )
}

/// A traceback that a handler prints: it begins with the frame of the handler.
fn caught(last: &str) -> String {
    format!(
        "ERROR:root:the large buffer was not granted\nTraceback (most recent call last):\n  File \"/home/a/train.py\", \
         line 33, in main\n    reserve()\n{last}\n"
    )
}

#[test]
fn an_exception_that_the_program_had_caught_is_not_the_one_that_ended_it() {
    const MEMORY: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 GiB.";
    const HEADER: &str = "struct.error: unpack requires a buffer of 16 bytes";
    let text = format!("{}{}", caught(MEMORY), uncaught(HEADER));
    assert_eq!(alone(&text), ("exception", HEADER.to_owned()));
    // Nothing else ended the program: it printed the exception and gave up.
    assert_eq!(alone(&caught(MEMORY)).1, MEMORY);
    // The same without a handler: the first one ended one of two programs of the script.
    assert_eq!(alone(&format!("{}{}", uncaught(MEMORY), uncaught(HEADER))).1, MEMORY);
    // A GPU's error may take effect later.
    let off = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered";
    assert_eq!(alone(&format!("{}{}", caught(off), uncaught(HEADER))).1, off);
    // Of four ranks without labels: the others' exceptions would be consequences if the first one had ended a rank.
    assert_eq!(first(&text).unwrap().1, HEADER);
}

#[test]
fn an_exception_that_follows_from_a_caught_one_is_not_the_first() {
    const LOST: &str = "FileNotFoundError: [Errno 2] No such file or directory: '/data/shards/00017.tar'";
    for later in [
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "RuntimeError: giving up",
        "ValueError: /data/shards/00017.tar has no samples",
        "UnboundLocalError: cannot access local variable 'batch' where it is not associated with a value",
    ] {
        assert_eq!(alone(&format!("{}{}", caught(LOST), uncaught(later))).1, LOST, "{later}");
    }
}

#[test]
fn the_only_rank_has_no_peer_that_closed_the_pipe() {
    const PIPE: &str = "BrokenPipeError: [Errno 32] Broken pipe";
    const EXIT: &str = "srun: error: gn1: task 0: Exited with exit code 1\n";
    assert_eq!(alone(&format!("{}{EXIT}", uncaught(PIPE))), ("exception", PIPE.to_owned()));
    // With others it may follow from the end of one of them.
    assert_eq!(first(&format!("{}{EXIT}", uncaught(PIPE))).unwrap().0, "srun-task");
    // A line of its log says nothing of an end.
    assert_eq!(alone(&format!("retry after: {PIPE}\n{EXIT}")).0, "srun-task");
}

#[test]
fn a_program_says_in_several_words_that_it_continues() {
    const MODULE: &str =
        "ImportError: libnvrtc.so.12: cannot open shared object file: No such file or directory";
    // A check of the script, which is a program of its own.
    let checked = format!(
        "{}check: apex not available, will use torch's own optimizer\n",
        uncaught("ModuleNotFoundError: No module named 'apex'")
    );
    assert_eq!(alone(&format!("{checked}{}", uncaught(MODULE))).1, MODULE);
    let retried = "INFO|retrying download of part 3 (ReadTimeoutError: HTTPSConnectionPool(host='a', port=443): Read timed out.) [1/5]\n";
    let full = "OSError: [Errno 28] No space left on device";
    assert_eq!(alone(&format!("{retried}{}", uncaught(full))).1, full);
    // The banner of NVIDIA's containers.
    let banner = "   [[ System has unsupported display driver / cuda driver combination (error 803) ]]\n";
    assert_eq!(alone(&format!("{banner}{}", uncaught(full))).1, full);
    assert_eq!(alone(banner).0, "cuda-driver-mismatch");
}

#[test]
fn the_compiler_is_missing_because_its_module_was_not_loaded() {
    let module =
        "Lmod has detected the following error: The following module(s) are unknown: \"cuda/12.9\"\n";
    let make = "make: nvcc: No such file or directory\nmake: *** [Makefile:3: a.o] Error 127\n";
    assert_eq!(alone(&format!("{module}{make}")).0, "module-unknown");
}

#[test]
fn a_program_that_does_not_exist_is_no_missing_path() {
    let of = |frame: &str| {
        let text = uncaught("FileNotFoundError: [Errno 2] No such file or directory: 'sox'");
        alone(&text.replace(
            "    step()\n",
            &format!("    step()\n  File \"/usr/lib/python3.12/subprocess.py\", line 1955, in {frame}\n"),
        ))
        .0
    };
    assert_eq!((of("_execute_child"), of("communicate")), ("command-missing", "file-missing"));
}
