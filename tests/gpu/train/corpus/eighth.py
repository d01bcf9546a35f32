"""An eighth list of kinds that are all held out: by an author who had not read the rules, and before any of them was recorded."""

import contextlib
import datetime
import itertools
import multiprocessing
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
import warnings

import torch
import torch.distributed as dist
from torch import nn

from corpus import kind
from corpus.blind import compute_for, sort_words
from corpus.fresh import plain_steps
from corpus.model import BATCH, SEQUENCE, TOKENS, VOCABULARY, Block, Model, batch_of, forward, gpt, train, update
from corpus.several import ddp_with, parallel
from corpus.waits import PLACE

# A program of its own: it trains for some seconds, and prints how many passed from its first step to its last one.
TRAINS = """
import sys, time
from corpus.model import batch_of, gpt, train
model, optimizer = gpt()
train(model, optimizer, batch_of())
began = time.perf_counter()
while time.perf_counter() - began < float(sys.argv[1]):
    train(model, optimizer, batch_of())
print(time.perf_counter() - began)
"""

EVALUATES = """
scores = []
if not scores:
    raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
"""


def trains(seconds):
    return [sys.executable, "-c", TRAINS, str(seconds)]


@kind
def writes_embeddings(run):
    """Embeds large batches, whose results go to the host beside the next batch and are written to a file by a thread."""
    model, _ = gpt()
    results, side = queue.Queue(8), torch.cuda.Stream()
    path = f"{PLACE}/corpus-embeddings-{os.getpid()}"

    def write():
        with open(path, "wb") as file:
            for copied, on_host in iter(results.get, None):
                copied.synchronize()
                file.write(on_host.numpy())

    writer = threading.Thread(target=write)
    writer.start()
    for _ in run.steps(4 * 64 * SEQUENCE):
        for _ in range(4):
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                x = model.tokens(batch_of(64, SEQUENCE - 1))
                for block in model.blocks:
                    x = block(x)
                embedded = model.norm(x).view(64, SEQUENCE // 64, 64, -1).mean(2).half()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                embedded.record_stream(side)
                on_host = embedded.to("cpu", non_blocking=True)
                results.put((side.record_event(), on_host))
    results.put(None)
    writer.join()
    os.unlink(path)


@kind
def tries_settings(run):
    """One process that trains one model after another with other settings, 120 steps each."""
    for number in run.steps(TOKENS):
        setting = number // 120
        if number % 120 == 0:
            with torch.device("cuda"):
                model = Model(layers=(12, 8, 10)[setting % 3])
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4 / (1 + setting), fused=True)
        run.loss = train(model, optimizer, batch_of())
        if number % 120 == 119:
            print(f"setting {setting}: loss {run.loss:.3f}", flush=True)


@kind
def routed_experts(run):
    """A router sends each token to one of four experts in each layer, and the host reads how many each of them gets."""
    torch.manual_seed(0)
    width = 4096

    def linear(ins, outs):
        return nn.Linear(ins, outs, bias=False, device="cuda", dtype=torch.bfloat16)

    def expert():
        return nn.Sequential(linear(width, 4 * width), nn.GELU(), linear(4 * width, width))

    layers = nn.ModuleList(nn.ModuleList([linear(width, 4), *(expert() for _ in range(4))]) for _ in range(3))
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-4)
    for _ in run.steps(TOKENS):
        x = torch.randn(TOKENS, width, device="cuda", dtype=torch.bfloat16)
        for router, *experts in layers:
            weight, choice = router(x).softmax(-1).max(-1)
            y = x
            for at, chosen in enumerate(experts):
                rows = (choice == at).nonzero().squeeze(1)
                y = y.index_add(0, rows, chosen(x[rows]) * weight[rows, None])
            x = y
        run.loss = update(x.float().square().mean(), optimizer)


@kind
def profiles_itself(run):
    """Good training that profiles its fourth step, prints a table of its operations, and goes on."""
    model, optimizer = gpt()
    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=2, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda profile: print(profile.key_averages().table(row_limit=10), flush=True),
    ) as profile:
        for _ in run.steps(TOKENS):
            run.loss = train(model, optimizer, batch_of())
            profile.step()


@kind
def shares_its_gpu(run):
    """A second program trains the same model on the same GPU all the time."""
    with subprocess.Popen(trains(run.seconds), stdout=subprocess.DEVNULL):
        plain_steps(run)


