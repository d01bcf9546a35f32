"""A fourth list of kinds that are all held out: recorded in one frozen sitting, the first time for each of them."""

import argparse
import json
import multiprocessing
import os
import signal
import time
import zlib

import torch
import torch.nn.functional as F

from corpus import kind
from corpus.ends import until
from corpus.fresh import jax_training, plain_steps
from corpus.model import BATCH, TOKENS, VOCABULARY, batch_of, forward, gpt, train
from corpus.waits import PLACE


@kind
def attribute_error(run):
    """A misspelt method."""
    model, _ = gpt()
    model.foward(batch_of())


@kind
def endless_recursion(run):
    """A function that calls itself."""

    def depth(number):
        return depth(number + 1)

    gpt()
    depth(0)


@kind
def host_allocation(run):
    """A tensor of 1 PiB in the host's memory, more than the address space has: a machine granted 64 TiB."""
    gpt()
    torch.empty(1 << 50, dtype=torch.uint8)


@kind
def no_gradient(run):
    """The loss of a model that is frozen."""
    model, _ = gpt()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    forward(model, batch_of())[0].backward()


@kind
def binary_as_text(run):
    """A file of weights, read as text."""
    gpt()
    path = f"{PLACE}/corpus-weights-{os.getpid()}"
    with open(path, "wb") as file:
        file.write(bytes(range(128, 256)))
    try:
        open(path, encoding="utf-8").read()
    finally:
        os.unlink(path)


@kind
def unknown_option(run):
    """An option that the program does not have: exit code 2."""
    gpt()
    parser = argparse.ArgumentParser(prog="train.py")
    parser.add_argument("--lr", type=float)
    parser.parse_args(["--learning-rate", "0.1"])


@kind
def bus_error(run):
    until(run, lambda _: os.kill(os.getpid(), signal.SIGBUS))


@kind
def kills_itself(run):
    until(run, lambda _: os.kill(os.getpid(), signal.SIGKILL))


@kind
def found_nan(run):
    """The anomaly detection of PyTorch ends the program."""
    model, _ = gpt(layers=2)
    with torch.autograd.detect_anomaly():
        logits = model(batch_of(2)[:, :-1])
        (logits.mean() * 0 - 1).sqrt().backward()


@kind
def other_type(run):
    """A product of fp32 and bf16."""
    gpt()
    torch.randn(8, 8, device="cuda") @ torch.randn(8, 8, device="cuda", dtype=torch.bfloat16)


@kind
def jax_memory(run):
    """An array that is larger than the GPU's memory, in JAX."""
    import jax
    import jax.numpy as jnp

    jax.block_until_ready(jnp.ones((1 << 38,), jnp.float32))


@kind
def forward_only(run):
    """Inference of large batches, one after the other."""
    model, _ = gpt()
    for _ in run.steps(4 * TOKENS):
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            for _ in range(4):
                model(batch_of()[:, :-1]).argmax(-1)


@kind
def scaled_loss(run):
    """Training in fp16 with a scaled loss."""
    model, optimizer = gpt()
    scaler = torch.amp.GradScaler("cuda")
    for _ in run.steps(TOKENS):
        batch = batch_of()
        with torch.autocast("cuda", torch.float16):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.float().view(-1, VOCABULARY), batch[:, 1:].reshape(-1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()


@kind
def polls(run):
    """0.3 s of sleep in each step, as a program that asks a queue for work."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        with run.losing("asleep"):
            time.sleep(0.3)
        run.loss = train(model, optimizer, batch_of())


@kind
def long_log(run):
    """Each step writes its state as JSON for 0.25 s."""
    model, optimizer = gpt()
    state = {f"parameter-{i}": [i / 7] * 20 for i in range(200)}
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        with run.losing("log"):
            end = time.perf_counter() + 0.25
            while time.perf_counter() < end:
                json.dumps(state)


@kind
def unpacks(run):
    """Each batch is decompressed by the training process for 0.25 s."""
    model, optimizer = gpt()
    packed = zlib.compress(os.urandom(1 << 20) * 8)
    for _ in run.steps(TOKENS):
        with run.losing("input"):
            end = time.perf_counter() + 0.25
            while time.perf_counter() < end:
                zlib.decompress(packed)
            batch = batch_of(device="cpu")
        run.loss = train(model, optimizer, batch.cuda())


def prepared(_):
    end = time.perf_counter() + 0.5
    while time.perf_counter() < end:
        sum(range(1000))
    return batch_of(device="cpu")


@kind
def process_pool(run):
    """Two processes of a pool prepare each batch in 0.5 s."""
    model, optimizer = gpt()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        batches = pool.imap(prepared, range(1 << 20))
        for _ in run.steps(TOKENS):
            with run.losing("input"):
                batch = next(batches)
            run.loss = train(model, optimizer, batch.cuda())
        pool.terminate()


@kind
def packs_at_the_end(run):
    """After the last step the results are packed for 25 s on one core."""
    plain_steps(run)
    with run.losing("asleep"):
        end = time.perf_counter() + 25
        while time.perf_counter() < end:
            zlib.compress(bytes(1 << 20))


@kind
def works_in_turns(run):
    """2 s of training and 2 s of waiting, in turns."""
    model, optimizer = gpt()
    began = time.perf_counter()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if time.perf_counter() - began > 2:
            with run.losing("asleep"):
                time.sleep(2)
            began = time.perf_counter()


@kind
def half_a_batch(run):
    """Good training with half of the usual batch."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS // 2):
        run.loss = train(model, optimizer, batch_of(BATCH // 2))


@kind
def jax_waits(run):
    """JAX, with 0.25 s of waiting for the input of each step."""
    import jax

    step, weights, x = jax_training()
    for _ in run.steps(8192):
        with run.losing("input"):
            time.sleep(0.25)
        for _ in range(5):
            weights = step(weights, x)
        jax.block_until_ready(weights)
