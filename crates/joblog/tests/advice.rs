//! Texts whose advice was false, as a critical reading of the table showed, and some beside them: each has the row that is right for it.

use railgate_joblog::{Kind, Log, first_error};

fn first(text: &str, ranks: u32) -> Option<(&'static str, Kind, String)> {
    let found = first_error(&[Log { bytes: text.as_bytes(), rank: None, cut: false }], ranks);
    found.first.map(|first| (first.rule.id, first.rule.kind, first.text))
}

#[test]
fn each_text_has_the_advice_that_helps() {
    for (text, id) in [
        ("FileExistsError: [Errno 17] File exists: 'outputs/checkpoints'", "file-exists"),
        ("Could not override 'optimizer.lerning_rate'.", "arguments"),
        ("Key 'lerning_rate' is not in struct", "arguments"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "locked"),
        ("OSError: [Errno 11] Resource temporarily unavailable", "no-threads"),
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 900.00 MiB on device 0: cudaMalloc failed: out of memory",
            "cuda-oom",
        ),
        ("make: nvcc: No such file or directory", "command-missing"),
        ("RuntimeError: basic_ios::clear: iostream error", "checkpoint-write"),
        (
            "RuntimeError: [enforce fail at inline_container.cc:783] . PytorchStreamWriter failed writing file data/5: file write failed",
            "checkpoint-write",
        ),
        (
            "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0",
            "checkpoint-write",
        ),
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            "checkpoint-corrupt",
        ),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", "checkpoint-pointer"),
        ("_pickle.UnpicklingError: invalid load key, '\\x00'.", "checkpoint-corrupt"),
        ("RuntimeError: CUDA error: invalid device ordinal", "cuda-device-number"),
        ("RuntimeError: CUDA error: invalid device function", "cuda-kernel-image"),
        ("RuntimeError: No CUDA GPUs are available", "cuda-none"),
        ("RuntimeError: CUDA error: no CUDA-capable device is detected", "cuda-none"),
        (
            "../aten/src/ATen/native/cuda/TensorCompare.cu:110: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion \
             `probability tensor contains either `inf`, `nan` or element < 0` failed.",
            "cuda-assert-values",
        ),
        (
            "../aten/src/ATen/native/cuda/Indexing.cu:1239: indexSelectSmallIndex: block: [1,0,0], thread: [0,0,0] Assertion \
             `srcIndex < srcSelectDimSize` failed.",
            "cuda-assert",
        ),
        (
            "RuntimeError: unable to open shared memory object </torch_29919_1396182366> in read-write mode: Too many open files (24)",
            "too-many-files",
        ),
        ("RuntimeError: unable to write to file </torch_12_345_0>: No space left on device (28)", "nccl-shm"),
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/data/models/x'.",
            "hub-name",
        ),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "hub-name"),
        (
            "requests.exceptions.ConnectionError: HTTPConnectionPool(host='localhost', port=8000): Max retries exceeded with url: \
             /v1/completions",
            "local-server",
        ),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "node-name"),
        (
            "/var/spool/slurmd/job1/slurm_script: line 5: cd: /scratch/u/run: No such file or directory",
            "shell-command",
        ),
        (
            "/var/spool/slurmd/job1/slurm_script: line 5: cmake3: No such file or directory",
            "shell-command-missing",
        ),
        (
            "/var/spool/slurmd/job1/slurm_script: line 5: nvidia-smi: command not found",
            "shell-command-missing",
        ),
        ("/usr/bin/env: 'python': No such file or directory", "command-missing"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'",
            "command-missing",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-1.tar'", "file-missing"),
        ("OSError: [Errno 8] Exec format error: './run.sh'", "script-format"),
        ("run.sh: line 3: $'\\r': command not found", "script-format"),
        ("cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,000,000,000 bytes", "cuda-oom"),
        ("Fatal Python error: Bus error", "bus-error"),
        (
            "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
            "shm-bus-error",
        ),
        (
            "pyarrow.lib.ArrowInvalid: Column 1 named input_ids expected length 1000 but got length 512",
            "data-columns",
        ),
        (
            "pyarrow.lib.ArrowInvalid: JSON parse error: Missing a closing quotation mark in string.",
            "data-format",
        ),
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, Hardware limit: 101376.",
            "triton-resources",
        ),
        ("OSError: [Errno 30] Read-only file system: '/opt/conda/lib/x'", "read-only"),
        ("OSError: [Errno 12] Cannot allocate memory", "host-oom"),
        (
            "[gn1:1:0:1] ib_md.c:319 UCX  ERROR ibv_reg_mr(address=0x1) failed: Cannot allocate memory : Please set max locked memory (ulimit -l) to 'unlimited'",
            "nccl-ib-setup",
        ),
        (
            "Fatal Python error: init_fs_encoding: failed to get the Python codec of the filesystem encoding",
            "python-home",
        ),
        ("Failed to initialize NVML: Driver/library version mismatch", "cuda-driver-mismatch"),
        (
            "ImportError: cannot import name 'Trainer' from partially initialized module 'trainer' (most likely due to a circular import)",
            "circular-import",
        ),
        ("slurmstepd: error: execve(): /home/a/run.sh: Permission denied", "not-executable"),
        (
            "run.sh: /var/spool/slurmd/job1/slurm_script: line 9: ./run.sh: /bin/bash^M: bad interpreter: No such file or directory",
            "script-format",
        ),
        ("slurm_script: line 5: pushd: /scratch/u: No such file or directory", "shell-command"),
        (
            "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://minio.local/data",
            "dataset-download",
        ),
        ("gn02: Permission denied (publickey,gssapi-keyex,gssapi-with-mic).", "ssh"),
        ("grep: conf.txt: No such file or directory", "shell-command"),
        ("zmq.error.Again: Resource temporarily unavailable", "zmq"),
        (
            "RuntimeError: No valid triton configs. OutOfResources: out of resource: shared memory, Required: 163840",
            "triton-resources",
        ),
        (
            "torch._inductor.exc.InductorError: NoTritonConfigsError: No valid triton configs. OutOfMemoryError: out of resource: triton_per_fused",
            "triton-resources",
        ),
        ("Cannot load module \"openmpi/4.1.6\" because these module(s) are loaded:", "module-conflict"),
        ("java.lang.OutOfMemoryError: unable to create new native thread", "java-threads"),
        ("OSError: [Errno 28] inotify watch limit reached", "inotify"),
        ("requests.exceptions.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "reply-format"),
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "data-format"),
        ("[ERROR] Could not find tokenizer.model", "error-line"),
        ("FATAL: could not open control file", "error-line"),
        ("FATAL:   could not open image /images/a.sif: no such file", "container"),
    ] {
        assert_eq!(first(text, 1).map(|first| first.0), Some(id), "{text}");
    }
}

