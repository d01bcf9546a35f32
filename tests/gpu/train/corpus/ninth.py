"""A ninth list of kinds that are all held out: by an author who had not read the rules, and before any of them was recorded."""

import argparse
import copy
import gzip
import io
import mmap
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from corpus import kind
from corpus.ends import until
from corpus.model import BATCH, SEQUENCE, TOKENS, Block, batch_of, forward, gpt, seconds_as_graph, train, update
from corpus.several import fatal_on_rank_1
from corpus.waits import PLACE

# An instrument that writes one file every 0.2 s, for as long as its parent lives.
INSTRUMENT = """
import os, sys, time
place, parent, number = sys.argv[1], int(sys.argv[2]), 0
while os.getppid() == parent:
    time.sleep(0.2)
    with open(f"{place}/new", "wb") as file:
        file.write(os.urandom(1 << 15))
    os.rename(f"{place}/new", f"{place}/{number}")
    number += 1
"""


class Levels(nn.Module):
    """Two levels of convolutions, the lower one with half of the pixels in each direction."""

    def __init__(self):
        super().__init__()

        def convolutions(width):
            return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.SiLU())))

        self.first, self.last = nn.Conv2d(4, 256, 3, padding=1), nn.Conv2d(512, 4, 3, padding=1)
        self.high, self.low = convolutions(256), convolutions(512)
        self.down, self.up = nn.Conv2d(256, 512, 2, stride=2), nn.ConvTranspose2d(512, 256, 2, stride=2)

    def forward(self, x):
        high = self.high(self.first(x))
        return self.last(torch.cat([high, self.up(self.low(self.down(high)))], 1))


@kind
def unet_together(run):
    """DDP of a small U-Net with a static graph, which learns to remove noise from images."""
    run.join()
    torch.manual_seed(run.rank)
    model = Levels().cuda().to(memory_format=torch.channels_last)
    model = nn.parallel.DistributedDataParallel(model, static_graph=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(128):
        noise = torch.randn(128, 4, 64, 64, device="cuda").to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.mse_loss(model(noise * 0.7).float(), noise)
        run.loss = update(loss, optimizer)
    dist.destroy_process_group()


@kind
def truncated_shard(run):
    """Rank 1 loads the next shard of the data, of which only a part was copied."""

    def fatal():
        path = f"{PLACE}/corpus-shard-{os.getpid()}.pt"
        torch.save(torch.zeros(1 << 20), path)
        os.truncate(path, 1 << 20)
        try:
            torch.load(path)
        finally:
            os.unlink(path)

    fatal_on_rank_1(run, fatal)


@kind
def modified_in_place(run):
    """A gate whose values the backward pass needs is changed in place."""

    def fatal(model):
        gate = model.tokens(batch_of(2)).sigmoid()
        gate += 1
        gate.mean().backward()

    until(run, fatal)


@kind
def unsafe_checkpoint(run):
    """A checkpoint that contains the program's options, which torch.load does not accept by default."""

    def fatal(model):
        path = f"{PLACE}/corpus-options-{os.getpid()}.pt"
        torch.save({"model": model.norm.state_dict(), "args": argparse.Namespace(lr=1e-4)}, path)
        try:
            torch.load(path)
        finally:
            os.unlink(path)

    until(run, fatal)


@kind
def unscales_half(run):
    """The head of a second stage has weights in fp16, whose gradients a scaler refuses."""

    def fatal(_):
        head = nn.Linear(1024, 10).cuda().half()
        optimizer, scaler = torch.optim.SGD(head.parameters(), lr=1e-3), torch.amp.GradScaler("cuda")
        loss = head(torch.randn(64, 1024, device="cuda", dtype=torch.float16)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)

    until(run, fatal)


@kind
def locked_database(run):
    """Another connection keeps the database of the trials locked when the program wants to write its result."""
    import sqlite3

    path = f"{PLACE}/corpus-trials-{os.getpid()}.db"
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("create table trials (loss real)")
    holder.execute("begin exclusive")
    try:
        until(run, lambda _: sqlite3.connect(path, timeout=1).execute("insert into trials values (3.2)"))
    finally:
        os.unlink(path)


@kind
def long_document(run):
    """Attention that keeps its whole matrix meets documents of 65,536 tokens."""

    def fatal(_):
        heads = torch.randn(4, 16, 65536, 64, device="cuda", dtype=torch.bfloat16)
        torch.softmax(heads @ heads.transpose(-1, -2), -1)

    until(run, fatal)


@kind
def temperature_zero(run):
    """Samples are drawn from logits that were divided by a temperature of 0."""

    def fatal(model):
        with torch.no_grad():
            logits = model(batch_of(4, 64))[:, -1].float()
            torch.multinomial(torch.softmax(logits / 0.0, -1), 1).tolist()

    until(run, fatal)


@kind
def closure_in_loader(run):
    """The loader of the evaluation has a function that cannot be sent to its spawned workers."""

    def fatal(_):
        rows = torch.utils.data.TensorDataset(torch.zeros(64, 8))
        next(iter(torch.utils.data.DataLoader(
            rows, batch_size=8, collate_fn=lambda batch: batch, num_workers=2, multiprocessing_context="spawn"
        )))

    until(run, fatal)


@kind
def file_limit(run):
    """The checkpoint is larger than the files that the process may write."""

    def fatal(model):
        path = f"{PLACE}/corpus-limited-{os.getpid()}.pt"
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        try:
            torch.save(model.state_dict(), path)
        finally:
            if os.path.exists(path):
                os.unlink(path)

    until(run, fatal)


@kind
def encoder_is_gone(run):
    """The program that encodes the video has ended long ago when frames are written to it."""
    with subprocess.Popen(["sh", "-c", "exit 0"], stdin=subprocess.PIPE, bufsize=0) as encoder:
        encoder.wait()
        until(run, lambda _: encoder.stdin.write(bytes(1 << 20)))


def orthogonal(gradient):
    """The nearest matrix with orthogonal rows or columns, by five Newton-Schulz iterations."""
    x = gradient.bfloat16()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=-4.775, alpha=2.0315), x, beta=3.4445)
    return x.T if tall else x


