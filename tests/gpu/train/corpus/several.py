"""Jobs of several GPUs, with what one rank does to the others."""

import os
import signal
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from corpus import kind
from corpus.model import BATCH, SEQUENCE, TOKENS, Block, batch_of, forward, gpt, train, update
from corpus.waits import PLACE, on_cores

GOOD = 40


def parallel(run, **size):
    run.join()
    model, optimizer = gpt(**size)
    return DistributedDataParallel(model), optimizer


def ddp_with(run, planted, rows=BATCH):
    """DDP, with `planted(number)` after each step."""
    model, optimizer = parallel(run)
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of(rows))
        planted(number, model, optimizer)
    dist.destroy_process_group()


@kind
def ddp(run):
    ddp_with(run, lambda *_: None)


@kind
def fsdp(run):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    run.join()
    model, _ = gpt()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in [*model.blocks, model]:
        fully_shard(part, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
    dist.destroy_process_group()


@kind
def pipeline(run):
    """Two stages, four micro-batches; each stage is idle for a fifth of the time or more (the bubble)."""
    run.join()
    torch.manual_seed(0)
    stage = torch.nn.Sequential(*(Block(2048, 16) for _ in range(8))).cuda().bfloat16()
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-4, fused=True)
    shape = (4, SEQUENCE, 2048)
    for _ in run.steps(4 * 4 * SEQUENCE):
        ins, outs = [], []
        for _ in range(4):
            x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            if run.rank == 1:
                dist.recv(x, 0)
            ins.append(x.requires_grad_())
            outs.append(stage(x))
            if run.rank == 0:
                dist.send(outs[-1].detach(), 1)
        for x, y in zip(ins, outs):
            gradient = torch.empty_like(y)
            if run.rank == 0:
                dist.recv(gradient, 1)
                y.backward(gradient)
            else:
                y.float().square().mean().backward()
                dist.send(x.grad, 0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    dist.destroy_process_group()


class Reduced(torch.autograd.Function):
    """Sum over all ranks, whose gradient is the same on each."""

    @staticmethod
    def forward(_, x):
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_, gradient):
        return gradient


@kind
def tensor_parallel(run):
    """Each rank holds half of each layer, and the halves are summed after each."""
    run.join()
    torch.manual_seed(0)
    width = 4096
    shape = {"device": "cuda", "dtype": torch.bfloat16, "requires_grad": True}
    layers = [(torch.randn(width, width, **shape), torch.randn(width, width, **shape)) for _ in range(12)]
    optimizer = torch.optim.SGD([weight for layer in layers for weight in layer], lr=1e-6)
    for _ in run.steps(8192):
        x = torch.randn(8192, width, device="cuda", dtype=torch.bfloat16)
        for up, down in layers:
            x = x + Reduced.apply(torch.relu(x @ up / 64) @ down / 64)
        run.loss = update(x.float().square().mean(), optimizer)
    dist.destroy_process_group()


@kind
def all_to_all(run):
    """Experts: each rank sends half of its tokens to the other one, twice in each layer."""
    run.join()
    torch.manual_seed(0)
    width = 4096
    experts = [torch.nn.Linear(width, width).cuda().bfloat16() for _ in range(8)]
    with torch.no_grad():
        for _ in run.steps(16384):
            x = torch.randn(16384, width, device="cuda", dtype=torch.bfloat16)
            for expert in experts:
                there, back = torch.empty_like(x), torch.empty_like(x)
                dist.all_to_all_single(there, x)
                dist.all_to_all_single(back, torch.relu(expert(expert(there))))
                x = x + back
    dist.destroy_process_group()


@kind
def evaluates_alone(run):
    """Rank 0 evaluates for 1.5 s every 20 steps while the others wait for its next gradients."""

    def planted(number, model, _):
        if number % 20 == 19 and run.rank == 0:
            with run.losing("evaluation"), torch.no_grad():
                end = time.perf_counter() + 1.5
                while time.perf_counter() < end:
                    forward(model.module, batch_of())
                    torch.cuda.synchronize()

    ddp_with(run, planted)


def saved(run, model, optimizer):
    with run.losing("saving"), run.saving():
        path = f"{PLACE}/corpus-checkpoint-{os.getpid()}"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        os.unlink(path)


@kind
def saves_alone(run):
    def planted(number, model, optimizer):
        if number % 40 == 39 and run.rank == 0:
            saved(run, model, optimizer)

    ddp_with(run, planted)


@kind
def saves_sharded(run):
    """Each rank writes as much as the whole of saves_alone."""

    def planted(number, model, optimizer):
        if number % 40 == 39:
            saved(run, model, optimizer)

    ddp_with(run, planted)


@kind
def pausing_rank(run):
    """Rank 1 pauses for half a second in a tenth of the steps."""

    def planted(number, *_):
        if number % 10 == 9 and run.rank == 1:
            with run.losing("pause"):
                time.sleep(0.5)

    ddp_with(run, planted)


@kind
def loaded_rank(run):
    """Each rank has a core of its own; that of rank 1 gets three busy processes."""
    cores = sorted(os.sched_getaffinity(0))
    on_cores({cores[run.rank]}, 3 * run.rank, run, lambda: parallel(run))
    dist.destroy_process_group()


@kind
def uneven_lengths(run):
    """Rank 1 has a batch of half the size. Lost in each step: what the slower rank takes longer than the mean, without
    communication."""
    model, optimizer = parallel(run)
    rows = BATCH // (1 + run.rank)
    for number in range(15):
        if number == 5:
            torch.cuda.synchronize()
            began = time.perf_counter()
        with model.no_sync():
            train(model, optimizer, batch_of(rows))
    torch.cuda.synchronize()
    alone = torch.tensor([(time.perf_counter() - began) / 10], device="cuda")
    most, mean = alone.clone(), alone.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    lost = (most - mean).item()
    for _ in run.steps(TOKENS * rows // BATCH):
        run.loss = train(model, optimizer, batch_of(rows))
        run.lose("uneven", lost)
    dist.destroy_process_group()


def fatal_on_rank(run, rank, fatal):
    def planted(number, *_):
        if number == GOOD and run.rank == rank:
            run.truth["died"] = "by plan"
            run.write()
            fatal()

    ddp_with(run, planted)


def fatal_on_rank_1(run, fatal):
    fatal_on_rank(run, 1, fatal)


@kind
def exception_rank(run):
    def fatal():
        raise ValueError("the label 32768 is out of range")

    fatal_on_rank_1(run, fatal)


@kind
def killed_rank(run):
    fatal_on_rank_1(run, lambda: os.kill(os.getpid(), signal.SIGKILL))


@kind
def leaves_rank(run):
    fatal_on_rank_1(run, lambda: os._exit(0))


@kind
def memory_rank(run):
    """Rank 1 runs out of the GPU's memory, and dies at once without telling the others."""

    def fatal():
        try:
            torch.empty(1 << 40, device="cuda", dtype=torch.uint8)
        except torch.OutOfMemoryError as why:
            print(f"[rank1]: torch.OutOfMemoryError: {why}", flush=True)
            os._exit(1)

    fatal_on_rank_1(run, fatal)


@kind
def hang_rank(run):
    fatal_on_rank_1(run, lambda: time.sleep(3600))