#[test]
fn lines_of_a_program_that_works_are_no_error() {
    for text in [
        "Corrupt JPEG data: 2 extraneous bytes before marker 0xd9",
        "libibverbs: Warning: couldn't load driver 'libmlx4-rdmav34.so': libmlx4-rdmav34.so: cannot open shared object file: No such file or directory",
        "E0000 00:00:1700000000.000000 1 cuda_executor.cc:1228] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
        "[2024-01-01 10:00:00,000][data.cache][WARNING] - cache not read: [Errno 2] No such file or directory: 'x'",
        "Loss function is InfoNCE",
        "Caught signal 15, saving checkpoint",
        "Caught signal 10 (SIGUSR1): checkpoint and requeue",
        "error rate: 0.034",
        "Validation: error: 12.5 %",
        "========= ERROR SUMMARY: 0 errors",
        "the loss scaler is enabled; it checks each step for inf or nan",
    ] {
        assert_eq!(first(text, 1), None, "{text}");
    }
    assert_eq!(first("max locked memory           (kbytes, -l) unlimited", 1), None);
    assert_eq!(first("loss is nan at step 12", 1).map(|first| first.0), Some("loss-not-finite"));
    assert_eq!(
        first("Caught signal 11 (Segmentation fault: address not mapped)", 1).map(|first| first.0),
        Some("segfault")
    );
}

