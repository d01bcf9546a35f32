#!/usr/bin/env python3
"""Compares the sampler's figures of a GPU with the work that was computed there.

    accuracy.py RAILGATE-SAMPLER [CASE…]    indices into CASES, from 0; default: all

Needs an idle NVIDIA GPU with GPM, PyTorch and root, on a disposable machine. Starts the sampler as the prolog does, at its
default rate, runs GEMMs whose work is counted on the host, parses the sample files as documented
(crates/node-report/src/usage/format.rs), and prints the table of docs/accuracy.md. GPM does not distinguish bf16, fp16, tf32 and fp8:
the type is given here. After SIGTERM (`timeout`) it prints the table of the finished cases and exits with 1.
"""

import bisect
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib

# As in crates/node-report/src/usage/peaks.rs.
BF16, CLOCK, SMS, FP32 = 989.4, 1830.0, 132, 256
BUILT_IN = {"H200": 1.103, "H100": 1.008}
CALIBRATED = "/var/lib/railgate/calibrations.json"
RATE = {"bf16": 1.0, "fp16": 1.0, "tf32": 0.5, "fp8": 2.0}
# None of these sizes was used for the calibration (1024, 2048, 4096, 5120, 8192, 12288). Type, size, share of a cycle's
# time, seconds of a cycle, and memory-bound kernels of some 0.5 ms after every 20 ms of GEMMs.
CASES = [
    ("bf16", 6144, 1, 1, 0), ("bf16", 10240, 1, 1, 0), ("bf16", 3072, 1, 1, 0), ("bf16", 16384, 1, 1, 0),
    ("bf16", 1536, 1, 1, 0), ("fp16", 6144, 1, 1, 0), ("fp16", 3072, 1, 1, 0), ("tf32", 6144, 1, 1, 0),
    ("tf32", 3072, 1, 1, 0), ("fp8", 6144, 1, 1, 0), ("fp8", 10240, 1, 1, 0), ("fp32", 6144, 1, 1, 0),
    ("fp32", 3072, 1, 1, 0), ("bf16", 6144, 1, 1, 12), ("bf16", 6144, 1, 1, 40), ("bf16", 1536, 1, 1, 20),
    ("bf16", 6144, 0.5, 0.2, 0), ("bf16", 6144, 0.5, 2, 0), ("bf16", 6144, 0.25, 1, 0), ("bf16", 6144, 0.1, 1, 0),
    ("fp8", 6144, 0.5, 1, 0), ("tf32", 6144, 0.3, 1, 0), ("bf16", 6144, 0.25, 0.7, 12),
]
SECONDS = float(os.environ.get("SECONDS_EACH", "16"))
# Loads with pauses need longer: GPM refreshes every 100 ms, which is the error at both ends of a sampled span.
RESTING = 2
# Percent.
GOAL = {"steady": 3, "mixed": 3, "duty": 5}


LOAD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "load.py")


def records(data):
    at = 0
    while at + 9 <= len(data):
        length, kind, total = struct.unpack_from("<IcI", data, at)
        payload = data[at + 9 : at + 9 + length]
        if len(payload) < length or zlib.crc32(kind + payload) != total:
            return
        yield kind, payload
        at += 9 + length


def values(names, folded, data, at):
    size = (2 * len(names) + 7) // 8
    bits = int.from_bytes(data[at : at + size], "little")
    at += size
    found = {}
    for place, name in enumerate(names):
        state = bits >> (2 * place) & 3
        if state == 1:
            found[name] = 0.0
        elif state > 1:
            (found[name],) = struct.unpack_from("<f", data, at)
            at += 4 if state == 2 else 8
    return found, at


def samples(folder):
    head, found, end = None, {}, None
    for name in ("samples.fine0", "samples.fine1", "samples.fine2", "samples.minutes"):
        try:
            data = open(os.path.join(folder, name), "rb").read()
        except FileNotFoundError:
            continue
        for kind, payload in records(data):
            if kind == b"H":
                head = json.loads(payload)
            elif kind == b"E":
                end = json.loads(payload)
            elif kind == b"S":
                start, seconds, folded, state = struct.unpack_from("<QfHB", payload, 0)
                begun = head["boot_s"] + (start - head["start"]) / 1000
                gpus, at = [], 15
                for _ in head["gpus"]:
                    gpu, at = values(head["gpu_fields"], folded, payload, at)
                    gpus.append(gpu)
                found[start] = (begun, begun + seconds, gpus)
    return head, [found[start] for start in sorted(found)], end


class CutShort(Exception):
    pass


def cut_short(*_):
    raise CutShort


class Sampler:
    """Starts the sampler as the prolog does, for a job that Slurm does not know."""

    def __init__(self, program, job, gpus):
        self.folder = f"/run/railgate/jobs/{job}/0-1"
        os.makedirs(self.folder, exist_ok=True)
        link = f"/run/railgate/jobs/{job}/current"
        if os.path.islink(link):
            os.unlink(link)
        os.symlink("0-1", link)
        about = {
            "id": job, "uid": 0, "gid": 0, "user": "root", "restarts": 0, "nodelist": "here", "het_leader": None,
            "allocation": {"gpus": [{"index": gpu} for gpu in gpus]}, "partition": "all",
        }
        report = {"schema": 1, "railgate": "0", "cluster": "c", "node": "here", "job": about, "attempt": 0, "start": 0}
        with open(os.path.join(self.folder, "report.json"), "w") as file:
            json.dump(report, file)
        self.process = subprocess.Popen([program, str(job), "0-1"])

    def end(self):
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(os.path.join(self.folder, "sampler.sock"))
            line.sendall(b"end\n")
            line.recv(1)
        self.process.wait()
        return samples(self.folder)


