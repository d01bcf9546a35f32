//! Which of several errors of a log is the first one that counts.

use railgate_joblog::{Log, first_error};

/// The rule and the message of the first error in the log of one process.
fn first(lines: &[&str]) -> Option<(&'static str, String)> {
    let text = lines.join("\n");
    let found = first_error(&[Log { bytes: text.as_bytes(), rank: None, cut: false }], 1);
    found.first.map(|first| (first.rule.id, first.text))
}

fn is(lines: &[&str], rule: &'static str, text: &str) {
    assert_eq!(first(lines), Some((rule, text.to_owned())), "{lines:#?}");
}

const TRACEBACK: &str = "Traceback (most recent call last):";
const FRAME: &str = "  File \"/home/a/train.py\", line 88, in main";
const MEANWHILE: &str = "During handling of the above exception, another exception occurred:";
const FROM: &str = "The above exception was the direct cause of the following exception:";

#[test]
fn an_error_while_cleaning_up_is_not_the_first_one() {
    let quota = "OSError: [Errno 122] Disk quota exceeded";
    for clean_up in [
        "    os.remove(path)",
        "    self.prefetcher.close()",
        "    shutil.rmtree(folder)",
        "    cleanup(model)",
    ] {
        for second in [
            "FileNotFoundError: [Errno 2] No such file or directory: 'epoch_14.pth.tmp'",
            "AttributeError: 'NoneType' object has no attribute 'close'",
        ] {
            for (rule, code, error) in [
                ("disk-full", "    f.write(data)", quota),
                ("exception", "    batch['tokens']", "KeyError: 'tokens'"),
            ] {
                let first = [TRACEBACK, FRAME, code, error, "", MEANWHILE, ""];
                is(&[&first[..], &[TRACEBACK, FRAME, clean_up, second]].concat(), rule, error);
            }
        }
    }
    let in_exit =
        "  File \"/opt/lib/python3.11/site-packages/torch/serialization.py\", line 424, in __exit__";
    let failed = "RuntimeError: [enforce fail at inline_container.cc:593] . PytorchStreamWriter failed writing file data/176: file write failed";
    let second = "RuntimeError: [enforce fail at inline_container.cc:424] . unexpected pos 64 vs 0";
    is(
        &[TRACEBACK, FRAME, failed, "", MEANWHILE, "", TRACEBACK, in_exit, second],
        "checkpoint-write",
        failed,
    );
}

#[test]
fn an_exception_that_replaces_another_one_on_purpose_is_the_first_one() {
    let raise = "    raise ValueError(f\"unknown model {name}\")";
    let second = "ValueError: unknown model x";
    for how in [MEANWHILE, FROM] {
        is(
            &[
                TRACEBACK,
                FRAME,
                "    models[name]",
                "KeyError: 'x'",
                "",
                how,
                "",
                TRACEBACK,
                FRAME,
                raise,
                second,
            ],
            "exception",
            second,
        );
    }
    // Less is known of the second one.
    let full = "OSError: [Errno 28] No space left on device";
    is(
        &[TRACEBACK, FRAME, full, "", MEANWHILE, "", TRACEBACK, FRAME, raise, "RuntimeError: saving failed"],
        "disk-full",
        full,
    );
}

#[test]
fn an_error_that_the_program_did_without_is_not_the_first_one() {
    let missing = ["    import flash_attn", "ModuleNotFoundError: No module named 'flash_attn'"];
    let full = "OSError: [Errno 28] No space left on device";
    let end = [TRACEBACK, FRAME, "    save()", full];
    for says in [
        "WARNING: flash_attn cannot be imported, falling back to sdpa",
        "skipping flash_attn",
        "using sdpa instead",
    ] {
        let before = [&[says, TRACEBACK, FRAME][..], &missing, &end].concat();
        let behind = [&[TRACEBACK, FRAME][..], &missing, &[says], &end].concat();
        if !says.starts_with("using") {
            is(&before, "disk-full", full);
        }
        is(&behind, "disk-full", full);
        // It is, if no other one follows.
        is(&[&[TRACEBACK, FRAME][..], &missing, &[says]].concat(), "import", missing[1]);
    }
    // A message may give advice.
    let message = "RuntimeError: view size is not compatible with the strides.";
    let advice = "Use .reshape(...) instead.";
    is(&[&[TRACEBACK, FRAME, message, advice][..], &end].concat(), "exception", message);
    // Python's own words are none of the program's.
    let ignored = "Exception ignored in atexit callback: <function shutdown at 0x7f1ca5b2241b>";
    is(
        &[TRACEBACK, FRAME, "    import x", missing[1], ignored, "RuntimeError: closed"],
        "import",
        missing[1],
    );
}

