"""Judges what profiler.sh ran.

  profiler.py exact OPERATION ITERATIONS WARMUPS NCCL-TESTS-OUTPUT COUNTED
  profiler.py cost NAME FILE...            files are called ….VARIANT
"""
import statistics
import sys
from collections import defaultdict

# nccl-tests' program, our operation.
OPS = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast",
    "alltoall": "P2pGroup", "sendrecv": "P2pGroup",
}


def rows(path):
    """Size, out-of-place time in microseconds, out-of-place bus bandwidth in GB/s."""
    for line in open(path):
        words = line.split()
        if len(words) >= 9 and words[0].isdigit() and words[1].isdigit():
            yield int(words[0]), float(words[5]), float(words[7])


def counted(path):
    ranks, cells = 0, []
    for line in open(path):
        kind, *words = line.split()
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        if kind == "comm":
            ranks = int(fields["ranks"])
        elif kind == "cell":
            cells.append({k: int(v) if v.isdigit() else v for k, v in fields.items()})
    return ranks, cells


def exact(op, iterations, warmups, tests, file):
    ranks, cells = counted(file)
    table = [row for row in rows(tests) if row[0] > 0]
    bad = [] if ranks and table else ["nothing was counted, or nothing ran"]
    calls = warmups + 2 * (iterations + 1)
    print(f"{op}: bytes, calls a rank, nccl-tests GB/s, counted GB/s, ratio, timed")
    for size, us, theirs in table:
        moved = size * (ranks - 1) // ranks if op == "alltoall" else size
        mine = [c for c in cells if c["op"] == OPS[op] and c["class"] == max(moved, 1).bit_length() - 1]
        have, got = sum(c["calls"] for c in mine), sum(c["bytes"] for c in mine)
        if (have, got) != (calls * ranks, calls * ranks * moved):
            bad.append(f"{size}: {have} calls, {got} bytes instead of {calls * ranks}, {calls * ranks * moved}")
        timed, ns = sum(c["timed"] for c in mine), sum(c["sum_ns"] for c in mine)
        factor = {"all_reduce": 2 * (ranks - 1) / ranks, "all_gather": (ranks - 1) / ranks, "reduce_scatter": (ranks - 1) / ranks}
        ours = factor.get(op, 1) * sum(c["timed_bytes"] for c in mine) / ns if ns else 0
        ratio = ours / theirs if theirs else 0
        if size >= 1 << 20:
            print(f"  {size:>10} {have // ranks:>4} {theirs:8.2f} {ours:8.2f} {ratio:6.3f} {timed}/{have}")
    for line in bad[:5]:
        print(f"WRONG: {op}: {line}")
    if not bad:
        print(f"ok: {op}: calls and bytes exact at {len(table)} sizes, {ranks} ranks")
    return bool(bad)


def cost(name, files):
    times = defaultdict(lambda: defaultdict(list))
    for path in files:
        variant = path.rsplit(".", 1)[1]
        for line in open(path):
            if line.startswith("step "):
                times[0][variant].append(float(line.split()[1]) * 1e6)
        for size, us, _ in rows(path):
            times[size][variant].append(us)
    variants = sorted({v for by in times.values() for v in by}, key=lambda v: (not v.startswith("none"), v))
    print(f"{name}: median us of none, then ratio of medians to it (lowest, highest of rounds against the round's none)")
    print("      bytes    none  " + " ".join(f"{v:>21}" for v in variants))
    for size in sorted(times):
        none = times[size]["none-a"] + times[size]["none-b"]
        base = statistics.median(none)
        cells = []
        for v in variants:
            t = times[size][v]
            cells.append(f"{statistics.median(t) / base:.4f} ({min(t) / base:.3f}-{max(t) / base:.3f})" if t else "-")
        print(f"{size:>11} {base:8.2f}  " + " ".join(f"{c:>21}" for c in cells))


if sys.argv[1] == "exact":
    sys.exit(exact(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:7]))
cost(sys.argv[2], sys.argv[3:])
