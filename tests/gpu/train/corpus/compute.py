"""Training whose GPU is busy, usefully or not."""

import random
import time

import torch

from corpus import kind
from corpus.model import BATCH, SEQUENCE, TOKENS, batch_of, forward, gpt, seconds_as_graph, train, update


@kind
def plain(run):
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())


@kind
def data_parallel(run):
    """The program for many GPUs, on as many as there are."""
    run.join()
    model, optimizer = gpt()
    model = torch.nn.parallel.DistributedDataParallel(model)
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
    torch.distributed.destroy_process_group()


@kind
def accumulation(run):
    model, optimizer = gpt()
    for _ in run.steps(8 * TOKENS):
        for _ in range(7):
            (forward(model, batch_of())[0] / 8).backward()
        run.loss = update(forward(model, batch_of())[0] / 8, optimizer)


@kind
def compiled(run):
    model, optimizer = gpt(layers=6)
    batch = batch_of()
    for how in ({"mode": "reduce-overhead"}, {"backend": "cudagraphs"}):
        run.truth["compiler"] = next(iter(how.values()))
        fast = torch.compile(model, **how)
        try:
            train(fast, optimizer, batch)
            break
        except Exception as why:  # without a compiler of C there is no Triton
            print(f"{how}: {type(why).__name__}", flush=True)
            torch._dynamo.reset()
    for _ in run.steps(TOKENS):
        torch.compiler.cudagraph_mark_step_begin()
        run.loss = train(fast, optimizer, batch)


@kind
def graphs(run):
    """A whole step as one CUDA graph."""
    torch.manual_seed(0)
    model, _ = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    batch = batch_of()

    def step():
        # Casts that autocast keeps would not be part of the graph.
        loss = forward(model, batch, cache=False)[0]
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step()
    for _ in run.steps(TOKENS):
        batch.copy_(batch_of())
        graph.replay()
        run.loss = loss.item()


@kind
def mixed_lengths(run):
    model, optimizer = gpt()
    chance = random.Random(7)
    for _ in run.steps():
        run.loss = train(model, optimizer, batch_of(8, 128 * chance.randint(1, 16)))


@kind
def memory_bound(run):
    """Element-wise operations that are not fused, beside the model's own."""
    model, optimizer = gpt()
    large = torch.randn(1 << 28, device="cuda")
    for _ in run.steps(TOKENS):
        with run.losing_on_gpu("memory"):
            for _ in range(300):
                large.mul_(1.0001)
        run.loss = train(model, optimizer, batch_of())


@kind
def tiny_kernels(run):
    """3000 operations on a thousand numbers in each step; the loss is what a CUDA graph of them would save."""
    model, optimizer = gpt(layers=2)
    small = torch.randn(1024, device="cuda")

    def many():
        for _ in range(3000):
            small.add_(1e-6)

    best = seconds_as_graph(many)
    for _ in run.steps(TOKENS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        many()
        torch.cuda.synchronize()
        run.lose("launch", max(0.0, time.perf_counter() - began - best))
        run.loss = train(model, optimizer, batch_of(BATCH // 2))


@kind
def nan(run):
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        loss = forward(model, batch_of(BATCH, SEQUENCE))[0]
        run.loss = update(loss * float("nan") if number >= 60 else loss, optimizer)


@kind
def jax(run):
    """Matrix products with a gradient, in JAX."""
    import jax as j
    import jax.numpy as jnp

    def loss(weights, x):
        for weight in weights:
            x = jnp.tanh(x @ weight)
        return (x.astype(jnp.float32) ** 2).mean()

    weights = [j.random.normal(j.random.PRNGKey(i), (4096, 4096), jnp.bfloat16) / 64 for i in range(8)]
    x = j.random.normal(j.random.PRNGKey(9), (8192, 4096), jnp.bfloat16)
    step = j.jit(lambda weights, x: j.tree.map(lambda w, g: w - 1e-3 * g, weights, j.grad(loss)(weights, x)))
    for _ in run.steps(8192):
        for _ in range(20):
            weights = step(weights, x)
        j.block_until_ready(weights)
