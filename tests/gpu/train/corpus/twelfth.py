"""The twelfth list: what a month of jobs on one GPU looks like."""

import errno
import hashlib
import http.client
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from corpus import kind
from corpus.ends import GOOD, until
from corpus.model import BATCH, SEQUENCE, TOKENS, VOCABULARY, Block, Model, batch_of, forward, gpt, train, update
from corpus.waits import PLACE

# A service that needs 0.15 s for the rewards of some texts.
SERVICE = """
import http.server, json, socketserver, time

class Rewards(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.15)
        answer = json.dumps([sum(text) % 7 / 7 for text in texts]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass

server = socketserver.TCPServer(("127.0.0.1", 0), Rewards)
print(server.server_address[1], flush=True)
server.serve_forever()
"""

# A program that takes all memory of the GPU but 4 GiB, and keeps it.
HOLDS = """
import time, torch
free, _ = torch.cuda.mem_get_info()
kept = torch.empty(free - (4 << 30), dtype=torch.uint8, device="cuda")
print(kept.numel() >> 30, flush=True)
time.sleep(120)
"""

# A converter of sound that warns, and then fails.
CONVERTS = """
echo "sox WARN rate: rate clipped 3 samples; decrease volume?" >&2
echo "sox FAIL formats: can't open input file \\`$1': WAVE: RIFF header not found" >&2
exit 2
"""


