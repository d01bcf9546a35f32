"""The fourteenth list: what a month of jobs on one GPU looks like."""

import errno
import io
import itertools
import json
import math
import os
import random
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from corpus import kind
from corpus.ends import GOOD, until
from corpus.model import BATCH, SEQUENCE, TOKENS, VOCABULARY, batch_of, gpt, seconds_as_graph, train, update
from corpus.tenth import Packed
from corpus.twelfth import Both
from corpus.waits import PLACE


@kind
def draws_faces(run):
    """A generator of images of 64 x 64 pixels and its judge train against each other, both with convolutions."""
    torch.manual_seed(0)
    count, twice = 512, {"stride": 2, "padding": 1}

    def wider(ins, outs, **how):
        return nn.ConvTranspose2d(ins, outs, 4, bias=False, **how), nn.BatchNorm2d(outs), nn.ReLU()

    def narrower(ins, outs):
        return nn.Conv2d(ins, outs, 4, bias=False, **twice), nn.BatchNorm2d(outs), nn.LeakyReLU(0.2)

    grows = [*wider(2048, 1024, **twice), *wider(1024, 512, **twice), *wider(512, 256, **twice)]
    draws = nn.Sequential(*wider(128, 2048), *grows, nn.ConvTranspose2d(256, 3, 4, **twice), nn.Tanh())
    shrinks = [*narrower(3, 256), *narrower(256, 512), *narrower(512, 1024), *narrower(1024, 2048)]
    judges = nn.Sequential(*shrinks, nn.Conv2d(2048, 1, 4), nn.Flatten(0))
    draws, judges = (model.cuda().to(memory_format=torch.channels_last) for model in (draws, judges))
    of_draws, of_judges = (torch.optim.Adam(model.parameters(), 2e-4, (0.5, 0.999), fused=True) for model in (draws, judges))
    for _ in run.steps(count):
        real = torch.rand(count, 3, 64, 64, device="cuda").mul_(2).sub_(1).to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            drawn = draws(torch.randn(count, 128, 1, 1, device="cuda"))
            of_real, of_drawn = judges(real), judges(drawn.detach())
        update(F.softplus(-of_real.float()).mean() + F.softplus(of_drawn.float()).mean(), of_judges)
        with torch.autocast("cuda", torch.bfloat16):
            of_drawn = judges(drawn)
        run.loss = update(F.softplus(-of_drawn.float()).mean(), of_draws)
        of_judges.zero_grad(set_to_none=True)


class Remembers(nn.Module):
    """A recurrent cell for images: its gates are a convolution."""

    def __init__(self, width):
        super().__init__()
        self.gates = nn.Conv2d(2 * width, 4 * width, 3, padding=1)

    def forward(self, x, state):
        hidden, memory = state or (torch.zeros_like(x), torch.zeros_like(x))
        enters, keeps, leaves, new = self.gates(torch.cat([x, hidden], 1)).chunk(4, 1)
        memory = keeps.sigmoid() * memory + enters.sigmoid() * new.tanh()
        return leaves.sigmoid() * memory.tanh(), memory


