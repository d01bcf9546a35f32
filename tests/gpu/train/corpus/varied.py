"""A sixth list of kinds that are all held out: committed before any of them was recorded."""

import gc
import json
import os
import random
import time
import traceback

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from corpus import kind
from corpus.blind import compute_for, sort_words
from corpus.model import BATCH, SEQUENCE, TOKENS, batch_of, forward, gpt, train, update
from corpus.several import ddp_with, parallel
from corpus.waits import PLACE


@kind
def rollouts(run):
    """Reinforcement learning: an environment in Python for 0.25 s, then a step of training."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        with run.losing("environment"):
            compute_for(0.25, sort_words)
        run.loss = train(model, optimizer, batch_of())


@kind
def recurrent(run):
    """A recurrent network of cuDNN with long sequences."""
    torch.manual_seed(0)
    model = nn.LSTM(1024, 1024, num_layers=4, batch_first=True).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(64 * 512):
        x = torch.randn(64, 512, 1024, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x)[0].float().square().mean()
        run.loss = update(loss, optimizer)


@kind
def reads_values(run):
    """A small batch, and in each layer a value that the host reads: it launches nothing meanwhile."""
    model, optimizer = gpt()

    def read(_, __, output):
        output.detach().abs().max().item()

    for block in model.blocks:
        block.register_forward_hook(read)
    for _ in run.steps(TOKENS // 16):
        run.loss = train(model, optimizer, batch_of(1))


@kind
def synced_log(run):
    """Each step appends a line to a log, and rests for 60 ms, as if a slow file server confirmed it."""
    model, optimizer = gpt()
    path = f"{PLACE}/corpus-log-{os.getpid()}"
    with open(path, "w") as file:
        for number in run.steps(TOKENS):
            run.loss = train(model, optimizer, batch_of())
            with run.losing("log"):
                file.write(json.dumps({"step": number, "loss": run.loss}) + "\n")
                file.flush()
                os.fsync(file.fileno())
                time.sleep(0.06)
    os.unlink(path)


@kind
def retries_memory(run):
    """The first batch is too large: the program catches the error, takes a smaller one, and completes."""
    model, optimizer = gpt()
    rows = BATCH * 64
    for _ in run.steps(TOKENS):
        while True:
            try:
                run.loss = train(model, optimizer, batch_of(rows))
                break
            except torch.OutOfMemoryError as why:
                print(f"out of memory with {rows} rows: {why}", flush=True)
                optimizer.zero_grad(set_to_none=True)
                rows = BATCH
            torch.cuda.empty_cache()


@kind
def handled_error(run):
    """Errors of single samples are logged with their traceback and skipped; the program completes."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        if number % 50 == 10:
            try:
                json.loads("{'sample': 1}")
            except ValueError:
                traceback.print_exc()
        run.loss = train(model, optimizer, batch_of())


@kind
def collects_garbage(run):
    """Python's garbage collector and an empty cache after each step."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        gc.collect()
        torch.cuda.empty_cache()


@kind
def random_requests(run):
    """A service whose requests come at random times, and that rests for half of the time."""
    model, _ = gpt()
    chance = random.Random(0)
    for _ in run.steps(TOKENS):
        with torch.no_grad():
            for _ in range(chance.randrange(5, 40)):
                forward(model, batch_of())
        with run.losing("requests"):
            time.sleep(chance.uniform(0.3, 1.7))


@kind
def last_checkpoint(run):
    """Good training, and one checkpoint at its end."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
    path = f"{PLACE}/corpus-checkpoint-{os.getpid()}"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    os.unlink(path)


@kind
def growing_sequences(run):
    """Sequences grow from 128 to 2,048 tokens during the training."""
    model, optimizer = gpt()
    began = time.perf_counter()
    for _ in run.steps(TOKENS):
        share = min(1.0, (time.perf_counter() - began) / run.seconds)
        sequence = 128 << int(4.99 * share)
        run.loss = train(model, optimizer, batch_of(BATCH * SEQUENCE // sequence, sequence))


@kind
def denoises(run):
    """A convolutional denoiser with a moving average of its weights."""
    torch.manual_seed(0)
    convolution = lambda: nn.Sequential(nn.Conv2d(256, 256, 3, padding=1), nn.GroupNorm(8, 256), nn.SiLU())  # noqa: E731
    model = nn.Sequential(nn.Conv2d(4, 256, 3, padding=1), *(convolution() for _ in range(12)), nn.Conv2d(256, 4, 3, padding=1))
    model = model.cuda().to(memory_format=torch.channels_last)
    mean = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(64):
        x = torch.randn(64, 4, 64, 64, device="cuda").to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(model(x).float(), x)
        run.loss = update(loss, optimizer)
        with torch.no_grad():
            torch._foreach_lerp_(mean, list(model.parameters()), 1e-3)


@kind
def averages_weights(run):
    """Two ranks that train by themselves, and average their weights every 20 steps."""
    run.join()
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 20 == 19:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data, op=dist.ReduceOp.AVG)
    dist.destroy_process_group()


@kind
def rank_logs(run):
    """Rank 0 writes images and histograms after each step, for 50 ms on the CPU."""

    def planted(*_):
        if run.rank == 0:
            with run.losing("log"):
                compute_for(0.05, sort_words)

    ddp_with(run, planted)


@kind
def sums_on_the_host(run):
    """The gradients of two ranks are summed by Gloo, over host memory."""
    run.join()
    group = dist.new_group(backend="gloo")
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        loss, _ = forward(model, batch_of())
        loss.backward()
        with run.losing("sums"):
            for parameter in model.parameters():
                on_host = parameter.grad.cpu()
                dist.all_reduce(on_host, group=group)
                parameter.grad.copy_(on_host / run.world)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()
    dist.destroy_process_group()


@kind
def gradient_buckets(run):
    """DDP with communication in bf16 and large buckets, and a barrier after each step."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model, optimizer = parallel(run)
    model.register_comm_hook(None, bf16_compress_hook)
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        dist.barrier()
    dist.destroy_process_group()