class Both(Block):
    """A block whose tokens attend to those before and behind them."""

    def forward(self, x):
        batch, sequence, width = x.shape
        heads = self.qkv(self.before_attention(x)).view(batch, sequence, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


@kind
def translates(run):
    """An encoder and a decoder learn to translate, with smoothed labels, clipped gradients and a learning rate that warms up."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        words = nn.Embedding(VOCABULARY, 1024)
        model = nn.Transformer(1024, 16, 6, 6, 4096, batch_first=True, norm_first=True)
    later = nn.Transformer.generate_square_subsequent_mask(256, device="cuda")
    weights = [*words.parameters(), *model.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 400))
    for _ in run.steps(96 * 512):
        source, target = batch_of(96, 255), batch_of(96, 256)
        with torch.autocast("cuda", torch.bfloat16):
            decoded = model(words(source), words(target[:, :-1]), tgt_mask=later, tgt_is_causal=True)
            scores = F.linear(decoded, words.weight)
        loss = F.cross_entropy(scores.float().flatten(0, 1), target[:, 1:].flatten(), label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()


@kind
def fills_in_patches(run):
    """A masked autoencoder sees a quarter of the patches of each image, and restores all; files that it skips are logged."""
    torch.manual_seed(0)
    count = 512
    with torch.device("cuda"):
        sees = nn.Sequential(nn.Linear(768, 1024), *(Both(1024, 16) for _ in range(12)), nn.LayerNorm(1024), nn.Linear(1024, 512))
        restores = nn.Sequential(*(Both(512, 8) for _ in range(4)), nn.LayerNorm(512), nn.Linear(512, 768))
        hidden, places = nn.Parameter(torch.zeros(512)), nn.Parameter(torch.randn(196, 512) / 50)
    optimizer = torch.optim.AdamW([*sees.parameters(), *restores.parameters(), hidden, places], lr=1e-4, fused=True)
    for number in run.steps(count * 196):
        if number % 60 == 20:
            logging.error("cannot identify image file 'train/n02105855/%d.JPEG': skipped", 2933 + number)
        images = torch.rand(count, 3, 224, 224, device="cuda")
        patches = images.view(count, 3, 14, 16, 14, 16).permute(0, 2, 4, 1, 3, 5).reshape(count, 196, 768)
        seen = torch.rand(count, 196, device="cuda").argsort(1)[:, :49, None]
        with torch.autocast("cuda", torch.bfloat16):
            codes = sees(patches.gather(1, seen.expand(-1, -1, 768)))
            filled = hidden.to(codes.dtype).expand(count, 196, 512).scatter(1, seen.expand(-1, -1, 512), codes)
            restored = restores(filled + places)
        run.loss = update(F.mse_loss(restored.float(), patches), optimizer)


@kind
def compiles_its_blocks(run):
    """Only the block that the model repeats is compiled, before the first step."""
    model, optimizer = gpt(layers=8, width=2048)
    for how in ({}, {"backend": "aot_eager"}):
        run.truth["compiler"] = how.get("backend", "inductor")
        try:
            for block in model.blocks:
                block.compile(**how)
            train(model, optimizer, batch_of())
            break
        except Exception as why:  # without a compiler of C there is no Triton
            print(f"{run.truth['compiler']}: {type(why).__name__}", flush=True)
            torch._dynamo.reset()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())


@kind
def crops_a_token_file(run):
    """Random windows of a mapped file of tokens, a learning rate that decays, and every 50 steps a validation on the GPU."""
    path = f"{PLACE}/corpus-tokens-{os.getpid()}"
    np.random.default_rng(0).integers(VOCABULARY, size=1 << 26, dtype=np.uint16).tofile(path)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    os.unlink(path)

    def windows():
        starts = torch.randint(len(tokens) - SEQUENCE - 1, (BATCH,)).tolist()
        rows = np.stack([tokens[at : at + SEQUENCE + 1] for at in starts]).astype(np.int64)
        return torch.from_numpy(rows).pin_memory().cuda(non_blocking=True)

    model, optimizer = gpt()
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    for number in run.steps(TOKENS):
        loss, _ = forward(model, windows())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()
        if number % 50 == 49:
            with torch.no_grad():
                validated = sum(forward(model, windows())[0] for _ in range(10)).item() / 10
            print(f"step {number}: loss {run.loss:.3f}, validation {validated:.3f}", flush=True)


@kind
def simulates_on_the_gpu(run):
    """Reinforcement learning whose 65,536 carts with poles are simulated by the GPU itself, beside the policy that moves them."""
    torch.manual_seed(0)
    count, width, turns = 1 << 16, 2048, 8
    hidden = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.SiLU())]
    policy = nn.Sequential(nn.Linear(4, width), nn.SiLU(), *hidden, nn.Linear(width, 3)).cuda()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
    state = torch.zeros(count, 4, device="cuda")

    def asked(state):
        with torch.autocast("cuda", torch.bfloat16):
            answer = policy(state).float()
        return answer[:, :2].log_softmax(-1), answer[:, 2]

    for _ in run.steps(turns * count):
        turn, rewards = [], []
        with torch.no_grad():
            for _ in range(turns):
                chances, value = asked(state)
                action = (torch.rand(count, 1, device="cuda") > chances[:, :1].exp()).long()
                turn.append((state, action, chances.gather(1, action)[:, 0], value))
                place, speed, angle, spin = state.unbind(1)
                force = action[:, 0] * 2.0 - 1
                spin = spin + 0.02 * (9.8 * angle.sin() - force * angle.cos())
                state = torch.stack([place + 0.02 * speed, speed + 0.02 * force, angle + 0.02 * spin, spin], 1)
                stands = state[:, 2].abs() < 0.2
                state = torch.where(stands[:, None], state, torch.randn_like(state) * 0.05)
                rewards.append(stands.float())
            gain, gains = asked(state)[1], []
            for reward in reversed(rewards):
                gain = reward * (1 + 0.95 * gain)
                gains.insert(0, gain)
        seen, actions, before, values = (torch.cat(part) for part in zip(*turn))
        gains = torch.cat(gains)
        better = gains - values
        better = (better - better.mean()) / (better.std() + 1e-6)
        for rows in torch.randperm(turns * count, device="cuda").chunk(4):
            chances, value = asked(seen[rows])
            ratio = (chances.gather(1, actions[rows])[:, 0] - before[rows]).exp()
            least = torch.minimum(ratio * better[rows], ratio.clamp(0.8, 1.2) * better[rows])
            run.loss = update(F.mse_loss(value, gains[rows]) - least.mean(), optimizer)


class Quantised(nn.Module):
    """A frozen layer whose weights are bytes, with a scale for each row, and an adapter of rank 16 beside it."""

    def __init__(self, ins, outs):
        super().__init__()
        weight = torch.randn(outs, ins, device="cuda") / ins**0.5
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("eights", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.down, self.up = nn.Linear(ins, 16, bias=False), nn.Linear(16, outs, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return F.linear(x, self.eights.to(x.dtype) * self.scale) + self.up(self.down(x))


@kind
def tunes_a_quantised_model(run):
    """Adapters of a frozen model with weights of eight bits, whose activations are computed again in the backward pass."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Model(layers=8, width=4096, heads=32)
    model.requires_grad_(False)
    for block in model.blocks:
        for name in ("qkv", "out", "up", "down"):
            layer = getattr(block, name)
            setattr(block, name, Quantised(layer.in_features, layer.out_features))
        whole = block.forward
        block.forward = lambda x, whole=whole: torch.utils.checkpoint.checkpoint(whole, x, use_reentrant=False)
    model = model.cuda().bfloat16()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4, fused=True)
    for _ in run.steps(8 * SEQUENCE):
        batch = batch_of(8)
        scores = model(batch[:, :-1])
        run.loss = update(F.cross_entropy(scores.float().flatten(0, 1), batch[:, 1:].flatten()), optimizer)


