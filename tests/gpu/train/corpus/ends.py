"""Training that does not reach its end."""

import os
import signal

import torch

from corpus import kind
from corpus.model import TOKENS, batch_of, forward, gpt, train, update

GOOD = 40


def until(run, fatal):
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number == GOOD:
            run.truth["died"] = "by plan"
            run.write()
            fatal(model)


@kind
def leak(run):
    """Keeps the logits of each step, until the GPU has no memory left."""
    model, optimizer = gpt()
    kept = []
    for _ in run.steps(TOKENS):
        loss, logits = forward(model, batch_of())
        kept.append(logits.detach())
        run.loss = update(loss, optimizer)


@kind
def exception(run):
    def fatal(_):
        raise ValueError("the label 32768 is out of range")

    until(run, fatal)


@kind
def segmentation_fault(run):
    until(run, lambda _: os.kill(os.getpid(), signal.SIGSEGV))


@kind
def device_assert(run):
    """An index beyond the vocabulary, which a kernel finds."""

    def fatal(model):
        model(torch.full((1, 8), 1 << 20, device="cuda"))
        torch.cuda.synchronize()

    until(run, fatal)


@kind
def leaves(run):
    """Ends with exit code 0 after 40 steps, as if all were done."""
    until(run, lambda _: os._exit(0))