@kind
def orthogonal_updates(run):
    """A wide model whose matrices an optimizer updates with orthogonalised momentum, and AdamW the rest."""
    model, _ = gpt(layers=8, width=2048)
    matrices = [weight for weight in model.blocks.parameters() if weight.ndim == 2]
    chosen = {id(weight) for weight in matrices}
    momentum = [torch.zeros_like(weight) for weight in matrices]
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if id(weight) not in chosen], lr=1e-4, fused=True)
    for _ in run.steps(TOKENS):
        loss, _ = forward(model, batch_of())
        loss.backward()
        with torch.no_grad():
            for weight, mean in zip(matrices, momentum):
                mean.lerp_(weight.grad, 0.05)
                weight.add_(orthogonal(mean), alpha=-1e-4)
                weight.grad = None
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()


@kind
def clusters_embeddings(run):
    """K-means with 8,192 centres of 262,144 embeddings of width 2,048: 8 iterations in each step."""
    torch.manual_seed(0)
    points = torch.randn(1 << 18, 2048, device="cuda", dtype=torch.bfloat16)
    exact, ones = points.float(), torch.ones(1 << 18, device="cuda")
    centres = points[:8192].clone()
    for _ in run.steps(8 << 18):
        for _ in range(8):
            half = centres.float().square().sum(1).mul(-0.5).bfloat16()
            nearest = torch.addmm(half, points, centres.T).argmax(1)
            sums = torch.zeros(8192, 2048, device="cuda").index_add_(0, nearest, exact)
            counts = torch.zeros(8192, device="cuda").index_add_(0, nearest, ones)
            centres = (sums / counts.clamp(min=1)[:, None]).bfloat16()


@kind
def evolves_a_density(run):
    """A density matrix of twelve quantum bits evolves by products of complex numbers of double precision."""
    torch.manual_seed(0)
    size = 4096
    axis = F.normalize(torch.randn(size, 1, device="cuda", dtype=torch.complex128), dim=0)
    gate = torch.eye(size, device="cuda", dtype=torch.complex128) - 2 * axis @ axis.mH
    density = torch.eye(size, device="cuda", dtype=torch.complex128) / size
    for _ in run.steps(8):
        for _ in range(8):
            density = gate @ density @ gate.mH
        run.loss = density.diagonal().real.sum().item()


@kind
def samples_images(run):
    """Images are sampled from a diffusion transformer in ten passes with guidance, and come to the host as bytes."""
    torch.manual_seed(0)
    blocks = nn.Sequential(*(Block(1024, 16) for _ in range(12))).cuda().bfloat16()
    with torch.inference_mode():
        for _ in run.steps(32):
            x = torch.randn(32, SEQUENCE, 1024, device="cuda", dtype=torch.bfloat16)
            for _ in range(10):
                free, guided = blocks(torch.cat([x, x + 0.1])).chunk(2)
                x = F.layer_norm(x - 0.1 * (free + 4 * (guided - free)), (1024,))
            ((x[..., :48].float() + 3) * 42).clamp(0, 255).byte().cpu()


@kind
def sharpness_aware(run):
    """Each step takes gradients twice: the second time with weights that were moved uphill."""
    model, optimizer = gpt()
    weights = list(model.parameters())
    for _ in run.steps(TOKENS):
        batch = batch_of()
        forward(model, batch)[0].backward()
        with torch.no_grad():
            gradients = [weight.grad for weight in weights]
            length = torch.stack(torch._foreach_norm(gradients)).norm()
            moves = torch._foreach_mul(gradients, 0.05 / (length + 1e-12))
            torch._foreach_add_(weights, moves)
        optimizer.zero_grad(set_to_none=True)
        loss = forward(model, batch)[0]
        loss.backward()
        with torch.no_grad():
            torch._foreach_sub_(weights, moves)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()