class Modulated(nn.Module):
    """A block of a diffusion transformer: the time and the text scale and move what it reads."""

    def __init__(self, width, heads):
        super().__init__()
        self.block, self.modulates = Both(width, heads), nn.Linear(width, 2 * width)

    def forward(self, x, condition):
        scale, move = self.modulates(condition)[:, None].chunk(2, -1)
        return self.block(x * (1 + scale) + move)


@kind
def matches_flows(run):
    """A diffusion transformer learns the way from noise to latent images, with a frozen reader of the texts and mean weights."""
    reader, _ = gpt(layers=6)
    width, count = 1536, 64
    with torch.device("cuda"):
        enters, listens, leaves = nn.Linear(64, width), nn.Linear(1025, width), nn.Linear(width, 64)
        blocks = nn.ModuleList(Modulated(width, 24) for _ in range(12))
    weights = list(nn.ModuleList([enters, listens, leaves, blocks]).parameters())
    means = [weight.detach().clone() for weight in weights]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    for _ in run.steps(count * 256):
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            told = reader.tokens(batch_of(count, 127))
            for block in reader.blocks:
                told = block(told)
        latent, noise = torch.randn(2, count, 256, 64, device="cuda").unbind()
        when = torch.rand(count, 1, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            condition = F.silu(listens(torch.cat([told.float().mean(1), when], 1)))
            x = enters(torch.lerp(noise, latent, when[:, :, None]))
            for block in blocks:
                x = block(x, condition)
            flow = leaves(x)
        run.loss = update(F.mse_loss(flow.float(), latent - noise), optimizer)
        with torch.no_grad():
            torch._foreach_lerp_(means, weights, 1e-3)


@kind
def reranks_candidates(run):
    """A cross-encoder in fp16 scores pairs of a question and a passage in batches of one length each, and keeps the best."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        words, head = nn.Embedding(VOCABULARY, 2048), nn.Linear(2048, 1)
        blocks = nn.Sequential(*(Both(2048, 32) for _ in range(10)))
    nn.ModuleList([words, head, blocks]).half()
    with torch.inference_mode():
        for _ in run.steps():
            scores = []
            for length in (64, 128, 192, 256, 384, 512):
                pairs = torch.randint(VOCABULARY, (24576 // length, length)).pin_memory().cuda(non_blocking=True)
                scores.append(head(blocks(words(pairs)).mean(1)).squeeze(1))
            torch.cat(scores).float().cpu().numpy().argsort()[::-1][:100].tolist()


@kind
def renders_rays(run):
    """A radiance field: colours and densities at 128 points of each of 2,048 rays, which are summed along the rays."""
    torch.manual_seed(0)
    rays, points, width = 2048, 128, 2048
    hidden = [layer for _ in range(7) for layer in (nn.Linear(width, width), nn.ReLU(inplace=True))]
    field = nn.Sequential(nn.Linear(64, width), nn.ReLU(inplace=True), *hidden, nn.Linear(width, 4)).cuda()
    optimizer = torch.optim.AdamW(field.parameters(), lr=1e-4, fused=True)
    waves = 2.0 ** torch.arange(10, device="cuda")
    grid = torch.linspace(2, 6, points, device="cuda")[None, :, None]
    for _ in run.steps(rays):
        origins, ways = torch.randn(2, rays, 1, 3, device="cuda").unbind()
        depths = grid + torch.rand(rays, points, 1, device="cuda") * 4 / points
        at = (origins + depths * F.normalize(ways, dim=-1)).flatten(0, 1)
        angles = (at[:, :, None] * waves).flatten(1)
        with torch.autocast("cuda", torch.bfloat16):
            found = field(F.pad(torch.cat([angles.sin(), angles.cos(), at], 1), (0, 1)))
        colours, densities = found.float().view(rays, points, 4).split((3, 1), -1)
        clear = torch.exp(-F.softplus(densities) * 4 / points)
        arrives = torch.cat([torch.ones_like(clear[:, :1]), clear[:, :-1]], 1).cumprod(1)
        pixels = (arrives * (1 - clear) * colours.sigmoid()).sum(1)
        run.loss = update(F.mse_loss(pixels, torch.rand(rays, 3, device="cuda")), optimizer)


class Vision(nn.Module):
    """Images become patches of 16 x 16 pixels, and these the scores of 1,000 classes."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 1024, 16, stride=16)
        self.blocks = nn.Sequential(*(Both(1024, 16) for _ in range(8)))
        self.head = nn.Linear(1024, 1000)

    def forward(self, images):
        return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))


