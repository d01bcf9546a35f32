"""The rest of the tenth list: kinds that lose time in a way which they measure."""

import contextlib
import fcntl
import hashlib
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import tarfile
import threading
import time

import numpy as np
import torch
import torch.distributed as dist

from corpus import kind
from corpus.blind import compute_for, sort_words
from corpus.model import TOKENS, batch_of, gpt, seconds_as_graph, train
from corpus.several import parallel
from corpus.waits import PLACE


@kind
def shares_one_lock(run):
    """Each rank prepares its batch for 60 ms on the CPU, and holds a lock on a file that both of them need for it."""
    path = f"{PLACE}/corpus-lock-{os.getppid()}"
    model, optimizer = parallel(run)
    for _ in run.steps(TOKENS):
        # Rank 0 counts for both.
        with run.losing("lock") if run.rank == 0 else contextlib.nullcontext():
            with open(path, "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                compute_for(0.06, sort_words)
            dist.barrier()
            torch.cuda.synchronize()
        run.loss = train(model, optimizer, batch_of())
    dist.destroy_process_group()
    if run.rank == 0:
        os.unlink(path)


@kind
def sums_each_count(run):
    """After each step the counts of 2,000 classes are summed over two ranks and read, one after the other."""
    model, optimizer = parallel(run)
    for _ in run.steps(TOKENS):
        batch = batch_of()
        run.loss = train(model, optimizer, batch)
        counts = torch.bincount(batch.flatten() % 2000, minlength=2000)
        with run.losing("sums"):
            seen = []
            for count in counts:
                dist.all_reduce(count)
                seen.append(count.item())
    dist.destroy_process_group()


@kind
def opens_small_files(run):
    """The samples of each batch are files of 8 KB, which are opened and read one after the other for at least 0.1 s."""
    model, optimizer = gpt()
    place = f"{PLACE}/corpus-samples-{os.getpid()}"
    os.makedirs(place)
    for number in range(3000):
        with open(f"{place}/{number}", "wb") as file:
            file.write(os.urandom(8192))
    read = 0
    try:
        for _ in run.steps(TOKENS):
            with run.losing("input"):
                end = time.perf_counter() + 0.1
                while time.perf_counter() < end:
                    with open(f"{place}/{read % 3000}", "rb") as file:
                        file.read()
                    read += 1
            run.loss = train(model, optimizer, batch_of())
    finally:
        shutil.rmtree(place)
    run.truth["files"] = read


@kind
def threads_behind_one_lock(run):
    """Four threads check and prepare batches, but a lock lets only one of them work at a time, for 0.12 s each."""
    model, optimizer = gpt()
    batches, lock, raw = queue.Queue(1), threading.Lock(), os.urandom(1 << 22)

    def prepare():
        while True:
            with lock:
                compute_for(0.12, lambda: hashlib.sha256(raw).digest())
                batch = batch_of(device="cpu")
            batches.put(batch)

    for number in run.steps(TOKENS):
        if number == 0:
            for _ in range(4):
                threading.Thread(target=prepare, daemon=True).start()
        with run.losing("input"):
            batch = batches.get()
        run.loss = train(model, optimizer, batch.cuda())


@kind
def copies_row_by_row(run):
    """The 10,000 samples of each step come to the GPU one after the other, each with a copy of 256 bytes."""
    model, optimizer = gpt()
    samples = list(torch.randn(10000, 64).unbind())
    for _ in run.steps(TOKENS):
        with run.losing("copy"):
            torch.stack([sample.cuda() for sample in samples])
        run.loss = train(model, optimizer, batch_of())


@kind
def unpacks_archives(run):
    """Every 25 steps another program unpacks the next archive of the data, while the training waits for it."""
    model, optimizer = gpt()
    place = f"{PLACE}/corpus-archive-{os.getpid()}"
    os.makedirs(place)
    try:
        with open(f"{place}/data", "wb") as file:
            file.write(os.urandom(20 << 20))
        with tarfile.open(f"{place}/data.tar.bz2", "w:bz2") as archive:
            archive.add(f"{place}/data", "unpacked")
        for number in run.steps(TOKENS):
            run.loss = train(model, optimizer, batch_of())
            if number % 25 == 24:
                with run.losing("unpacking"):
                    subprocess.run([sys.executable, "-m", "tarfile", "-e", f"{place}/data.tar.bz2", place], check=True)
    finally:
        shutil.rmtree(place)


@kind
def samples_of_a_manager(run):
    """The 2,000 samples of each step are kept by a manager process, and asked for one after the other."""
    model, optimizer = gpt()
    with multiprocessing.get_context("spawn").Manager() as manager:
        samples = manager.dict({number: [float(number)] * 64 for number in range(2000)})
        for _ in run.steps(TOKENS):
            with run.losing("input"):
                torch.tensor([samples[number] for number in range(2000)]).cuda()
            run.loss = train(model, optimizer, batch_of())


@kind
def lattice_sweeps(run):
    """Metropolis sweeps of a lattice of 128 x 128 spins; the loss is what a CUDA graph would save."""
    torch.manual_seed(0)
    spins = torch.randint(2, (128, 128), device="cuda").float() * 2 - 1
    at = torch.arange(128, device="cuda")
    white = (at[:, None] + at) % 2 == 0
    colours = (white, ~white)

    def sweep():
        for colour in colours:
            around = spins.roll(1, 0) + spins.roll(-1, 0) + spins.roll(1, 1) + spins.roll(-1, 1)
            turned = (torch.rand_like(spins) < torch.exp(-0.88 * spins * around)) & colour
            spins.copy_(torch.where(turned, -spins, spins))

    best = seconds_as_graph(lambda: [sweep() for _ in range(20)]) / 20
    for _ in run.steps(500):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(500):
            sweep()
        torch.cuda.synchronize()
        run.lose("launch", max(0.0, time.perf_counter() - began - 500 * best))
        run.loss = spins.mean().item()


@kind
def asks_nvidia_smi(run):
    """After each step the program asks nvidia-smi for the temperature and then for the memory that is used."""
    model, optimizer = gpt()
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        with run.losing("monitor"):
            for value in ("temperature.gpu", "memory.used"):
                question = ["nvidia-smi", f"--query-gpu={value}", "--format=csv,noheader"]
                subprocess.run(question, stdout=subprocess.DEVNULL, check=False)


@kind
def flushes_a_map(run):
    """Each step puts results into a mapped file and makes sure that they are on the disk, for at least 0.1 s."""
    model, optimizer = gpt()
    path, piece, written = f"{PLACE}/corpus-results-{os.getpid()}", 16 << 20, 0
    results = np.memmap(path, dtype=np.uint8, mode="w+", shape=(16 * piece,))
    os.unlink(path)
    for _ in run.steps(TOKENS):
        run.loss = train(model, optimizer, batch_of())
        with run.losing("saving"):
            end = time.perf_counter() + 0.1
            while time.perf_counter() < end:
                first = written % 16 * piece
                results[first : first + piece] = written % 251
                results.flush()
                written += 1
    run.truth["written_mib"] = written * piece >> 20
