#!/usr/bin/env python3
"""A load with a known number of FLOP: matrix products, mixed with kernels that only move memory. accuracy.py starts it,
clock.py uses its functions.

Reads lines `TYPE SIZE DUTY CYCLE COPIES SECONDS` (DUTY: busy share of each CYCLE, in seconds; COPIES: memory-bound
kernels of some 0.5 ms after every 20 ms of products), runs each, and prints `TIME:FLOP` since its start, TIME since boot.
"""

import sys
import time

import torch


def boot():
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def gemm(dtype, size, fill=torch.randn):
    if dtype == "fp8":
        a = fill(size, size, device="cuda").to(torch.float8_e4m3fn)
        b = fill(size, size, device="cuda").to(torch.float8_e4m3fn).t()
        one = torch.tensor(1.0, device="cuda")
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(dtype, torch.float32)
    a, b = (fill(size, size, device="cuda", dtype=kind) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out)


class Batch:
    """Queues products for some 20 ms, followed by the copies."""

    def __init__(self, dtype, size, fill=torch.randn, copies=0):
        self.run, self.copies = gemm(dtype, size, fill), copies
        if copies:
            self.here = torch.randn(1 << 28, device="cuda")
            self.there = torch.empty_like(self.here)
        for _ in range(3):
            self.run()
        torch.cuda.synchronize()
        begun, times = time.monotonic(), 0
        while time.monotonic() - begun < 0.3:
            self.run()
            self.run()
            torch.cuda.synchronize()
            times += 2
        self.times = max(1, int(0.02 / ((time.monotonic() - begun) / times)))
        self.flop = self.times * 2.0 * size**3

    def start(self):
        """Returns the event recorded at its end."""
        for _ in range(self.times):
            self.run()
        for _ in range(self.copies):
            torch.add(self.here, 1.0, out=self.there)
        event = torch.cuda.Event()
        event.record()
        return event


def main():
    for line in sys.stdin:
        dtype, size, duty, cycle, copies, seconds = line.split()
        duty, cycle, seconds = float(duty), float(cycle), float(seconds)
        batch = Batch(dtype, int(size), copies=int(copies))
        done, log, end = 0.0, [(boot(), 0.0)], time.monotonic() + seconds
        while time.monotonic() < end:
            first = time.monotonic()
            stop = end if duty >= 1 else min(end, first + cycle * duty)
            # Two batches in flight, so that the GPU never waits for this program.
            events = [batch.start(), batch.start()]
            while events:
                events.pop(0).synchronize()
                done += batch.flop
                log.append((boot(), done))
                if time.monotonic() < stop:
                    events.append(batch.start())
            rest = first + cycle - time.monotonic()
            if duty < 1 and rest > 0:
                time.sleep(rest)
                log.append((boot(), done))
        print(" ".join("%.6f:%.8e" % entry for entry in log), flush=True)


if __name__ == "__main__":
    main()
