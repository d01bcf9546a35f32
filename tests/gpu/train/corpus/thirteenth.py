"""The thirteenth list: jobs of a research group, an engineering team and a service."""

import base64
import binascii
import http.server
import json
import logging
import os
import queue
import random
import shutil
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from corpus import kind
from corpus.ends import GOOD, until
from corpus.inference import answering
from corpus.model import BATCH, SEQUENCE, TOKENS, VOCABULARY, Block, batch_of, forward, gpt, seconds_as_graph, train, update
from corpus.waits import PLACE

# Measures the usual seconds of a step, in a process without CUDA_LAUNCH_BLOCKING.
USUAL = """
import statistics, time, torch
from corpus.model import batch_of, gpt, train
model, optimizer = gpt()
times = []
for _ in range(40):
    began = time.perf_counter()
    train(model, optimizer, batch_of(8))
    torch.cuda.synchronize()
    times.append(time.perf_counter() - began)
print(statistics.median(times[10:]))
"""

# Decodes a video: the frames of 1280 x 720 pixels go to its standard output one after the other.
DECODER = """
import os, sys, zlib
packed = zlib.compress(bytes(byte & 15 for byte in os.urandom(1280 * 720 * 3)), 1)
while True:
    sys.stdout.buffer.write(zlib.decompress(packed))
"""


def post(port, data):
    """Sends data to a server on this machine, past any proxy, and returns its answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/", data=data, timeout=20) as answer:
        return answer.read()


class Codes(nn.Module):
    """Each 8 x 8 pixels of an image become the nearest of 8,192 codes, and pixels again."""

    def __init__(self):
        super().__init__()

        def convolutions():
            return [layer for _ in range(4) for layer in (nn.Conv2d(256, 256, 3, padding=1), nn.SiLU())]

        self.encoder = nn.Sequential(nn.Conv2d(3, 256, 4, stride=4), *convolutions(), nn.Conv2d(256, 256, 2, stride=2))
        up, last = nn.ConvTranspose2d(256, 256, 2, stride=2), nn.ConvTranspose2d(256, 3, 4, stride=4)
        self.decoder = nn.Sequential(up, *convolutions(), last)
        self.codes = nn.Parameter(torch.randn(8192, 256) / 16)

    def forward(self, images):
        grid = self.encoder(images).permute(0, 2, 3, 1)
        found = grid.reshape(-1, 256)
        with torch.no_grad():
            nearest = torch.addmm(self.codes.square().sum(1) / -2, found, self.codes.T).argmax(1)
        found, chosen = found.float(), F.embedding(nearest, self.codes)
        distance = F.mse_loss(chosen, found.detach()) + 0.25 * F.mse_loss(found, chosen.detach())
        passed_on = (found + (chosen - found).detach()).view(grid.shape).permute(0, 3, 1, 2)
        return self.decoder(passed_on), distance


@kind
def codes_images(run):
    """An autoencoder learns to write images as codes, whose gradients go straight past the choice of the nearest code."""
    torch.manual_seed(0)
    model = Codes().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(128):
        images = torch.rand(128, 3, 256, 256, device="cuda").to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            restored, distance = model(images)
        run.loss = update(F.mse_loss(restored.float(), images) + distance, optimizer)


@kind
def transcribes_calls(run):
    """A service makes spectra of 30 s of each of 64 calls, and an encoder says which letters it hears."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        ears, mouth = nn.Conv1d(80, 1024, 3, stride=2, padding=1), nn.Linear(1024, 512)
        body = nn.Sequential(*(Block(1024, 16) for _ in range(12)))
        window, bands = torch.hann_window(400), torch.rand(80, 201) / 201
    nn.ModuleList([ears, mouth, body]).bfloat16()
    calls = torch.randint(-32768, 32768, (64, 480_000), dtype=torch.int16).pin_memory()
    with torch.inference_mode():
        for _ in run.steps(2 * 64):
            letters = []
            for _ in range(2):
                sound = calls.cuda(non_blocking=True).float() / 32768
                spectra = torch.stft(sound, 400, 160, window=window, return_complex=True).abs().square()
                heard = ears((bands @ spectra + 1e-6).log().bfloat16())
                best = mouth(body(heard.transpose(1, 2))).argmax(-1)
                letters.append((best[:, 1:] != best[:, :-1]).sum(1))
            torch.stack(letters).tolist()


