//! The table of error texts: a row has a pattern, a class, whether the line is a cause or follows from one, and advice.

use crate::rule::{Class, Hardware, Rule, cause, detail, exit, follows, points_at};
use crate::rules::{
    ABORTED, CONDA, CONTAINER, CPP_EXCEPTION, ERROR_LINE, IGNORED, MODULE, MODULE_CONFLICT, MPI_ERROR,
    NCCL_ERROR, NCCL_REMOTE, NCCL_WARN, NODE_FAILURE, PROGRAM_ERROR, SHELL_COMMAND, SHELL_COMMAND_MISSING,
    SLURM_END, TERMINATE,
};

use Class::{Application, Data, Memory, Network, Node, Site, Storage};

const MISSING: &str = "the command does not exist on this node: PATH, module load, the image; if the line names a path, the script runs, reads or writes a file that is missing";

const NO_THREADS: &str = "no more processes or threads: ulimit -u, OMP_NUM_THREADS, fewer workers";
const LOCKED: &str =
    "a lock is held by another process, or a pipe or socket is not ready: another run of the same program?";

/// The table, in order of precedence.
pub const RULES: &[Rule] = &[
    // Lines of a process that goes on. Before all others, whose texts they quote.
    detail(
        "warning",
        r"^\S+:\d+: \w*Warning: |^(?:Warning|warning|WARNING): |No valid triton configs\..* for benchmark choice",
    ),
    detail("pip", r"^ERROR: pip's dependency resolver"),
    detail("retry", r"\b[Rr]etrying (?:in |after |\()|\[Retry \d+/\d+\]|thrown while requesting [A-Z]+ "),
    // A loader, a shell or a linker that goes on without what it names.
    detail(
        "survived",
        r"from LD_PRELOAD cannot be preloaded|\(ignored\)$|: warning: setlocale: |ld: cannot find -l(?:aio|cufile)\b|^collect2: error: ld returned|error_handler:\{|^trapFpe: |pyxis: printing |^Corrupt JPEG data: |^mkdir -p failed for path \S*matplotlib|^Fontconfig (?:error|warning): |libibverbs: Warning: |Failed to open libibverbs\.so|failed call to cuInit",
    ),
    detail("no-error", r"^Primary job\s+terminated normally, but|ERROR SUMMARY: 0 errors|^wandb: "),
    // torchrun's table repeats the processes that were aborted or killed: its log names them before, in their order.
    detail("torchrun-table", r"^ +traceback : Signal (?:6|9|15) \("),
    // Before the store's errors, in whose texts it stands.
    cause(
        "address-in-use",
        Application,
        r"Address already in use|EADDRINUSE|errno: 98|\[Errno 98\]",
        "the port is in use, often by another job on the node: MASTER_PORT from the job's number, or --rdzv-endpoint with port 0",
    ),
    cause(
        "arguments",
        Application,
        r": error: (?:unrecognized arguments|the following arguments are required|argument \S+: |ambiguous option|no such option)|^Error: (?:No such option|Missing (?:option|argument)|Got unexpected extra argument|Invalid value for)|^Could not override '|^Key '[^']*' is not in struct",
        "the command line lacks an argument, or has one that the program refuses; torch.distributed.launch adds --local-rank, torchrun sets LOCAL_RANK instead",
    ),
    // Errors that follow from another rank's: before all causes, since their texts quote CUDA and NCCL errors.
    follows(
        "nccl-watchdog",
        r"Watchdog caught collective operation timeout|watchdog thread terminated with exception|Exception \(either an error or timeout\) detected by watchdog|Received a dump signal due to a collective timeout|Some NCCL operations have failed or timed out|Due to the asynchronous nature of CUDA kernels, subsequent GPU operations|To avoid data inconsistency, we are taking the entire process down|heartbeat monitor (?:timed out|thread)|HeartbeatMonitor|ProcessGroupNCCL's watchdog got stuck|Flight recorder|Timeout at NCCL work|Could not acquire GIL within",
    ),
    follows(
        NCCL_REMOTE,
        r"ncclRemoteError|remote process exited or there was a network error|socketProgress(?:Opt)?: Connection closed by remote peer|Connection closed by remote peer|ncclCommAbort|NCCL communicator was aborted|Call to recv from .* failed : Connection reset by peer|NET/(?:Socket|OFI).*(?:closed|reset) by (?:remote )?peer|Could not receive type from localRank|Socket recv failed while polling|\[Service thread\] Error encountered progressing|\[Proxy Service \d+\] Failed to execute operation",
    ),
    follows(
        "nccl-ib-flushed",
        r"NET/IBP? ?: ?Got completion .*(?:status=(?:5\b|IBV_WC_WR_FLUSH_ERR)|with error 5,)",
    ),
    follows(
        "peer-closed",
        r"Connection closed by peer|Connection reset by peer|ConnectionResetError|BrokenPipeError|Broken pipe|ConnectionRefusedError: \[Errno 111\]|EOFError$|\[Errno 104\]|Read -1, expected \d+, errno = \d+|gloo/transport/tcp/.*(?:closed|reset|timeout|[Tt]imed out)",
    ),
    follows(
        "store",
        r"TCPStore|recvValue failed|sendBytes failed|recvVector|DistStoreError|DistNetworkError|Socket Timeout|The client socket has (?:timed out|failed to connect)|Timed out after \d+ seconds waiting for clients|failed to recv, got 0 bytes|Broken pipe.*store|wait timeout after \d+ms, keys",
    ),
    follows(
        "rendezvous",
        r"RendezvousConnectionError|RendezvousClosedError|RendezvousTimeoutError|The node '.*' has failed to send a keep-alive heartbeat|rendezvous '.*' (?:due to an error|failed)",
    ),
    follows(
        "torchrun-closes",
        r"Sending process \d+ closing signal SIG\w+|Received (?:Signals\.)?SIG\w+ death signal|SignalException: Process \d+ got signal|Unable to shutdown process \d+ via SIG",
    ),
    // Slurm or a user ended the job.
    follows(
        "loader-terminated",
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Terminated",
    ),
    follows("fortran-killed", r"^forrtl: error \(78\)"),
    follows(
        "slurm-message",
        r"slurmstepd: error: (?:Failed to send MESSAGE_TASK_EXIT|task_p_post_term: rmdir)",
    ),
    follows("zmq", r"zmq\.error\.Again"),
    follows("deepspeed-kills", r"Killing subprocess \d+|Main process received SIGTERM"),
    follows(
        "jax-peer",
        r"coordination service.*(?:heartbeat|shut ?down|unavailable|disconnect|error)|DEADLINE_EXCEEDED|heartbeat timeout|Terminating process because the JAX distributed service|The tasks have crashed|CoordinationServiceError|JAX distributed client failed|Polled an error from coordination service|Barrier timed out|barrier .* timed out",
    ),
    follows(
        "mpi-peer",
        r"MPI_ERR_PROC_FAILED|MPIR_CVAR|PMIX ERROR: (?:UNREACHABLE|LOST|PMIX_ERR_LOST)|PMIX_ERR_LOST_CONNECTION|remote peer unexpectedly closed connection|lost connection to|(?:ORTE|PRTE) has lost communication|\[proxy:.*\] HYD|cma_ep\.c:\d+\s+process_vm_\w+\(.*No such process|OFI poll failed",
    ),
    // Before `terminated`: the same lines, with a reason.
    points_at(
        Hardware::Node,
        cause(
            NODE_FAILURE,
            Node,
            r"DUE TO NODE (?:\S+ )?FAILURE|srun: error: Node failure on ",
            "Slurm lost a node of the job: see its findings in this report",
        ),
    ),
    follows(SLURM_END, r"DUE TO TIME LIMIT|DUE to TIME LIMIT|DUE TO PREEMPTION"),
    follows(
        "terminated",
        r"(?:srun|slurmstepd): error: .*(?:CANCELLED AT|Terminated$|Killed by signal 15)|srun: (?:error: )?(?:Terminating|forcing job termination|Force Terminated|launch/slurm: )|Waiting up to \d+ seconds for job step|Job step aborted|srun: interrupt|^Terminated$|slurmstepd: error: \*\*\*",
    ),
    cause("argparse", Application, r"^\S{1,80}\.py: error: ", ""),
    // Ctrl-C, or a signal that a script sends: nothing is known of why. Slurm itself sends SIGTERM and SIGKILL.
    exit("interrupted", r"^KeyboardInterrupt\b"),
    follows(
        IGNORED,
        r#"Exception ignored (?:in|while)|Error in atexit\._run_exitfuncs|Exception in thread [^"]|resource_tracker: There appear to be|destroy_process_group\(\) was not called"#,
    ),
    // Before the launchers' rows: the compiler is a child process.
    cause(
        "compiler",
        Site,
        r"CalledProcessError: Command '\['\S*/?(?:gcc|g\+\+|cc|c\+\+|clang|nvcc|ninja)'|fatal error: \S+: No such file or directory|ninja: build stopped|Error building extension|Failed to find C compiler|nvcc fatal|Failed to compile the C\+\+|error: command '\S*(?:gcc|g\+\+|cc|c\+\+|nvcc|ninja)' failed",
        "the program compiles a part of itself at its start and cannot: compiler, CUDA_HOME and headers in this environment or image",
    ),
    // A table of a launcher, and who ended first.
    exit(
        "torchrun-failed",
        r"failed \(exitcode: -?\d+\) local_rank: \d+|ChildFailedError|Root Cause \(first observed failure\)",
    ),
    exit(
        "srun-task",
        r"srun: error: \S+: tasks? [\d,\-]+: (?:Exited with exit code|Segmentation fault|Aborted|Killed|Bus error|Illegal instruction|Floating point exception|Out Of Memory|Trace/breakpoint trap|Broken pipe)",
    ),
    exit(
        "mpirun-process",
        r"mpirun (?:noticed that|detected that one or more)|prterun (?:noticed|detected)|BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES|=\s+EXIT CODE: \d+|MPI_ABORT was invoked|MPI_Abort\(",
    ),
    exit(
        "deepspeed-exit",
        r"exits with return code = -?\d+|returned non-zero exit status \d+|ProcessExitedException|ProcessRaisedException|died with <Signals\.",
    ),
    // An exception that points at another one: of a child process, or the one that it was raised from.
    exit(
        "wrapper",
        r"See root cause above|See stack trace for root cause|DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly|look up to see its traceback|DatasetGenerationError: |InstantiationException: Error|RetryError\[|BrokenProcessPool",
    ),
    exit(
        TERMINATE,
        r"^Fatal Python error: Aborted|terminate called (?:after throwing an instance of|without an active exception|recursively)",
    ),
    // Behind the launchers' rows: some of their lines are of these levels.
    detail(
        "level",
        r"NCCL INFO |^(?:\S+ ){0,4}\[?(?:DEBUG|INFO|WARNING)\b[\]: ]|^\[[^\]]*\]\[[^\]]*\]\[(?:DEBUG|INFO|WARNING)\]|^\S+ \S+: [IW] |^\[?[IW]\d{3,4} ",
    ),
    // Hardware, in CUDA's and NCCL's words.
    points_at(
        Hardware::Gpu,
        cause(
            "cuda-ecc",
            Node,
            r"uncorrectable ECC error encountered|CUDA_ERROR_ECC_UNCORRECTABLE|cudaErrorECCUncorrectable",
            "a GPU reported an uncorrectable memory error: see the node's findings in this report",
        ),
    ),
    points_at(
        Hardware::Gpu,
        cause(
            "cuda-none",
            Site,
            r"No CUDA GPUs are available|No visible GPU devices|no supported devices found for platform CUDA|no CUDA-capable device is detected|cudaErrorNoDevice|CUDA_ERROR_NO_DEVICE",
            "the process sees no GPU: --gres or --gpus of the job and of the step, CUDA_VISIBLE_DEVICES, --nv of Apptainer; else see the node's findings in this report",
        ),
    ),
    points_at(
        Hardware::Gpu,
        cause(
            "cuda-lost",
            Node,
            r"GPU is lost|fallen off the bus|CUDA_ERROR_DEVICE_UNAVAILABLE|CUDA-capable device\(s\) is/are busy or unavailable|Unable to determine the device handle for GPU",
            "a GPU does not answer, or another process holds it: see the node's findings in this report",
        ),
    ),
    points_at(
        Hardware::Gpu,
        cause(
            "cuda-nvlink",
            Node,
            r"CUDA_ERROR_NVLINK_UNCORRECTABLE|Invalid access of peer GPU memory over nvlink or a hardware error|cudaErrorNvlinkUncorrectable|cudaErrorHardwareStackError|hardware stack error",
            "an access over NVLink failed: a faulty link, or a bad pointer into a peer's memory",
        ),
    ),
    points_at(
        Hardware::Gpu,
        cause(
            "cuda-contained",
            Node,
            r"CUDA_ERROR_CONTAINED|cudaErrorContained|contained error",
            "a memory error of the GPU ended this process only: see the node's findings in this report",
        ),
    ),
    cause(
        "cuda-fabric",
        Site,
        r"system not yet initialized|cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY",
        "the fabric manager of the node is not running or not ready",
    ),
    cause(
        "cuda-driver-mismatch",
        Site,
        r"[Dd]river/library version mismatch|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|unsupported display driver",
        "the driver's kernel module and its library differ: the node needs a reboot, or LD_LIBRARY_PATH has another libcuda",
    ),
    cause(
        "cuda-driver",
        Site,
        r"CUDA driver version is insufficient|cudaErrorInsufficientDriver|forward compatibility was attempted on non supported HW|CUDA_ERROR_COMPAT_NOT_SUPPORTED|NVIDIA driver on your system is too old",
        "the driver of the node is older than the program's CUDA needs: use an older build, or ask the admin",
    ),
    cause(
        "cuda-stub",
        Site,
        r"CUDA driver is a stub library|CUDA_ERROR_STUB_LIBRARY|cudaErrorStubLibrary",
        "the program loads CUDA's stub in place of the driver's libcuda: LD_LIBRARY_PATH has a directory `stubs` before the driver's",
    ),
    cause(
        "cuda-libraries",
        Site,
        r"Loaded runtime CuDNN library: .* but source was compiled with|cuDNN version incompatibility|Outdated cu\w+ installation found|Found cu\w+ version \d+, but JAX was built|ptxas (?:\S+ has a bug|too old)|Could not load library libcu|Unable to load any of \{libcu",
        "a library or tool of CUDA is missing, or of another version than the program was built with: the environment or image of this job",
    ),
    cause(
        "cuda-kernel-image",
        Application,
        r"no kernel image is available for execution|invalid device function|CUDA_ERROR_NO_BINARY_FOR_GPU|cudaErrorNoKernelImageForDevice",
        "the program was not built for this GPU: rebuild it for the GPU's compute capability",
    ),
    cause(
        "cuda-oom",
        Memory,
        r"CUDA out of memory|Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA (?:calloc|malloc|host alloc)|torch\.(?:cuda\.)?OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)|OOM when allocating tensor.*device:GPU|Out of memory on device|Out of GPU memory|Insufficient memory on accelerator|ERROR_OUT_OF_MEMORY|CUDA error \w+ out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDA error: out of memory|(?:cuda\w+(?:\(\))?|Allocator) fail(?:ed)?(?:: out of memory| to allocate memory)|RMM.*out_of_memory|cupy\.\S*OutOfMemoryError|std::bad_alloc: out_of_memory: CUDA",
        "the GPU's memory is full: a smaller batch or sequence, activation checkpointing, sharding; in PyTorch, no_grad() where nothing is trained, and \
         PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation; if the message lists another process with much of the memory, end that process or give it a GPU of its own",
    ),
    cause(
        "cuda-illegal-address",
        Application,
        r"an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS|cudaErrorIllegalAddress|misaligned address|CUDA_ERROR_MISALIGNED_ADDRESS|an illegal instruction was encountered",
        "a kernel used a bad pointer or index: run once with CUDA_LAUNCH_BLOCKING=1, or under compute-sanitizer",
    ),
    cause(
        "cuda-assert-values",
        Application,
        r"Assertion `(?:probability tensor contains|input_val >= zero)",
        "values are not finite, or outside 0 to 1: the precision (fp16), the learning rate, what the model returns",
    ),
    cause(
        "cuda-assert",
        Application,
        r"device-side assert triggered|CUDA_ERROR_ASSERT|cudaErrorAssert|Assertion `.*` failed",
        "an index was out of range in a kernel, for example a token id or a label beyond the table: run once with CUDA_LAUNCH_BLOCKING=1",
    ),
    cause(
        "cuda-device-number",
        Application,
        r"invalid device ordinal",
        "the process uses a GPU number that it was not given: GPUs and tasks per node, CUDA_VISIBLE_DEVICES, the rank in place of the local rank",
    ),
    cause(
        "cuda-launch-failure",
        Application,
        r"unspecified launch failure|CUDA_ERROR_LAUNCH_FAILED|cudaErrorLaunchFailure|the launch timed out and was terminated|too many resources requested for launch|invalid configuration argument|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|cuDNN error|CUSOLVER_STATUS_\w+|CUSPARSE_STATUS_\w+|CUFFT_\w+",
        "a kernel or library call failed: run once with CUDA_LAUNCH_BLOCKING=1 to see which",
    ),
    points_at(
        Hardware::Port,
        cause(
            "nccl-ib-completion",
            Network,
            r"NET/IBP? ?: ?Got completion from peer .*(?:status=\w+|with error \d+, opcode)|ibv_poll_cq.*failed|local work queue|[Tt]ransport retry (?:counter|count) exceeded|IBV_WC_RETRY_EXC_ERR|RNR retry counter exceeded|Got completion with error",
            "a transfer over InfiniBand or RoCE failed after all retries: the peer's process or port was gone, or a link between them is faulty; see the ports in this report",
        ),
    ),
    points_at(
        Hardware::Port,
        cause(
            "nccl-ib-event",
            Network,
            r"NET/IB ?: .*Got async event|IB device .* (?:port error|fatal)|Got async error event|NET/IB ?: .*(?:LID|link).*changed",
            "a port or HCA reported an event while the job ran: see the ports in this report",
        ),
    ),
    cause(
        "nccl-ib-setup",
        Network,
        r"NCCL WARN (?:NET/IB|Call to ibv_\w+ failed|ibv_\w+ failed)|Call to ibv_\w+ failed|UCX +ERROR +ibv_reg_mr|max locked memory \(ulimit",
        "an InfiniBand or RoCE call failed: RLIMIT_MEMLOCK, GID index, or a port that is down",
    ),
    cause(
        "nccl-bootstrap",
        Network,
        r"NCCL WARN .*(?:Bootstrap|bootstrap).*(?:no socket interface|failed)|^Bootstrap ?: no socket interface|Call to connect to .* failed|No route to host|socketStartConnect|Net : Call to connect|NCCL WARN .*[Cc]onnect(?:ion)?.*(?:refused|timed? ?out|unreachable)",
        "NCCL cannot reach a peer over TCP: NCCL_SOCKET_IFNAME, a firewall, or a peer that has ended",
    ),
    // Before a full /dev/shm: PyTorch names its shared memory there, too.
    cause(
        "too-many-files",
        Site,
        r"Too many open files|\[Errno 24\]|received 0 items of ancdata",
        "the limit of open files is reached: ulimit -n, fewer workers, torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    cause(
        "nccl-shm",
        Memory,
        r"NCCL WARN .*(?:/dev/shm|shared memory|shm_?open|No space left on device)|unable to write to file </torch_|Error while creating shared memory segment|unable to (?:open|allocate) shared memory",
        "/dev/shm is full or too small: in a container use a larger --shm-size; remove stale files",
    ),
    cause(
        "nccl-version",
        Site,
        r"NCCL WARN .*(?:[Vv]ersion mismatch|Mismatched versions|version .* (?:is|are) different)|ncclInvalidUsage.*version",
        "ranks use different NCCL versions: the same image for all ranks",
    ),
    cause(
        "nccl-duplicate-gpu",
        Application,
        r"Duplicate GPU detected",
        "two ranks use the same GPU: choose the device by the local rank (LOCAL_RANK, SLURM_LOCALID)",
    ),
    cause(
        "nccl-nvls",
        Site,
        r"transport/nvls\.cc:\d+ NCCL WARN Cuda failure",
        "NVLink SHARP could not be set up: NCCL_NVLS_ENABLE=0 does without it; the fabric manager of the node may need a restart",
    ),
    cause(
        "nccl-cuda",
        Application,
        r"NCCL WARN Cuda failure|^Cuda failure ",
        "a CUDA call inside NCCL failed: an earlier error of the same process, or of its GPU",
    ),
    cause(NCCL_WARN, Network, r"NCCL WARN ", "NCCL reported an error; NCCL_DEBUG=INFO shows what led to it"),
    cause(
        NCCL_ERROR,
        Network,
        r"NCCL error|NCCL failure|NCCL operation \w+\(.*\) failed|ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclInvalidUsage|ncclInvalidArgument|DistBackendError",
        "NCCL reported an error; NCCL_DEBUG=INFO shows what led to it",
    ),
    // Before memory of the host: some releases name the same exception.
    cause(
        "triton-resources",
        Application,
        r"(?:OutOfResources|OutOfMemoryError): out of resource",
        "a Triton kernel needs more shared memory or registers than this GPU has: smaller blocks, fewer stages (num_stages), or a version of the kernel for this GPU",
    ),
    // Memory of the host.
    cause(
        "java-heap",
        Memory,
        r"Java heap space|GC overhead limit exceeded",
        "the Java heap is full: a larger -Xmx, within the job's --mem",
    ),
    cause("locked", Application, r"^BlockingIOError: \[Errno 11\] Resource temporarily unavailable", LOCKED),
    cause("java-threads", Site, r"unable to create (?:new )?native thread", NO_THREADS),
    cause(
        "host-allocation",
        Memory,
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)|Unable to allocate .* for an array with shape|OOM when allocating tensor|memory allocation of \d+ bytes failed|(?:^|[^f])MemoryError|std::bad_alloc",
        "an allocation of host memory was refused: check the size or shape that was asked for; a limit of virtual memory (ulimit -v) looks the same, and \
         a job that uses up its --mem is usually killed instead",
    ),
    cause(
        "host-oom",
        Memory,
        r"oom[-_]kill(?:er)? event|Detected \d+ oom|OUT_OF_MEMORY|Out Of Memory$|Out of memory: Kill|Memory cgroup out of memory|Killed process \d+|OutOfMemoryError|Cannot allocate memory|DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed|[Ee]xceeded (?:job |step )?memory limit|running low on memory|due to memory pressure",
        "the job's host memory is used up: fewer data loader workers, or more --mem",
    ),
    cause(
        "shm-bus-error",
        Memory,
        r"DataLoader worker.*Bus error|insufficient shared memory|Unexpected bus error encountered in worker",
        "/dev/shm is full: fewer data loader workers, or a larger /dev/shm",
    ),
    // Storage and data.
    cause(
        "inotify",
        Site,
        r"inotify watch limit reached",
        "the limit of watched files is reached (fs.inotify.max_user_watches of the node): watch fewer files, or ask the admin",
    ),
    cause(
        "disk-full",
        Storage,
        r"[Nn]o space left on device|[Dd]isk quota exceeded|\[Errno (?:28|122)\]|ENOSPC|EDQUOT",
        "a file system or quota is full: free space, or write elsewhere",
    ),
    cause(
        "file-lock",
        Storage,
        r"unable to lock file|No locks available|\[Errno 37\]",
        "a file cannot be locked: the file system has no locks, or another process holds one; for HDF5, HDF5_USE_FILE_LOCKING=FALSE",
    ),
    cause(
        "read-only",
        Storage,
        r"Read-only file system",
        "the path is read-only here: in a container write to a mounted directory (HF_HOME, TRITON_CACHE_DIR, TMPDIR); a shared file system: ask the admin",
    ),
    cause(
        "storage-io",
        Storage,
        r"Input/output error|Stale (?:NFS )?file handle|Transport endpoint is not connected|Cannot send after transport endpoint shutdown|\[Errno (?:5|116|107|108)\]|Remote I/O error|Resource temporarily unavailable: '/",
        "a file system returned an error: see the mounts and ask the admin",
    ),
    // Before damaged files: the same exception.
    cause(
        "checkpoint-weights-only",
        Application,
        r"Weights only load failed",
        "the checkpoint holds more than tensors: torch.load(…, weights_only=False) for a file that you trust, or add_safe_globals",
    ),
    cause(
        "checkpoint-write",
        Storage,
        r"PytorchStreamWriter failed|inline_container\.cc:\d+\] \. unexpected pos|basic_ios::clear: iostream error",
        "a checkpoint could not be written: a full file system or quota, a limit on the size of files (ulimit -f), or a process that wrote to the same file",
    ),
    cause(
        "checkpoint-pointer",
        Data,
        r"invalid load key, '[v<]'",
        "the file is a pointer of Git LFS or a web page: download it again (git lfs pull)",
    ),
    cause(
        "checkpoint-corrupt",
        Data,
        r"PytorchStreamReader failed|failed finding central directory|invalid header or archive is corrupted|HeaderTooLarge|InvalidHeaderDeserialization|MetadataIncompleteBuffer|SafetensorError|unexpected EOF, expected \d+ more bytes|storage has wrong (?:byte )?size|UnpicklingError|pickle data was truncated|Unpack failed: incomplete input|Ran out of input|BadZipFile|inline_container\.cc",
        "a checkpoint or data file is incomplete: often one that was being written when an earlier attempt ended; go back to the one before",
    ),
    cause(
        "checkpoint-mismatch",
        Application,
        r"Error\(s\) in loading state_dict|size mismatch for |Missing key\(s\) in state_dict|Unexpected key\(s\) in state_dict",
        "the checkpoint is of another model: configuration and checkpoint differ",
    ),
    cause(
        "circular-import",
        Application,
        r"partially initialized module",
        "a circular import, a script that has the name of a module, or a broken or mixed installation of that module",
    ),
    // Before missing files: their texts end with "No such file or directory", too.
    cause(
        "import",
        Site,
        r"ModuleNotFoundError|ImportError|error while loading shared libraries|cannot open shared object file|undefined symbol|version `[\w.]+' not found|DLL load failed",
        "a module or library is missing or of another build: the environment or image of this job",
    ),
    cause(
        "script-format",
        Application,
        r"Exec format error|\$'\\r': command not found|\\r.{1,3}: No such file|\^M: bad interpreter",
        "the script or program cannot run here: built for another processor, with line ends of Windows (dos2unix), or without a line #!",
    ),
    cause(
        "not-executable",
        Application,
        r"execve\(\): .*: Permission denied",
        "the file may not be executed: chmod +x, or a file system that is mounted noexec",
    ),
    cause(
        "command-missing",
        Application,
        r"execve\(\): .*: No such file|^make(?:\[\d+\])?: (?:\S*/)?[^\s/:]+: No such file or directory$|^(?:/usr/bin/)?env: .*: No such file or directory$|cannot execute(?: binary file)?: |FileNotFoundError: .*'(?:\S*/)?(?:nvcc|ninja|gcc|g\+\+|ffmpeg|git|nvidia-smi)'$",
        MISSING,
    ),
    // Most scripts go on after such a command: named only if there is no cause. Behind the file systems' own errors. A configuration
    // or a metric is printed as `head: mlp`, `cat: 0.93`.
    Rule {
        class: Data,
        advice: "a command of the script failed, and the script may have gone on: check the path, and whether the file system is mounted there",
        ..exit(
            SHELL_COMMAND,
            r"(?:^(?:/\S*/)?(?:ls|rm|cp|mv|cat|mkdir|ln|tail|head|touch|du|stat|tar|rsync|find|chmod|grep|sed|awk|wc|sort|unzip)|: line \d+: (?:cd|pushd)): .*: (?:No such file or directory|Permission denied)|^tar: (?:Unexpected EOF|Error is not recoverable)|^gzip: .*: unexpected end of file",
        )
    },
    // Most scripts go on after such a line, too.
    Rule {
        advice: MISSING,
        ..exit(
            SHELL_COMMAND_MISSING,
            r": line \d+: \S+: command not found$|^\S*sh: (?:line )?(?:\d+: )?\S+: (?:command )?not found$|^/\S+: \d+: \S+: not found$|: line \d+: .*: No such file or directory$",
        )
    },
    cause(
        MODULE_CONFLICT,
        Site,
        r"because these module\(s\) are loaded|conflicts with the currently loaded",
        "two modules exclude each other: `module purge` first, or unload the one that is named",
    ),
    cause(
        MODULE,
        Site,
        r"^Lmod has detected the following error|ModuleCmd_Load\.c.*ERROR|Unable to locate a modulefile for|^The following module\(s\) are unknown|^EnvironmentNameNotFound: ",
        "a module or conda environment that the script loads is not available on this node: `module spider`, `module avail` and `conda env list` show those that are",
    ),
    cause(
        CONDA,
        Site,
        r"^CommandNotFoundError: Your shell has not been|^CondaError: Run 'conda init'",
        "conda activate needs conda's shell functions: in a batch script, `source \"$(conda info --base)/etc/profile.d/conda.sh\"` before it",
    ),
    // What the container and Slurm say of themselves: before missing files, too.
    cause(
        CONTAINER,
        Site,
        r"pyxis: .*(?:failed|couldn't|error)|enroot-\w+: .*(?:ERROR|No such)|\[ERROR\] No such file|FATAL: {3}(?:While|could not|container)|nvidia-container-cli: .*error|docker: Error",
        "the container did not start: its image, mounts or the runtime's configuration",
    ),
    cause(
        "slurm-launch",
        Site,
        r"(?:srun|slurmstepd): error: .*(?:Unable to|[Tt]ask launch|[Pp]rolog |container_\w+(?::| failed)|Couldn't|Failed to|[Ii]nvalid|Job credential|Communication connection failure|Zero Bytes were transmitted|Socket timed out|Requested node configuration)|srun: fatal",
        "Slurm could not run the step: the line names the reason",
    ),
    cause(
        "file-exists",
        Application,
        r"FileExistsError",
        "the path exists already, made by another rank or by an earlier attempt: exist_ok=True, or let one rank make it",
    ),
    cause(
        "file-missing",
        Data,
        r"FileNotFoundError|No such file or directory|NotADirectoryError|IsADirectoryError",
        "a path does not exist on this node, or is a directory where a file is expected: check the path, and whether the file system is mounted there",
    ),
    cause(
        "ssh",
        Site,
        r"Permission denied \((?:publickey|password|gssapi|keyboard)",
        "ssh refused the login: between nodes start the processes with srun; git, rsync or scp need a key on the compute node",
    ),
    cause(
        "permission",
        Data,
        r"PermissionError|Permission denied|\[Errno 13\]",
        "a file or directory may not be used: its owner and mode",
    ),
    cause(
        "data-columns",
        Application,
        r"ArrowInvalid: (?:Column \d+ named|Could not convert)",
        "the columns that a function of the program returned do not fit together",
    ),
    cause(
        "reply-format",
        Application,
        r"requests\.exceptions\.JSONDecodeError",
        "the reply of a server is not JSON: print its status and text",
    ),
    cause(
        "data-format",
        Data,
        r"JSONDecodeError|DataLossError|UnicodeDecodeError|ParserError|ArrowInvalid|UnidentifiedImageError|OSError: image file is truncated|truncated file: eof = |Unable to (?:synchronously )?open file \(|zlib\.error|gzip\.BadGzipFile|lzma\.LZMAError|CRC check failed",
        "a data file, or the reply of a server or model, cannot be parsed: its name is in the traceback or the lines before; print its first bytes",
    ),
    cause(
        "hub-name",
        Application,
        r"HFValidationError|GatedRepoError|access a gated repo|RepositoryNotFoundError|huggingface_hub\S*: 40[134] Client Error|40[134] Client Error: .* for url: https://huggingface\.co",
        "the name on the Hub is wrong (a local path that does not exist is taken for one), or access is not granted: HF_TOKEN in the job, the model's licence",
    ),
    cause(
        "local-server",
        Application,
        r"HTTPS?ConnectionPool\(host='(?:localhost|127\.0\.0\.1|0\.0\.0\.0)'",
        "a server of this job on the same node does not answer: see its log, and wait until it is ready",
    ),
    cause(
        "node-name",
        Site,
        r"^socket\.gaierror|^ssh: Could not resolve",
        "a name cannot be resolved: MASTER_ADDR, the node's DNS; compute nodes often cannot resolve names outside the cluster",
    ),
    cause(
        "dataset-download",
        Network,
        r"HfHubHTTPError|LocalEntryNotFoundError|OfflineModeIsEnabled|Max retries exceeded with url|NameResolutionError|Temporary failure in name resolution|ReadTimeoutError|requests\.exceptions\.\w+|urllib3\.exceptions\.\w+|huggingface_hub\.\S*Error",
        "a download failed: compute nodes often have no way out; fetch it before the job, and set HF_HUB_OFFLINE=1",
    ),
    cause(
        "no-threads",
        Site,
        r"Resource temporarily unavailable|can't start new thread|pthread_create failed|fork: retry|\[Errno 11\]",
        NO_THREADS,
    ),
    cause(
        "mpi-srun",
        Site,
        r#"appears to have been direct launched using "srun"|OMPI was not built with SLURM|PMI2?_Init failed"#,
        "this MPI and srun have no process manager in common: `srun --mpi=list` shows those of srun (pmix for Open MPI), or start with mpirun",
    ),
    cause(
        "mpi-init",
        Network,
        r"Fatal error in (?:internal_)?P?MPI_Init(?:_thread)?: |\*\*\* An error occurred in MPI_Init|PSM[23] (?:was unable to open|can't open)|OFI \S+(?: \S+){0,3} fail",
        "MPI could not start: the lines below name the fabric's provider or the process manager that failed",
    ),
    cause(
        "ucx-cma",
        Site,
        r"cma_ep\.c:\d+\s+process_vm_\w+\(.*(?:Operation not permitted|Bad address)",
        "processes of the node may not read each other's memory, as in separate containers: UCX_TLS=^cma",
    ),
    cause(
        "mpi-launch",
        Application,
        r"There are not enough slots available|was unable to launch the specified application|could not access\s+or execute an executable|All nodes which are allocated for this job are already filled",
        "mpirun could not start the processes: their number, and the program's path on each node",
    ),
    cause(
        MPI_ERROR,
        Application,
        r"\*\*\* MPI_ERR_\w+: |Fatal error in (?:internal_)?P?MPI_\w+: |MPIDI_\w+\(\d+\).*: ",
        "an MPI call failed: its name is in the lines before",
    ),
    // A program aborts itself for a reason that it has printed. Before `segfault`: the shell writes "core dumped" as well.
    exit("shell-aborted", r": line \d+: +\d+ Aborted\b"),
    cause(
        "bus-error",
        Memory,
        r"Bus error",
        "/dev/shm is full, or a file that is mapped into memory was cut or could not be read",
    ),
    cause(
        "python-home",
        Site,
        r"^Fatal Python error: (?:init_fs_encoding|init_import_site|init_importlib|Py_Initialize|initfsencoding|initsite)",
        "Python finds the library of another installation: PYTHONHOME, PYTHONPATH, modules mixed with conda",
    ),
    // The program ended by itself. A C++ exception that nothing catches: its message is on the next line.
    cause(CPP_EXCEPTION, Application, r"^uncaught C\+\+ exception: ", ""),
    cause(ABORTED, Application, r"^Aborted|SIGABRT|signal: Aborted|Assertion .* failed\.?$|panicked at", ""),
    cause(
        "segfault",
        Application,
        r"Fatal Python error|Segmentation fault|SIGSEGV|signal: Segmentation fault|Signal: Segmentation fault|Illegal instruction|Floating point exception|Caught signal (?:4|6|7|8|11)\b|stack smashing detected|double free or corruption|free\(\): invalid|malloc\(\): |corrupted (?:size|double-linked)|munmap_chunk|core dumped",
        "a process crashed in native code: in Python, PYTHONFAULTHANDLER=1 prints its stack, and versions of native extensions may not fit; in Fortran, a stack that is too small looks the same (ulimit -s unlimited)",
    ),
    cause(
        "jax-error",
        Application,
        r"XlaRuntimeError|jaxlib\.\S*Error|jax\.errors\.\w+|INTERNAL: |INVALID_ARGUMENT: |UNIMPLEMENTED: |FAILED_PRECONDITION: |NOT_FOUND: ",
        "JAX_TRACEBACK_FILTERING=off shows the whole traceback",
    ),
    cause(
        "torch-compile",
        Application,
        r"torch\._dynamo\.exc|torch\._inductor\.exc|BackendCompilerFailed|InductorError|triton\.\S*(?:Error|OutOfResources)",
        "torch.compile failed: TORCHDYNAMO_VERBOSE=1, or run once without it",
    ),
    cause(
        "ptxas-version",
        Site,
        r"ptxas.*(?:Unsupported \.version|is not defined for option 'gpu-name')",
        "CUDA's assembler is older than the program's CUDA or this GPU needs: often another ptxas is found first in PATH",
    ),
    cause(
        "ptxas",
        Application,
        r"ptxas (?:fatal|error)|ptxas returned an error",
        "CUDA's assembler refused a kernel: the line names the reason",
    ),
    cause(
        "loss-not-finite",
        Application,
        r"(?:loss|Loss|grad(?:ient)?(?: norm)?)\b.*\b(?:is|are|became|found|rejecting|contains?)(?:\W+\w+){0,3}\W+(?:nans?|NaNs?|infs?|Infs?|infinite|not finite)\b|FloatingPointError|found NaN in|Rank \d+, node \S+, device \d+, iteration \d+: Unexpected result nan|exceeded minimum loss scale|Current loss scale already at minimum",
        "loss or gradients are not finite: the learning rate, the data of the last steps, the precision",
    ),
    cause("assertion", Application, r"^AssertionError", ""),
    // What programs in other languages than Python print when they end with an error.
    cause(
        PROGRAM_ERROR,
        Application,
        r#"^Exception in thread "main" |^ERROR: (?:LoadError: )*\w+(?:Error|Exception|Mismatch|Violation)\b|^Error in .* :(?: |$)|^forrtl: (?:severe|error) \(\d+\)|^Fortran runtime error: |^ERROR STOP|^panic: |^Fatal error:|^ERROR(?: on proc \d+)?: .*\(\S+\.(?:cpp|h):\d+\)|^(?:\[\d+\] )?--> FOAM FATAL (?:IO )?ERROR|^ +Error in routine |\* \[ABORT\] +|^FATAL ERROR: |^amrex::Abort::|^Can't locate \S+ in @INC|^Error using \S+|: line \d+: .*: unbound variable$|: syntax error near unexpected token"#,
        "",
    ),
    // The last row of errors: any program's own line.
    exit(
        ERROR_LINE,
        r"^ *(?:\S{1,60}: )?(?:fatal |FATAL |Fatal )?(?:error|ERROR|Error|fatal|FATAL|Fatal)(?: \S{1,30})?: +[^\s\d.+-]|^make(?:\[\d+\])?: \*\*\* |^CMake Error|(?:^|[ \[|-])(?:ERROR|FATAL|CRITICAL)[\]:| -]+\w",
    ),
    detail(
        "cuda-hints",
        r"CUDA kernel errors might be asynchronously reported|For debugging consider passing CUDA_LAUNCH_BLOCKING|Compile with `TORCH_USE_CUDA_DSA`|Last error:|^frame #\d+|^C\+\+ CapturedTraceback|what\(\):\s*$|^NOTE: invoking MPI_ABORT|^=+$|^-+$|^ *\+[-+]+(?: \d+ -+)?$|<NO_OTHER_FAILURES>|^Failures:|^ +(?:time|host|rank|exitcode|error_file|traceback) +: |^\*+$|^\[\d+\]:$",
    ),
];
