//! A program that hangs, for tests and the demo.

/// A rank of a node that counts its collectives through NCCL's profiler plugin, as NCCL does. All ranks work for twenty seconds. Then
/// rank `$QUIT` does what `$PLAY` says, and the others wait for it in the next all-reduce. `/shared/libnccl.so` stands in for NCCL.
pub fn counted_rank() -> String {
    let (loads, _) = RANK.split_once("def ends(").unwrap_or((RANK, ""));
    format!("{loads}{COUNTED}")
}

const COUNTED: &str = r#"
import ctypes as c, fcntl, multiprocessing, select, socket, struct, subprocess, threading
os.environ["RAILGATE_TEST_NCCL"] = "22809"
nccl, plugin = c.CDLL("/shared/libnccl.so"), c.CDLL(os.environ["NCCL_PROFILER_PLUGIN"])
table = (c.c_void_p * 6).in_dll(plugin, "ncclProfiler_v5")
out, integer, handle = c.POINTER(c.c_void_p), c.POINTER(c.c_int), c.c_void_p()
init = c.CFUNCTYPE(c.c_int, out, c.c_uint64, integer, c.c_char_p, c.c_int, c.c_int, c.c_int, c.c_void_p)(table[1])
start = c.CFUNCTYPE(c.c_int, c.c_void_p, out, c.c_char_p)(table[2])
names = [c.create_string_buffer(name) for name in (b"ncclFloat32", b"RING", b"SIMPLE", b"AllReduce", b"Broadcast")]
datatype, ring, simple, all_reduce, broadcast = map(c.addressof, names)
size = int(os.environ["SLURM_NTASKS"])
class Communicator:
    def __init__(self, number):
        # The plugin changes the mask later.
        self.context, self.number, self.mask = c.c_void_p(), 0, c.c_int()
        init(c.byref(self.context), number, c.byref(self.mask), b"dp", 1, size, rank, c.cast(nccl.playedLog, c.c_void_p))
    def call(self, op=all_reduce):
        start(self.context, c.byref(handle), struct.pack(
            "QQi4xQQQQQi4xQBB6xQQQ", 2, 0, rank, self.number, op, 0, 0, 256, 0, datatype, 4, 16, ring, simple, 0))
        self.number += 1
def polls(each=lambda: None):
    # Leaves the test's machine some time, and uses as much of a CPU when that is busy.
    while True:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        each()
        time.sleep(0.1)
def lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
def flock():
    held, wanted = (open(os.path.expanduser(f"~/lock.{os.getpid()}"), "w") for _ in range(2))
    fcntl.flock(held, fcntl.LOCK_EX)
    fcntl.flock(wanted, fcntl.LOCK_EX)
def fifo():
    os.mkfifo(f"/tmp/fifo.{os.getpid()}")
    open(f"/tmp/fifo.{os.getpid()}").read()
def traced():
    if os.fork() == 0:
        PTRACE_ATTACH = 16
        c.CDLL(None).ptrace(PTRACE_ATTACH, os.getppid(), 0, 0)
        time.sleep(600)
    time.sleep(600)
def writes():
    with open(os.path.expanduser(f"~/checkpoint.{os.getpid()}"), "wb") as file:
        while True:
            file.write(bytes(1 << 20))
            file.flush()
            time.sleep(1)
            file.seek(0)
def serves():
    with select.epoll() as epoll:
        epoll.poll()
PLAYS = {
    "exit-0": lambda: os._exit(0), "exit-1": lambda: os._exit(1), "exit-137": lambda: os._exit(137), "abort": os.abort,
    "segv": lambda: os.kill(os.getpid(), signal.SIGSEGV), "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP), "sleep": lambda: time.sleep(600), "lock": lock, "flock": flock,
    "event": lambda: threading.Event().wait(), "queue": lambda: multiprocessing.Queue().get(), "fifo": fifo,
    "pipe": lambda: os.read(os.pipe()[0], 1), "child": lambda: subprocess.run(["sleep", "600"]),
    "socket": lambda pair=socket.socketpair(): pair[0].recv(1), "select": lambda: select.select([os.pipe()[0]], [], []),
    "kernel": polls, "swapped": polls, "other": polls, "waits": polls, "computes": polls, "cpu": polls, "traced": traced,
    "writes": writes, "serves": serves, "prints": lambda: polls(lambda: print("evaluates", flush=True)),
}
communicators = [Communicator(0xabc), Communicator(0xdef)]
load(WORKS)
print(f"rank {rank} at work", flush=True)
for _ in range(40):
    for one in communicators:
        one.call()
    time.sleep(0.5)