@kind
def quasi_newton(run):
    """L-BFGS fits a wide network to a function, with all points in each evaluation."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(4096, 4096), nn.SiLU())]
    model = nn.Sequential(nn.Linear(64, 4096), nn.SiLU(), *layers, nn.Linear(4096, 1)).cuda()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=8, history_size=5, tolerance_grad=0, tolerance_change=0)
    for _ in run.steps(32768):
        points = torch.randn(32768, 64, device="cuda")
        values = points.sin().mean(1, keepdim=True)

        def closure():
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.mse_loss(model(points).float(), values)  # noqa: B023
            loss.backward()
            return loss

        run.loss = float(optimizer.step(closure))


@kind
def eight_bit_products(run):
    """Inference of wide layers with weights and activations in fp8."""
    torch.manual_seed(0)
    width = 8192
    weights = [torch.randn(width, width, device="cuda").to(torch.float8_e4m3fn) for _ in range(10)]
    one, scale = torch.tensor(1.0, device="cuda"), torch.tensor((2 / width) ** 0.5, device="cuda")
    with torch.no_grad():
        for _ in run.steps(4 * 2 * width):
            for _ in range(4):
                x = torch.randn(2 * width, width, device="cuda", dtype=torch.bfloat16)
                for weight in weights:
                    eight = x.to(torch.float8_e4m3fn)
                    x = torch._scaled_mm(eight, weight.t(), scale_a=one, scale_b=scale, out_dtype=torch.bfloat16).relu_()


@kind
def trains_an_ensemble(run):
    """Eight networks that train at once on the same batch, vectorised by torch.func."""
    torch.manual_seed(0)
    width = 4096
    members = [
        nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(width, width), nn.GELU()))).cuda().bfloat16() for _ in range(8)
    ]
    weights, buffers = torch.func.stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")

    def one(weights, buffers, x):
        return torch.func.functional_call(base, (weights, buffers), (x,))

    together = torch.func.vmap(one, in_dims=(0, 0, None))
    optimizer = torch.optim.SGD(weights.values(), lr=1e-3, momentum=0.9)
    for _ in run.steps(8192):
        x = torch.randn(8192, width, device="cuda", dtype=torch.bfloat16)
        run.loss = update((together(weights, buffers, x) - x.sin()).square().mean(), optimizer)


@kind
def evolution_strategies(run):
    """Weights are moved by random numbers, scored without gradients, and moved towards the better side."""
    model, _ = gpt(layers=8, width=2048)
    weights = list(model.parameters())
    with torch.no_grad():
        for number in run.steps(2 * 2 * TOKENS):
            batch, scores = batch_of(2 * BATCH), []
            torch.manual_seed(number)
            noise = [torch.randn_like(weight) for weight in weights]
            for move in (1e-3, -2e-3):
                torch._foreach_add_(weights, noise, alpha=move)
                scores.append(forward(model, batch)[0])
            better = (scores[1] - scores[0]).item()
            torch._foreach_add_(weights, noise, alpha=1e-3 + 1e-5 * max(-1.0, min(1.0, better)))
            run.loss = scores[0].item()


@kind
def copies_ahead(run):
    """Each step's 512 MB of input are copied to the GPU on another stream, beside the step before."""
    model, optimizer = gpt()
    data = torch.randint(256, (512 << 20,), dtype=torch.uint8).pin_memory()
    there = [data.cuda() for _ in range(2)]
    side = torch.cuda.Stream()
    for number in run.steps(TOKENS):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            there[(number + 1) % 2].copy_(data, non_blocking=True)
        batch = there[number % 2][: BATCH * (SEQUENCE + 1)].view(BATCH, SEQUENCE + 1).long()
        run.loss = train(model, optimizer, batch)
        torch.cuda.current_stream().wait_stream(side)


@kind
def waits_for_an_instrument(run):
    """Each batch is a file that another program writes every 0.2 s, and for which this one looks every 20 ms."""
    model, optimizer = gpt()
    train(model, optimizer, batch_of())
    place = f"{PLACE}/corpus-instrument-{os.getpid()}"
    os.makedirs(place)
    instrument = subprocess.Popen([sys.executable, "-c", INSTRUMENT, place, str(os.getpid())])
    try:
        for number in run.steps(TOKENS):
            with run.losing("input"):
                while not os.path.exists(f"{place}/{number}"):
                    time.sleep(0.02)
                with open(f"{place}/{number}", "rb") as file:
                    raw = bytearray(file.read())
                os.unlink(f"{place}/{number}")
            batch = torch.frombuffer(raw, dtype=torch.uint8)[: BATCH * (SEQUENCE + 1)].view(BATCH, SEQUENCE + 1).long()
            run.loss = train(model, optimizer, batch.cuda())
    finally:
        instrument.kill()
        instrument.wait()
        shutil.rmtree(place)


