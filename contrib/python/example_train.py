#!/usr/bin/env python3
"""A training program that survives a requeue: docs/resume.md in working code.

    torchrun --nproc-per-node=8 example_train.py --save-dir /shared/run7     DDP; needs PyTorch
    python3 example_train.py --plain --save-dir /tmp/run7                    without PyTorch: fits a line

It can be killed at any time and started again: loss.csv in the directory then has every step once, with the same
losses as an uninterrupted run.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import signal
import sys
import time

try:
    import railgate  # contrib/python/railgate.py: reports steps, checkpoints and NaN to `railgate report`
except ImportError:  # optional

    class railgate:
        model = step = staticmethod(lambda *_args, **_told: None)
        checkpoint = waiting = contextlib.nullcontext


RANK = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", 0)))
KEEP = 2  # the newest, and an older one in case the file system loses it


class Line:
    """Stand-in for a model: y = a x + b, fitted by gradient descent with momentum. Needs no library."""

    samples = 32
    about = {"name": "line"}  # no GPU is used, so no FLOP are reported

    def __init__(self, _options):
        self.values = {"a": 0.0, "b": 0.0, "va": 0.0, "vb": 0.0}

    def batch(self, number):
        # The data of a step follow from its number, so the step is also the position in the data.
        data = random.Random(number)
        xs = [(data.uniform(-1, 1), data.gauss(0, 0.1)) for _ in range(self.samples)]
        return [(x, 3 * x + 1 + noise) for x, noise in xs]

    def step(self, _number, batch):
        v = self.values
        loss = slope_a = slope_b = 0.0
        for x, y in batch:
            error = v["a"] * x + v["b"] - y
            loss, slope_a, slope_b = loss + error**2 / 32, slope_a + error * x / 16, slope_b + error / 16
        for name, slope in (("a", slope_a), ("b", slope_b)):
            v["v" + name] = 0.9 * v["v" + name] + slope
            v[name] -= 0.02 * v["v" + name]
        return loss

    def write(self, file, number):
        file.write(json.dumps({"step": number, "values": self.values}).encode())

    def read(self, file):
        saved = json.load(file)
        self.values = saved["values"]
        return saved["step"]

    def any_rank(self, value):
        return value

    def from_first(self, value):
        return value

    def wait_for_all(self):
        pass

    def end(self):
        pass


class Network:
    """A small network under DDP. Saves what a real one needs: model, optimizer and generator states."""

    samples = 64

    def __init__(self, options):
        import torch

        self.torch = torch
        self.device = "cpu"
        self.spread = int(os.environ.get("WORLD_SIZE", 1)) > 1
        if torch.cuda.is_available():
            self.device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
            torch.cuda.set_device(self.device)
        if self.spread:
            torch.distributed.init_process_group("gloo" if self.device == "cpu" else "nccl")
        torch.set_float32_matmul_precision("high")  # TF32, as reported below
        torch.manual_seed(0)
        width = options.width
        layers = [torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(width, 1)]
        self.model = torch.nn.Sequential(*layers).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.train = self.model
        if self.spread:
            self.train = torch.nn.parallel.DistributedDataParallel(self.model)
        # A weight of a linear layer costs 2 FLOP per sample forward and 4 backward. For a transformer report layers,
        # heads and sequence length instead, and count tokens: docs/application-reports.md.
        weights = sum(parameter.numel() for parameter in self.model.parameters())
        self.about = {"name": "example", "convention": "explicit", "flops_per_sample": 6 * weights, "dtype": "tf32"}

    def batch(self, number):
        # Data and dropout of a step and rank are seeded from both numbers.
        self.torch.manual_seed(number * 65536 + RANK)
        return self.torch.randn(self.samples, 16).to(self.device)

    def step(self, number, x):
        self.torch.manual_seed(number * 65536 + 32768 + RANK)
        loss = (self.train(x).squeeze(1) - x.sum(1).sin()).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def write(self, file, number):
        states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": number}
        self.torch.save(states, file)

    def read(self, file):
        saved = self.torch.load(file, map_location=self.device)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        return saved["step"]

    def any_rank(self, value):
        """Maximum over all ranks, so that a signal to one rank stops all of them at the same step."""
        if not self.spread:
            return value
        box = self.torch.tensor([value], device=self.device)
        self.torch.distributed.all_reduce(box, op=self.torch.distributed.ReduceOp.MAX)
        return int(box.item())

    def from_first(self, value):
        """Rank 0's value: file systems may show another rank an older directory."""
        if not self.spread:
            return value
        box = [value]
        self.torch.distributed.broadcast_object_list(box, device=self.device)
        return box[0]

    def wait_for_all(self):
        if self.spread:
            gpus = None if self.device == "cpu" else [self.torch.cuda.current_device()]
            self.torch.distributed.barrier(device_ids=gpus)

    def end(self):
        if self.spread:
            self.torch.distributed.destroy_process_group()