@kind
def nowcasts_rain(run):
    """A convolutional recurrent network learns the next image of a rain radar from the ones before, twelve times in a row."""
    torch.manual_seed(0)
    enters, leaves = nn.Conv2d(1, 256, 2, stride=2), nn.ConvTranspose2d(256, 1, 2, stride=2)
    model = nn.ModuleList([enters, Remembers(256), Remembers(256), leaves]).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(16 * 12):
        images = torch.rand(13, 16, 1, 128, 128, device="cuda")
        states, found = [None, None], []
        with torch.autocast("cuda", torch.bfloat16):
            for image in images[:-1].unbind():
                x = model[0](image.to(memory_format=torch.channels_last))
                for at in range(2):
                    states[at] = model[1 + at](x, states[at])
                    x = states[at][0]
                found.append(model[3](x))
        loss = F.mse_loss(torch.stack(found).float(), images[1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()


class Levels(nn.Module):
    """A U-Net of five levels, which gives each pixel a class."""

    def __init__(self, bands, classes):
        super().__init__()
        widths = (64, 128, 256, 512, 1024)

        def twice(ins, outs):
            layers = []
            for width in (ins, outs):
                layers += [nn.Conv2d(width, outs, 3, padding=1, bias=False), nn.BatchNorm2d(outs), nn.ReLU(inplace=True)]
            return nn.Sequential(*layers)

        self.downs = nn.ModuleList(twice(ins, outs) for ins, outs in zip((bands, *widths), widths))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in widths[-2::-1])
        self.joins = nn.ModuleList(twice(2 * width, width) for width in widths[-2::-1])
        self.head = nn.Conv2d(64, classes, 1)

    def forward(self, x):
        levels = []
        for at, down in enumerate(self.downs):
            x = down(F.max_pool2d(x, 2) if at else x)
            levels.append(x)
        for up, join, level in zip(self.ups, self.joins, levels[-2::-1]):
            x = join(torch.cat([level, up(x)], 1))
        return self.head(x)


def unet(bands, classes):
    torch.manual_seed(0)
    model = Levels(bands, classes).cuda().to(memory_format=torch.channels_last)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


@kind
def maps_land_cover(run):
    """A U-Net learns the ten kinds of land in tiles of a satellite image, which is on the GPU as a whole."""
    model, optimizer = unet(4, 10)
    scene = torch.randint(256, (4, 4096, 4096), device="cuda", dtype=torch.uint8)
    land = torch.randint(10, (4096, 4096), device="cuda")
    for _ in run.steps(32):
        places = torch.randint(4096 - 256, (32, 2)).tolist()
        tiles = torch.stack([scene[:, y : y + 256, x : x + 256] for y, x in places])
        classes = torch.stack([land[y : y + 256, x : x + 256] for y, x in places])
        with torch.autocast("cuda", torch.bfloat16):
            scores = model((tiles.float() / 255).to(memory_format=torch.channels_last))
        scores = scores.float()
        chances, wanted = scores.softmax(1), F.one_hot(classes, 10).movedim(-1, 1)
        shared = (chances * wanted).sum((0, 2, 3))
        dice = (2 * shared / (chances.sum((0, 2, 3)) + wanted.sum((0, 2, 3)) + 1)).mean()
        run.loss = update(F.cross_entropy(scores, classes) + 1 - dice, optimizer)


def perceptron(*widths):
    """Layers between these widths, without an activation after the last one."""
    layers = [layer for ins, outs in zip(widths, widths[1:]) for layer in (nn.Linear(ins, outs), nn.SiLU())]
    return nn.Sequential(*layers[:-1])


@kind
def predicts_molecules(run):
    """A graph network predicts energies of molecules: each atom gets messages of its 16 nearest neighbours in four layers."""
    torch.manual_seed(0)
    molecules, atoms, near, width = 256, 32, 16, 1024
    with torch.device("cuda"):
        elements, energy = nn.Embedding(100, width), perceptron(width, width, 1)
        tells = nn.ModuleList(perceptron(2 * width + 64, 2 * width, 2 * width, width) for _ in range(4))
        learns = nn.ModuleList(perceptron(2 * width, width, width) for _ in range(4))
    weights = nn.ModuleList([elements, energy, tells, learns]).parameters()
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)
    first = torch.arange(molecules, device="cuda")[:, None, None] * atoms
    itself = torch.arange(molecules * atoms, device="cuda").repeat_interleave(near)
    shells = torch.linspace(0, 5, 64, device="cuda")
    for _ in run.steps(molecules * atoms):
        kinds = torch.randint(100, (molecules * atoms,), device="cuda")
        places = torch.randn(molecules, atoms, 3, device="cuda")
        wanted = torch.randn(molecules, device="cuda")
        apart = torch.cdist(places, places) + 1e6 * torch.eye(atoms, device="cuda")
        distances, neighbours = apart.topk(near, largest=False)
        others = (neighbours + first).flatten()
        with torch.autocast("cuda", torch.bfloat16):
            x, radii = elements(kinds).bfloat16(), torch.exp(-(distances.flatten()[:, None] - shells).square()).bfloat16()
            for tell, learn in zip(tells, learns):
                said = tell(torch.cat([x.index_select(0, itself), x.index_select(0, others), radii], 1))
                x = x + learn(torch.cat([x, said.view(-1, near, width).sum(1)], 1))
            found = energy(x)
        run.loss = update(F.mse_loss(found.float().view(molecules, atoms).sum(1), wanted), optimizer)


