#!/usr/bin/env python3
"""Runs some collectives on the GPUs of one process with any release of NCCL, and checks the plugin's counts.

    releases.py LIBNCCL PLUGIN SHOW DIRECTORY

LIBNCCL: a library, or the output of `one-gpu.py` compressed with xz. Does not use PyTorch, which would load its own NCCL.
"""
import ctypes
import glob
import lzma
import os
import subprocess
import sys

library, plugin, show, place = (os.path.abspath(path) for path in sys.argv[1:5])
os.makedirs(f"{place}/user", exist_ok=True)
if library.endswith(".xz"):
    packed, library = library, f"{place}/libnccl.so.2"
    with lzma.open(packed) as source, open(library, "wb") as out:
        while block := source.read(1 << 24):
            out.write(block)
os.environ.update(NCCL_PROFILER_PLUGIN=plugin, RAILGATE_JOB_DIR=place, RAILGATE_NCCL_MODE="full", NCCL_NVLS_ENABLE="0")
# NCCL reads the environment of the C library, not Python's copy.
libc = ctypes.CDLL(None)
for name in ("NCCL_PROFILER_PLUGIN", "RAILGATE_JOB_DIR", "RAILGATE_NCCL_MODE", "NCCL_NVLS_ENABLE"):
    libc.setenv(name.encode(), os.environ[name].encode(), 1)
places = [*glob.glob("/usr/local/cuda/lib64/libcudart.so.*"), *glob.glob("/opt/**/libcudart.so.1*", recursive=True)]
cuda, nccl = ctypes.CDLL(places[0]), ctypes.CDLL(library)
pointer, size_t, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int


def done(code):
    if code:
        sys.exit(f"WRONG: code {code}")


count = integer()
done(cuda.cudaGetDeviceCount(ctypes.byref(count)))
gpus = range(count.value)
comms, streams, buffers = (pointer * len(gpus))(), [], []
BYTES = 64 << 20
for gpu in gpus:
    stream, buffer = pointer(), pointer()
    done(cuda.cudaSetDevice(gpu))
    done(cuda.cudaStreamCreate(ctypes.byref(stream)))
    done(cuda.cudaMalloc(ctypes.byref(buffer), size_t(2 * BYTES)))
    streams.append(stream)
    buffers.append(buffer)
version = integer()
nccl.ncclGetVersion(ctypes.byref(version))
done(nccl.ncclCommInitAll(comms, len(gpus), (integer * len(gpus))(*gpus)))
FLOAT, SUM, N = 7, 0, 20
halves = [(pointer(b.value), pointer(b.value + BYTES)) for b in buffers]


def each(call):
    for _ in range(N):
        done(nccl.ncclGroupStart())
        for gpu in gpus:
            done(call(gpu, *halves[gpu], pointer(comms[gpu]), streams[gpu]))
        done(nccl.ncclGroupEnd())
    for gpu in gpus:
        done(cuda.cudaSetDevice(gpu))
        done(cuda.cudaDeviceSynchronize())


def exchange(gpu, a, b, comm, stream, n):
    other = (gpu + 1) % len(gpus)
    before = (gpu - 1) % len(gpus)
    return nccl.ncclSend(a, size_t(n), FLOAT, other, comm, stream) or nccl.ncclRecv(b, size_t(n), FLOAT, before, comm, stream)


expected = {}
ranks = len(gpus)
for size in (1 << 10, 1 << 20, 32 << 20):
    n = size // 4
    calls = {
        "AllReduce": (lambda g, a, b, c, s: nccl.ncclAllReduce(a, b, size_t(n), FLOAT, SUM, c, s), size),
        "AllGather": (lambda g, a, b, c, s: nccl.ncclAllGather(a, b, size_t(n // ranks), FLOAT, c, s), size),
        "ReduceScatter": (lambda g, a, b, c, s: nccl.ncclReduceScatter(a, b, size_t(n // ranks), FLOAT, SUM, c, s), size),
        "Broadcast": (lambda g, a, b, c, s: nccl.ncclBroadcast(a, b, size_t(n), FLOAT, 0, c, s), size),
        "Reduce": (lambda g, a, b, c, s: nccl.ncclReduce(a, b, size_t(n), FLOAT, SUM, 0, c, s), size),
        "P2pGroup": (lambda g, a, b, c, s: exchange(g, a, b, c, s, n), size),
    }
    for op, (call, bytes) in calls.items():
        each(call)
        expected[op] = tuple(map(sum, zip(expected.get(op, (0, 0)), (N * ranks, N * ranks * bytes))))
for comm in comms:
    done(nccl.ncclCommDestroy(pointer(comm)))
text = subprocess.run([show, *glob.glob(f"{place}/user/ranks/*")], capture_output=True, text=True, check=True).stdout
print("\n".join(line for line in text.splitlines() if not line.startswith("cell")))
failed = "file " not in text
for op, (calls, bytes) in expected.items():
    cells = [dict(w.split("=", 1) for w in line.split()[1:]) for line in text.splitlines() if f"op={op} " in line]
    have = sum(int(c["calls"]) for c in cells), sum(int(c["bytes"]) for c in cells)
    timed = sum(int(c["timed"]) for c in cells)
    wrong = have != (calls, bytes)
    failed |= wrong
    print(f"{'WRONG' if wrong else 'ok'}: NCCL {version.value}: {op}: {have[0]} calls, {have[1]} bytes of {calls}, {bytes}; {timed} timed")
sys.exit(failed)