@kind
def serves_a_full_queue(run):
    """A service with more requests than it can answer: two threads fill its queue, and it takes 64 at a time."""
    model, _ = gpt()
    requests = queue.Queue(512)

    def ask():
        while True:
            requests.put(torch.randint(VOCABULARY, (SEQUENCE,)))

    for _ in range(2):
        threading.Thread(target=ask, daemon=True).start()
    for _ in run.steps(4 * 64 * SEQUENCE):
        answers = []
        for _ in range(4):
            batch = torch.stack([requests.get() for _ in range(64)]).pin_memory().cuda(non_blocking=True)
            with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
                answers.append(model(batch)[:, -1].argmax(-1))
        torch.stack(answers).tolist()


@kind
def several_programs(run):
    """A script that starts one short program after another, each of which trains for 6 s."""
    for _ in run.steps():
        began = time.perf_counter()
        done = subprocess.run(trains(6), stdout=subprocess.PIPE, text=True, check=True)
        run.lose("starts", time.perf_counter() - began - float(done.stdout.split()[-1]))


@kind
def swaps_parts(run):
    """Inference with three parts of a model, each of which comes to the GPU for its turn and goes back, for each item."""
    with torch.device("cuda"):
        parts = [nn.Sequential(*(Block(2048, 16) for _ in range(10))).bfloat16().cpu() for _ in range(3)]
    with torch.no_grad():
        for _ in run.steps(20 * 8 * SEQUENCE):
            x = torch.randn(8, SEQUENCE, 2048, device="cuda", dtype=torch.bfloat16)
            for part in parts:
                with run.losing("swaps"):
                    part.cuda()
                for _ in range(20):
                    x = nn.functional.normalize(part(x), dim=-1)
                with run.losing("swaps"):
                    part.cpu()
            x.cpu()


class Epoch(torch.utils.data.Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, at):
        return batch_of(device="cpu")


@kind
def restarts_workers(run):
    """Epochs of 60 steps, each of which starts the two workers of its data loader anew."""
    model, optimizer = gpt()
    batches = torch.utils.data.DataLoader(Epoch(), batch_size=None, num_workers=2, multiprocessing_context="spawn", pin_memory=True)
    epoch = iter(())
    for _ in run.steps(TOKENS):
        with run.losing("input"):
            batch = next(epoch, None)
            if batch is None:
                epoch = iter(batches)
                batch = next(epoch)
        run.loss = train(model, optimizer, batch.cuda(non_blocking=True))


def environment(pipe):
    """Answers each action with an observation, for which it computes 12 ms, until the action is None."""
    while pipe.recv() is not None:
        compute_for(0.012, lambda: sum(range(1000)))
        pipe.send([random.random() for _ in range(64)])


@kind
def steps_environments(run):
    """Reinforcement learning with four environments in processes of their own: 20 actions of each, then a step of training."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(4):
        mine, theirs = context.Pipe()
        context.Process(target=environment, args=(theirs,), daemon=True).start()
        pipes.append(mine)
    model, optimizer = gpt()
    policy, observations = nn.Linear(64, 4).cuda(), torch.zeros(4, 64)
    for _ in run.steps(TOKENS):
        for _ in range(20):
            actions = policy(observations.cuda()).argmax(-1).tolist()
            with run.losing("environment"):
                for pipe, action in zip(pipes, actions):
                    pipe.send(action)
                observations = torch.tensor([pipe.recv() for pipe in pipes])
        run.loss = train(model, optimizer, batch_of())
    for pipe in pipes:
        pipe.send(None)


@kind
def runs_tests(run):
    """Samples of code are scored by four small programs that each step starts and waits for."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        with torch.no_grad():
            forward(model, batch_of())
        with run.losing("tests"):
            tests = [subprocess.Popen([sys.executable, "-c", "sum(i * i for i in range(3_000_000))"]) for _ in range(4)]
            for test in tests:
                test.wait()
        run.loss = train(model, optimizer, batch_of())