/// A script goes on after a command that does not exist.
#[test]
fn an_error_of_the_program_is_named_before_a_missing_command() {
    let script = "/var/spool/slurmd/job1/slurm_script: line 5: nvidia-smi: command not found\n";
    let traceback = "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 3, in <module>\n    table[key]\nKeyError: 'word'\n";
    let (id, _, text) = first(&format!("{script}{traceback}"), 1).unwrap();
    assert_eq!((id, text.as_str()), ("exception", "KeyError: 'word'"));
    // If it was the program itself, it is all there is, before what srun reports of it.
    let exit = |how: &str| format!("srun: error: gn1: task 0: {how}\n");
    let (id, kind, _) = first(&format!("{script}{}", exit("Exited with exit code 127")), 1).unwrap();
    assert_eq!((id, kind), ("shell-command-missing", Kind::Exit));
    for how in ["Segmentation fault (core dumped)", "Exited with exit code 1", "Out Of Memory"] {
        let (id, ..) = first(&format!("{script}{}", exit(how)), 1).unwrap();
        assert_eq!(id, "srun-task", "{how}");
    }
    // The program's own message.
    for text in ["ValueError: dataset 'wikitext': not found", "RuntimeError: key model.layers.0: not found"] {
        let traceback = format!(
            "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 3, in f\n    f()\n{text}\n"
        );
        assert_eq!(
            first(&traceback, 1).map(|first| (first.0, first.1)),
            Some(("exception", Kind::Cause)),
            "{text}"
        );
    }
}

/// Each thread of a kernel prints a line, and Python the exception that follows.
#[test]
fn lines_of_many_threads_are_one_error() {
    let line = "TensorCompare.cu:110: _assert_async_cuda_kernel: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n";
    let python = "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 3, in f\n    f()\nRuntimeError: CUDA error: device-side assert triggered\n";
    for ranks in [1, 8] {
        let (id, ..) = first(&format!("{}{python}", line.repeat(40)), ranks).unwrap();
        assert_eq!(id, "cuda-assert-values", "{ranks} ranks");
    }
}

/// NCCL has no message of its own: the line behind is another one.
#[test]
fn only_the_next_line_is_the_message_of_nccl() {
    let error = "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 3, in f\n    f()\ntorch.distributed.DistBackendError: NCCL error in: \
                 NCCLUtils.cpp:93, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n\
                 ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\n";
    let of = |after: &str| first(&format!("{error}{after}\n"), 1).map(|first| (first.0, first.2)).unwrap();
    for after in [
        "[rank0]:[W1123 16:42:10.408271257 ProcessGroupNCCL.cpp:1505] Warning: WARNING: destroy_process_group() was not called",
        "\nError while creating shared memory segment /dev/shm/nccl-5 (size 9637888)",
        "",
    ] {
        let (id, text) = of(after);
        assert_eq!((id, text.contains("unhandled system error")), ("nccl-error", true), "{after}: {text}");
    }
    let (id, text) = of("Error while creating shared memory segment /dev/shm/nccl-5 (size 9637888)");
    assert_eq!(id, "nccl-shm");
    assert_eq!(
        text,
        "torch.distributed.DistBackendError: Error while creating shared memory segment /dev/shm/nccl-5 (size 9637888)"
    );
}