def activity_per_work(name, uuid):
    """The factor of a card, and where it is from: stored by `railgate calibrate`, else that of its model."""
    try:
        with open(CALIBRATED) as file:
            return json.load(file)["cards"][uuid]["activity_per_work"], "card"
    except (OSError, KeyError):
        return next(factor for model, factor in BUILT_IN.items() if model in name), "built-in"


def main():
    program = sys.argv[1]
    cases = [CASES[int(number)] for number in sys.argv[2:]] or CASES
    smi = lambda query: subprocess.run(["nvidia-smi", query, "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
    print(smi("--query-gpu=name,driver_version"))
    name, uuid = smi("--query-gpu=name,uuid").splitlines()[0].split(", ")
    factor, source = activity_per_work(name, uuid)
    print(f"factor {factor} ({source})")
    others = smi("--query-compute-apps=pid,name")
    if others:
        sys.exit(f"something else runs on a GPU:\n{others}")
    load = subprocess.Popen([sys.executable, LOAD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    sampler = Sampler(program, 1, [0])
    logs = []
    signal.signal(signal.SIGTERM, cut_short)
    try:
        for dtype, size, duty, cycle, copies in cases:
            load.stdin.write(f"{dtype} {size} {duty} {cycle} {copies} {SECONDS * (RESTING if duty < 1 else 1)}\n")
            load.stdin.flush()
            entries = load.stdout.readline().split()
            logs.append([tuple(map(float, entry.split(":"))) for entry in entries])
    except CutShort:
        print(f"WRONG: cut short after {len(logs)} of {len(cases)} cases")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    load.kill()
    load.wait()
    head, found, end = sampler.end()
    print("lacking:", head["gpus"][0]["lacking"])
    print("| type, size, duty / cycle | counted TFLOP/s | railgate | error % | samples, the worst alone % | SM, tensor, fp32 % |"
          " clock, at work MHz | W |\n|---|---|---|---|---|---|---|---|")
    worst = {}
    for (dtype, size, duty, cycle, copies), log in zip(cases, logs):
        at = [entry[0] for entry in log]

        def done(moment):
            place = bisect.bisect(at, moment)
            (t0, f0), (t1, f1) = log[place - 1], log[place]
            return f0 + (f1 - f0) * (moment - t0) / (t1 - t0)

        kind = "duty" if duty < 1 else "mixed" if copies else "steady"
        inside = [s for s in found if s[0] >= at[0] + 0.3 and s[1] <= at[-1] - 0.05]
        if not inside:
            print(f"| {dtype} {size} | no sample inside |")
            worst[kind] = float("inf")
            continue

        def compared(some):
            """Mean of a field, counted and reported TFLOP/s, and the deviation in percent."""
            length = sum(s[1] - s[0] for s in some)
            mean = lambda name: sum(s[2][0].get(name, float("nan")) * (s[1] - s[0]) for s in some) / length
            counted = sum(done(s[1]) - done(s[0]) for s in some) / length / 1e12
            if dtype == "fp32":
                said = mean("fp32_percent_mhz") / 100 * 1e6 * FP32 * SMS / 1e12
            else:
                slowed = mean("tensor_percent_slowed_mhz") * (1 - 1 / factor)
                said = (mean("tensor_percent_mhz") - slowed) / 100 / CLOCK * BF16 * RATE[dtype]
            return mean, counted, said, (said / counted - 1) * 100

        mean, counted, said, error = compared(inside)
        alone = max((compared([s])[3] for s in inside), key=abs)
        # Spans without samples have no figure.
        worst[kind] = max(worst.get(kind, 0.0), float("inf") if error != error else abs(error))
        busy = mean("sm_percent_mhz") / max(mean("sm_percent"), 1e-9)
        beside = f" + {copies} memory-bound" if copies else ""
        print(f"| {dtype} {size}{beside}" + ("" if duty == 1 else f", {duty:g} of {cycle:g} s") +
              f" | {counted:.1f} | {said:.1f} | {error:+.1f} | {len(inside)}, {alone:+.1f} | {mean('sm_percent'):.1f}, {mean('tensor_percent'):.1f},"
              f" {mean('fp32_percent'):.1f} | {mean('sm_clock_mhz'):.0f}, {busy:.0f} | {mean('power_w'):.0f} |")
    for kind, value in worst.items():
        print(f"{'ok' if value <= GOAL[kind] else 'WRONG'}: {kind}: at most {value:.1f} % off, goal {GOAL[kind]} %")
    energy = [(s[1], s[2][0]["energy_j"]) for s in found if s[2] and "energy_j" in s[2][0]]
    if len(energy) < 3:
        sys.exit("WRONG: next to nothing was sampled")
    (t0, e0), (t1, e1) = energy[1], energy[-1]
    integral = sum(s[2][0]["power_w"] * (s[1] - s[0]) for s in found if t0 < s[1] <= t1 and s[2][0])
    print(f"energy: counter {e1 - e0:.0f} J, integral of power {integral:.0f} J over {t1 - t0:.0f} s,"
          f" {(integral / (e1 - e0) - 1) * 100:+.2f} %")
    span = found[-1][1] - found[0][0]
    print(f"sampler, 1 GPU: {end['cpu_s'] / span * 100:.2f} % of a core, {end['memory_mib']:.1f} MiB, {len(found)}"
          f" samples in {span:.0f} s")
    return int(len(logs) < len(cases) or any(value > GOAL[kind] for kind, value in worst.items()))


if __name__ == "__main__":
    sys.exit(main())
