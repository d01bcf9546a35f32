"""Judges the results of profiler.sh.

  profiler.py steady NCCL-TESTS-OUTPUT COLLECTIVES
  profiler.py exact OPERATION ITERATIONS WARMUPS NCCL-TESTS-OUTPUT COLLECTIVES
  profiler.py cost NAME FILE...            files are called ….VARIANT

COLLECTIVES is the output of the example of that name for the rank files: the report's figures.
"""
import json
import statistics
import sys
from collections import defaultdict

# Program of nccl-tests, and railgate's name of the operation.
OPS = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter", "broadcast": "Broadcast",
    "alltoall": "P2pGroup", "sendrecv": "P2pGroup",
}


# Smallest size whose bus bandwidth is compared, permitted deviation, and permitted number of sizes without a reference.
LARGE, OFF, UNSTEADY = 1 << 20, 0.03, 2
# Percent: figures with a larger error are not compared, since too few calls were timed; the report shows the error as well.
VAGUE = 6
# Exit code of `steady`.
AGAIN = 3


def loops(path):
    """Size, and for each of two loops (both out of place, see profiler.sh) time in microseconds and bus bandwidth in GB/s."""
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
    """Sizes at which the two figures of nccl-tests differ too much to be a reference."""
    return {size for size, (first, _), (second, _) in loops(tests)
            if size >= LARGE and max(first, second) > (1 + OFF) * min(first, second)}


def counted(path):
    """Rows of collectives in the report."""
    with open(path) as file:
        return json.load(file)["collectives"]


def steady(tests, file):
    """Whether both have comparable figures; prints the reason if not."""
    timed = [row for row in counted(file) if row["back_to_back"] and row["from_bytes"] >= LARGE]
    unsteady = sorted(apart(tests)) if timed else []
    vague = sorted(row["from_bytes"] for row in timed if (row["back_to_back_error_percent"] or 0) > VAGUE)
    if unsteady:
        print(f"the two loops of nccl-tests differ at {unsteady}")
    if vague:
        print(f"the report's error is above {VAGUE} % at {vague}")
    return not (unsteady or vague)


def exact(op, iterations, warmups, tests, file):
    found = [row for row in counted(file) if row["op"] == OPS[op]]
    ranks = max((row["size"] for row in found), default=0)
    table = [row for row in rows(tests) if row[0] > 0]
    bad = [] if ranks and table else ["nothing was counted, or nothing ran"]
    calls = warmups + 2 * (iterations + 1)
    print(f"{op}: bytes, calls a rank, nccl-tests GB/s; the report's GB/s while kernels run, ratio; from begin to begin, ratio, of calls, "
          "its own error")
    off, unsteady = [], apart(tests)
    for size, us, theirs in table:
        moved = size * (ranks - 1) // ranks if op == "alltoall" else size
        mine = [row for row in found if row["from_bytes"] == 1 << max(moved, 1).bit_length() - 1]
        have, got = sum(row["calls"] for row in mine), sum(row["bytes"] for row in mine)
        if (have, got) != (calls * ranks, calls * ranks * moved):
            bad.append(f"{size}: {have} calls, {got} bytes instead of {calls * ranks}, {calls * ranks * moved}")
        if not theirs or not mine or size < LARGE:
            continue
        row = max(mine, key=lambda row: row["timed"])
        kernels, spaced = row["busbw_gb_s"], row["busbw_back_to_back_gb_s"]
        figure = f"{kernels:8.2f} {kernels / theirs:6.3f}" if kernels else "   no times"
        if spaced:
            figure += f" {spaced:8.2f} {spaced / theirs:6.3f} {row['back_to_back']} {row['back_to_back_error_percent'] or 0:.1f} %"
            if size not in unsteady:
                off.append((abs(spaced / theirs - 1), size))
        elif row["back_to_back"]:
            figure += "  no figure: held up"
        print(f"  {size:>10} {have // ranks:>4} {theirs:8.2f} {figure}{'  its two loops differ' if size in unsteady else ''}")
    if any(row["back_to_back"] for row in found) and len(unsteady) > UNSTEADY:
        bad.append(f"nccl-tests' own two loops are apart at {sorted(unsteady)}")
    for line in bad[:5]:
        print(f"WRONG: {op}: {line}")
    if not bad:
        print(f"ok: {op}: calls and bytes exact at {len(table)} sizes, {ranks} ranks")
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
