#!/usr/bin/env python3
"""Tests that communicators end even if the GPU counts kernels that NCCL does not, in mode `sample`, on all GPUs of a process.

    ends.py LIBNCCL PLUGIN SHOW DIRECTORY all-to-all|graphs

all-to-all: sums, and exchanges in which each rank also sends to itself. graphs: sums, of which ten are captured into a graph that
is replayed. A communicator that has not ended after 30 seconds never ends: NCCL waits for a kernel's times.
"""
import ctypes
import glob
import os
import subprocess
import sys
import threading

library, plugin, show, place = (os.path.abspath(path) for path in sys.argv[1:5])
os.makedirs(f"{place}/user", exist_ok=True)
libc = ctypes.CDLL(None)
for name, value in {"NCCL_PROFILER_PLUGIN": plugin, "RAILGATE_JOB_DIR": place, "RAILGATE_NCCL_MODE": "sample", "NCCL_NVLS_ENABLE": "0"}.items():
    libc.setenv(name.encode(), value.encode(), 1)
places = [*glob.glob("/usr/local/cuda/lib64/libcudart.so.*"), *glob.glob("/opt/**/libcudart.so.1*", recursive=True)]
cuda, nccl = ctypes.CDLL(places[0]), ctypes.CDLL(library)
pointer, size_t, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
FLOAT, SUM, N, RELAXED = 7, 0, size_t(1 << 18), 2


def done(code):
    if code:
        print(f"WRONG: code {code}", flush=True)
        os._exit(1)


count = integer()
done(cuda.cudaGetDeviceCount(ctypes.byref(count)))
gpus = range(count.value)
comms, streams, buffers = (pointer * len(gpus))(), [], []
for gpu in gpus:
    stream, buffer = pointer(), pointer()
    done(cuda.cudaSetDevice(gpu))
    done(cuda.cudaStreamCreate(ctypes.byref(stream)))
    done(cuda.cudaMalloc(ctypes.byref(buffer), size_t(16 << 20)))
    streams.append(stream)
    buffers.append(buffer)
done(nccl.ncclCommInitAll(comms, len(gpus), (integer * len(gpus))(*gpus)))
halves = [(pointer(b.value), pointer(b.value + (8 << 20))) for b in buffers]


def grouped(call):
    done(nccl.ncclGroupStart())
    for gpu in gpus:
        done(call(gpu, *halves[gpu], pointer(comms[gpu]), streams[gpu]))
    done(nccl.ncclGroupEnd())


def reduce(_, a, b, comm, stream):
    return nccl.ncclAllReduce(a, b, N, FLOAT, SUM, comm, stream)


def exchange(_, a, b, comm, stream):
    return any(nccl.ncclSend(a, size_t(1 << 10), FLOAT, peer, comm, stream) or nccl.ncclRecv(b, size_t(1 << 10), FLOAT, peer, comm, stream)
               for peer in gpus)


def on_each(call, *arguments):
    for gpu in gpus:
        done(cuda.cudaSetDevice(gpu))
        done(call(*(argument[gpu] if isinstance(argument, list) else argument for argument in arguments)))


def all_to_all():
    for _ in range(300):
        for _ in range(5):
            grouped(reduce)
        grouped(exchange)


def graphs():
    for _ in range(20):
        grouped(reduce)
    on_each(cuda.cudaStreamBeginCapture, streams, integer(RELAXED))
    for _ in range(10):
        grouped(reduce)
    captured, ready = [pointer() for _ in gpus], [pointer() for _ in gpus]
    on_each(cuda.cudaStreamEndCapture, streams, [ctypes.byref(graph) for graph in captured])
    on_each(cuda.cudaGraphInstantiate, [ctypes.byref(graph) for graph in ready], captured, ctypes.c_ulonglong(0))
    for _ in range(300):
        on_each(cuda.cudaGraphLaunch, ready, streams)
        grouped(reduce)
    # A communicator waits for graphs that contain it.
    on_each(cuda.cudaStreamSynchronize, streams)
    on_each(cuda.cudaGraphExecDestroy, ready)
    on_each(cuda.cudaGraphDestroy, captured)


def end():
    for gpu in gpus:
        done(cuda.cudaSetDevice(gpu))
        done(cuda.cudaDeviceSynchronize())
    threads = [threading.Thread(target=lambda comm=comm: nccl.ncclCommDestroy(pointer(comm)), daemon=True) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return not any(thread.is_alive() for thread in threads)


{"all-to-all": all_to_all, "graphs": graphs}[sys.argv[5]]()
ended = end()
text = subprocess.run([show, *glob.glob(f"{place}/user/ranks/*")], capture_output=True, text=True, check=True).stdout
print(text.splitlines()[0])
print(f"{'ok' if ended else 'WRONG'}: {sys.argv[5]}: the communicators {'ended' if ended else 'do not end'}", flush=True)
# Exit even if threads of NCCL wait forever.
os._exit(not ended)
