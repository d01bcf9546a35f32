"""Kinds that were added after rules had been tuned on the others."""

import os
import threading
import time

import torch
import torch.utils.checkpoint

from corpus import kind
from corpus.model import BATCH, TOKENS, batch_of, gpt, train, update
from corpus.several import ddp_with
from corpus.waits import PLACE


@kind
def async_save(run):
    """A checkpoint every 40 steps, copied to the host by the training thread and written by another one."""
    model, optimizer = gpt()
    path = f"{PLACE}/corpus-checkpoint-{os.getpid()}"
    writer = None
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 40 == 39:
            with run.losing("saving"):
                if writer is not None:
                    writer.join()
                state = {name: value.to("cpu", non_blocking=True) for name, value in model.state_dict().items()}
                torch.cuda.synchronize()
            writer = threading.Thread(target=torch.save, args=(state, path))
            writer.start()
    if writer is not None:
        writer.join()
        os.unlink(path)


@kind
def collector(run):
    """Every 15 steps Python works for 0.8 s, as its garbage collector does with many objects."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 15 == 14:
            with run.losing("python"):
                end = time.perf_counter() + 0.8
                while time.perf_counter() < end:
                    [{"a": i} for i in range(1000)]


@kind
def own_input(run):
    """The training process prepares each batch itself, for 0.15 s."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        with run.losing("input"):
            end = time.perf_counter() + 0.15
            while time.perf_counter() < end:
                " ".join(str(i) for i in range(2000)).split()
            batch = batch_of(device="cpu")
        run.loss = train(model, optimizer, batch.cuda())


@kind
def recompute(run):
    """Activations are computed again in the backward pass."""
    model, optimizer = gpt()
    for block in model.blocks:
        whole = block.forward
        block.forward = lambda x, whole=whole: torch.utils.checkpoint.checkpoint(whole, x, use_reentrant=False)
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())


@kind
def rank_loader(run):
    """The input of rank 1 alone takes 0.2 s in each step."""

    def planted(_, *__):
        if run.rank == 1:
            with run.losing("input"):
                time.sleep(0.2)

    ddp_with(run, planted)


@kind
def scattered(run):
    """Each step gathers 16 GB of an embedding by random numbers: the memory is the limit."""
    torch.manual_seed(0)
    table = torch.randn(1 << 22, 256, device="cuda", requires_grad=True)
    optimizer = torch.optim.SGD([table], lr=1e-3)
    for _ in run.steps(BATCH):
        rows = torch.randint(1 << 22, (1 << 21,), device="cuda")
        with run.losing_on_gpu("memory"):
            for _ in range(6):
                run.loss = update(torch.nn.functional.embedding(rows, table).square().mean(), optimizer)


@kind
def small_batch(run):
    """One row of a batch at a time on each of two GPUs: launches and messages, hardly any work."""
    ddp_with(run, lambda *_: None, rows=1)