@kind
def recounts_everything(run):
    """The quantiles of all losses of samples so far are computed again after each step, which takes longer each time."""
    model, optimizer = gpt()
    losses = []
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        with run.losing("quantiles"):
            losses += [random.gauss(run.loss, 1) for _ in range(4000)]
            ordered = sorted(losses)
            ordered[len(ordered) // 2], ordered[len(ordered) * 9 // 10]


@kind
def saves_compressed(run):
    """Every 30 steps the layer that is fine-tuned is compressed by gzip on its way to a file."""
    model, optimizer = gpt()
    path = f"{PLACE}/corpus-compressed-{os.getpid()}.gz"
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 30 == 29:
            with run.losing("saving"):
                buffer = io.BytesIO()
                torch.save(model.blocks[0].state_dict(), buffer)
                with gzip.open(path, "wb", compresslevel=6) as file:
                    file.write(buffer.getvalue())
    if os.path.exists(path):
        os.unlink(path)


@kind
def forecasts_step_by_step(run):
    """A recurrent cell forecasts 2,000 points of time one after the other; the loss is what a CUDA graph would save."""
    torch.manual_seed(0)
    cell, head = nn.LSTMCell(256, 256).cuda(), nn.Linear(256, 256).cuda()
    x, hidden, memory = (torch.randn(32, 256, device="cuda") for _ in range(3))

    def following(x, hidden, memory):
        hidden, memory = cell(x, (hidden, memory))
        return x * 0.9 + torch.tanh(head(hidden)) * 0.1, hidden, memory

    with torch.no_grad():
        best = seconds_as_graph(lambda: [following(x, hidden, memory) for _ in range(20)]) / 20
        for _ in run.steps(32 * 2000):
            began, state = time.perf_counter(), (x, hidden, memory)
            for _ in range(2000):
                state = following(*state)
            torch.cuda.synchronize()
            run.lose("launch", max(0.0, time.perf_counter() - began - 2000 * best))


@kind
def activations_to_the_host(run):
    """Activations of wide layers are kept in the host's memory between the forward and the backward pass."""
    torch.manual_seed(0)
    width = 4096
    layers = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(4)]
    layers = nn.ModuleList(layers).cuda().bfloat16()
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-4)

    def loss_of():
        x = torch.randn(8192, width, device="cuda", dtype=torch.bfloat16)
        for layer in layers:
            x = x + layer(x)
        return x.float().square().mean()

    for number in range(8):
        if number == 3:
            began = time.perf_counter()
        update(loss_of(), optimizer)
    torch.cuda.synchronize()
    usual = (time.perf_counter() - began) / 5
    run.truth["usual_step_s"] = usual
    for _ in run.steps(8192):
        began = time.perf_counter()
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = loss_of()
        run.loss = update(loss, optimizer)
        torch.cuda.synchronize()
        run.lose("copy", max(0.0, time.perf_counter() - began - usual))


@kind
def maps_its_data(run):
    """Samples come from random places of a mapped file, none of which is in memory yet, for at least 0.1 s in each step."""
    model, optimizer = gpt()
    path, size, piece = f"{PLACE}/corpus-mapped-{os.getpid()}", 1 << 30, 1 << 16
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    block = os.urandom(1 << 24)
    for _ in range(size // len(block)):
        os.write(file, block)
    os.fsync(file)
    os.unlink(path)
    data = mmap.mmap(file, size, prot=mmap.PROT_READ)
    data.madvise(mmap.MADV_RANDOM)
    chance, read = random.Random(0), 0
    for _ in run.steps(TOKENS):
        with run.losing("storage"):
            data.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            end = time.perf_counter() + 0.1
            while time.perf_counter() < end:
                at = chance.randrange(size // piece) * piece
                read += len(data[at : at + piece])
        run.loss = train(model, optimizer, batch_of())
    run.truth["read_mib"] = read >> 20


@kind
def thread_holds_the_interpreter(run):
    """From step 20 on another thread computes statistics in Python, and each call of the training waits for its turn."""
    model, optimizer = gpt(layers=6)
    over = threading.Event()

    def count():
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=count, daemon=True)
    for number in run.steps(TOKENS):
        if number == 20:
            run.truth["usual_step_s"] = run.usual(5, 19)
            thread.start()
        if number > 21:
            run.lose("python", max(0.0, run.times[-1] - run.truth["usual_step_s"]))
        run.loss = train(model, optimizer, batch_of())
    over.set()
    if thread.ident is not None:
        thread.join()