/// Programs in other languages than Python, libraries, containers and scripts have messages of their own.
#[test]
fn errors_of_other_programs_are_known() {
    for (text, id, message) in [
        ("ERROR: LoadError: DimensionMismatch: matrix A has dimensions (3,4)", "program-error", None),
        ("ERROR: LoadError: CUDA error: out of memory (code 2, ERROR_OUT_OF_MEMORY)", "cuda-oom", None),
        ("Error in library(torch) : there is no package called 'torch'", "program-error", None),
        ("Exception in thread \"main\" java.lang.IllegalArgumentException: bad size", "program-error", None),
        ("Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space", "java-heap", None),
        ("forrtl: severe (24): end-of-file during read, unit 5, file in.dat", "program-error", None),
        ("Fortran runtime error: End of file", "program-error", None),
        ("panic: runtime error: index out of range [5] with length 3", "program-error", None),
        (
            "Fatal error:\nStep 100: the potential energy is nan",
            "program-error",
            Some("Fatal error: Step 100: the potential energy is nan"),
        ),
        ("ERROR on proc 3: Non-numeric atom coords (src/domain.cpp:585)", "program-error", None),
        (
            "--> FOAM FATAL ERROR: \nUnknown patch name inlet",
            "program-error",
            Some("--> FOAM FATAL ERROR: Unknown patch name inlet"),
        ),
        ("FATAL ERROR: CUDA error cudaMalloc out of memory on Pe 0", "cuda-oom", None),
        (
            "Error using gpuArray\nOut of memory on device. You requested: 30.0Gb",
            "cuda-oom",
            Some("Error using gpuArray Out of memory on device. You requested: 30.0Gb"),
        ),
        (
            "thread 'main' panicked at src/main.rs:12:5:\nindex out of bounds: the len is 3",
            "aborted",
            Some("thread 'main' panicked at src/main.rs:12:5: index out of bounds: the len is 3"),
        ),
        (
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  cannot open mesh file box.msh\nAborted (core dumped)",
            "cpp-exception",
            Some("uncaught C++ exception: std::runtime_error: cannot open mesh file box.msh"),
        ),
        ("Aborted (core dumped)", "aborted", None),
        ("slurm_script: line 12: DATA_DIR: unbound variable", "program-error", None),
        ("slurm_script: line 12: syntax error near unexpected token `fi'", "program-error", None),
        ("EnvironmentNameNotFound: Could not find conda environment: torch21", "module-unknown", None),
        ("slurmstepd: error: Exceeded job memory limit at some point.", "host-oom", None),
        (
            "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.",
            "conda-shell",
            None,
        ),
        ("ERROR: LoadError: SystemError: write: no space left on device", "disk-full", None),
        (
            "tensorflow.python.framework.errors_impl.DataLossError: corrupted record at 15458",
            "data-format",
            None,
        ),
        (
            "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: no supported devices found for platform CUDA",
            "cuda-none",
            None,
        ),
        ("ptxas fatal   : Unsupported .version 7.8; current version is '7.4'", "ptxas-version", None),
        ("ptxas error   : Entry function 'k' uses too much shared data (0x12000 bytes)", "ptxas", None),
        (
            "*** Error in `/home/a/julia': corrupted double-linked list: 0x0000000000e1ac50 ***",
            "segfault",
            None,
        ),
        (
            "amrex::Abort::3::CUDA error 34 in file AMReX_GpuDevice.cpp line 164: CUDA driver is a stub library !!!",
            "cuda-stub",
            None,
        ),
        ("PMI2_Init failed to initialize.  Return code: 1", "mpi-srun", None),
        ("ERROR: LoadError: Out of GPU memory trying to allocate 8.000 GiB", "cuda-oom", None),
        ("ERROR on proc 17: Insufficient memory on accelerator (src/GPU/gpu_extra.h:57)", "cuda-oom", None),
        (
            "starting\n Error in routine davcio (10):\nerror writing file bulk.wfc17",
            "program-error",
            Some("Error in routine davcio (10): error writing file bulk.wfc17"),
        ),
        ("[0] --> FOAM FATAL IO ERROR: keyword div(phi,k) is undefined", "program-error", None),
        (
            "[gn1:1703502:0] cma_ep.c:88   process_vm_readv(pid=1703503) returned -1: Bad address",
            "ucx-cma",
            None,
        ),
        (
            "gn1:30118:30118 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be performed'",
            "nccl-nvls",
            None,
        ),
        (
            "slurmstepd: error: pyxis: child 60113 failed with error code: 1\nslurmstepd: error: pyxis: failed to import docker image\n\
             slurmstepd: error: pyxis: printing enroot log file:\n\
             slurmstepd: error: pyxis:     [INFO] Fetching image\nslurmstepd: error: pyxis:     Write failed because No space left on device",
            "disk-full",
            Some(
                "slurmstepd: error: pyxis: child 60113 failed with error code: 1; reason: Write failed because No space left on device",
            ),
        ),
        (
            "slurmstepd: error: pyxis: container start failed with error code: 1\n\
             slurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or directory",
            "container",
            Some(
                "slurmstepd: error: pyxis: container start failed with error code: 1; reason: \
                 enroot-switchroot: failed to execute: /bin/bash: No such file or directory",
            ),
        ),
    ] {
        let found = first(text, 1).unwrap_or_else(|| panic!("{text}"));
        assert_eq!((found.0, found.2.as_str()), (id, message.unwrap_or(text)), "{text}");
    }
    for text in [
        "trapFpe: Floating point exception trapping enabled (FOAM_SIGFPE).",
        "checking\ncollect2: error: ld returned 1 exit status",
        "ERROR: pip's dependency resolver does not take into account",
    ] {
        assert_eq!(first(text, 1), None, "{text}");
    }
}

