#!/usr/bin/env python3
"""Multiplies matrices forever on GPU 0 (in the order of the PCI bus), as another job on the same card would.

Prints `running` once it multiplies. Only on a disposable machine; selftest.py starts and ends it.
"""

import os

os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")

import torch

a, b = (torch.randn(8192, 8192, device="cuda:0", dtype=torch.bfloat16) for _ in range(2))
out = torch.empty_like(a)
torch.matmul(a, b, out=out)
torch.cuda.synchronize()
print("running", flush=True)
while True:
    for _ in range(50):
        torch.matmul(a, b, out=out)
    torch.cuda.synchronize()
