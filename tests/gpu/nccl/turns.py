#!/usr/bin/env python3
"""Cost of a profiler plugin in an all-reduce, measured alternately within one process: `turns.c` switches the plugin and its
mask between blocks.

    turns.py LIBNCCL TURNS.SO PLUGIN DIRECTORY GPUS processes|threads ROUNDS LARGE MILLISECONDS VARIANT…

`processes`: one for each GPU; `threads`: one process that launches for all. The launching thread has its own core. A block runs one
variant at one size for some MILLISECONDS; a round has all variants (switch.py) of a size in random order. A ratio is the block's time
relative to `none` and `again` of the same round, whose own ratio shows the spread. Many rounds of short blocks cancel slow drift.
`sample` runs ten blocks before measuring, so that its duty cycle has adapted to this rate, and then five.
"""
import ctypes
import glob
import os
import statistics
import subprocess
import sys
import time

from switch import Rounds, Switch, cores

library, shim, plugin, place, gpus, how, rounds, large, milliseconds = sys.argv[1:10]
variants = sys.argv[10:]
gpus, rounds, large, milliseconds = int(gpus), int(rounds), int(large), float(milliseconds)
rank = int(os.environ.get("TURNS_RANK", "-1"))
one = how == "threads"
if not one and rank < 0:
    os.makedirs(f"{place}/user", exist_ok=True)
    children = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "TURNS_RANK": str(r)}) for r in range(gpus)]
    sys.exit(max(abs(child.wait()) for child in children))

own = cores(max(rank, 0), 1 if one else gpus)
switch = Switch(shim, plugin, place)
cuda = ctypes.CDLL([*glob.glob("/usr/local/cuda/lib64/libcudart.so.*"), *glob.glob("/opt/**/libcudart.so.1*", recursive=True)][0])
nccl, turns = ctypes.CDLL(library), switch.turns
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

switch.begin()
os.sched_setaffinity(0, own)


def run(size, times):
    took = turns.turns_run(ctypes.byref(job), max(1, size // 4), times)
    if took < 0:
        sys.exit("WRONG: an all-reduce failed")
    return took / times * 1e6


def expected(size):
    """Approximate time of one call in microseconds, the same on all ranks, which must run the same number."""
    return max(10.0 if one else 7.0, 12.0 * (gpus > 2), size / 330e3)


print_it = rank <= 0
if print_it:
    print(f"{how}, {gpus} GPUs: median us of none; then ratios to it, round by round: median (standard error of it; quartiles)")
    print("      bytes    none  " + Rounds(variants).head(), flush=True)
for size in [8 << (3 * step) for step in range(10)]:
    found = Rounds(variants)
    block = max(5, int(milliseconds * 1e3 / expected(size)))
    for variant in variants:
        switch.use(variant)
        # The first time: until its mode is in effect.
        run(size, max(3, block // 10, int(0.3e6 / expected(size))))

    def timed(variant):
        switch.use(variant)
        run(size, max(2, block * 10 if variant == "sample" else block // 5))
        return run(size, block * 5 if variant == "sample" else block)

    for turn in range(rounds if size < 1 << 20 else large):
        found.add(f"{size} {turn}", timed)
    if print_it:
        print(f"{size:>11} {statistics.median(found.none):8.2f}  {found.row()}", flush=True)
switch.use("none")
for at in range(job.gpus):
    done(nccl.ncclCommDestroy(pointer(job.comms[at])))