def vision():
    torch.manual_seed(0)
    model = Vision().cuda()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def classify(model, optimizer, images, classes):
    with torch.autocast("cuda", torch.bfloat16):
        scores = model(images)
    return update(F.cross_entropy(scores.float(), classes), optimizer)


class Pictures(torch.utils.data.Dataset):
    """Pictures that NumPy crops, mirrors, brightens and normalises when they are asked for."""

    def __init__(self):
        self.stored = np.random.default_rng(0).integers(256, size=(256, 256, 256, 3), dtype=np.uint8)
        self.mean = np.array([0.485, 0.456, 0.406], dtype=np.float32)
        self.deviation = np.array([0.229, 0.224, 0.225], dtype=np.float32)

    def __len__(self):
        return 1 << 16

    def __getitem__(self, at):
        top, left = np.random.randint(32, size=2)
        picture = self.stored[at % 256, top : top + 224, left : left + 224].astype(np.float32) / 255
        if np.random.rand() < 0.5:
            picture = picture[:, ::-1]
        picture = np.clip(picture * np.float32(np.random.uniform(0.8, 1.2)), 0, 1)
        picture = (picture - self.mean) / self.deviation
        return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1))), at % 1000


@kind
def loader_without_workers(run):
    """The data loader has no workers: the training process itself prepares 128 pictures for each step."""
    model, optimizer = vision()
    batches = iter(torch.utils.data.DataLoader(Pictures(), batch_size=128, shuffle=True, drop_last=True))
    for _ in run.steps(128):
        with run.losing("input"):
            images, classes = next(batches)
            images, classes = images.cuda(), classes.cuda()
        run.loss = classify(model, optimizer, images, classes)


@kind
def hashes_checkpoints(run):
    """Every 30 steps the weights are saved, read again for their checksum, and copied as the best ones so far."""
    model, optimizer = gpt()
    place = f"{PLACE}/corpus-best-{os.getpid()}"
    os.makedirs(place)
    try:
        for number in run.steps(TOKENS):
            run.loss = train(model, optimizer, batch_of())
            if number % 30 == 29:
                with run.losing("saving"):
                    torch.save(model.state_dict(), f"{place}/last.pt")
                    with open(f"{place}/last.pt", "rb") as file:
                        print(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  last.pt", flush=True)
                    shutil.copy(f"{place}/last.pt", f"{place}/best.pt")
    finally:
        shutil.rmtree(place)


@kind
def watches_its_weights(run):
    """Every 25 steps NumPy counts the weights of eight layers into histograms, for the page of the experiment."""
    model, optimizer = gpt()
    path = f"{PLACE}/corpus-histograms-{os.getpid()}"
    with open(path, "w") as file:
        for number in run.steps(TOKENS):
            run.loss = train(model, optimizer, batch_of())
            if number % 25 == 24:
                with run.losing("histograms"):
                    for at, block in enumerate(model.blocks[:8]):
                        for name in ("up", "down"):
                            weight = getattr(block, name).weight.detach().cpu().numpy()
                            counts, edges = np.histogram(weight, bins=256)
                            line = {"step": number, "layer": at, "name": name, "counts": counts.tolist(), "edges": edges.tolist()}
                            file.write(json.dumps(line) + "\n")
    os.unlink(path)


@kind
def asks_a_reward_service(run):
    """Each step sends its texts to a service over HTTP, and needs the rewards that come back 0.15 s later."""
    model, optimizer = gpt()
    service = subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True)
    try:
        port = int(service.stdout.readline())
        for _ in run.steps(TOKENS):
            batch = batch_of()
            with run.losing("rewards"):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                connection.request("POST", "/rewards", json.dumps(batch.tolist()))
                rewards = json.load(connection.getresponse())
                connection.close()
            loss, _ = forward(model, batch)
            run.loss = update(loss * (sum(rewards) / len(rewards)), optimizer)
    finally:
        service.kill()
        service.wait()