/// A line that a program calls an error is named before a launcher's exit code, and never in place of a signal or of another error.
#[test]
fn a_programs_own_error_line_says_more_than_an_exit_code() {
    let line = "ERROR: Invalid argument: batch size 0\n";
    let exit = |how: &str| format!("{line}srun: error: gn1: task 0: {how}\n");
    assert_eq!(first(&exit("Exited with exit code 1"), 1).map(|first| first.0), Some("error-line"));
    for how in ["Killed", "Out Of Memory", "Segmentation fault"] {
        assert_eq!(first(&exit(how), 1).map(|first| first.0), Some("srun-task"), "{how}");
    }
    let python = "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 3, in f\n    f()\nKeyError: 'x'\n";
    assert_eq!(first(&format!("{line}{python}"), 1).map(|first| first.0), Some("exception"));
}

fn traceback(last: &str) -> String {
    format!(
        "Traceback (most recent call last):\n  File \"/home/a/train.py\", line 3, in f\n    f()\n{last}\n"
    )
}

/// Lines that a program calls errors may be metrics, or very many: what else is in the log counts as before.
#[test]
fn lines_of_a_program_that_works_hide_no_other_error() {
    let caught = traceback("ModuleNotFoundError: No module named 'apex'");
    let oom = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB");
    let works = format!("{}error rate: high\n", "batch of 64 samples\n".repeat(20)).repeat(20);
    for before in [format!("{caught}{works}"), "ERROR: sample 7 cannot be decoded\n".repeat(60_000)] {
        assert_eq!(first(&format!("{before}{oom}"), 1).map(|first| first.0), Some("cuda-oom"));
    }
}

/// What stands below a message's head is its message only if it is not an error of its own.
#[test]
fn a_message_on_the_next_line_is_told_from_other_errors() {
    let log = |text: &str| first_error(&[Log { bytes: text.as_bytes(), rank: None, cut: false }], 1).first;
    let place = |text: &str| log(text).unwrap().place.map(|place| (place.file, place.line));
    let error = traceback("KeyError: 'x'");
    assert_eq!(place(&format!("ERROR:root:Training failed:\n{error}")), Some(("train.py".to_owned(), 3)));
    // The program printed its stack just before.
    let stack = "  File \"/home/a/train.py\", line 9, in main\n    step()\n";
    assert_eq!(place(&format!("{stack}{error}")), Some(("train.py".to_owned(), 3)));
    let head = traceback("ValueError: Unknown options:");
    let found = log(&format!("{head}srun: error: gn1: task 0: Exited with exit code 1\n")).unwrap();
    assert_eq!(found.text, "ValueError: Unknown options:");
    let survived = format!("{}falling back to sdpa\n", traceback("ImportError: flash_attn failed:"));
    assert_eq!(log(&format!("{survived}{error}")).unwrap().text, "KeyError: 'x'");
    let cpp = "terminate called after throwing an instance of 'std::runtime_error'\n  what():  Error: mesh has no cells\n";
    assert_eq!(
        log(cpp).unwrap().text,
        "uncaught C++ exception: std::runtime_error: Error: mesh has no cells"
    );
    // A hook of a training is no clean-up.
    let hook = "  File \"/opt/lib/callbacks.py\", line 7, in on_validation_end\n    self.save()\n";
    let second = traceback("ValueError: ModelCheckpoint(monitor='val_loss') could not find the key")
        .replace("    f()\n", &format!("    f()\n{hook}"));
    let both = format!(
        "{}\nDuring handling of the above exception, another exception occurred:\n\n{second}",
        traceback("KeyError: 'val_loss'")
    );
    assert!(log(&both).unwrap().text.starts_with("ValueError: ModelCheckpoint"), "{both}");
}

#[test]
fn of_several_errors_about_the_start_the_first_is_named() {
    let lmod = |module: &str| {
        format!("Lmod has detected the following error: The following module(s) are unknown: \"{module}\"\n")
    };
    let (_, _, text) = first(&format!("{}{}", lmod("cuda/12.4"), lmod("gcc/13")), 1).unwrap();
    assert!(text.contains("cuda/12.4"), "{text}");
    let ended = "slurmstepd: error: *** JOB 7 ON gn1 CANCELLED AT 2026-11-01T10:00:00 DUE TO TIME LIMIT ***\n\
                 srun: error: Node failure on gn4\n";
    assert!(first(ended, 2).is_some_and(|(id, ..)| id == "slurm-time-limit"));
    // A peer that has ended does not say how.
    let peer = "[gn1:1:0] cma_ep.c:88   process_vm_readv(pid=7) returned -1: No such process\n\
                srun: error: gn1: task 3: Segmentation fault (core dumped)\n";
    assert_eq!(first(peer, 4).map(|first| first.0), Some("srun-task"));
}
