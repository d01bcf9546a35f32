"""Models that only answer, and a GPU that waits for a person or is not used."""

import random
import time

import torch

from corpus import kind
from corpus.model import SEQUENCE, VOCABULARY, Model, batch_of, seconds_as_graph


def answering(**size):
    torch.manual_seed(0)
    return Model(**size).cuda().bfloat16().eval()


@kind
def batch_inference(run):
    model = answering()
    with torch.inference_mode():
        for _ in run.steps():
            for _ in range(4):
                model(batch_of(64))[:, -1].argmax(-1).cpu()


@kind
def decode(run):
    """One token after the other for a single sequence, without a graph."""
    model = answering(width=512, heads=8)
    window = torch.randint(VOCABULARY, (1, 64), device="cuda")
    with torch.inference_mode():
        best = seconds_as_graph(lambda: model(window))
        for _ in run.steps():
            began = time.perf_counter()
            for _ in range(50):
                following = model(window)[:, -1].argmax(-1, keepdim=True)
                window = torch.cat([window[:, 1:], following], dim=1)
            torch.cuda.synchronize()
            run.lose("launch", max(0.0, time.perf_counter() - began - 50 * best))


@kind
def streaming(run):
    """About two requests a second, each of a prompt and 16 tokens."""
    model = answering()
    chance = random.Random(7)
    with torch.inference_mode():
        for _ in run.steps():
            with run.losing("requests"):
                time.sleep(chance.expovariate(2.0))
            window = torch.randint(VOCABULARY, (4, SEQUENCE), device="cuda")
            for _ in range(16):
                following = model(window)[:, -1].argmax(-1, keepdim=True)
                window = torch.cat([window[:, 1:], following], dim=1)
            window.cpu()


@kind
def notebook(run):
    """Two cells of three seconds each, and a person who reads and thinks between them."""
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for number in run.steps():
        if number == 0:
            a @ a
            continue
        end = time.perf_counter() + 3
        while time.perf_counter() < end:
            for _ in range(20):
                a @ a
            torch.cuda.synchronize()
        with run.losing("asleep"):
            time.sleep(17)


@kind
def unused(run):
    """A GPU was asked for, and everything happens on the CPU."""
    a = torch.randn(1024, 1024)
    for _ in run.steps():
        began = time.perf_counter()
        while time.perf_counter() - began < 0.5:
            a = torch.tanh(a @ a)
        run.lose("unused", time.perf_counter() - began)
