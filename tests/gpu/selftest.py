#!/usr/bin/env python3
"""Compares railgate-gpu-selftest with PyTorch on real cards, and tests it beside a competing load.

    python3 tests/gpu/selftest.py PROGRAM [rates] [load] [refusals] [burn]     without words: all
    python3 tests/gpu/selftest.py PROGRAM plant         PROGRAM built with --features plant

Needs PyTorch, whose cuBLASLt the program uses. Only on a disposable machine without other processes on its GPUs. Each line that begins
with `ok` or `WRONG` is a comparison; exit code 1 if one is wrong.
"""

import glob
import json
import os
import random
import signal
import subprocess
import sys
import time

PROGRAM = sys.argv[1]
HERE = os.path.dirname(os.path.abspath(__file__))
wrong = []


def environment(cublaslt=True):
    env = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    folders = {os.path.dirname(file) for path in sys.path for file in glob.glob(f"{path}/nvidia/*/lib/libcublasLt.so.1[23]")}
    if cublaslt:
        env["LD_LIBRARY_PATH"] = ":".join([*sorted(folders, reverse=True), env.get("LD_LIBRARY_PATH", "")])
    return env


def selftest(*arguments):
    """The lines, by GPU, test and other GPU; the exit code; what it took."""
    begun = time.monotonic()
    ran = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, env=environment())
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    print(f"-- {' '.join(arguments) or 'quick'}: exit code {ran.returncode}, {time.monotonic() - begun:.1f} s, {len(lines)} lines {ran.stderr.strip()[-300:]}")
    return {(line["gpu"], line["test"], line.get("to")): line for line in lines}, ran.returncode


def check(good, text):
    print("ok   " if good else "WRONG", text)
    if not good:
        wrong.append(text)


def figure(lines, gpu, test, name, to=None):
    return lines.get((gpu, test, to), {}).get("measured", {}).get(name)


def gpus():
    out = subprocess.run(["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"], capture_output=True, text=True).stdout
    return sorted(line.strip().lower()[-12:] for line in out.splitlines())


def torch_rates():
    """What PyTorch reaches on GPU 0: printed as JSON by a process of its own, so that it holds no GPU afterwards."""
    import torch

    def best(run, times=20):
        run()
        torch.cuda.synchronize()
        least = float("inf")
        for _ in range(times):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            torch.cuda.synchronize()
            least = min(least, begin.elapsed_time(end) / 1e3)
        return least

    big, small = 4 << 30, 256 << 20
    a, b = (torch.zeros(big, dtype=torch.uint8, device="cuda:0") for _ in range(2))
    rates = {"copy": 2 * big / best(lambda: b.copy_(a)) / 1e9, "fill": big / best(lambda: a.view(torch.int32).fill_(7)) / 1e9}
    del a, b
    here, there = torch.zeros(small, dtype=torch.uint8).pin_memory(), torch.zeros(small, dtype=torch.uint8, device="cuda:0")
    rates["to device"] = small / best(lambda: there.copy_(here, non_blocking=True)) / 1e9
    rates["to host"] = small / best(lambda: here.copy_(there, non_blocking=True)) / 1e9
    if torch.cuda.device_count() > 1:
        other = torch.zeros(small, dtype=torch.uint8, device="cuda:1")
        rates["peer"] = small / best(lambda: other.copy_(there, non_blocking=True)) / 1e9
    m, n, out = (torch.randn(8192, 8192, device="cuda:0", dtype=torch.bfloat16) for _ in range(3))
    until, done = time.monotonic() + 2, 0
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.matmul(m, n, out=out)
    begin.record()
    while time.monotonic() < until:
        for _ in range(20):
            torch.matmul(m, n, out=out)
        done += 20
        torch.cuda.synchronize()
    end.record()
    torch.cuda.synchronize()
    rates["bf16"] = done * 2 * 8192**3 / (begin.elapsed_time(end) / 1e3) / 1e12
    print(json.dumps(rates))


