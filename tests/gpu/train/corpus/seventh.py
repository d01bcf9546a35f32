"""A seventh list of kinds that are all held out: committed before any of them was recorded."""

import json
import os
import socket
import sys
import time
import traceback

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from corpus import kind
from corpus.blind import compute_for, sort_words
from corpus.ends import until
from corpus.fresh import plain_steps
from corpus.model import BATCH, SEQUENCE, TOKENS, batch_of, forward, gpt, train, update
from corpus.several import ddp_with, fatal_on_rank_1, parallel
from corpus.waits import PLACE


@kind
def zero_division(run):
    """A rate per second of a time that is 0."""
    until(run, lambda _: 100 / 0)


@kind
def bad_json(run):
    """A configuration with a comma too many."""
    gpt()
    json.loads('{"layers": 12,}')


@kind
def file_exists(run):
    """The directory of the run is there already, and the program refuses it."""
    gpt()
    os.mkdir("/tmp")


@kind
def out_of_host_memory(run):
    """A list that cannot be that long."""
    gpt()
    [0] * (1 << 62)


@kind
def times_out(run):
    """A service that the program asks in the middle does not answer."""

    def fatal(_):
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        with socket.create_connection(listener.getsockname(), timeout=2) as connection:
            connection.settimeout(2)
            connection.recv(1)

    until(run, fatal)


