#!/usr/bin/env python3
"""Measures the sampler's cost: CPU time and memory of its processes (two, even if /dev/kmsg cannot be read), as the
kernel counts them.

Needs an NVIDIA GPU, root and railgate-sampler (its path is the argument); only on a disposable machine.
Calls for all GPUs go to the first one. Further arguments are numbers of GPUs (default: 8 and 1). $SECONDS_EACH is the time of each.
"""

import os
import sys
import time

from accuracy import Sampler

KINDS = ("Rss", "Pss", "Private_Dirty", "Private_Clean", "Shared_Clean", "Shared_Dirty", "AnonHugePages")
SECONDS = float(os.environ.get("SECONDS_EACH", "70"))


def family(pid):
    children = open(f"/proc/{pid}/task/{pid}/children").read().split()
    return [pid, *map(int, children)]


def cpu(pid):
    fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def mappings(pid):
    """KiB of each kind by mapping."""
    found, name = {}, ""
    for line in open(f"/proc/{pid}/smaps"):
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            name = words[5] if len(words) > 5 else "anonymous"
        elif words[0][:-1] in KINDS:
            one = found.setdefault(name, {})
            one[words[0][:-1]] = one.get(words[0][:-1], 0) + int(words[1])
    return found


def measure(program, job, gpus):
    sampler = Sampler(program, job, gpus)
    time.sleep(8)
    pids = family(sampler.process.pid)
    begun, before = time.monotonic(), list(map(cpu, pids))
    time.sleep(SECONDS)
    took = time.monotonic() - begun
    used = [now - then for now, then in zip(map(cpu, pids), before)]
    found = {pid: mappings(pid) for pid in pids}
    print(f"{len(gpus)} GPUs: {sum(used) / took * 100:.2f} % of a core over {took:.0f} s")
    print("  of the processes: " + ", ".join(f"{one / took * 100:.2f} %" for one in used))
    sums = {kind: sum(one.get(kind, 0) for of in found.values() for one in of.values()) / 1024 for kind in KINDS}
    print(f"  {len(pids)} processes, MiB: " + ", ".join(f"{kind} {mib:.1f}" for kind, mib in sums.items()))
    for pid, of in found.items():
        own = {kind: sum(one.get(kind, 0) for one in of.values()) / 1024 for kind in KINDS}
        print(f"  pid {pid}: " + ", ".join(f"{kind} {mib:.1f}" for kind, mib in own.items()))
        for name, one in sorted(of.items(), key=lambda item: -item[1].get("Pss", 0))[:12]:
            shown = [one.get(kind, 0) for kind in ("Pss", "Rss", "Private_Dirty", "AnonHugePages")]
            print("    %7d KiB Pss %7d Rss %7d dirty %7d huge " % tuple(shown), name)
    head, samples, end = sampler.end()
    print(f"  self-reported: {end['cpu_s']:.2f} s of CPU, {end['memory_mib']:.1f} MiB, {len(samples)} samples")


if __name__ == "__main__":
    for job, count in enumerate(map(int, sys.argv[2:] or ["8", "1"]), 3):
        measure(sys.argv[1], job, [0] * count)
