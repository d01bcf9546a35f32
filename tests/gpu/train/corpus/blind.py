"""A fifth list of kinds that are all held out: committed before any of them was recorded."""

import collections
import math
import os
import pickle
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from corpus import kind
from corpus.ends import until
from corpus.fresh import plain_steps
from corpus.model import BATCH, SEQUENCE, TOKENS, batch_of, forward, gpt, train, update
from corpus.several import ddp_with, fatal_on_rank, fatal_on_rank_1, parallel
from corpus.waits import PLACE


def compute_for(seconds, work):
    """Keeps one core busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        work()


def sort_words():
    sorted(str(i) for i in range(20000))


@kind
def key_error(run):
    """A key that the configuration does not have."""
    gpt()
    {"lr": 1e-4}["learning_rate"]


@kind
def index_error(run):
    """One shard fewer than the program counts."""

    def fatal(_):
        ["shard-0", "shard-1"][2]

    until(run, fatal)


@kind
def none_value(run):
    """A function that returned nothing, whose result is used."""

    def fatal(_):
        {}.get("loss")["value"]

    until(run, fatal)


@kind
def failed_command(run):
    """A program that the training starts ends with exit code 4."""
    gpt()
    subprocess.run(["sh", "-c", "exit 4"], check=True)


@kind
def damaged_pickle(run):
    """A file of the data is cut off."""
    gpt()
    pickle.loads(pickle.dumps(list(range(1000)))[:-10])


@kind
def illegal_instruction(run):
    until(run, lambda _: os.kill(os.getpid(), signal.SIGILL))


@kind
def no_such_gpu(run):
    """The number of a GPU that the job does not have."""
    gpt()
    torch.zeros(1, device="cuda:7")


@kind
def many_files(run):
    """Files that are never closed, until the process may open no more."""

    def fatal(_):
        kept = []
        while True:
            kept.append(open("/dev/null"))

    until(run, fatal)


@kind
def message_and_exit(run):
    """The program itself gives up in the middle: a sentence, exit code 9."""

    def fatal(_):
        print("error: no improvement since step 10, giving up", file=sys.stderr, flush=True)
        os._exit(9)

    until(run, fatal)


@kind
def kernel_does_not_compile(run):
    """A kernel for Triton that uses a name which does not exist."""
    import triton
    import triton.language as tl

    @triton.jit
    def broken(x, size: tl.constexpr):
        at = tl.arange(0, size)
        tl.store(x + at, tl.exponential_of(at))

    gpt()
    broken[(1,)](torch.zeros(64, device="cuda"), 64)


@kind
def overflow(run):
    """A perplexity that is too large for a float."""
    until(run, lambda _: math.exp(1000))


@kind
def adapters(run):
    """A frozen model with adapters of rank 16, as in fine-tuning."""
    model, _ = gpt()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    small = []
    for block in model.blocks:
        down, up = nn.Linear(1024, 16, bias=False).cuda(), nn.Linear(16, 4096, bias=False).cuda()
        block.up.register_forward_hook(lambda _, ins, out, down=down, up=up: out + up(down(ins[0])).to(out.dtype))
        small += [*down.parameters(), *up.parameters()]
    optimizer = torch.optim.AdamW(small, lr=1e-4, fused=True)
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())


@kind
def encoder(run):
    """PyTorch's own encoder, with a large batch."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in run.steps(TOKENS):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(torch.randn(BATCH, SEQUENCE, 1024, device="cuda")).float().square().mean()
        run.loss = update(loss, optimizer)


@kind
def double_precision(run):
    """Products in fp64, as in a simulation."""
    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.float64) for _ in range(2))
    for _ in run.steps(1):
        for _ in range(20):
            c = a @ b
        run.loss = c.square().mean().item()


