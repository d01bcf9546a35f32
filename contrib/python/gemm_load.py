#!/usr/bin/env python3
"""Matrix products with a known number of FLOP: a load for `railgate calibrate`. Needs PyTorch and a GPU.

    railgate calibrate -- python3 gemm_load.py bf16 8192
    railgate calibrate -- python3 gemm_load.py bf16,fp8,tf32 4096,6144,8192    every type with every size, in turn

Prints a few times per second the type and the FLOP since the previous line.
"""

import itertools
import sys
import time

import torch


def gemm(kind, size):
    def matrix(dtype):
        return torch.randn(size, size, device="cuda").to(dtype)

    if kind == "fp8":
        a, b = matrix(torch.float8_e4m3fn), matrix(torch.float8_e4m3fn).t()
        one = torch.tensor(1.0, device="cuda")
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}[kind]
    a, b = matrix(dtype), matrix(dtype)
    out = torch.empty_like(a)
    return lambda: torch.matmul(a, b, out=out)


def main():
    kinds, sizes = sys.argv[1].split(","), [int(size) for size in sys.argv[2].split(",")]
    torch.backends.cuda.matmul.allow_tf32 = True
    loads = [(kind, size, gemm(kind, size)) for kind, size in itertools.product(kinds, sizes)]
    for _, _, run in loads:
        run()
    torch.cuda.synchronize()
    waiting = []
    for kind, size, run in itertools.cycle(loads):
        begun = time.monotonic()
        while time.monotonic() - begun < 1.0:
            # Batches of some tens of milliseconds; the next one is queued before waiting for the previous one.
            times = max(1, int(2e13 / (2.0 * size**3)))
            for _ in range(times):
                run()
            event = torch.cuda.Event()
            event.record()
            waiting.append((event, kind, times * 2.0 * size**3))
            while len(waiting) > 2:
                done, name, flop = waiting.pop(0)
                done.synchronize()
                print(f"{name} {flop:.6e}", flush=True)


main()
