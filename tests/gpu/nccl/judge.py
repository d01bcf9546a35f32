#!/usr/bin/env python3
"""Judges the results of nccl.sh.

    judge.py bridges FILE.xml DUMP.xml      every GPU and HCA of the dump is below its bridge of the file
    judge.py cases EXPECTED RESULTS         railgate's validator and NCCL agree about the files
    judge.py pairs LOG...                   all_reduce_perf of alternating variants: NAME.ROUND.log
    judge.py flows LOG                      data sent through each HCA
"""
import collections
import os
import re
import statistics
import sys
import xml.etree.ElementTree as tree


def parents(path):
    """Bus id or HCA name of each device, and the bus ids above it, nearest first."""
    found = {}

    def walk(element, above):
        own = element.get("busid")
        if own and not element.findall("pci"):
            found[own] = above
        if element.tag == "net":
            # A net element is inside its card.
            found[element.get("name")] = above[1:]
        for inner in element:
            walk(inner, ([own] if own else []) + above)

    walk(tree.parse(path).getroot(), [])
    return found


def bridges(file, dump):
    want, got = parents(file), parents(dump)
    placed = {busid: above for busid, above in got.items() if re.match(r"[0-9a-f]{4}:", busid)}
    wrong = [f"{busid}: {above}, wanted {want.get(busid)}" for busid, above in placed.items() if above != want.get(busid)]
    for busid, above in sorted(placed.items()):
        inside = sorted(name for name in got if name not in placed and got[name] == above)
        print(f"{busid} below {above[0] if above else 'the CPU'}{''.join(', ' + name for name in inside)}")
    if wrong or not placed:
        sys.exit("\n".join(wrong) or "no device in the dump")


def cases(expected, results):
    """RESULTS has name, NCCL's exit code, the validator's result, and NCCL's message."""
    said = {}
    for line in open(results):
        name, nccl, ours, why = line.rstrip("\n").split("\t")
        said[name] = ("accepted" if nccl == "0" else "refused", ours, nccl, why)
    rows = [line.rstrip("\n").split("\t") for line in open(expected)]
    print(f"{'file':28} {'NCCL':9} {'railgate':9} NCCL's message")
    bad = []
    for name, derived, _ in rows:
        nccl, ours, code, why = said[name]
        mark = "" if nccl == ours else "   <-- DIFFER"
        if ours == "accepted" and nccl == "refused":
            bad.append(name)
        if mark:
            bad.append(name)
        if derived != nccl:
            mark += f"   (derived: {derived})"
        print(f"{name:28} {nccl:9} {ours:9} {code}: {why}{mark}")
    refused = sum(said[name][0] == "refused" for name, *_ in rows)
    print(f"{len(rows)} files, {refused} refused by NCCL, {len(set(bad))} judged differently")
    if bad:
        sys.exit("differ: " + " ".join(sorted(set(bad))))


def pairs(logs):
    """Compares each variant with the first one, round by round."""
    times = collections.defaultdict(lambda: collections.defaultdict(dict))
    for log in logs:
        name, round_, _ = os.path.basename(log).split(".")
        for line in open(log):
            fields = line.split()
            if len(fields) >= 9 and fields[0].isdigit() and fields[2] == "float":
                # size count type redop root time algbw busbw …
                times[int(fields[0])][name][int(round_)] = (float(fields[5]), float(fields[7]))
    names = sorted({name for sizes in times.values() for name in sizes})
    base, slow = names[0], []
    print(f"medians of {len(next(iter(times.values()))[base])} rounds; time in us, busbw in GB/s; ratio of times to '{base}' round by round: median (lowest to highest)")
    for size, by in sorted(times.items()):
        row = [f"{size:>11}"]
        for name in names:
            time, bandwidth = (statistics.median(v[k] for v in by[name].values()) for k in (0, 1))
            row.append(f"{name} {time:.1f} us {bandwidth:.1f}")
            if name != base:
                ratios = [by[name][r][0] / by[base][r][0] for r in by[name] if r in by[base]]
                median = statistics.median(ratios)
                # Smaller sizes only measure latency, which varies between runs.
                if median > (1.02 if size >= 1 << 20 else 1.10):
                    slow.append(f"{name} at {size}: {median:.3f}")
                row.append(f"{median:.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
        print(" | ".join(row))
    if slow:
        sys.exit("slower than NCCL's default: " + ", ".join(slow))


def flows(log):
    total = collections.Counter()
    for line in open(log):
        who, verb, size, rest = line.rstrip("\n").split(" ", 3)
        total[(who, verb, rest)] += int(size)
    for (who, verb, rest), size in sorted(total.items()):
        print(f"{who} {verb} {size / 2**20:8.1f} MiB {rest}")


{"bridges": bridges, "cases": cases, "pairs": lambda *logs: pairs(logs), "flows": flows}[sys.argv[1]](*sys.argv[2:])
