"""Training steps of a small transformer under DDP, with alternating plugins (switch.py).

torchrun --nproc-per-node=N step.py TURNS.SO PLUGIN DIRECTORY ROUNDS BATCH VARIANT…

A block measures STEPS steps of one variant after as many warm-up steps. With a large BATCH the GPUs determine the duration of a
step, as in a training job; with 16 the launching threads do.
"""
import os
import statistics
import sys
import time

from switch import Rounds, Switch, cores

shim, plugin, place, rounds, batch, *variants = sys.argv[1:]
rank = int(os.environ["LOCAL_RANK"])
cores(rank, int(os.environ["LOCAL_WORLD_SIZE"]))
switch = Switch(shim, plugin, place)

import torch  # noqa: E402  loads NCCL
import torch.distributed as dist  # noqa: E402

STEPS = 6

dist.init_process_group("nccl")
torch.cuda.set_device(rank)
torch.manual_seed(0)
layer = lambda: torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
model = torch.nn.Sequential(*(layer() for _ in range(12))).cuda().bfloat16()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], bucket_cap_mb=8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
data = torch.randn(int(batch), 512, 1024, device="cuda", dtype=torch.bfloat16)


def step():
    model(data).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def steps():
    """Microseconds per step."""
    begin = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / STEPS * 1e6


def block(variant):
    dist.barrier()
    torch.cuda.synchronize()
    switch.use(variant)
    steps()
    return steps()


for _ in range(20):
    step()
switch.begin()
found = Rounds(variants)
for turn in range(int(rounds)):
    found.add(f"step {turn}", block)
if rank == 0:
    print(f"a step of DDP, {dist.get_world_size()} GPUs, batch {batch}, {rounds} rounds: median us of none; then ratios to it, round by round:"
          " median (standard error of it; quartiles)")
    print("          none  " + found.head())
    print(f"      {statistics.median(found.none):8.0f}  " + found.row())
switch.use("none")
dist.destroy_process_group()
