#!/usr/bin/env python3
"""What a profiler plugin adds to an all-reduce, by turns within one process: `turns.c` changes plugin and mask between blocks.

    turns.py LIBNCCL TURNS.SO PLUGIN DIRECTORY GPUS processes|threads ROUNDS LARGE VARIANT…

`processes`: one for each GPU; `threads`: one process that launches for all. A block is some 30 ms of one size and one variant; a
round has all variants of a size in an order by chance, a ratio is a block's time to that of the same round's `none` and `again`
(no events at all: their own ratio is the spread). `floor6` and `floor46` do nothing with the events that `count` and `full` ask
for. `sample` runs 0.3 s before it is looked at, so that its duty is the one for this rate.
"""
import ctypes
import glob
import mmap
import os
import random
import statistics
import subprocess
import sys
import time

library, shim, plugin, place, gpus, how, rounds, large = sys.argv[1:9]
variants = sys.argv[9:]
gpus, rounds, large = int(gpus), int(rounds), int(large)
rank = int(os.environ.get("TURNS_RANK", "-1"))
one = how == "threads"
if not one and rank < 0:
    os.makedirs(f"{place}/user", exist_ok=True)
    children = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "TURNS_RANK": str(r)}) for r in range(gpus)]
    sys.exit(max(abs(child.wait()) for child in children))

os.makedirs(f"{place}/user/ranks", exist_ok=True)
libc = ctypes.CDLL(None)
for name, value in {
    "NCCL_PROFILER_PLUGIN": shim, "TURNS_PLUGIN": plugin, "RAILGATE_JOB_DIR": place, "RAILGATE_NCCL_MODE": "count",
    "NCCL_NVLS_ENABLE": "0", "NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_DIR": f"{place}/inspector",
    "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000",
}.items():
    libc.setenv(name.encode(), value.encode(), 1)
cuda = ctypes.CDLL([*glob.glob("/usr/local/cuda/lib64/libcudart.so.*"), *glob.glob("/opt/**/libcudart.so.1*", recursive=True)][0])
nccl, turns = ctypes.CDLL(library), ctypes.CDLL(shim)
pointer, size_t, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
turns.turns_run.restype = ctypes.c_double
turns.turns_run.argtypes = [pointer, size_t, ctypes.c_long]


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Job(ctypes.Structure):
    _fields_ = [(name, pointer) for name in ("reduce", "begin", "end", "wait")] + [("gpus", integer)] + [
        (name, pointer * 16) for name in ("comms", "streams", "send", "receive")]


def done(code):
    if code:
        sys.exit(f"WRONG: code {code}")


def address(library, name):
    return ctypes.cast(getattr(library, name), pointer).value


MOST = 1 << 30
job = Job(address(nccl, "ncclAllReduce"), address(nccl, "ncclGroupStart"), address(nccl, "ncclGroupEnd"),
          address(cuda, "cudaStreamSynchronize"), gpus if one else 1)
devices = list(range(gpus)) if one else [rank]
for at, gpu in enumerate(devices):
    done(cuda.cudaSetDevice(gpu))
    stream, send, receive = pointer(), pointer(), pointer()
    done(cuda.cudaStreamCreate(ctypes.byref(stream)))
    done(cuda.cudaMalloc(ctypes.byref(send), size_t(MOST)))
    done(cuda.cudaMalloc(ctypes.byref(receive), size_t(MOST)))
    done(cuda.cudaMemset(send, 1, size_t(MOST)))
    job.streams[at], job.send[at], job.receive[at] = stream.value, send.value, receive.value
done(cuda.cudaDeviceSynchronize())
if one:
    comms = (pointer * gpus)()
    done(nccl.ncclCommInitAll(comms, gpus, (integer * gpus)(*devices)))
    for at in range(gpus):
        job.comms[at] = comms[at]
else:
    unique, meet = Id(), f"{place}/id"
    if rank == 0:
        done(nccl.ncclGetUniqueId(ctypes.byref(unique)))
        with open(meet + ".draft", "wb") as file:
            file.write(ctypes.string_at(ctypes.byref(unique), 128))
        os.rename(meet + ".draft", meet)
    while not os.path.exists(meet):
        time.sleep(0.01)
    with open(meet, "rb") as file:
        ctypes.memmove(ctypes.byref(unique), file.read(), 128)
    comm = pointer()
    done(nccl.ncclCommInitRank(ctypes.byref(comm), gpus, unique, rank))
    job.comms[0] = comm.value

MODE = {"count": 1, "sample": 2, "full": 3}
words = None
files = glob.glob(f"{place}/user/ranks/{os.getpid()}.*")
if files:
    with open(files[0], "r+b") as file:
        words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
own_mask = turns.turns_mask()


def use(variant):
    if variant in MODE:
        # Words WANTED and MODE of the rank file.
        words[6] = words[7] = MODE[variant]
        turns.turns_set(1, 0x46 if variant == "full" else 0x06)
    elif variant.startswith("floor"):
        turns.turns_set(0, int(variant[5:], 16))
    elif variant == "inspector":
        turns.turns_set(1, own_mask)
    else:
        turns.turns_set(0, 0)


def run(size, times):
    took = turns.turns_run(ctypes.byref(job), max(1, size // 4), times)
    if took < 0:
        sys.exit("WRONG: an all-reduce failed")
    return took / times * 1e6


def expected(size):
    """About the time of one, microseconds: all ranks have to run as many."""
    return max(10.0 if one else 7.0, 12.0 * (gpus > 2), size / 330e3)


print_it = rank <= 0
if print_it:
    print(f"{how}, {gpus} GPUs: median us of none; then ratios to it, round by round: median (standard error of it; quartiles)")
    print("      bytes    none  " + " ".join(f"{v:>30}" for v in variants if v != "none"), flush=True)
for size in [8 << (3 * step) for step in range(10)]:
    ratios, base = {v: [] for v in variants}, []
    block = max(5, int(30e3 / expected(size)))
    for variant in variants:
        use(variant)
        run(size, max(3, block // 10))
    for turn in range(rounds if size < 1 << 20 else large):
        order = list(variants)
        random.Random(f"{size} {turn}").shuffle(order)
        took = {}
        for variant in order:
            use(variant)
            # The plugin looks for another mode every two milliseconds.
            run(size, max(2, block * 10 if variant == "sample" else block // 5))
            took[variant] = run(size, block * 5 if variant == "sample" else block)
        none = statistics.mean(took[v] for v in ("none", "again"))
        base.append(none)
        for variant, us in took.items():
            ratios[variant].append(us / none if variant not in ("none", "again") else took[variant] / took["none"])
    cells = []
    for variant in variants[1:]:
        r = sorted(ratios[variant])
        quarter = statistics.quantiles(r, n=4) if len(r) > 1 else [r[0]] * 3
        error = 1.2533 * statistics.stdev(r) / len(r) ** 0.5 if len(r) > 1 else 0
        cells.append(f"{statistics.median(r):.4f} ({error:.4f}; {quarter[0]:.3f}-{quarter[2]:.3f})")
    if print_it:
        print(f"{size:>11} {statistics.median(base):8.2f}  " + " ".join(f"{c:>30}" for c in cells), flush=True)
use("none")
for at in range(job.gpus):
    done(nccl.ncclCommDestroy(pointer(job.comms[at])))
