"""Judges what profiler.sh ran.

  profiler.py steady NCCL-TESTS-OUTPUT COUNTED
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


# What the report takes off, and when it has no figure: as in crates/stats/src/comm/gather.rs.
QUEUED_NS, HELD_UP = 5000, 0.04


def timing_ns(op, ranks):
    return 300 if op == "P2pGroup" else 800 + 150 * ((min(max(ranks, 2), 8) // 2).bit_length() - 1)


# From which size on bus bandwidth is compared, how far off it may be, and at how many sizes nccl-tests may be no reference.
LARGE, OFF, UNSTEADY = 1 << 20, 0.03, 2
# What `steady` exits with.
AGAIN = 3


def loops(path):
    """Size, and of each of two loops (both out of place: see profiler.sh) time in microseconds and bus bandwidth in GB/s."""
    for line in open(path):
        words = line.split()
        if len(words) >= 13 and words[0].isdigit() and words[1].isdigit():
            yield int(words[0]), (float(words[5]), float(words[7])), (float(words[9]), float(words[11]))


def rows(path):
    """Size, time in microseconds and bus bandwidth in GB/s of both loops together."""
    for size, first, second in loops(path):
        rate = 2 / (1 / first[1] + 1 / second[1]) if first[1] and second[1] else 0.0
        yield size, (first[0] + second[0]) / 2, rate


def apart(tests):
    """Sizes at which nccl-tests' own two figures are too far from each other for a third to be compared with them."""
    return {size for size, (first, _), (second, _) in loops(tests)
            if size >= LARGE and max(first, second) > (1 + OFF) * min(first, second)}


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


def steady(tests, file):
    timed = any(cell["spaced"] for cell in counted(file)[1])
    return not timed or not apart(tests)


def exact(op, iterations, warmups, tests, file):
    ranks, cells = counted(file)
    table = [row for row in rows(tests) if row[0] > 0]
    bad = [] if ranks and table else ["nothing was counted, or nothing ran"]
    calls = warmups + 2 * (iterations + 1)
    print(f"{op}: bytes, calls a rank, nccl-tests GB/s; counted GB/s while kernels run, ratio; from begin to begin, ratio, of calls")
    off, unsteady = [], apart(tests)
    for size, us, theirs in table:
        moved = size * (ranks - 1) // ranks if op == "alltoall" else size
        mine = [c for c in cells if c["op"] == OPS[op] and c["class"] == max(moved, 1).bit_length() - 1]
        have, got = sum(c["calls"] for c in mine), sum(c["bytes"] for c in mine)
        if (have, got) != (calls * ranks, calls * ranks * moved):
            bad.append(f"{size}: {have} calls, {got} bytes instead of {calls * ranks}, {calls * ranks * moved}")
        factor = {"all_reduce": 2 * (ranks - 1) / ranks, "all_gather": (ranks - 1) / ranks, "reduce_scatter": (ranks - 1) / ranks}
        rate = lambda bytes, ns: factor.get(op, 1) * sum(c[bytes] for c in mine) / max(1, sum(c[ns] for c in mine))
        kernels = rate("timed_bytes", "sum_ns")
        spaced = rate("spaced_bytes", "spaced_ns")
        n = sum(c["spaced"] for c in mine)
        took = sum(c["spaced_ns"] for c in mine)
        held_up = False
        added = n * timing_ns(OPS[op], ranks)
        if 0 < n < have // 2 and added < took / 2:
            spaced *= took / (took - added)
            gaps = [c["spaced_ns"] / c["spaced"] - c["sum_ns"] / c["timed"] for c in mine if c["spaced"]]
            held_up = OPS[op] != "P2pGroup" and max(gaps) - QUEUED_NS > HELD_UP * took / n
        if theirs and size >= LARGE:
            of_loop = "  no figure: held up" if held_up else f"{spaced:8.2f} {spaced / theirs:6.3f} {n}"
            figure = f"{kernels:8.2f} {kernels / theirs:6.3f} {of_loop}" if n else "   no times"
            print(f"  {size:>10} {have // ranks:>4} {theirs:8.2f} {figure}{'  its own two loops are apart' if size in unsteady else ''}")
            if n and not held_up and size not in unsteady:
                off.append((abs(spaced / theirs - 1), size))
    for line in bad[:5]:
        print(f"WRONG: {op}: {line}")
    if not bad:
        print(f"ok: {op}: calls and bytes exact at {len(table)} sizes, {ranks} ranks")
    if any(c["spaced"] for c in cells) and len(unsteady) > UNSTEADY:
        bad.append(f"nccl-tests' own two loops are apart at {sorted(unsteady)}")
        print(f"WRONG: {op}: {bad[-1]}")
    far = [size for by, size in off if by > OFF]
    if off:
        print(f"{'WRONG' if far else 'ok'}: {op}: bus bandwidth at most {max(off)[0]:.1%} off at {len(off)} sizes; beyond {OFF:.0%} at {far}")
    return bool(bad or far)


def cost(name, files):
    times = defaultdict(lambda: defaultdict(list))
    for path in files:
        variant = path.rsplit(".", 1)[1]
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


if sys.argv[1] == "steady":
    sys.exit(0 if steady(*sys.argv[2:4]) else AGAIN)
if sys.argv[1] == "exact":
    sys.exit(exact(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:7]))
cost(sys.argv[2], sys.argv[3:])