def rates():
    cards = gpus()
    lines, code = selftest("--length", "full")
    check(code == 0, "full ends with exit code 0")
    ran = subprocess.run([sys.executable, __file__, PROGRAM, "torch-rates"], capture_output=True, text=True, env=environment(False))
    theirs = json.loads(ran.stdout.splitlines()[-1])
    first, second = cards[0], cards[1] if len(cards) > 1 else None
    for name, test, of, to in [
        ("copy", "memory-bandwidth", "copy_gb_s", None), ("fill", "memory-bandwidth", "fill_gb_s", None),
        ("to device", "host-copy-alone", "host_to_device_gb_s", None), ("to host", "host-copy-alone", "device_to_host_gb_s", None),
        ("peer", "peer-copy", "peer_gb_s", second),
    ]:
        own = figure(lines, first, test, of, to)
        if name in theirs:
            check(own is not None and own > 0.95 * theirs[name], f"{name}: {own} GB/s, PyTorch {theirs[name]:.1f} GB/s; at most 5 % below")
    print("     the own kernel's copy:", figure(lines, first, "memory-bandwidth", "kernel_copy_gb_s"), "GB/s")
    print("     bf16:", figure(lines, first, "gemm-rate-bf16", "rate_tflops"), "TFLOP/s, PyTorch", f"{theirs['bf16']:.1f}")
    for card in cards:
        for of in ["bf16", "fp16", "tf32", "fp8", "fp32"]:
            shown, counted, factor = (figure(lines, card, f"gemm-rate-{of}", name) for name in ["sm_clock_mhz", "counted_sm_clock_mhz", "clock_factor"])
            check(factor is not None and 0.97 < factor < 1.2, f"{card} {of}: NVML's clock {shown} MHz, counted {counted} MHz, factor {factor}")
        print("     under own products:", figure(lines, card, "clock", "clock_factor"))
        errors = lines.get((card, "nvlink-errors", None))
        if len(cards) > 1:
            check(errors is not None and not errors.get("unknown"), f"{card} NVLink errors during the copies: {errors and (errors.get('not_applicable') or errors['measured'])}")
    digests = {}
    for (_, test, _), line in lines.items():
        if isinstance(line["values"], dict) and "right" in line["values"] and "digest" in line["values"]["right"]:
            digests.setdefault(test, set()).add(line["values"]["right"]["digest"])
    check(digests and all(len(all) == 1 for all in digests.values()), f"digests: {({test: ' '.join(all) for test, all in digests.items()})}")


def loaded(*arguments):
    load = subprocess.Popen([sys.executable, os.path.join(HERE, "competing_load.py"), *arguments], stdout=subprocess.PIPE, text=True, env=environment(False))
    load.stdout.readline()
    return load


def end(load):
    load.kill()
    load.wait()
    time.sleep(2)


def load():
    cards = gpus()
    alone, _ = selftest("--length", "quick")
    other = loaded()
    try:
        refused, code = selftest("--length", "quick")
        why = refused.get((cards[0], "start", None), {}).get("unknown", "")
        check(code == 0 and why.startswith("in use by process"), f"without --shared: {why}")
        shared, _ = selftest("--length", "quick", "--shared")
    finally:
        end(other)
    for test, name in [("gemm-rate-bf16", "rate_tflops"), ("memory-bandwidth", "copy_gb_s"), ("memory-pattern", "read_gb_s")]:
        both = [(figure(alone, card, test, name), figure(shared, card, test, name)) for card in cards]
        print(f"     {test}: alone and beside a load on the first card: {both}")
        slow = both[0][1] is not None and both[0][0] is not None and both[0][1] < 0.9 * both[0][0]
        if test == "gemm-rate-bf16":
            check(slow, f"{cards[0]} {test}: {both[0][1]} beside a load, {both[0][0]} alone: more than 10 % lower, so that the check names it")
            for card, (before, beside) in list(zip(cards, both))[1:]:
                check(beside > 0.9 * before, f"{card} {test}: {beside} of {before}: not named")
    line = shared.get((cards[0], "gemm-rate-bf16", None), {}).get("measured", {})
    check(line.get("other_processes_count", 0) >= 1 and "throttle_reasons_mask" in line, f"the line of the loaded card: {line}")
    with open("selftest-alone.lines", "w") as good, open("selftest-shared.lines", "w") as slow:
        good.writelines(json.dumps(line) + "\n" for line in alone.values())
        slow.writelines(json.dumps(line) + "\n" for line in shared.values())


