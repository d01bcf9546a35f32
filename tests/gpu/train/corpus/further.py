"""A third list of kinds that are all held out: written, with their expectations, after rules were changed for the second one."""

import json
import os
import signal
import time
import urllib.request

import torch
from torch import nn

from corpus import kind
from corpus.ends import until
from corpus.fresh import plain_steps
from corpus.model import BATCH, SEQUENCE, TOKENS, Model, batch_of, gpt, train, update


@kind
def broken_config(run):
    """The configuration is cut off in the middle."""
    json.loads('{"lr": 0.0001, "layers": ')


@kind
def other_checkpoint(run):
    """A checkpoint of a model with other layers."""
    model, _ = gpt(layers=4)
    model.load_state_dict(Model(layers=2).state_dict())


@kind
def not_permitted(run):
    """The directory of the checkpoints belongs to another user."""

    def fatal(model):
        torch.save(model.state_dict(), "/root/checkpoint.pt")

    until(run, fatal)


@kind
def no_samples(run):
    """The data set is empty, which shows in a mean before the first step."""
    samples = []
    gpt()
    sum(samples) / len(samples)


@kind
def interrupted(run):
    """SIGINT, as from Ctrl-C."""

    def fatal(_):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    until(run, fatal)


@kind
def no_server(run):
    """The server of the experiment's log does not answer."""
    gpt()
    urllib.request.urlopen("http://127.0.0.1:9/api", timeout=5)


class Fast(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield batch_of(device="cpu")


@kind
def good_loader(run):
    """Two loader workers that keep up."""
    model, optimizer = gpt()
    batches = iter(torch.utils.data.DataLoader(Fast(), batch_size=None, num_workers=2, multiprocessing_context="spawn", pin_memory=True))
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, next(batches).cuda(non_blocking=True))


@kind
def small_images(run):
    """Images of 32 x 32, one at a time, through 40 narrow convolutions."""
    torch.manual_seed(0)
    layers = [layer for _ in range(40) for layer in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())]
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    image = torch.randn(1, 3, 32, 32, device="cuda")
    for _ in run.steps(1):
        for _ in range(10):
            run.loss = update(model(image).square().mean(), optimizer)


@kind
def sorts_on_the_host(run):
    """Each batch is sorted and packed with several threads of the process, for about 0.2 s."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        with run.losing("input"):
            end = time.perf_counter() + 0.2
            while time.perf_counter() < end:
                torch.rand(200_000).sort()
            batch = batch_of(device="cpu")
        run.loss = train(model, optimizer, batch.cuda())


@kind
def pageable_copies(run):
    """Each step copies 2 GB of ordinary memory to the GPU."""
    model, optimizer = gpt()
    data = torch.zeros(2 << 30, dtype=torch.uint8)
    there = torch.zeros(2 << 30, dtype=torch.uint8, device="cuda")
    for _ in run.steps(TOKENS):
        with run.losing("copy"):
            there.copy_(data)
            torch.cuda.synchronize()
        run.loss = train(model, optimizer, batch_of())


@kind
def long_evaluation(run):
    """Every 60 steps 2.5 s of evaluation on the CPU."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 60 == 59:
            with run.losing("evaluation"):
                end = time.perf_counter() + 2.5
                while time.perf_counter() < end:
                    sorted(str(i) for i in range(5000))


@kind
def wide_model(run):
    """Width 2048, with dropout-free layers and half of the usual batch."""
    model, optimizer = gpt(layers=8, width=2048)
    for _ in run.steps(TOKENS // 2):
        run.loss = train(model, optimizer, batch_of(BATCH // 2, SEQUENCE))


@kind
def jax_scan(run):
    """A loop over layers inside one JAX function."""
    import jax
    import jax.numpy as jnp

    weights = jax.random.normal(jax.random.PRNGKey(0), (16, 4096, 4096), jnp.bfloat16) / 64
    x = jax.random.normal(jax.random.PRNGKey(1), (8192, 4096), jnp.bfloat16)

    @jax.jit
    def step(x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights)[0]

    for _ in run.steps(8192):
        for _ in range(20):
            x = step(x)
        jax.block_until_ready(x)
