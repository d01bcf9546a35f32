"""Training whose GPU waits: for input, storage, saving, evaluation, a core."""

import mmap
import os
import subprocess
import sys
import time

import torch

from corpus import kind
from corpus.model import BATCH, TOKENS, batch_of, forward, gpt, train

PLACE = os.environ.get("SCRATCH", "/tmp")
CHUNK = 16 << 20


class Slow(torch.utils.data.IterableDataset):
    """Batches that one worker prepares: `each` seconds of work, and every 20th waits for `burst` seconds."""

    def __init__(self, each, burst):
        self.each, self.burst = each, burst

    def __iter__(self):
        number = 0
        while True:
            number += 1
            end = time.perf_counter() + self.each
            while time.perf_counter() < end:
                sum(range(1000))
            if number % 20 == 0:
                time.sleep(self.burst)
            yield batch_of(device="cpu")


def loader(run, each, burst):
    model, optimizer = gpt()
    # Spawned: a forked worker would share the state of the main process's threads.
    batches = iter(
        torch.utils.data.DataLoader(
            Slow(each, burst), batch_size=None, num_workers=1, multiprocessing_context="spawn", pin_memory=True
        )
    )
    for _ in run.steps(TOKENS):
        with run.losing("input"):
            batch = next(batches)
        run.loss = train(model, optimizer, batch.cuda(non_blocking=True))


@kind
def slow_loader(run):
    loader(run, 0.2, 0)


@kind
def slow_loader_told(run):
    loader(run, 0.2, 0)


@kind
def loader_bursts(run):
    loader(run, 0, 2)


@kind
def slow_storage(run):
    """The main process reads each batch from a file, past the page cache, for at least 0.1 s."""
    model, optimizer = gpt()
    path = f"{PLACE}/corpus-data-{os.getpid()}"
    chunk = mmap.mmap(-1, CHUNK)
    chunk.write(os.urandom(1 << 20) * (CHUNK >> 20))
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for _ in range(64):
        os.write(file, chunk)
    os.fsync(file)
    os.close(file)
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        run.truth["direct"] = True
    except OSError:
        file = os.open(path, os.O_RDONLY)
        run.truth["direct"] = False
    os.unlink(path)
    read = 0
    for _ in run.steps(TOKENS):
        with run.losing("storage"):
            began = time.perf_counter()
            while time.perf_counter() - began < 0.1:
                os.preadv(file, [chunk], read % 64 * CHUNK)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                read += 1
        run.loss = train(model, optimizer, batch_of())
    run.truth["read_mib"] = read * CHUNK >> 20


def saves(run):
    model, optimizer = gpt()
    path = f"{PLACE}/corpus-checkpoint-{os.getpid()}"
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 40 == 39:
            with run.losing("saving"), run.saving():
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    if os.path.exists(path):
        run.truth["saved_mib"] = os.path.getsize(path) >> 20
        os.unlink(path)


@kind
def saving(run):
    saves(run)


@kind
def saving_told(run):
    saves(run)


@kind
def evaluation(run):
    """Every 40 steps: some batches on the GPU, then a metric on the CPU for 1.5 s."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number % 40 == 39:
            with torch.no_grad():
                forward(model, batch_of())
            with run.losing("evaluation"):
                end = time.perf_counter() + 1.5
                while time.perf_counter() < end:
                    sorted(str(i) for i in range(20000))


def on_cores(cores, load, run, model=gpt):
    """Small steps on these cores; from step 100 on with `load` busy processes beside it."""
    os.sched_setaffinity(0, cores)
    model, optimizer = model()
    busy = []
    try:
        for number in run.steps(TOKENS // BATCH * 2):
            if number == 100:
                run.truth["usual_step_s"] = run.usual(20, 100)
                busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
            if number > 101:
                run.lose("cpu", max(0.0, run.times[-1] - run.truth["usual_step_s"]))
            run.loss = train(model, optimizer, batch_of(2))
    finally:
        for process in busy:
            process.kill()
            process.wait()


@kind
def loaded_core(run):
    on_cores({min(os.sched_getaffinity(0))}, 3, run)


@kind
def far_cores(run):
    """Input copied to the GPU from memory of the other NUMA node, by a process on its cores."""
    with open("/sys/devices/system/node/node1/cpulist") as file:
        first, _, last = file.read().split(",")[0].strip().partition("-")
    os.sched_setaffinity(0, range(int(first), int(last or first) + 1))
    model, optimizer = gpt()
    large = torch.randn(1 << 27).pin_memory()
    for _ in run.steps(TOKENS):
        with run.losing("copy"):
            large.cuda()
            torch.cuda.synchronize()
        run.loss = train(model, optimizer, batch_of())


@kind
def stuck(run):
    """After 40 steps the loader never answers again."""
    model, optimizer = gpt()
    for number in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        if number == 40:
            run.truth["stuck"] = True
            run.write()
            time.sleep(3600)