if not quits:
    communicators[0].call()
elif play == "other":
    communicators[0].call(broadcast)
elif play == "swapped":
    communicators[1].call()
if quits and play == "computes":
    pass
elif quits and play not in ("kernel", "swapped", "other", "waits", "prints"):
    load(IDLE)
else:
    load(WAITS)
if quits:
    PLAYS[play]()
time.sleep(600)
"#;

/// A rank of a silent program. It works on its GPU for `$WORK_S`, by default twenty seconds. Then the ranks in `$QUIT`, by default rank
/// 1, do what `$PLAY` says, and the others wait for them in a kernel, as in a collective. After a restart, through the queue
/// or by `railgate launch`, it works for `$WORK_AGAIN_S`, by default three seconds.
pub const RANK: &str = r#"#!/usr/bin/python3
import json, os, signal, sys, time
rank, play = int(os.environ.get("RANK", os.environ["SLURM_PROCID"])), os.environ["PLAY"]
quits = str(rank) in os.environ.get("QUIT", "1").split(",")
gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ.get("RANK", os.environ["SLURM_LOCALID"]))]
place = "/opt/railgate-test/nvml-loads/" + gpu
done, last = {"metrics": {}, "joules": 0.0, "rest_s": 0.0}, None
if os.path.exists(place):
    # The GPU has worked for an earlier attempt.
    with open(place) as file:
        before = json.load(file)
    done, last = before["done"], (before["since"], before["work"]["metrics"])
def load(metrics):
    # Totals go on from one load to the next, as the counters of a GPU do.
    global last
    now = time.time_ns()
    if last:
        begun, rates = last
        seconds = (now - begun) / 1e9
        for metric, rate in rates.items():
            done["metrics"][metric] = done["metrics"].get(metric, 0.0) + rate * seconds
        done["joules"] += 130.0 * seconds
    last = (now, metrics)
    work = {"metrics": metrics, "clock_mhz": 1980, "power_w": 130.0, "temperature_c": 40, "memory_mib": 1000}
    text = json.dumps({"pid": os.getpid(), "since": now, "until": now + 600 * 10**9, "work": work, "done": done})
    with open(f"{place}.{rank}", "w") as file:
        file.write(text)
    os.rename(f"{place}.{rank}", place)
WORKS = {"1": 99.0, "2": 90.0, "3": 40.0, "5": 50.0, "7": 50.0, "10": 25.0}
WAITS = {"1": 100.0, "2": 12.0, "3": 3.0, "5": 0.0, "7": 0.0, "10": 0.1}
IDLE = {metric: 0.0 for metric in WORKS}
def ends(*_):
    load(IDLE)
    os._exit(143)
signal.signal(signal.SIGTERM, ends)
load(WORKS)
attempt = int(os.environ.get("SLURM_RESTART_COUNT", "0")) + int(os.environ.get("RAILGATE_START", "0"))
print(f"rank {rank} at work, attempt {attempt}", flush=True)
time.sleep(float(os.environ.get("WORK_AGAIN_S", "3") if attempt else os.environ.get("WORK_S", "20")))
if attempt:
    load(IDLE)
    sys.exit(0)
if not quits:
    load(WAITS)
    goes_on = os.path.expanduser("~/goes-on." + os.environ["SLURM_JOB_ID"])
    while not os.path.exists(goes_on):
        time.sleep(0.2)
    load(WORKS)
    time.sleep(3)
    sys.exit(0)
load(IDLE)
if play == "leaves":
    sys.exit(0)
if play == "stops":
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(3 if play == "stops" else 600)
"#;
