"""A second list of kinds that are all held out: written, with their expectations, before rules were changed again."""

import os
import queue
import signal
import sys
import threading
import time

import torch
from torch import nn

from corpus import kind
from corpus.ends import until
from corpus.model import BATCH, SEQUENCE, TOKENS, VOCABULARY, batch_of, gpt, train, update
from corpus.waits import PLACE


@kind
def import_error(run):
    """A package is missing."""
    import a_package_that_is_not_installed  # noqa: F401


@kind
def missing_data(run):
    """The first file of the data is not where the program looks for it."""
    gpt()
    with open("/data/shards/train-00000.bin", "rb") as shard:
        shard.read()


@kind
def shape_error(run):
    """The head does not fit the width of the model."""
    model, _ = gpt()
    hidden = model.tokens(batch_of())
    nn.Linear(1000, 10).cuda()(hidden)


@kind
def assertion(run):
    def fatal(_):
        loss = 11.5
        assert loss < 5, "the loss has diverged"

    until(run, fatal)


@kind
def ends_itself(run):
    """SIGTERM from the program itself, as from a script beside it that stops it."""
    until(run, lambda _: os.kill(os.getpid(), signal.SIGTERM))


@kind
def disk_full(run):
    """The file system of the checkpoint is full."""

    def fatal(model):
        torch.cuda.synchronize()
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(bytes(1 << 20))

    until(run, fatal)


@kind
def wrong_setting(run):
    """The program refuses its settings: a sentence and exit code 1."""
    gpt()
    sys.exit("train.py: error: the learning rate must be above 0")


@kind
def large_batch(run):
    """The first step needs more memory than the GPU has."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of(BATCH * 64))


@kind
def cancelled(run):
    """Good training that its user cancels."""
    plain_steps(run)


@kind
def jax_error(run):
    """A product of arrays that do not fit, in JAX."""
    import jax
    import jax.numpy as jnp

    step = jax.jit(lambda a, b: a @ b)
    for _ in run.steps(1):
        jax.block_until_ready(step(jnp.ones((64, 128)), jnp.ones((64, 128))))


def plain_steps(run):
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())


@kind
def convolutions(run):
    """Wide convolutions on images of random numbers."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(512, 512, 3, padding=1), nn.GELU())]
    model = nn.Sequential(nn.Conv2d(3, 512, 3, padding=1), *layers).cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(64):
        images = torch.randn(64, 3, 56, 56, device="cuda").to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(images).float().square().mean()
        run.loss = update(loss, optimizer)


@kind
def long_sequences(run):
    """Sequences of 8,192 tokens."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of(2, 8 * SEQUENCE))


@kind
def two_models(run):
    """Two models that train in turn, as the halves of an adversarial network do."""
    (first, first_optimizer), (second, second_optimizer) = gpt(layers=8), gpt(layers=8)
    for _ in run.steps(2 * TOKENS):
        run.loss = train(first, first_optimizer, batch_of())
        train(second, second_optimizer, batch_of())


@kind
def waits_for_download(run):
    """12 s of waiting for a download before the first step."""
    time.sleep(12)
    plain_steps(run)


@kind
def many_reads(run):
    """One sequence of 64 tokens at a time, and the loss is read after each."""
    model, optimizer = gpt(layers=4, width=256, heads=4)
    for _ in run.steps(64 * 64):
        for _ in range(64):
            run.loss = train(model, optimizer, batch_of(1, 64))


@kind
def plain_adam(run):
    """An optimizer with a loop over 600 small parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(300)]).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    x = torch.randn(32, 64, device="cuda")
    for _ in run.steps(32):
        run.loss = update(model(x).square().mean(), optimizer)


@kind
def simulation(run):
    """Reinforcement learning: 0.3 s of a simulation in Python, then a step on what it gave."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        with run.losing("environment"):
            end, state = time.perf_counter() + 0.3, 1
            while time.perf_counter() < end:
                state = (state * 48271 + 11) % 2147483647
        run.loss = train(model, optimizer, batch_of())


@kind
def thread_input(run):
    """A thread of the program fetches each batch in 0.3 s from a remote store."""
    model, optimizer = gpt()
    batches = queue.Queue(2)

    def fetch():
        while True:
            time.sleep(0.3)
            batches.put(batch_of(device="cpu"))

    threading.Thread(target=fetch, daemon=True).start()
    for _ in run.steps(TOKENS):
        with run.losing("input"):
            batch = batches.get()
        run.loss = train(model, optimizer, batch.cuda())


@kind
def idle_end(run):
    """25 s after the last step the program is still there, and does nothing."""
    plain_steps(run)
    with run.losing("asleep"):
        time.sleep(25)


@kind
def small_files(run):
    """A checkpoint every 30 steps: a file of its own for each weight, synced."""
    model, optimizer = gpt()
    place = f"{PLACE}/corpus-files-{os.getpid()}"
    os.makedirs(place)
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 30 == 29:
            with run.losing("saving"):
                for at, weight in enumerate(model.parameters()):
                    with open(f"{place}/{at}", "wb") as file:
                        torch.save(weight.detach().cpu(), file)
                        file.flush()
                        os.fsync(file.fileno())


@kind
def host_copies(run):
    """Each step copies 4 GB from the host's memory to the GPU, and waits for it."""
    model, optimizer = gpt()
    data = torch.zeros(4 << 30, dtype=torch.uint8).pin_memory()
    there = torch.zeros(4 << 30, dtype=torch.uint8, device="cuda")
    for _ in run.steps(TOKENS):
        with run.losing("copy"):
            there.copy_(data, non_blocking=True)
            torch.cuda.synchronize()
        run.loss = train(model, optimizer, batch_of())


def jax_training():
    """A step of JAX, and its weights and input."""
    import jax
    import jax.numpy as jnp

    def loss(weights, x):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return (x.astype(jnp.float32) ** 2).mean()

    weights = [jax.random.normal(jax.random.PRNGKey(i), (4096, 4096), jnp.bfloat16) / 64 for i in range(8)]
    x = jax.random.normal(jax.random.PRNGKey(9), (8192, 4096), jnp.bfloat16)
    step = jax.jit(lambda weights, x: jax.tree.map(lambda w, g: w - 1e-3 * g, weights, jax.grad(loss)(weights, x)))
    return step, weights, x


@kind
def jax_input(run):
    """JAX, with 0.2 s of Python for the input of each step."""
    import jax

    step, weights, x = jax_training()
    for _ in run.steps(8192):
        with run.losing("input"):
            end = time.perf_counter() + 0.2
            while time.perf_counter() < end:
                " ".join(str(i) for i in range(2000)).split()
        for _ in range(5):
            weights = step(weights, x)
        jax.block_until_ready(weights)


@kind
def jax_tiny(run):
    """Small operations of JAX without jit."""
    import jax
    import jax.numpy as jnp

    x = jnp.ones((64, 64))
    for _ in run.steps(64):
        for _ in range(500):
            x = jnp.tanh(x) * 0.5 + 0.1
        jax.block_until_ready(x)


@kind
def single_precision(run):
    """Training in fp32, without tensor cores."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        batch = batch_of()
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.view(-1, VOCABULARY), batch[:, 1:].reshape(-1))
        run.loss = update(loss, optimizer)
