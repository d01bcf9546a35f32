#!/usr/bin/env python3
"""Compares the SM clock that NVML reads with the SMs' cycle counters, under several loads.

Needs one NVIDIA GPU with GPM, PyTorch and nvcc; only on a disposable machine. Prints for each load NVML's clock, the
SMs' clock, and the ratio of tensor activity (single precision for fp32) times each clock to the work done: the figures of
docs/accuracy.md.
"""

import ctypes
import os
import subprocess
import threading
import time

import torch

from load import Batch

PROBE = r"""
extern "C" __global__ void probe(unsigned long long* out) {
    unsigned sm;
    unsigned long long now;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    out[2 * sm] = clock64();
    out[2 * sm + 1] = now;
}
extern "C" int launch(unsigned long long* out, void* stream) {
    probe<<<1056, 32, 0, (cudaStream_t)stream>>>(out);
    return (int)cudaGetLastError();
}
"""
# FLOP per clock and SM on Hopper, and GPM's metric ID of the activity.
RATE = {"bf16": (4096, 5), "tf32": (2048, 5), "fp8": (8192, 5), "fp32": (256, 12)}
# Type, size, content of the matrices (zeros need less power), memory-bound kernels after every 20 ms.
LOADS = [
    ("bf16", 8192, "random", 0), ("bf16", 8192, "zeros", 0), ("bf16", 3072, "random", 0), ("bf16", 3072, "zeros", 0),
    ("bf16", 1536, "random", 0), ("bf16", 1536, "zeros", 0), ("fp8", 6144, "random", 0), ("tf32", 6144, "random", 0),
    ("tf32", 6144, "zeros", 0), ("fp32", 6144, "random", 0), ("bf16", 6144, "random", 12), ("bf16", 6144, "random", 40),
]
SECONDS = float(os.environ.get("SECONDS_EACH", "3"))


class Metric(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint), ("code", ctypes.c_uint), ("value", ctypes.c_double), ("about", ctypes.c_void_p * 3)]


class Metrics(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint), ("count", ctypes.c_uint), ("one", ctypes.c_void_p), ("two", ctypes.c_void_p),
                ("metric", Metric * 400)]


class Nvml:
    def __init__(self):
        self.lib, self.gpu = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        assert self.lib.nvmlInit_v2() == 0
        assert self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.gpu)) == 0

    def sample(self):
        sample = ctypes.c_void_p()
        assert self.lib.nvmlGpmSampleAlloc(ctypes.byref(sample)) == 0
        assert self.lib.nvmlGpmSampleGet(self.gpu, sample) == 0
        return sample

    def activity(self, metric, one, two):
        query = Metrics(version=1, count=1, one=one, two=two)
        query.metric[0].id = metric
        assert self.lib.nvmlGpmMetricsGet(ctypes.byref(query)) == 0
        return query.metric[0].value / 100

    def read(self, call, *which):
        value = ctypes.c_uint()
        getattr(self.lib, call)(self.gpu, *which, ctypes.byref(value))
        return value.value


def main():
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    with open("/tmp/probe.cu", "w") as file:
        file.write(PROBE)
    nvcc = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin/nvcc")
    options = ["-O2", "-shared", "-Xcompiler", "-fPIC", "-arch=sm_90"]
    subprocess.run([nvcc, *options, "/tmp/probe.cu", "-o", "/tmp/probe.so"], check=True)
    launch, nvml = ctypes.CDLL("/tmp/probe.so").launch, Nvml()

    def probe():
        """Cycles so far, as the mean of all SMs, and the GPU's time in seconds."""
        out = torch.zeros(2 * sms, dtype=torch.int64, device="cuda")
        assert launch(ctypes.c_void_p(out.data_ptr()), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)) == 0
        torch.cuda.synchronize()
        return out[0::2].double().mean().item(), out[1::2].double().min().item() / 1e9

    print("| load | TFLOP/s | W | clock by NVML, MHz | counted | ratio | activity × counted clock ÷ work | × NVML's |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for dtype, size, fill, copies in LOADS:
        batch = Batch(dtype, size, torch.zeros if fill == "zeros" else torch.randn, copies)
        clocks, watts, samples = [], [], []

        def read():
            """GPM refreshes every 100 ms, so its samples are taken well within the load."""
            time.sleep(0.4)
            samples.append(nvml.sample())
            end = time.monotonic() + SECONDS - 0.8
            while time.monotonic() < end:
                time.sleep(0.01)
                clocks.append(nvml.read("nvmlDeviceGetClockInfo", 1))
                watts.append(nvml.read("nvmlDeviceGetPowerUsage") / 1000)
            samples.append(nvml.sample())

        def batches(seconds):
            """Keeps one batch queued, so that the GPU never waits, and drains the queue at the end."""
            end, times, before = time.monotonic() + seconds, 0, None
            while time.monotonic() < end:
                event = batch.start()
                if before:
                    before.synchronize()
                before, times = event, times + 1
            torch.cuda.synchronize()
            return times

        batches(0.5)
        reader = threading.Thread(target=read)
        cycles, begun = probe()
        reader.start()
        times = batches(SECONDS)
        cycles_after, ended = probe()
        reader.join()
        flop, seconds = times * batch.flop, ended - begun
        counted, said = (cycles_after - cycles) / seconds, sum(clocks) / len(clocks) * 1e6
        per_clock, metric = RATE[dtype]
        pipes = nvml.activity(metric, *samples) * sms * per_clock * seconds / flop
        beside = f" + {copies} memory-bound" if copies else ""
        print(f"| {dtype} {size}, {fill}{beside} | {flop / seconds / 1e12:.1f} | {sum(watts) / len(watts):.0f} | {said / 1e6:.0f} |"
              f" {counted / 1e6:.0f} | {said / counted:.3f} | {pipes * counted:.3f} | {pipes * said:.3f} |", flush=True)


if __name__ == "__main__":
    main()