HOG = """
import torch, time
free, _ = torch.cuda.mem_get_info(0)
hold = torch.empty(int(free * 0.985), dtype=torch.uint8, device="cuda:0")
print("running", flush=True)
time.sleep(600)
"""


def refusals():
    cards = gpus()
    hog = subprocess.Popen([sys.executable, "-c", HOG], stdout=subprocess.PIPE, text=True, env=environment(False))
    hog.stdout.readline()
    try:
        lines, code = selftest("--shared", "--gpu", cards[0])
    finally:
        end(hog)
    why = lines.get((cards[0], "start", None), {}).get("unknown", "")
    check(code == 0 and "of its memory are free" in why, f"memory taken: {why}")
    first = subprocess.Popen([PROGRAM, "--length", "full"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    first.stdout.readline()
    lines, code = selftest("--gpu", cards[0])
    why = lines.get((cards[0], "start", None), {}).get("unknown", "")
    check(code == 0 and (why == "another self-test of this GPU is running" or why.startswith("in use by process")), f"two at once: {why}")
    first.send_signal(signal.SIGTERM)
    first.communicate()
    check(first.returncode == 143, f"SIGTERM ends a full test: exit code {first.returncode}")


def burn():
    cards = gpus()
    begun = time.monotonic()
    ran = subprocess.Popen([PROGRAM, "--length", "burn", "--seconds", "60"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    out, told = ran.communicate()
    lines = {(line["gpu"], line["test"]): line["measured"] for line in map(json.loads, out.splitlines())}
    print(told)
    check(ran.returncode == 0 and 60 <= time.monotonic() - begun < 100, f"burn of 60 s: {time.monotonic() - begun:.0f} s, exit code {ran.returncode}")
    for card in cards:
        of = lines.get((card, "gemm-rate-bf16"), {})
        names = [which + name for name in ["rate_tflops", "power_w", "temperature_c", "clock_factor"] for which in ["min_", "", "max_", "last_"]]
        check(of.get("rounds_count", 0) >= 1, f"{card} bf16: " + ", ".join(f"{name} {of[name]:.4g}" for name in names if name in of))
    ran = subprocess.Popen([PROGRAM, "--length", "burn", "--seconds", "600"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    time.sleep(20)
    ran.send_signal(signal.SIGINT)
    since = time.monotonic()
    out, _ = ran.communicate()
    check(ran.returncode == 130 and out.count("gemm-bf16") >= 1, f"Ctrl-C: exit code {ran.returncode}, {len(out.splitlines())} lines, {time.monotonic() - since:.1f} s later")


def plant():
    """Flips one random bit in each product, in an accumulator or in memory, until 100 products of each kind have been tested."""
    numbers = random.Random(os.environ.get("SEED", "1"))
    for where, places in [("register", 32 * 32 * 8), ("memory", 4096 * 4096)]:
        found, missed = 0, []
        while found + len(missed) < 100:
            place = ["--plant", where, "--at", str(numbers.randrange(places)), "--bit", str(numbers.randrange(32))]
            ran = subprocess.run([PROGRAM, "--products", "1", *place], capture_output=True, text=True, env=environment(False))
            values = {line["test"]: line["values"] for line in map(json.loads, ran.stdout.splitlines()) if line["test"].startswith("gemm-") and isinstance(line["values"], dict)}
            found += sum("wrong" in value for value in values.values())
            missed += [(test, place, ran.stderr[-200:]) for test, value in values.items() if "wrong" not in value]
            if not values:
                missed.append(("no product", place, ran.stdout[-300:] + ran.stderr[-200:]))
        check(not missed, f"a bit in {where}: found in {found} of {found + len(missed)} products {missed[:3] or ''}")
    print("     one of them:", next(value for value in values.values()))


def main():
    steps = {"rates": rates, "load": load, "refusals": refusals, "burn": burn}
    if sys.argv[2:] == ["plant"]:
        steps = {"plant": plant}
    if sys.argv[2:] == ["torch-rates"]:
        return torch_rates()
    print(subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,pci.bus_id", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip())
    for name in sys.argv[2:] or steps:
        print("==", name)
        steps[name]()
    print(f"{len(wrong)} wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