#[test]
fn a_warning_of_nccl_is_the_first_error_only_if_nccl_failed() {
    let warning =
        "gn1:41:58 [0] misc/cudawrap.cc:90 NCCL WARN Failed to find CUDA library (NCCL_CUDA_PATH=(null))";
    let error = "ValueError: bad sample";
    is(&[warning, TRACEBACK, FRAME, error], "exception", error);
    let of_nccl =
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error";
    is(&[warning, TRACEBACK, FRAME, of_nccl], "nccl-warn", warning);
    is(&[warning], "nccl-warn", warning);
}

#[test]
fn a_peer_cannot_be_reached_because_slurm_lost_its_node() {
    let lost = "srun: error: Node failure on gn4";
    is(
        &[
            "gn1:4410:4501 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.4.1.17<41231> failed : Software caused connection abort",
            lost,
        ],
        "slurm-node-failure",
        lost,
    );
}

#[test]
fn errors_after_slurm_has_ended_the_job_are_not_the_first_one() {
    let end = "slurmstepd: error: *** JOB 7 ON gn1 CANCELLED AT 2026-11-30T09:09:37 DUE TO TIME LIMIT ***";
    let saving = "RuntimeError: Parent directory ckpt/last does not exist.";
    assert_eq!(first(&[end, TRACEBACK, FRAME, saving]).map(|first| first.0), Some("slurm-time-limit"));
    is(&[TRACEBACK, FRAME, saving, end], "exception", saving);
}

#[test]
fn a_module_that_does_not_exist_is_named_before_what_it_lacks() {
    let module =
        "Lmod has detected the following error:  The following module(s) are unknown: \"cuda/12.4.1\"";
    let library = "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory";
    is(&[module, TRACEBACK, FRAME, library], "module-unknown", module);
    is(&[module, TRACEBACK, FRAME, "ValueError: bad sample"], "exception", "ValueError: bad sample");
    is(&[module], "module-unknown", module);
}

#[test]
fn a_message_may_begin_on_the_next_line() {
    is(
        &[TRACEBACK, FRAME, "RuntimeError: ", "", "        CUDA Setup failed despite GPU being available."],
        "exception",
        "RuntimeError: CUDA Setup failed despite GPU being available.",
    );
    let compiler =
        "CalledProcessError: Command '['/usr/bin/gcc', '/tmp/main.c']' returned non-zero exit status 1.";
    is(
        &[TRACEBACK, FRAME, "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:", compiler],
        "compiler",
        &format!("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised: {compiler}"),
    );
}

#[test]
fn frames_without_a_header_are_a_traceback_if_an_exception_ends_them() {
    let place = "  File \"/home/a/train.py\", line 3";
    is(
        &[place, "    x = = 3", "        ^", "SyntaxError: invalid syntax"],
        "exception",
        "SyntaxError: invalid syntax",
    );
    is(&[FRAME, "    loss.backward()", "RuntimeError: no graph"], "exception", "RuntimeError: no graph");
    // A stack that a program printed.
    assert_eq!(first(&[FRAME, "    dump()", "step 12 loss 2.1", "ValueError: in a message"]), None);
}

#[test]
fn nccls_own_message_counts_where_it_is_not_about_a_peer() {
    let own = "NET/IB : Got completion from peer 11.214.147.122<39138> with error 12, opcode 0, len 0, vendor err 129";
    let lines = [
        "terminate called after throwing an instance of 'std::runtime_error'",
        "  what():  NCCL error: remote process exited or there was a network error, NCCL version 2.14.3",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "Last error:",
        own,
    ];
    assert_eq!(first(&lines).map(|first| first.0), Some("nccl-ib-completion"));
    let flushed = own.replace("error 12", "error 5");
    let lines = [&lines[..4], &[flushed.as_str()]].concat();
    assert_ne!(first(&lines).map(|first| first.0), Some("nccl-ib-completion"));
}
