"""The loop that all kinds share, and the truth about it by the program's own clock.

$TRUTH is the path of one JSON line, rewritten every second and before the end:

start_up_s   from the start of the launcher ($STARTED, Unix seconds) to the end of the first step
steps        steps after the first one
steps_s      seconds from the end of the first step to the end of the last one
lost         seconds lost to what was planted, by its name, in these steps
"""

import contextlib
import json
import os
import statistics
import time

import torch

try:
    import railgate
except ImportError:  # a program that reports nothing
    railgate = None

BEGAN = time.time()


class Run:
    def __init__(self, kind, seconds):
        self.rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
        self.world = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
        self.seconds = seconds
        local = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
        if local > 0:  # a kind that needs no GPU must not touch it
            torch.cuda.set_device(local)
        self.loss = None
        self.number = -1
        self.times = []
        self.pending = []
        self.written = 0.0
        self.first_end = None
        self.truth = {"kind": kind, "rank": self.rank, "start_up_s": None, "steps": 0, "steps_s": 0.0, "lost": {}}

    def steps(self, tokens=None):
        """Numbers of the steps; one ends where the next is asked for, with all work of the GPU done."""
        while True:
            began = time.perf_counter()
            self.number += 1
            yield self.number
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            now = time.perf_counter()
            if self.number == 0:
                started = float(os.environ.get("STARTED", BEGAN))
                self.truth["start_up_s"] = time.time() - started
                self.first_end = now
            else:
                self.times.append(now - began)
                self.truth["steps"] += 1
                self.truth["steps_s"] = now - self.first_end
            self.events_to_seconds()
            if railgate is not None:
                loss = None if self.loss is None else float(self.loss)
                railgate.step(self.number, tokens=tokens, loss=loss)
            if now - self.written > 1:
                self.write()
            if self.all_agree(now - self.first_end > self.seconds):
                return

    def join(self, **options):
        """Joins the other processes of the job, which srun or torchrun started."""
        where = "env://" if "MASTER_PORT" in os.environ else f"tcp://127.0.0.1:{29531 + int(os.environ['SLURM_JOB_ID']) % 1000}"
        torch.distributed.init_process_group(
            "nccl", init_method=where, rank=self.rank, world_size=self.world, **options
        )

    def all_agree(self, over):
        """Whether rank 0 wants to stop: without it ranks would stop at different steps."""
        if self.world == 1 or not torch.distributed.is_initialized():
            return over
        stop = torch.tensor([float(over and self.rank == 0)], device="cuda")
        torch.distributed.all_reduce(stop)
        return stop.item() > 0

    def lose(self, name, seconds):
        """Counts seconds as lost; those of the start-up are not."""
        if self.number > 0:
            self.truth["lost"][name] = self.truth["lost"].get(name, 0.0) + seconds

    @contextlib.contextmanager
    def losing(self, name):
        """The GPU has nothing to do within it."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        began = time.perf_counter()
        waiting = railgate.waiting() if railgate is not None and name == "input" else contextlib.nullcontext()
        with waiting:
            yield
        self.lose(name, time.perf_counter() - began)

    @contextlib.contextmanager
    def losing_on_gpu(self, name):
        """Work of the GPU that is itself the loss, measured by CUDA's events."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self.pending.append((name, begin, end))

    def events_to_seconds(self):
        for name, begin, end in self.pending:
            self.lose(name, begin.elapsed_time(end) / 1000)
        self.pending.clear()

    def saving(self):
        return railgate.checkpoint() if railgate is not None else contextlib.nullcontext()

    def usual(self, first, last):
        """Median seconds of a step among these, as the measure for later ones."""
        return statistics.median(self.times[first:last])

    def write(self):
        self.written = time.perf_counter()
        path = os.environ.get("TRUTH")
        if path:
            path += f".{self.rank}" if self.rank else ""
            with open(path + ".new", "w") as file:
                file.write(json.dumps(self.truth) + "\n")
            os.replace(path + ".new", path)

    def end(self):
        if self.times:
            self.truth["step_s"] = statistics.median(self.times)
        self.write()
