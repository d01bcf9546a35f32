"""Switches plugins between two blocks of one process with `turns.c`; used by turns.py and step.py.

`none` and `again`: no events at all; `floor6` and `floor46` receive the events of `count` and `full` and do nothing; `count`,
`sample`, `full`: railgate's modes; `inspector`: NVIDIA's plugin. The plugin reads its mode four times per second, so a run may have
at most one of `sample` and `full`: it is in effect after the first blocks and stays.
"""
import ctypes
import glob
import mmap
import os
import random
import statistics

MODE = {"count": 1, "sample": 2, "full": 3}
NONE = ("none", "again")


class Switch:
    def __init__(self, shim, plugin, place):
        """Must be called before NCCL is loaded."""
        os.makedirs(f"{place}/user/ranks", exist_ok=True)
        os.environ.update({
            "NCCL_PROFILER_PLUGIN": shim, "TURNS_PLUGIN": plugin, "RAILGATE_JOB_DIR": place, "RAILGATE_NCCL_MODE": "count",
            "NCCL_NVLS_ENABLE": "0", "NCCL_INSPECTOR_ENABLE": "1", "NCCL_INSPECTOR_DUMP_DIR": f"{place}/inspector",
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000",
        })
        self.turns, self.place = ctypes.CDLL(shim), place

    def begin(self):
        """Must be called once a communicator exists."""
        self.own_mask = self.turns.turns_mask()
        files = glob.glob(f"{self.place}/user/ranks/{os.getpid()}.*")
        if files:
            with open(files[0], "r+b") as file:
                self.words = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")

    def use(self, variant):
        """Must be called while no operation is running."""
        if variant in MODE:
            # Fields WANTED and MODE of the rank file.
            self.words[6] = self.words[7] = MODE[variant]
            self.turns.turns_set(1, 0x46 if variant == "full" else 0x06)
        elif variant.startswith("floor"):
            self.turns.turns_set(0, int(variant[5:], 16))
        elif variant == "inspector":
            self.turns.turns_set(1, self.own_mask)
        else:
            self.turns.turns_set(0, 0)


def cores(part, parts):
    """Reserves some cores for this process; the first one is for the launching thread, which moves there after all others started."""
    def core(cpu):
        with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
            return int(file.read().replace("-", ",").split(",")[0]), cpu

    every = sorted(os.sched_getaffinity(0), key=core)
    own = every[part * len(every) // parts:(part + 1) * len(every) // parts]
    if len(own) > 3:
        # The second one may be a hyperthread of the first one.
        os.sched_setaffinity(0, own[2:])
        return own[:1]
    return own


class Rounds:
    """Times of each variant's block by round, and their ratios to `none` and `again` of the same round."""

    def __init__(self, variants):
        self.variants, self.ratios, self.none = variants, {v: [] for v in variants}, []

    def add(self, seed, block):
        """Runs `block(variant)`, which returns its time, in a random order that is the same on all ranks."""
        order = list(self.variants)
        random.Random(seed).shuffle(order)
        took = {variant: block(variant) for variant in order}
        none = statistics.mean(took[v] for v in NONE)
        self.none.append(none)
        for variant, time in took.items():
            self.ratios[variant].append(time / took["none"] if variant in NONE else time / none)

    def head(self):
        return " ".join(f"{v:>30}" for v in self.variants if v != "none")

    def row(self):
        """Median (its standard error, from the quartiles, which single delayed blocks do not affect; quartiles)."""
        cells = []
        for variant in self.variants[1:]:
            r = sorted(self.ratios[variant])
            quarter = statistics.quantiles(r, n=4) if len(r) > 1 else [r[0]] * 3
            error = 1.2533 * (quarter[2] - quarter[0]) / 1.349 / len(r) ** 0.5
            cells.append(f"{statistics.median(r):.4f} ({error:.4f}; {quarter[0]:.3f}-{quarter[2]:.3f})")
        return " ".join(f"{cell:>30}" for cell in cells)
