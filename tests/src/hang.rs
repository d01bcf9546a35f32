//! A program that hangs, for tests and the demo.

/// A rank of a silent program. It works on its GPU for `$WORK_S`, by default twenty seconds. Then the ranks in `$QUIT`, by default rank
/// 1, do what `$PLAY` says, and the others wait for them in a kernel, as in a collective. After a restart it works for three
/// seconds.
pub const RANK: &str = r#"#!/usr/bin/python3
import json, os, signal, sys, time
rank, play = int(os.environ.get("RANK", os.environ["SLURM_PROCID"])), os.environ["PLAY"]
quits = str(rank) in os.environ.get("QUIT", "1").split(",")
gpu = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[int(os.environ.get("RANK", os.environ["SLURM_LOCALID"]))]
place = "/opt/railgate-test/nvml-loads/" + gpu
done, last = {"metrics": {}, "joules": 0.0, "rest_s": 0.0}, None
if os.path.exists(place):
    # The GPU has worked for an earlier attempt.
    with open(place) as file:
        before = json.load(file)
    done, last = before["done"], (before["since"], before["work"]["metrics"])
def load(metrics):
    # Totals go on from one load to the next, as the counters of a GPU do.
    global last
    now = time.time_ns()
    if last:
        begun, rates = last
        seconds = (now - begun) / 1e9
        for metric, rate in rates.items():
            done["metrics"][metric] = done["metrics"].get(metric, 0.0) + rate * seconds
        done["joules"] += 130.0 * seconds
    last = (now, metrics)
    work = {"metrics": metrics, "clock_mhz": 1980, "power_w": 130.0, "temperature_c": 40, "memory_mib": 1000}
    text = json.dumps({"pid": os.getpid(), "since": now, "until": now + 600 * 10**9, "work": work, "done": done})
    with open(f"{place}.{rank}", "w") as file:
        file.write(text)
    os.rename(f"{place}.{rank}", place)
WORKS = {"1": 99.0, "2": 90.0, "3": 40.0, "5": 50.0, "7": 50.0, "10": 25.0}
WAITS = {"1": 100.0, "2": 12.0, "3": 3.0, "5": 0.0, "7": 0.0, "10": 0.1}
IDLE = {metric: 0.0 for metric in WORKS}
def ends(*_):
    load(IDLE)
    os._exit(143)
signal.signal(signal.SIGTERM, ends)
load(WORKS)
attempt = int(os.environ.get("SLURM_RESTART_COUNT", "0"))
print(f"rank {rank} at work, attempt {attempt}", flush=True)
time.sleep(3 if attempt else float(os.environ.get("WORK_S", "20")))
if attempt:
    load(IDLE)
    sys.exit(0)
if not quits:
    load(WAITS)
    goes_on = os.path.expanduser("~/goes-on." + os.environ["SLURM_JOB_ID"])
    while not os.path.exists(goes_on):
        time.sleep(0.2)
    load(WORKS)
    time.sleep(3)
    sys.exit(0)
load(IDLE)
if play == "leaves":
    sys.exit(0)
if play == "stops":
    os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(3 if play == "stops" else 600)
"#;