@kind
def second_error(run):
    """Samples that cannot be read are logged and skipped; then a label is out of range."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        if number % 10 == 5:
            try:
                json.loads("{'sample': 1}")
            except ValueError:
                traceback.print_exc()
        if number == 60:
            run.truth["died"] = "by plan"
            run.write()
            raise IndexError("the label 50001 is out of range")
        run.loss = train(model, optimizer, batch_of())


@kind
def uneven_samples(run):
    """Samples of different lengths that the loader cannot put into one batch."""
    gpt()
    lengths = [torch.zeros(10), torch.zeros(12)]
    next(iter(torch.utils.data.DataLoader(lengths, batch_size=2)))


@kind
def two_devices(run):
    """A part of the model stayed on the host."""
    model, _ = gpt()
    model.norm.cpu()
    forward(model, batch_of())


@kind
def used_twice(run):
    """A graph of gradients that was freed is used again."""
    model, _ = gpt()
    loss, _ = forward(model, batch_of())
    loss.backward()
    loss.backward()


@kind
def wrong_values(run):
    """The program checks its weights, and gives up with exit code 12."""

    def fatal(model):
        print("fatal: checksum of layer 3 differs from the checkpoint's", file=sys.stderr, flush=True)
        sys.exit(12)

    until(run, fatal)


@kind
def image_classifier(run):
    """Residual blocks on images, with batches that are augmented on the GPU."""
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            part = [nn.Conv2d(256, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256)]
            self.body = nn.Sequential(*part, nn.ReLU(), nn.Conv2d(256, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256))

        def forward(self, x):
            return F.relu(x + self.body(x))

    model = nn.Sequential(nn.Conv2d(3, 256, 7, stride=4, padding=3), *(Residual() for _ in range(8)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    for _ in run.steps(128):
        x = torch.rand(128, 3, 224, 224, device="cuda").flip(-1).sub_(0.5).to(memory_format=torch.channels_last)
        labels = torch.randint(1000, (128,), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), labels)
        run.loss = update(loss, optimizer)


@kind
def contrastive(run):
    """Two towers and a large matrix of similarities."""
    torch.manual_seed(0)
    towers = [nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.GELU()))).cuda() for _ in range(2)]
    optimizer = torch.optim.AdamW([p for tower in towers for p in tower.parameters()], lr=1e-4, fused=True)
    for _ in run.steps(8192):
        with torch.autocast("cuda", torch.bfloat16):
            left, right = (F.normalize(tower(torch.randn(8192, 2048, device="cuda")), dim=-1) for tower in towers)
            loss = F.cross_entropy((left @ right.T).float() * 20, torch.arange(8192, device="cuda"))
        run.loss = update(loss, optimizer)


@kind
def gradient_penalty(run):
    """Gradients of gradients, as for a critic."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Linear(4096, 4096), nn.SiLU(), nn.Linear(4096, 4096), nn.SiLU(), nn.Linear(4096, 1)).cuda()
    optimizer = torch.optim.AdamW(critic.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(8192):
        x = torch.randn(8192, 4096, device="cuda", requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16):
            scores = critic(x).float()
        (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
        run.loss = update(scores.mean() + (slope.norm(dim=1) - 1).square().mean(), optimizer)


@kind
def two_streams(run):
    """Two models that train on two streams at the same time."""
    pairs = [gpt(layers=6) for _ in range(2)]
    streams = [torch.cuda.Stream() for _ in pairs]
    for _ in run.steps(2 * TOKENS):
        for (model, optimizer), stream in zip(pairs, streams):
            with torch.cuda.stream(stream):
                loss, _ = forward(model, batch_of())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


@kind
def resumes(run):
    """Loads a checkpoint of its own before the first step."""
    model, optimizer = gpt()
    path = f"{PLACE}/corpus-checkpoint-{os.getpid()}"
    torch.save(model.state_dict(), path)
    model.load_state_dict(torch.load(path, weights_only=True))
    os.unlink(path)
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())


@kind
def sorts_metrics(run):
    """Each step copies its losses to the host and sorts them there for 0.1 s."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        with run.losing("metrics"):
            compute_for(0.1, sort_words)


@kind
def uploads(run):
    """Every 60 steps the weights are copied to the host, and sent to a slow store for 2 s."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 60 == 59:
            with run.losing("upload"):
                kept = {name: value.cpu() for name, value in model.state_dict().items()}
                time.sleep(2)
                kept.clear()


@kind
def epochs(run):
    """Short epochs, between which the program waits 1.5 s for a lock."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 50 == 49:
            with run.losing("lock"):
                time.sleep(1.5)


@kind
def decodes_images(run):
    """Batches whose images the training process itself unpacks, for 0.15 s in each step."""
    model, optimizer = gpt()
    raw = os.urandom(1 << 20)
    for _ in run.steps(TOKENS):
        with run.losing("input"):
            compute_for(0.15, lambda: bytes(byte ^ 0x5A for byte in raw[:20000]))
        run.loss = train(model, optimizer, batch_of())


@kind
def compiles_late(run):
    """After 8 s of steps a part of the model is compiled for the first time."""
    model, optimizer = gpt()
    began, compiled = time.perf_counter(), False
    for _ in run.steps(TOKENS):
        if not compiled and time.perf_counter() - began > 8:
            model.blocks[0].forward = torch.compile(model.blocks[0].forward)
            compiled = True
        run.loss = train(model, optimizer, batch_of())


@kind
def warms_up(run):
    """A program that reads a file for 15 s before the first step, then good training."""
    end = time.perf_counter() + 15
    path = f"{PLACE}/corpus-input-{os.getpid()}"
    with open(path, "wb") as file:
        file.write(os.urandom(64 << 20))
    while time.perf_counter() < end:
        with open(path, "rb") as file:
            file.read()
    os.unlink(path)
    plain_steps(run)


@kind
def sequence_parallel(run):
    """Two ranks that gather and scatter the sequence around each pair of products."""
    run.join()
    torch.manual_seed(0)
    width = 4096
    weights = [torch.randn(width, width // 2, device="cuda", dtype=torch.bfloat16) for _ in range(12)]
    with torch.no_grad():
        for _ in run.steps(16384):
            part = torch.randn(8192, width, device="cuda", dtype=torch.bfloat16)
            for weight in weights:
                whole = torch.empty(16384, width, device="cuda", dtype=torch.bfloat16)
                dist.all_gather_into_tensor(whole, part)
                partial = torch.relu(whole @ weight / 64) @ weight.T / 64
                summed = torch.empty_like(part)
                dist.reduce_scatter_tensor(summed, partial)
                part = summed + part
    dist.destroy_process_group()


@kind
def sharded_optimizer(run):
    """DDP with the optimizer's states divided among the ranks."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    run.join()
    model, _ = gpt()
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
    dist.destroy_process_group()


@kind
def broadcasts_input(run):
    """Rank 0 alone prepares each batch, for 60 ms on the CPU, and sends it to rank 1."""
    model, optimizer = parallel(run)
    for _ in run.steps(TOKENS):
        batch = torch.zeros(BATCH, SEQUENCE + 1, dtype=torch.int64, device="cuda")
        if run.rank == 0:
            with run.losing("input"):
                compute_for(0.06, sort_words)
                batch = batch_of()
        dist.broadcast(batch, 0)
        run.loss = train(model, optimizer, batch)
    dist.destroy_process_group()


@kind
def all_evaluate(run):
    """Every 30 steps both ranks compute a metric on the CPU for 1.5 s."""

    def planted(number, *_):
        if number % 30 == 29:
            with run.losing("evaluation"):
                compute_for(1.5, sort_words)

    ddp_with(run, planted)


@kind
def heavier_rank(run):
    """Rank 1 gets half as many tokens again as rank 0."""
    model, optimizer = parallel(run)
    rows = BATCH + run.rank * BATCH // 2
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of(rows))
    dist.destroy_process_group()


@kind
def same_gpu(run):
    """Both ranks take the first GPU."""
    torch.cuda.set_device(0)
    parallel(run)


@kind
def both_fail(run):
    """The same assertion fails on both ranks."""

    def planted(number, *_):
        if number == 40:
            run.truth["died"] = "by plan"
            run.write()
            raise AssertionError("the learning rate is negative")

    ddp_with(run, planted)


@kind
def rank_is_stopped(run):
    """Rank 1 ends itself with SIGTERM."""
    import signal

    fatal_on_rank_1(run, lambda: os.kill(os.getpid(), signal.SIGTERM))
