"""A DDP loop with a planted problem, for planted.sh.

torchrun --nproc-per-node=N planted.py PLANT SECONDS

PLANT: nothing, sleep, batch, input, memory, tiny, nan, killed, hang. Problems of a single rank are planted in rank 1.
"""

import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import railgate

WIDTH, LAYERS, ROWS = 4096, 8, 8192
# Normal steps before a fatal problem.
GOOD = 60
# The report counts two minutes without progress as a hang.
HANGS_FOR = datetime.timedelta(seconds=125)


def main():
    plant, seconds = sys.argv[1], float(sys.argv[2])
    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    odd = rank == 1
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", timeout=HANGS_FOR)
    width, rows = (256, 64) if plant == "tiny" else (WIDTH, ROWS)
    if plant == "batch" and odd:
        rows //= 2
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(width, width), nn.GELU())]
    model = DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[local])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    data = torch.randn(rows, width, device="cuda")
    large = torch.randn(1 << 28, device="cuda") if plant == "memory" else None
    small = torch.randn(1024, device="cuda")
    stop = torch.zeros(1, device="cuda")
    end, number = time.time() + seconds, 0
    while True:
        with railgate.waiting():
            if plant == "input":
                time.sleep(0.03)
        if plant == "sleep" and odd:
            time.sleep(0.05)
        if plant == "memory":
            for _ in range(60):
                large.mul_(1.0001)
        if plant == "tiny":
            for _ in range(3000):
                small.add_(1e-6)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(data).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        number += 1
        late = number > GOOD
        railgate.step(number, tokens=rows, loss=float("nan") if plant == "nan" and late else value)
        if plant == "nan" and number > GOOD + 20:
            raise FloatingPointError("the loss is not a number")
        if plant == "killed" and odd and late:
            os.kill(os.getpid(), signal.SIGKILL)
        if plant == "hang" and odd and late:
            time.sleep(600)
        stop.fill_(time.time() > end)
        dist.all_reduce(stop)
        if stop.item() > 0:
            break
    dist.destroy_process_group()


main()