class Parsed(torch.utils.data.Dataset):
    """Batches, each of which takes 0.2 s of a core."""

    def __len__(self):
        return 1 << 20

    def __getitem__(self, at):
        began = time.process_time()
        while time.process_time() - began < 0.2:
            sum(range(1000))
        return batch_of(device="cpu")


def on_the_last_core(_):
    """What a library does that pins each process which imports it."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@kind
def workers_on_one_core(run):
    """Four workers of the data loader would keep up, but a library has pinned all of them to the same core."""
    model, optimizer = gpt()
    options = {"num_workers": 4, "multiprocessing_context": "spawn", "worker_init_fn": on_the_last_core}
    batches = iter(torch.utils.data.DataLoader(Parsed(), batch_size=None, pin_memory=True, **options))
    for _ in run.steps(TOKENS):
        with run.losing("input"):
            batch = next(batches)
        run.loss = train(model, optimizer, batch.cuda(non_blocking=True))


@kind
def commits_each_row(run):
    """The losses of samples go to a database, each row with a transaction of its own, for at least 0.1 s in each step."""
    import sqlite3

    model, optimizer = gpt()
    path, rows = f"{PLACE}/corpus-losses-{os.getpid()}.db", 0
    table = sqlite3.connect(path, isolation_level=None)
    table.execute("create table losses (step integer, sample integer, loss real)")
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        with run.losing("log"):
            end = time.perf_counter() + 0.1
            while time.perf_counter() < end:
                table.execute("insert into losses values (?, ?, ?)", (number, rows, run.loss))
                rows += 1
    table.close()
    os.unlink(path)
    run.truth["rows"] = rows


@kind
def collects_predictions(run):
    """Every 25 steps an evaluation keeps the scores of all words on the host, joins them there, and looks for the best ones."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 25 == 24:
            with run.losing("evaluation"), torch.no_grad():
                scores, words = [], []
                for _ in range(2):
                    batch = batch_of(4)
                    scores.append(forward(model, batch)[1].float().cpu().numpy())
                    words.append(batch[:, 1:].cpu().numpy())
                right = np.concatenate(scores).argmax(-1) == np.concatenate(words)
                print(f"step {number}: accuracy {right.mean():.5f}", flush=True)


def best_boxes(boxes, scores):
    """Non-maximum suppression, with a loop over the boxes that asks the GPU about each of them."""
    sizes = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    order, kept = scores.argsort(descending=True), []
    while len(order):
        best, order = order[0].item(), order[1:]
        kept.append(best)
        first, last = torch.maximum(boxes[order, :2], boxes[best, :2]), torch.minimum(boxes[order, 2:], boxes[best, 2:])
        shared = (last - first).clamp(min=0).prod(1)
        order = order[shared / (sizes[order] + sizes[best] - shared) < 0.5]
    return kept


@kind
def keeps_best_boxes(run):
    """A detector looks at two of its images after each step, and chooses among 400 boxes in each with a loop in Python."""
    model, optimizer = vision()
    for _ in run.steps(128):
        images, classes = torch.rand(128, 3, 224, 224, device="cuda"), torch.randint(1000, (128,), device="cuda")
        run.loss = classify(model, optimizer, images, classes)
        with run.losing("boxes"):
            for _ in range(2):
                first, sizes = torch.rand(2, 400, 2, device="cuda").unbind()
                boxes = torch.cat([1000 * first, 1000 * first + 20 + 40 * sizes], 1)
                best_boxes(boxes, torch.rand(400, device="cuda"))


