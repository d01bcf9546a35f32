"""Kinds that are all held out: they were written, and their expectations fixed, after the last change of a rule."""

import os
import subprocess
import sys
import time

import torch

from corpus import kind
from corpus.model import TOKENS, batch_of, forward, gpt, train

GOOD = 40


@kind
def abort(run):
    """The process ends itself with SIGABRT, as a failed assertion in C++ does."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number == GOOD:
            os.abort()


@kind
def exit_code(run):
    """The program leaves with code 3 and prints nothing."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number == GOOD:
            sys.exit(3)


@kind
def gpu_evaluation(run):
    """Every 40 steps the GPU evaluates for as long as 10 steps take: no time is lost."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 40 == 39:
            with torch.no_grad():
                for _ in range(30):
                    forward(model, batch_of())


@kind
def late_start(run):
    """15 s of preparation before the first step, on one core and without the GPU."""
    end = time.perf_counter() + 15
    while time.perf_counter() < end:
        sum(range(1000))
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())


@kind
def offload(run):
    """The optimizer is on the CPU: gradients are copied there and weights back in each step."""
    model, _ = gpt(layers=6)
    weights = [weight.detach().cpu().requires_grad_() for weight in model.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4)
    for _ in run.steps(TOKENS):
        loss = forward(model, batch_of())[0]
        loss.backward()
        torch.cuda.synchronize()
        with run.losing("optimizer"):
            for mine, theirs in zip(weights, model.parameters()):
                mine.grad = theirs.grad.cpu()
            optimizer.step()
            for mine, theirs in zip(weights, model.parameters()):
                theirs.data.copy_(mine.data)
                theirs.grad = None
        run.loss = loss.item()


@kind
def remote_input(run):
    """Each batch is a line from another program, which takes 0.25 s for it and uses no CPU, as a remote store does."""
    model, optimizer = gpt()
    store = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile True:\n    time.sleep(0.25)\n    print('x' * 1000, flush=True)"],
        stdout=subprocess.PIPE,
    )
    try:
        for _ in run.steps(TOKENS):
            with run.losing("input"):
                store.stdout.readline()
            run.loss = train(model, optimizer, batch_of())
    finally:
        store.kill()


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 1000

    def __getitem__(self, at):
        return {"tokens": batch_of(1, device="cpu")[0]}["tokens" if at < GOOD * 16 else "labels"]


@kind
def worker_error(run):
    """A worker of the data loader finds no key in a sample."""
    model, optimizer = gpt()
    batches = torch.utils.data.DataLoader(Broken(), batch_size=16, num_workers=2, multiprocessing_context="spawn")
    for _, batch in zip(run.steps(TOKENS), batches):
        run.loss = train(model, optimizer, batch.cuda())