@kind
def several_losses(run):
    """A step of three passes, as with a teacher: two of them without gradients."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        batch = batch_of()
        with torch.no_grad():
            teacher = forward(model, batch)[1]
            forward(model, batch)
        loss, logits = forward(model, batch)
        run.loss = update(loss + F.mse_loss(logits, teacher) * 1e-3, optimizer)


@kind
def tokenizes(run):
    """The training process itself makes tokens of text, in Python, for 0.3 s in each step."""
    model, optimizer = gpt()
    text = "the quick brown fox jumps over the lazy dog " * 200
    for _ in run.steps(TOKENS):
        with run.losing("input"):
            compute_for(0.3, lambda: collections.Counter(text.split()))
            batch = batch_of(device="cpu")
        run.loss = train(model, optimizer, batch.cuda())


@kind
def bootstrap(run):
    """Every 40 steps the confidence interval of a metric, on the CPU for 2.5 s."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 40 == 39:
            with run.losing("evaluation"):
                compute_for(2.5, lambda: sum(i * i for i in range(20000)))


@kind
def synced_saves(run):
    """Every 40 steps a checkpoint that must be on the disk before the next step."""
    model, optimizer = gpt()
    path = f"{PLACE}/corpus-checkpoint-{os.getpid()}"
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 40 == 39:
            with run.losing("saving"), open(path, "wb") as file:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
                file.flush()
                os.fsync(file.fileno())
    if os.path.exists(path):
        os.unlink(path)


@kind
def rests_for_the_limit(run):
    """A service that allows one request in 1.2 s gives the prompts."""
    model, _ = gpt()
    for _ in run.steps(TOKENS):
        began = time.perf_counter()
        with torch.no_grad():
            for _ in range(4):
                forward(model, batch_of())
        torch.cuda.synchronize()
        with run.losing("requests"):
            time.sleep(max(0.0, 1.2 - (time.perf_counter() - began)))


@kind
def long_first_step(run):
    """20 s of preparation on the CPU, then good training."""
    compute_for(20, sort_words)
    plain_steps(run)


@kind
def accumulates(run):
    """DDP that exchanges gradients in every fourth step only."""
    model, optimizer = parallel(run)
    for _ in run.steps(4 * TOKENS):
        for number in range(4):
            with model.no_sync() if number < 3 else torch.enable_grad():
                loss, _ = forward(model, batch_of())
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        run.loss = loss.item()
    dist.destroy_process_group()


@kind
def gathers(run):
    """Each step gathers large activations of both ranks, and multiplies them."""
    run.join()
    torch.manual_seed(0)
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    for _ in run.steps(16384):
        x = torch.randn(8192, 4096, device="cuda", dtype=torch.bfloat16)
        for _ in range(8):
            both = torch.empty(2 * 8192, 4096, device="cuda", dtype=torch.bfloat16)
            dist.all_gather_into_tensor(both, x)
            x = torch.relu(both @ weight / 64)[: 8192]
    dist.destroy_process_group()


@kind
def lazy_rank(run):
    """Rank 1 sleeps for 60 ms in every step."""

    def planted(*_):
        if run.rank == 1:
            with run.losing("asleep"):
                time.sleep(0.06)

    ddp_with(run, planted)


@kind
def scores_on_the_host(run):
    """Every 20 steps rank 0 computes a score on the CPU for 1.5 s, and the others wait at a barrier."""

    def planted(number, *_):
        if number % 20 == 19:
            if run.rank == 0:
                with run.losing("evaluation"):
                    compute_for(1.5, sort_words)
            dist.barrier()

    ddp_with(run, planted)


@kind
def rank_gives_up(run):
    """Rank 1 ends with exit code 3 and no message."""
    fatal_on_rank_1(run, lambda: os._exit(3))


@kind
def first_rank_fails(run):
    """An assertion on rank 0."""

    def fatal():
        raise AssertionError("the checkpoint has another number of shards")

    fatal_on_rank(run, 0, fatal)


@kind
def one_more_collective(run):
    """Rank 0 sums once more than rank 1, which is at the next step's gradients: both wait for ever."""
    fatal_on_rank(run, 0, lambda: dist.all_reduce(torch.zeros(7, device="cuda")))