def place(folder, number):
    return folder / f"step-{number:09d}.ckpt"


def sync(folder):
    """Syncs the directory: only then is a new name in it on disk."""
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def save(folder, model, number, seconds):
    """Writes under another name, then renames: a reader finds the old or the new checkpoint, never a partial one."""
    half = folder / f".step-{number:09d}.ckpt.part"
    with open(half, "wb") as file:
        model.write(file, number)
        file.flush()
        time.sleep(seconds)  # simulates a large checkpoint; for tests
        os.fsync(file.fileno())
    half.rename(place(folder, number))
    sync(folder)
    for old in sorted(folder.glob("step-*.ckpt"))[:-KEEP]:
        old.unlink()


def resume(folder, model):
    """Loads the newest checkpoint into the model; returns its step, 0 if there is none."""
    newest = model.from_first(max((int(p.stem[5:]) for p in folder.glob("step-*.ckpt")), default=0))
    if newest:
        with open(place(folder, newest), "rb") as file:
            return model.read(file)
    return 0


def curve(folder, number):
    """Opens loss.csv and removes the steps after the checkpoint, which will be repeated."""
    path = folder / "loss.csv"
    kept = []
    if path.exists():
        rows = (row.split(",") for row in path.read_text().splitlines(keepends=True) if row.endswith("\n"))
        kept = [",".join(row) for row in rows if int(row[0]) <= number]
    half = folder / ".loss.csv.part"
    half.write_text("".join(kept))
    half.rename(path)
    return open(path, "a", encoding="ascii")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save-dir", type=pathlib.Path, required=True, help="shared by all nodes and attempts")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--save-every", type=int, default=50, help="interval in steps: the maximum loss if a node dies")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--plain", action="store_true", help="without PyTorch")
    parser.add_argument("--resume", action="store_true", help="the default; accepted for the templates' command line")
    parser.add_argument("--step-seconds", type=float, default=0, help="make steps slower; for tests")
    parser.add_argument("--save-seconds", type=float, default=0, help="make checkpoints slower; for tests")
    options = parser.parse_args()

    # The handler only sets a flag, since saving in the middle of a step is unsafe. Later signals are ignored: Python
    # restores the default actions while it exits, and a second SIGUSR1 would kill it then.
    told = []

    def tell(number, _frame):
        told.append(number)
        signal.signal(number, signal.SIG_IGN)

    for name in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(name, tell)

    folder = options.save_dir
    folder.mkdir(parents=True, exist_ok=True)
    model = Line(options) if options.plain else Network(options)
    done = resume(folder, model)
    record = curve(folder, done) if RANK == 0 else None
    if RANK == 0:
        print(f"begins after step {done}" if done else "begins at the beginning", flush=True)

    railgate.model(**model.about)  # once; like all calls below in every rank, so that a slow rank is visible
    while done < options.steps:
        with railgate.waiting():
            batch = model.batch(done + 1)
        loss = model.step(done + 1, batch)
        time.sleep(options.step_seconds)
        done += 1
        stop = model.any_rank(int(bool(told)))
        railgate.step(done, samples=model.samples, loss=loss)  # this rank's share of the batch
        if RANK == 0:
            record.write(f"{done},{loss!r}\n")
            record.flush()
        if stop or done % options.save_every == 0 or done == options.steps:
            # In all ranks: those that do not save wait, which must not count as a slow step.
            with railgate.checkpoint():
                if RANK == 0:
                    os.fsync(record.fileno())  # before the checkpoint that includes these steps
                    save(folder, model, done, options.save_seconds)
                model.wait_for_all()
        if stop:
            break
    if RANK == 0:
        print(f"{'saved' if done < options.steps else 'finished'} at step {done}, loss {loss_of(folder)}", flush=True)
    model.end()


def loss_of(folder):
    rows = (folder / "loss.csv").read_text().split()
    return rows[-1].split(",")[1] if rows else "unknown"


if __name__ == "__main__":
    sys.exit(main())