@kind
def recompiles(run):
    """A compiled model that meets a new length every 40 steps, and is compiled again for each."""
    from torch import _dynamo

    _dynamo.config.recompile_limit = 64
    model, optimizer = gpt()
    fast = torch.compile(model, backend="aot_eager", dynamic=False)
    for number in run.steps(TOKENS):
        batch = batch_of(BATCH, SEQUENCE + 32 * (number // 40))
        with run.losing("compiling") if number % 40 == 0 else contextlib.nullcontext():
            loss, _ = forward(fast, batch)
        run.loss = update(loss, optimizer)


@kind
def no_results_directory(run):
    """A warning in the middle, and at the end nobody has made the directory of the results."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number == 40:
            warnings.warn("the learning rate of the schedule is 0 from now on", stacklevel=1)
    torch.save(model.state_dict(), f"{PLACE}/corpus-results-{os.getpid()}/model.pt")


@kind
def last_program_fails(run):
    """Two programs of a script train, the third finds nothing to evaluate, and the script leaves with its exit code."""
    for number in run.steps():
        code = subprocess.run(trains(6) if number < 2 else [sys.executable, "-c", EVALUATES]).returncode
        if code:
            sys.exit(code)


@kind
def thread_dies(run):
    """The thread that fetches batches dies of a damaged record, and 10 s later the training finds its queue empty."""
    model, optimizer = gpt()
    batches = queue.Queue(4)

    def fetch():
        for number in itertools.count():
            if number == 200:
                raise ValueError("record 51200 of shard 3 is damaged: its length is 0")
            batches.put(batch_of(device="cpu"))

    threading.Thread(target=fetch, daemon=True).start()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batches.get(timeout=10).cuda())


class Deadly(torch.utils.data.Dataset):
    def __len__(self):
        return 10000

    def __getitem__(self, at):
        if at == 150:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch_of(device="cpu")


@kind
def worker_is_killed(run):
    """A worker of the data loader gets SIGKILL in the middle, with plenty of memory left."""
    model, optimizer = gpt()
    batches = torch.utils.data.DataLoader(Deadly(), batch_size=None, num_workers=2, multiprocessing_context="spawn")
    for _, batch in zip(run.steps(TOKENS), batches):
        run.loss = train(model, optimizer, batch.cuda())


@kind
def layers_on_two_gpus(run):
    """One process whose first layers are on one GPU and whose last ones are on the other: each waits while the other works."""
    torch.manual_seed(0)
    halves = []
    for place in ("cuda:0", "cuda:1"):
        with torch.device(place):
            halves.append(nn.Sequential(*(Block(2048, 16) for _ in range(8))).bfloat16())
    optimizer = torch.optim.SGD([weight for half in halves for weight in half.parameters()], lr=1e-4)
    for _ in run.steps(TOKENS):
        began = time.perf_counter()
        x = torch.randn(BATCH, SEQUENCE, 2048, device="cuda:0", dtype=torch.bfloat16)
        run.loss = update(halves[1](halves[0](x).to("cuda:1")).float().square().mean(), optimizer)
        torch.cuda.synchronize(0)
        # One of the two works at any time: on average a GPU waits for half of it.
        run.lose("turns", (time.perf_counter() - began) / 2)


@kind
def evaluates_together(run):
    """DDP whose ranks evaluate on their GPUs every 40 steps, sum the metric, and keep the best weights."""
    model, optimizer = parallel(run)
    best = float("inf")
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 40 == 39:
            with torch.no_grad():
                metric = sum(forward(model.module, batch_of())[0] for _ in range(20))
                dist.all_reduce(metric)
                if metric.item() < best:
                    best, kept = metric.item(), [weight.clone() for weight in model.parameters()]
    dist.destroy_process_group()


@kind
def ranks_pause_in_turn(run):
    """Every 10 steps one rank rests for 0.6 s while the other waits at a barrier, and the next time it is the other one."""

    def planted(number, *_):
        if number % 10 == 9:
            # Rank 0 counts the pauses of both.
            with run.losing("pause") if run.rank == 0 else contextlib.nullcontext():
                if run.rank == number // 10 % 2:
                    time.sleep(0.6)
                dist.barrier()

    ddp_with(run, planted)


@kind
def evaluates_too_long(run):
    """Rank 1 evaluates on the CPU for longer than the 25 s that a collective of rank 0 may take."""
    run.join(timeout=datetime.timedelta(seconds=25))
    model, optimizer = gpt()
    model = nn.parallel.DistributedDataParallel(model)
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number == 100 and run.rank == 1:
            print("rank 1 evaluates 5000 samples", flush=True)
            run.truth["died"] = "by plan"
            run.write()
            compute_for(150, sort_words)
    dist.destroy_process_group()