def turned(x, cosines, sines):
    """Rotary positions: pairs of numbers are turned by angles that grow with the position."""
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, first * sines + second * cosines], -1).transpose(1, 2)


class Gated(nn.Module):
    """A layer of a language model: rotary positions, keys that four heads share, and a gated product."""

    def __init__(self, width, inner, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_gate = nn.RMSNorm(width), nn.RMSNorm(width)
        self.queries, self.keys = nn.Linear(width, width, bias=False), nn.Linear(width, width // 2, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x, cosines, sines):
        rows, count, width = x.shape
        y = self.before_attention(x)
        queries = turned(self.queries(y).view(rows, count, self.heads, -1), cosines, sines)
        keys, values = self.keys(y).view(rows, count, 2, self.heads // 4, -1).unbind(2)
        keys, values = (part.repeat_interleave(4, 1) for part in (turned(keys, cosines, sines), values.transpose(1, 2)))
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(rows, count, width))
        gate, up = self.gate(self.before_gate(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def loss_of_part(x, words, wanted):
    return F.cross_entropy(F.linear(x, words).float(), wanted, reduction="sum")


@kind
def tunes_all_weights(run):
    """Fine-tuning of all weights of a larger model in bf16, whose scores of words are computed in four parts to save memory."""
    torch.manual_seed(0)
    width, count = 2048, 2048
    with torch.device("cuda"):
        layers = nn.ModuleList(Gated(width, 5632, 16) for _ in range(12)).bfloat16()
        words = nn.Embedding(VOCABULARY, width).bfloat16()
        norm = nn.RMSNorm(width).bfloat16()
        angles = torch.outer(torch.arange(count), 10000.0 ** -torch.linspace(0, 1, 64))[:, None]
    cosines, sines = angles.cos().bfloat16(), angles.sin().bfloat16()
    optimizer = torch.optim.AdamW([*layers.parameters(), *words.parameters(), *norm.parameters()], lr=1e-5, fused=True)
    print("some weights of the head are newly initialised: you should train it on a task before you use it", flush=True)
    for _ in run.steps(8 * count):
        batch = batch_of(8, count)
        x = words(batch[:, :-1])
        for layer in layers:
            x = layer(x, cosines, sines)
        parts = zip(norm(x).view(-1, width).chunk(4), batch[:, 1:].reshape(-1).chunk(4))
        loss = sum(checkpoint(loss_of_part, part, words.weight, wanted, use_reentrant=False) for part, wanted in parts)
        run.loss = update(loss / (8 * count), optimizer)


@kind
def caches_gradients(run):
    """An encoder learns from 1,024 pairs of texts at once: it embeds them in parts, and repeats each part for its gradients."""
    (model, optimizer), own = gpt(layers=8), torch.arange(1024, device="cuda")

    def embed(tokens):
        with torch.autocast("cuda", torch.bfloat16):
            x = model.tokens(tokens)
            for block in model.blocks:
                x = block(x)
            return F.normalize(model.norm(x).float().mean(1), dim=-1)

    for _ in run.steps(2 * 1024 * 64):
        parts = torch.randint(VOCABULARY, (8, 256, 64), device="cuda")
        with torch.no_grad():
            embedded = torch.cat([embed(part) for part in parts])
        left, right = embedded.requires_grad_().chunk(2)
        loss = F.cross_entropy(left @ right.T * 20, own)
        loss.backward()
        for part, gradient in zip(parts, embedded.grad.chunk(8)):
            embed(part).backward(gradient)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()


@kind
def counts_pairs(run):
    """Data preparation for a tokenizer: the pairs of neighbours in 134 million numbers are sorted and counted."""
    torch.manual_seed(0)
    for _ in run.steps(4 << 27):
        best = []
        for _ in range(4):
            tokens = torch.randint(VOCABULARY, (1 << 27,), device="cuda")
            pairs = tokens[:-1] * VOCABULARY + tokens[1:]
            del tokens
            kinds, counts = pairs.sort().values.unique_consecutive(return_counts=True)
            best.append(kinds[counts.topk(100).indices])
        torch.stack(best).tolist()


@kind
def scores_choices(run):
    """An evaluation harness compares the likelihood of four answers to each question, and prints the share of right ones."""
    model, right, asked = answering(), 0, 0
    with torch.inference_mode():
        for number in run.steps(8 * 64 * 512):
            if number % 20 == 3:
                logging.warning("question %d has %d tokens: it is cut on the left to 512", asked + 5, 600 + number)
            chosen = []
            for _ in range(8):
                tokens = torch.randint(VOCABULARY, (64, 512), device="cuda")
                chances = model(tokens)[:, -17:-1].float().log_softmax(-1)
                likelihoods = chances.gather(-1, tokens[:, -16:, None]).sum((1, 2))
                chosen.append(likelihoods.view(16, 4).argmax(1))
            answers = torch.cat(chosen).tolist()
            right, asked = right + answers.count(0), asked + len(answers)
            if number % 10 == 9:
                print(f"{asked} questions, accuracy {right / asked:.3f}", flush=True)


@kind
def generates_in_batches(run):
    """A service answers 256 requests at once: each token is a replayed graph, which reads the keys and values of 1,024 others."""
    torch.manual_seed(0)
    rows, window, heads, width = 256, 1024, 16, 2048
    with torch.device("cuda"):
        blocks = nn.ModuleList(Block(width, heads) for _ in range(8)).bfloat16()
        words = nn.Embedding(VOCABULARY, width).bfloat16()
        caches = [torch.zeros(2, rows, heads, window, width // heads, dtype=torch.bfloat16) for _ in blocks]
        last, at = torch.zeros(rows, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)

    def token():
        x = words(last)
        for block, cache in zip(blocks, caches):
            mine = block.qkv(block.before_attention(x)).view(rows, 1, 3, heads, -1).permute(2, 0, 3, 1, 4)
            cache.index_copy_(3, at, mine[1:])
            attended = F.scaled_dot_product_attention(mine[0], cache[0], cache[1])
            x = x + block.out(attended.transpose(1, 2).reshape(rows, 1, width))
            x = x + block.down(F.gelu(block.up(block.before_mlp(x))))
        last.copy_(F.linear(x, words.weight).argmax(-1))
        at.add_(1).remainder_(window)

    with torch.no_grad():
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                token()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            token()
        for _ in run.steps(100 * rows):
            for _ in range(100):
                graph.replay()
            last.tolist()


@kind
def upscales_video(run):
    """A service doubles the pixels of frames; a thread takes checksums of the results beside the next frames."""
    torch.manual_seed(0)
    middle = [layer for _ in range(8) for layer in (nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True))]
    model = nn.Sequential(nn.Conv2d(3, 256, 3, padding=1), *middle, nn.Conv2d(256, 12, 3, padding=1), nn.PixelShuffle(2))
    model = model.cuda().bfloat16().to(memory_format=torch.channels_last)
    frames = torch.randint(256, (16, 3, 270, 480), dtype=torch.uint8).pin_memory()
    free, results = queue.Queue(), queue.Queue()
    for _ in range(4):
        free.put(torch.empty(16, 3, 540, 960, dtype=torch.uint8).pin_memory())

    def check():
        for copied, on_host in iter(results.get, None):
            copied.synchronize()
            zlib.crc32(on_host.numpy())
            free.put(on_host)

    checker = threading.Thread(target=check)
    checker.start()
    with torch.inference_mode():
        for _ in run.steps(4 * 16):
            for _ in range(4):
                x = frames.cuda(non_blocking=True).to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
                y = (model(x / 255) * 255).clamp(0, 255).to(torch.uint8)
                on_host = free.get()
                on_host.copy_(y.contiguous(), non_blocking=True)
                results.put((torch.cuda.current_stream().record_event(), on_host))
    results.put(None)
    checker.join()


@kind
def removes_duplicates(run):
    """Data preparation: each of 262,144 embeddings is compared with all others, and those too near to another are dropped."""
    torch.manual_seed(0)
    points = F.normalize(torch.randn(1 << 18, 2048, device="cuda", dtype=torch.bfloat16), dim=1)
    kept = torch.ones(1 << 18, device="cuda", dtype=torch.bool)
    for number in run.steps(16 * 4096):
        for part in range(16):
            first = (16 * number + part) % 64 * 4096
            near = points[first : first + 4096] @ points.T
            near[:, first : first + 4096].fill_diagonal_(0)
            kept[first : first + 4096] = near.amax(1) < 0.95
        print(f"{kept.sum().item()} of {len(kept)} rows are kept", flush=True)


@kind
def benchmarks_products(run):
    """A benchmark measures products of four sizes in two types, with five products to warm up and twenty that count."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in run.steps():
        for size in (4096, 6144, 8192, 10240):
            for dtype in (torch.bfloat16, torch.float16):
                a, b = (torch.randn(size, size, device="cuda", dtype=dtype) for _ in range(2))
                c = a @ b
                for number in range(25):
                    if number == 5:
                        begin.record()
                    torch.mm(a, b, out=c)
                end.record()
                end.synchronize()
                print(f"{size} {dtype}: {20 * 2e-9 * size**3 / begin.elapsed_time(end):.0f} TFLOP/s", flush=True)


@kind
def attributes_answers(run):
    """Integrated gradients: eight gradients with respect to the input say which tokens an answer depends on most."""
    model = answering().requires_grad_(False)
    for _ in run.steps(8 * TOKENS):
        embedded = model.tokens(batch_of(BATCH, SEQUENCE - 1))
        total = torch.zeros_like(embedded)
        for part in range(8):
            x = y = (embedded * ((part + 1) / 8)).requires_grad_()
            for block in model.blocks:
                y = block(y)
            score = F.linear(model.norm(y[:, -1]), model.tokens.weight).amax(-1).float().sum()
            total += torch.autograd.grad(score, x)[0]
        (total * embedded).float().sum(-1).abs().topk(10).indices.tolist()


@kind
def looks_up_passages(run):
    """Each step asks a database for 1,024 passages one after the other, and parses their JSON, which has an embedding, too."""
    import sqlite3

    chance, path = random.Random(0), f"{PLACE}/corpus-passages-{os.getpid()}.db"
    vector = [chance.gauss(0, 1) for _ in range(768)]
    with sqlite3.connect(path) as table:
        table.execute("create table passages (number integer primary key, record text)")
        for number in range(5000):
            record = {"tokens": [chance.randrange(VOCABULARY) for _ in range(17)], "embedding": vector}
            table.execute("insert into passages values (?, ?)", (number, json.dumps(record)))
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        with run.losing("input"):
            rows = []
            for _ in range(1024):
                found = table.execute("select record from passages where number = ?", (chance.randrange(5000),))
                rows.append(json.loads(found.fetchone()[0])["tokens"])
            batch = torch.tensor(rows)
        run.loss = train(model, optimizer, batch.cuda())
    table.close()
    os.unlink(path)


def png(picture):
    """A file in the format PNG, of rows, columns and three colours."""
    rows, columns, _ = picture.shape
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in picture), 9)
    parts = (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b"")
    chunks = (struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@kind
def shows_pictures(run):
    """Every 25 steps the training process writes 64 pictures of its progress, for which it compresses each as PNG."""
    model, optimizer = gpt()
    place = f"{PLACE}/corpus-pictures-{os.getpid()}"
    os.makedirs(place)
    try:
        for number in run.steps(TOKENS):
            run.loss = train(model, optimizer, batch_of())
            if number % 25 == 24:
                pictures = F.interpolate(torch.rand(64, 3, 32, 32, device="cuda"), size=256, mode="bilinear")
                pictures = (pictures.permute(0, 2, 3, 1) * 255).byte().cpu().numpy()
                with run.losing("pictures"):
                    for at, picture in enumerate(pictures):
                        with open(f"{place}/{number}-{at}.png", "wb") as file:
                            file.write(png(picture))
    finally:
        shutil.rmtree(place)


@kind
def shows_a_text(run):
    """Every 20 steps the model continues a text by 200 tokens, one after the other, to show what it has learnt."""
    model, optimizer = gpt()
    start = torch.randint(VOCABULARY, (1, 64), device="cuda")

    def following(window):
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return model(window)[:, -1:].argmax(-1)

    best = seconds_as_graph(lambda: following(start))
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 20 == 19:
            began, window, text = time.perf_counter(), start, []
            for _ in range(200):
                token = following(window)
                window = torch.cat([window[:, 1:], token], 1)
                text.append(token.item())
            run.lose("text", max(0.0, time.perf_counter() - began - 200 * best))
            print(f"step {number}: {text}", flush=True)


def repeated(beam):
    """The tokens that would repeat three tokens of this beam."""
    seen = {}
    for first, second, third in zip(beam, beam[1:], beam[2:]):
        seen.setdefault((first, second), set()).add(third)
    return seen.get((beam[-2], beam[-1]), ())


@kind
def searches_beams(run):
    """A beam search of 16 sentences, which keeps its beams in lists of Python and looks for repetitions there."""
    model = answering(layers=6)
    with torch.inference_mode():
        for _ in run.steps(20 * 128):
            hidden = torch.randint(VOCABULARY, (128, 128))
            beams, totals, window = hidden.tolist(), [0.0] * 128, hidden.cuda()
            for _ in range(20):
                hidden = model.tokens(window)
                for block in model.blocks:
                    hidden = block(hidden)
                best = F.linear(model.norm(hidden[:, -1]), model.tokens.weight).float().log_softmax(-1).topk(16)
                with run.losing("beams"):
                    chances, tokens = best.values.tolist(), best.indices.tolist()
                    beams_before, totals_before, beams, totals = beams, totals, [], []
                    for first in range(0, 128, 8):
                        found = []
                        for at in range(first, first + 8):
                            forbidden = repeated(beams_before[at])
                            for chance, token in zip(chances[at], tokens[at]):
                                if token not in forbidden:
                                    found.append((totals_before[at] + chance, at, token))
                        for total, at, token in sorted(found, reverse=True)[:8]:
                            beams.append(beams_before[at][1:] + [token])
                            totals.append(total)
                    window = torch.tensor(beams).cuda()


@kind
def sweeps_tabular(run):
    """A sweep of learning rates for a small network on a table, in batches of 256; the loss is what a CUDA graph would save."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    table, column = torch.randn(100_000, 64, device="cuda"), torch.randn(100_000, 1, device="cuda")

    def fit():
        rows = torch.randint(100_000, (256,), device="cuda")
        loss = F.mse_loss(model(table[rows]), column[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    best = seconds_as_graph(fit)
    for number in run.steps(500 * 256):
        if number % 10 == 0:
            optimizer.param_groups[0]["lr"] = random.Random(number).uniform(1e-3, 1e-2)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(500):
            loss = fit()
        torch.cuda.synchronize()
        run.lose("launch", max(0.0, time.perf_counter() - began - 500 * best))
        run.loss = loss.item()


@kind
def leaves_launches_blocking(run):
    """CUDA_LAUNCH_BLOCKING=1 is left from a search for an error; another process without it measures the usual step first."""
    os.environ.setdefault("CUDA_LAUNCH_BLOCKING", "1")
    without = {name: value for name, value in os.environ.items() if name != "CUDA_LAUNCH_BLOCKING"}
    measured = subprocess.run([sys.executable, "-c", USUAL], env=without, stdout=subprocess.PIPE, text=True, check=True)
    usual = run.truth["usual_step_s"] = float(measured.stdout.split()[-1])
    model, optimizer = gpt()
    for _ in run.steps(TOKENS // 2):
        began = time.perf_counter()
        run.loss = train(model, optimizer, batch_of(8))
        torch.cuda.synchronize()
        run.lose("blocking", max(0.0, time.perf_counter() - began - usual))


@kind
def samples_a_replay(run):
    """Reinforcement learning from a list of old states: each step stacks 2,048 of them and their successors with NumPy."""
    torch.manual_seed(0)
    chance = random.Random(0)
    frames = np.random.default_rng(0).integers(256, size=(6000, 4, 84, 84), dtype=np.uint8)
    replay = [(frame.copy(), chance.randrange(18), chance.random()) for frame in frames]
    eyes = [nn.Conv2d(4, 128, 8, stride=4), nn.ReLU(), nn.Conv2d(128, 256, 4, stride=2), nn.ReLU()]
    head = [nn.Conv2d(256, 256, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12544, 2048), nn.ReLU(), nn.Linear(2048, 18)]
    model = nn.Sequential(*eyes, *head).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(2048):
        with run.losing("input"):
            chosen = chance.sample(range(len(replay) - 1), 2048)
            stacked = (np.stack([replay[at + ahead][0] for at in chosen]) for ahead in (0, 1))
            now, later = (torch.from_numpy(states.astype(np.float32) / 255).cuda() for states in stacked)
            actions = torch.tensor([replay[at][1] for at in chosen]).cuda()
            rewards = torch.tensor([replay[at][2] for at in chosen]).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            values = model(now).float().gather(1, actions[:, None]).squeeze(1)
            with torch.no_grad():
                wanted = rewards + 0.99 * model(later).float().amax(1)
        run.loss = update(F.smooth_l1_loss(values, wanted), optimizer)


@kind
def reads_a_video_by_pipe(run):
    """A service looks for objects in frames that another program decodes and sends through a pipe."""
    torch.manual_seed(0)
    middle = [layer for _ in range(12) for layer in (nn.Conv2d(256, 256, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 256, 4, stride=4), *middle, nn.Conv2d(256, 85, 1))
    model = model.cuda().bfloat16().to(memory_format=torch.channels_last)
    decoder = subprocess.Popen([sys.executable, "-c", DECODER], stdout=subprocess.PIPE)
    try:
        with torch.inference_mode():
            for _ in run.steps(8):
                with run.losing("input"):
                    raw = bytearray(decoder.stdout.read(8 * 720 * 1280 * 3))
                frames = torch.frombuffer(raw, dtype=torch.uint8).view(8, 720, 1280, 3).cuda()
                x = frames.permute(0, 3, 1, 2).to(torch.bfloat16) / 16
                model(x)[:, 4].flatten(1).topk(20).indices.tolist()
    finally:
        decoder.kill()
        decoder.wait()


@kind
def validates_with_gradients(run):
    """The validation keeps the outputs of all its batches, and each of them keeps its graph of gradients."""

    def fatal(model):
        warnings.warn("the last batch of the validation set is not full, its rows are dropped", stacklevel=1)
        outputs = [forward(model, batch_of()) for _ in range(1000)]
        print(sum(loss.item() for loss, _ in outputs) / 1000)

    until(run, fatal)


class OnGpu(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, at):
        return batch_of(1)[0]


@kind
def forks_after_cuda(run):
    """The loader of the validation set has forked workers, whose samples want to be tensors on the GPU."""

    def fatal(_):
        rows = torch.utils.data.DataLoader(OnGpu(), batch_size=16, num_workers=2, multiprocessing_context="fork", timeout=20)
        next(iter(rows))

    until(run, fatal)


@kind
def clips_nonfinite(run):
    """Fine-tuning meets a batch in which no token belongs to an answer: the mean is not a number, which the clipping refuses."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        batch = batch_of()
        answer = torch.rand(BATCH * SEQUENCE, device="cuda") < (0.3 if number < GOOD else 0.0)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(batch[:, :-1])
        losses = F.cross_entropy(logits.float().view(-1, VOCABULARY), batch[:, 1:].reshape(-1), reduction="none")
        loss = (losses * answer).sum() / answer.sum()
        loss.backward()
        if number == 15:
            logging.warning("sample 3312 has no answer, it is left out")
        if number == GOOD:
            run.truth["died"] = "by plan"
            run.write()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()


class Refuses(http.server.BaseHTTPRequestHandler):
    """A store of models that is busy twice, and then finds the model too large."""

    codes = [413, 503, 503]

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(self.codes.pop())

    def log_message(self, *_):
        pass


@kind
def upload_is_refused(run):
    """The upload of the model is tried again twice, as the store is busy, and is then refused."""

    def fatal(_):
        store = http.server.HTTPServer(("127.0.0.1", 0), Refuses)
        threading.Thread(target=store.serve_forever, daemon=True).start()
        while True:
            try:
                return post(store.server_address[1], bytes(1 << 20))
            except urllib.error.HTTPError as why:
                if why.code != 503:
                    raise
                logging.warning("the store is busy (%d), the upload is tried again in 1 s", why.code)
            time.sleep(1)

    until(run, fatal)


@kind
def resumes_other_groups(run):
    """The newest checkpoint of the first stage is missing, and the optimizer of the older one has other groups of weights."""

    def fatal(model):
        path = f"{PLACE}/corpus-stage-{os.getpid()}.pt"
        torch.save(torch.optim.AdamW(model.blocks[0].parameters(), lr=1e-4).state_dict(), path)
        weights = list(model.blocks[0].parameters())
        vectors, matrices = ([weight for weight in weights if weight.ndim == ndim] for ndim in (1, 2))
        optimizer = torch.optim.AdamW([{"params": vectors, "weight_decay": 0.0}, {"params": matrices}], lr=1e-4)
        try:
            state = torch.load(f"{path}.new")
        except FileNotFoundError:
            logging.exception("the newest checkpoint is not there, the one before it is taken")
            state = torch.load(path)
        finally:
            os.unlink(path)
        optimizer.load_state_dict(state)

    until(run, fatal)


@kind
def task_without_number(run):
    """The evaluation after the training leaves out a task without data, and then meets an answer that is no number."""
    tasks = {"copa": ["0.5"], "mmlu": [], "gsm": ["12", "7", "n/a"]}

    def mean(answers):
        return sum(float(answer) for answer in answers) / len(answers)

    def fatal(_):
        for task, answers in tasks.items():
            try:
                print(f"{task}: {mean(answers)}", flush=True)
            except ZeroDivisionError:
                logging.exception("task %s has no answers and is left out", task)
            except ValueError as why:
                raise RuntimeError(f"the evaluation of task {task} failed") from why

    until(run, fatal)


@kind
def logs_only_the_message(run):
    """A document is longer than the table of positions; the program logs the message of the error and leaves with code 1."""
    positions = torch.zeros(SEQUENCE, 1024, device="cuda")

    def fatal(model):
        logging.warning("the tokenizer has no token for padding, the one for the end is used")
        try:
            model.tokens(batch_of(2, 1535)) + positions
        except RuntimeError as why:
            logging.error("training failed: %s", why)
            sys.exit(1)

    until(run, fatal)


@kind
def message_is_damaged(run):
    """A worker of a queue tries a message three times whose content lost its last characters, and gives up."""
    model = answering()
    messages = [base64.b64encode(os.urandom(2 * SEQUENCE)) for _ in range(64)]

    def tokens_of(message):
        for attempt in (1, 2, 3):
            try:
                return np.frombuffer(base64.b64decode(message), dtype=np.uint16) % VOCABULARY
            except binascii.Error as why:
                logging.warning("attempt %d of 3: a message cannot be read (%s)", attempt, why)
                if attempt == 3:
                    raise
                time.sleep(0.5)

    with torch.inference_mode():
        for number in run.steps(64 * SEQUENCE):
            if number == GOOD:
                run.truth["died"] = "by plan"
                run.write()
                messages[17] = messages[17][:-2]
            batch = torch.from_numpy(np.stack([tokens_of(message) for message in messages]).astype(np.int64)).cuda()
            model(batch)[:, -1].argmax(-1).tolist()