@kind
def propagates_waves(run):
    """Waves in a box of 640 points in each direction, with an operation of its own for each neighbour: memory is the limit."""
    torch.manual_seed(0)
    size = 640
    before, now = torch.zeros(2, size, size, size, device="cuda").unbind()
    now[size // 2, size // 2, size // 2] = 1
    for _ in run.steps(10 * size**3):
        with run.losing_on_gpu("memory"):
            for _ in range(10):
                curved = now * -6
                for axis in range(3):
                    curved.narrow(axis, 1, size - 1).add_(now.narrow(axis, 0, size - 1))
                    curved.narrow(axis, 0, size - 1).add_(now.narrow(axis, 1, size - 1))
                before.neg_().add_(now, alpha=2).add_(curved, alpha=0.1)
                before, now = now, before


@kind
def unknown_keyword(run):
    """The script gives the model an option that this release of it does not have."""
    gpt(layers=4, flash=True)


@kind
def damaged_archive(run):
    """An archive of features was copied only in part; a mean of nothing was warned about before."""
    model, optimizer = gpt()
    path = f"{PLACE}/corpus-features-{os.getpid()}.npz"
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number == GOOD - 20:
            warnings.warn("Mean of empty slice: no sample of class 17 in this part", RuntimeWarning, stacklevel=1)
        if number == GOOD:
            run.truth["died"] = "by plan"
            run.write()
            np.savez(path, features=np.zeros((1000, 64)))
            os.truncate(path, 100_000)
            try:
                np.load(path)["features"].mean()
            finally:
                os.unlink(path)


@kind
def short_last_batch(run):
    """The last batch of an epoch has 12 rows, and the program still has 16 labels for it."""

    def fatal(model):
        labels = torch.randint(10, (BATCH,), device="cuda")
        head = nn.Linear(1024, 10).cuda()
        F.cross_entropy(head(model.tokens(batch_of(BATCH - 4)).mean(1)), labels)

    until(run, fatal)


class Stalls(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20

    def __getitem__(self, at):
        if at == GOOD + 4:
            print(f"worker {os.getpid()}: opening /data/shards/00{at}.tar", flush=True)
            time.sleep(3600)
        return batch_of(device="cpu")


@kind
def loader_times_out(run):
    """The worker of the data loader waits for a file for ever, and the loader's own limit of 15 s ends the program."""
    model, optimizer = gpt()
    options = {"num_workers": 1, "timeout": 15, "multiprocessing_context": "spawn"}
    batches = iter(torch.utils.data.DataLoader(Stalls(), batch_size=None, **options))
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, next(batches).cuda())


@kind
def alarm_clock(run):
    """The program allows its evaluation 3 s by an alarm, which ends it while it waits for a result that does not come."""

    def fatal(_):
        print("evaluation: waiting for the results of the simulator, for at most 3 s", flush=True)
        signal.alarm(3)
        threading.Event().wait()

    until(run, fatal)


@kind
def converter_fails(run):
    """A converter of sound, which the program starts for a clip, cannot read it."""

    def fatal(_):
        path = f"{PLACE}/corpus-convert-{os.getpid()}.sh"
        with open(path, "w") as file:
            file.write(CONVERTS)
        try:
            subprocess.run(["sh", path, "clip-0041.wav"], check=True)
        finally:
            os.unlink(path)

    until(run, fatal)


@kind
def neighbour_takes_the_memory(run):
    """Another program of the same user takes the rest of the GPU's memory, and the next large batch of this one has no room."""

    def fatal(model):
        holder = subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE)
        try:
            holder.stdout.readline()
            forward(model, batch_of(8 * BATCH))
        finally:
            holder.kill()
            holder.wait()

    until(run, fatal)


class IntegrityError(Exception):
    """A shard of the data does not hold what its index says."""


@kind
def shard_is_short(run):
    """Connections that were lost are logged and tried again; then a shard has fewer samples than its index says."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number in (GOOD - 25, GOOD - 15):
            try:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            except OSError:
                logging.warning("reading shard %d failed, trying again (1 of 5)", number, exc_info=True)
        if number == GOOD:
            run.truth["died"] = "by plan"
            run.write()
            try:
                dict.fromkeys(range(4071))[4071]
            except KeyError as why:
                raise IntegrityError("shard 17 of 64 holds 4071 samples, its index says 4096") from why


def builds_an_index(number, words):
    """One of two processes, the second of which meets a word that is not in the vocabulary."""
    if number == 1:
        raise LookupError(f"word 32011 is not in the vocabulary of {words} words")
    time.sleep(10)


@kind
def spawned_process_fails(run):
    """Two processes build an index of the data, and one of them fails."""
    until(run, lambda _: torch.multiprocessing.spawn(builds_an_index, (32000,), nprocs=2))