@kind
def samples_a_posterior(run):
    """Hamiltonian Monte Carlo of a logistic regression: 1,024 chains move together, ten steps of each for a new sample."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    rows, features, chains, size = 1 << 18, 1024, 1024, 1e-3
    data = torch.randn(rows, features, device="cuda")
    labels = (data @ torch.randn(features, 1, device="cuda") > 0).float()
    weights = torch.zeros(features, chains, device="cuda")

    def logarithm(weights):
        scores = data @ weights
        return (labels * scores - F.softplus(scores)).sum(0) - weights.square().sum(0) / 2

    def slope(weights):
        return data.T @ (labels - torch.sigmoid(data @ weights)) - weights

    with torch.no_grad():
        for _ in run.steps(chains):
            momentum = torch.randn_like(weights)
            before = logarithm(weights) - momentum.square().sum(0) / 2
            moved, momentum = weights, momentum + size / 2 * slope(weights)
            for turn in range(10):
                moved = moved + size * momentum
                momentum = momentum + (size if turn < 9 else size / 2) * slope(moved)
            after = logarithm(moved) - momentum.square().sum(0) / 2
            accepted = torch.rand(chains, device="cuda") < (after - before).exp()
            weights = torch.where(accepted, moved, weights)
            run.loss = 1 - accepted.float().mean().item()


@kind
def transfers_a_style(run):
    """Eight photographs take on the style of a painting: a frozen network sees them, and Adam moves their pixels."""
    torch.manual_seed(0)
    layers, ins = [], 3
    for width in (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512):
        layers += [nn.Conv2d(ins, width, 3, padding=1), nn.ReLU()] if width else [nn.AvgPool2d(2)]
        ins = width or ins
    model = nn.Sequential(*layers).cuda().bfloat16().to(memory_format=torch.channels_last).requires_grad_(False)

    def seen(images):
        x, styles, content = images.bfloat16(), [], None
        for at, layer in enumerate(model):
            x = layer(x)
            if at in (1, 6, 11, 20, 29):
                flat = x.flatten(2)
                styles.append((flat @ flat.mT).float() / flat[0].numel())
            if at == 22:
                content = x.float()
        return styles, content

    photographs, painting = (
        torch.rand(count, 3, 768, 768, device="cuda").to(memory_format=torch.channels_last) for count in (8, 1)
    )
    with torch.no_grad():
        style, (_, subject) = [of_layer.expand(8, -1, -1) for of_layer in seen(painting)[0]], seen(photographs)
    images = photographs.clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=0.02)
    for _ in run.steps(8):
        styles, content = seen(images)
        of_style = sum(F.mse_loss(mine, theirs) for mine, theirs in zip(styles, style))
        run.loss = update(1e3 * of_style + F.mse_loss(content, subject), optimizer)


@kind
def fits_a_gaussian_process(run):
    """A Gaussian process of 12,288 points in double precision: each step factorises the covariance and improves its scales."""
    torch.manual_seed(0)
    count = 12288
    points = torch.rand(count, 8, device="cuda", dtype=torch.float64)
    values = (4 * points).sin().sum(1) + 0.1 * torch.randn(count, device="cuda", dtype=torch.float64)
    one = torch.eye(count, device="cuda", dtype=torch.float64)
    scales = torch.zeros(8, device="cuda", dtype=torch.float64, requires_grad=True)
    noise = torch.full((), -2.0, device="cuda", dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([scales, noise], lr=0.02)
    for _ in run.steps(count):
        scaled = points * scales.exp()
        lengths = scaled.square().sum(1)
        distances = (lengths[:, None] + lengths - 2 * scaled @ scaled.T).clamp(min=0)
        factor = torch.linalg.cholesky(torch.exp(-distances / 2) + noise.exp() * one)
        weights = torch.cholesky_solve(values[:, None], factor)
        run.loss = update((values @ weights[:, 0] / 2 + factor.diagonal().log().sum()) / count, optimizer)


@kind
def follows_a_wave_packet(run):
    """The Schroedinger equation in a box of 384 points in each direction, by Fourier transforms forth and back for each time."""
    size, time_step = 384, 1e-3
    at = torch.linspace(-8, 8, size, device="cuda")
    waves = 2 * math.pi * torch.fft.fftfreq(size, 16 / size, device="cuda")

    def squared(x):
        return x[:, None, None].square() + x[:, None].square() + x.square()

    held = torch.exp(-0.25j * time_step * squared(at))
    moved = torch.exp(-0.5j * time_step * squared(waves))
    packet = torch.exp(-squared(at - 1)).to(torch.complex64)
    for _ in run.steps(20 * size**3):
        for _ in range(20):
            packet = held * torch.fft.ifftn(moved * torch.fft.fftn(held * packet))
        run.loss = packet.abs().square().sum().item() * (16 / size) ** 3


class Reviews(torch.utils.data.Dataset):
    """Reviews of 32 to 500 words, as a tokenizer left them, and whether the reader liked the film."""

    def __init__(self):
        self.words = np.random.default_rng(0).integers(VOCABULARY, size=1 << 20, dtype=np.int32)

    def __len__(self):
        return 1 << 20

    def __getitem__(self, at):
        first, length = at * 31 % (len(self.words) - 512), 32 + at * 7919 % 469
        return self.words[first : first + length], at % 2


def padded(reviews):
    """The reviews of a batch as rows of one length, a multiple of 64, with their lengths and labels."""
    lengths = [len(words) for words, _ in reviews]
    rows = np.zeros((len(reviews), -(-max(lengths) // 64) * 64), dtype=np.int64)
    for row, (words, _) in zip(rows, reviews):
        row[: len(words)] = words
    return torch.from_numpy(rows), torch.tensor(lengths), torch.tensor([label for _, label in reviews])


@kind
def classifies_reviews(run):
    """An encoder is tuned on reviews of different lengths from four loader workers, and evaluated on the GPU every 80 steps."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        words, head = nn.Embedding(VOCABULARY, 1024), nn.Linear(1024, 2)
        blocks = nn.ModuleList(Packed(1024, 16) for _ in range(12))
    weights = list(nn.ModuleList([words, head, blocks]).parameters())
    optimizer = torch.optim.AdamW(weights, lr=2e-5, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))
    options = {"num_workers": 4, "multiprocessing_context": "spawn", "pin_memory": True, "collate_fn": padded}
    batches = iter(torch.utils.data.DataLoader(Reviews(), batch_size=64, shuffle=True, drop_last=True, **options))

    def next_scores():
        rows, lengths, labels = (part.cuda(non_blocking=True) for part in next(batches))
        real = torch.arange(rows.shape[1], device="cuda") < lengths[:, None]
        with torch.autocast("cuda", torch.bfloat16):
            x = words(rows)
            for block in blocks:
                x = block(x, real[:, None, None])
            return head((x * real[:, :, None]).sum(1) / lengths[:, None]).float(), labels

    for number in run.steps(64):
        scores, labels = next_scores()
        loss = F.cross_entropy(scores, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()
        if number % 80 == 79:
            right = 0
            with torch.no_grad():
                for _ in range(10):
                    scores, labels = next_scores()
                    right = right + (scores.argmax(1) == labels).sum()
            print(f"step {number}: loss {run.loss:.3f}, accuracy {right.item() / 640:.3f}", flush=True)


class Sounds(torch.utils.data.Dataset):
    """Clips of 4 s with some noise, as mel spectrograms that NumPy computes when they are asked for."""

    def __init__(self):
        self.clips = np.random.default_rng(0).standard_normal((64, 64000), dtype=np.float32)
        self.window = np.hanning(1024)
        mels = 2595 * np.log10(1 + np.linspace(0, 8000, 513) / 700)
        centres = np.linspace(mels[0], mels[-1], 82)[1:-1, None]
        self.filters = np.clip(1 - np.abs(mels - centres) / (centres[1] - centres[0]), 0, None)

    def __len__(self):
        return 1 << 16

    def __getitem__(self, at):
        clip = self.clips[at % 64] + 0.01 * np.random.randn(64000)
        frames = np.lib.stride_tricks.sliding_window_view(clip, 1024)[::160] * self.window
        power = np.abs(np.fft.rfft(frames)) ** 2
        return torch.from_numpy(np.log(self.filters @ power.T + 1e-6).astype(np.float32))[None], at % 50


@kind
def computes_spectrograms(run):
    """A classifier of sounds whose two loader workers compute the spectrograms, 64 for each step."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        patches, head = nn.Conv2d(1, 1024, 16, stride=16), nn.Linear(1024, 50)
        blocks = nn.Sequential(*(Both(1024, 16) for _ in range(8)))
    optimizer = torch.optim.AdamW(nn.ModuleList([patches, head, blocks]).parameters(), lr=1e-4, fused=True)
    options = {"num_workers": 2, "multiprocessing_context": "spawn", "pin_memory": True}
    batches = iter(torch.utils.data.DataLoader(Sounds(), batch_size=64, shuffle=True, drop_last=True, **options))
    for _ in run.steps(64):
        with run.losing("input"):
            sounds, labels = next(batches)
        sounds, labels = sounds.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        with torch.autocast("cuda", torch.bfloat16):
            scores = head(blocks(patches(sounds).flatten(2).transpose(1, 2)).mean(1))
        run.loss = update(F.cross_entropy(scores.float(), labels), optimizer)


@kind
def learns_digits(run):
    """The first exercise of a course: 64 images of digits at a time, a loader without workers, and a small network."""
    torch.manual_seed(0)
    digits = torch.utils.data.TensorDataset(torch.rand(60000, 1, 28, 28), torch.randint(10, (60000,)))
    loader = torch.utils.data.DataLoader(digits, batch_size=64, shuffle=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    sees = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()]
    model = nn.Sequential(*sees, nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in run.steps(100 * 64):
        for _ in range(100):
            images, labels = next(batches)
            images, labels = images.cuda(), labels.cuda()
            run.loss = update(F.cross_entropy(model(images), labels), optimizer)
        print(f"{100 * (number + 1)} batches: loss {run.loss:.4f}", flush=True)


@kind
def averages_clients(run):
    """Federated learning on one GPU: four clients train in turn for ten steps each, and the host averages their weights."""
    model, _ = gpt()
    shared, sent = {name: value.cpu() for name, value in model.state_dict().items()}, []
    for number in run.steps(TOKENS):
        if number % 10 == 0:
            with run.losing("averaging"):
                model.load_state_dict(shared)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run.loss = train(model, optimizer, batch_of())
        if number % 10 == 9:
            with run.losing("averaging"):
                sent.append({name: value.cpu() for name, value in model.state_dict().items()})
                if len(sent) == 4:
                    shared = {name: torch.stack([weights[name] for weights in sent]).mean(0) for name in shared}
                    sent.clear()


@kind
def measures_overlaps(run):
    """After each step NumPy counts for 21 classes, one after the other, the pixels that were found and those that were wanted."""
    model, optimizer = unet(3, 21)
    for _ in run.steps(32):
        images = torch.rand(32, 3, 256, 256, device="cuda").to(memory_format=torch.channels_last)
        classes = torch.randint(21, (32, 256, 256), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(images)
        run.loss = update(F.cross_entropy(scores.float(), classes), optimizer)
        with run.losing("metrics"):
            found, wanted = scores.detach().argmax(1).cpu().numpy(), classes.cpu().numpy()
            overlaps = []
            for at in range(21):
                both = np.logical_and(found == at, wanted == at).sum()
                either = np.logical_or(found == at, wanted == at).sum()
                overlaps.append(both / max(either, 1))
            np.mean(overlaps)


@kind
def leaves_anomaly_detection(run):
    """The search for the origin of a nan was left on: a stack is kept for each operation, a value is read for each gradient."""
    model, optimizer = gpt()
    for number in range(8):
        if number == 3:
            began = time.perf_counter()
        train(model, optimizer, batch_of(BATCH // 2))
    usual = (time.perf_counter() - began) / 5
    run.truth["usual_step_s"] = usual
    torch.autograd.set_detect_anomaly(True)
    for _ in run.steps(TOKENS // 2):
        began = time.perf_counter()
        run.loss = train(model, optimizer, batch_of(BATCH // 2))
        run.lose("checks", max(0.0, time.perf_counter() - began - usual))


@kind
def solves_an_equation(run):
    """A physics-informed network of the usual small size learns Burgers' equation; the loss is what a CUDA graph would save."""
    torch.manual_seed(0)
    widths = (2, 100, 100, 100, 100, 100, 100, 1)
    layers = [layer for ins, outs in zip(widths, widths[1:]) for layer in (nn.Linear(ins, outs), nn.Tanh())]
    model = nn.Sequential(*layers[:-1]).cuda()
    weights = list(model.parameters())
    optimizer = torch.optim.Adam(weights, lr=1e-3, capturable=True)
    x, t = (torch.rand(10000, 1, device="cuda") * 2 - 1).requires_grad_(), torch.rand(10000, 1, device="cuda").requires_grad_()
    start = torch.cat([torch.linspace(-1, 1, 200, device="cuda")[:, None], torch.zeros(200, 1, device="cuda")], 1)
    wanted = -torch.sin(math.pi * start[:, :1])

    def improve():
        u = model(torch.cat([x, t], 1))
        by_x, by_t = torch.autograd.grad(u.sum(), (x, t), create_graph=True)
        (by_x_twice,) = torch.autograd.grad(by_x.sum(), x, create_graph=True)
        inside = (by_t + u * by_x - 0.01 / math.pi * by_x_twice).square().mean()
        loss = inside + (model(start) - wanted).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward(inputs=weights)
        optimizer.step()
        return loss.detach()

    best = seconds_as_graph(improve)
    for _ in run.steps(50 * 10000):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(50):
            loss = improve()
        torch.cuda.synchronize()
        run.lose("launch", max(0.0, time.perf_counter() - began - 50 * best))
        run.loss = loss.item()


@kind
def pads_to_the_longest(run):
    """Texts are padded to the longest one of their batch, and one of them is a file of 30,000 words without a line break."""
    model, optimizer = gpt()
    chance = random.Random(0)
    for number in run.steps(TOKENS):
        lengths = [chance.randint(SEQUENCE // 2, SEQUENCE) for _ in range(BATCH)]
        if number == GOOD:
            run.truth["died"] = "by plan"
            run.write()
            lengths[7] = 30000
        texts = [torch.randint(VOCABULARY, (length,), device="cuda") for length in lengths]
        run.loss = train(model, optimizer, nn.utils.rnn.pad_sequence(texts, batch_first=True))


@kind
def metric_is_not_json(run):
    """The accuracy, which NumPy computed, cannot be written into the file of the results."""

    def fatal(model):
        batch, path = batch_of(4), f"{PLACE}/corpus-metrics-{os.getpid()}.json"
        with torch.no_grad():
            right = (model(batch[:, :-1]).argmax(-1) == batch[:, 1:]).float().cpu().numpy()
        try:
            with open(path, "w") as file:
                json.dump({"step": GOOD, "accuracy": right.mean()}, file)
        finally:
            os.unlink(path)

    until(run, fatal)


@kind
def stops_diverged_training(run):
    """Scores overflow in half precision, and the program leaves with exit code 1 because its loss is not a number."""

    def fatal(model):
        batch = batch_of(2)
        with torch.no_grad(), torch.autocast("cuda", torch.float16):
            scores = model(batch[:, :-1]) * 30000
        loss = F.cross_entropy(scores.float().flatten(0, 1), batch[:, 1:].flatten()).item()
        if not math.isfinite(loss):
            print(f"Loss is {loss}, stopping training", flush=True)
            sys.exit(1)

    until(run, fatal)


@kind
def longer_than_its_positions(run):
    """A text of 1,100 tokens meets a table of 1,024 positions."""

    def fatal(model):
        positions = torch.zeros(1, SEQUENCE, 1024, device="cuda")
        model.norm(model.tokens(batch_of(4, 1099)) + positions)

    until(run, fatal)


class Home(io.RawIOBase):
    """A file in a home directory that has room for 16 MiB more."""

    def __init__(self, path):
        super().__init__()
        self.path, self.room = path, 16 << 20

    def writable(self):
        return True

    def write(self, data):
        self.room -= len(data)
        if self.room < 0:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), self.path)
        return len(data)


@kind
def quota_is_used_up(run):
    """The embeddings are written to the home directory, whose quota is used up."""
    until(run, lambda model: np.save(Home("/home/student/thesis/embeddings.npy"), model.tokens.weight.detach().cpu().numpy()))
