#!/usr/bin/env bash
# railgate on real GPUs: its programs, the real libnvidia-ml, a real Slurm of one node.
#
#   tests/gpu/run.sh [DIRECTORY]            output of prepare.sh; default: target/gpu
#
# Only for a disposable machine: it unpacks Slurm over / and starts daemons. Results are printed as "ok: …"; the first
# failure ends the script. Snapshot, reports and logs go to $OUT.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu}")
out=${OUT:-$(mktemp -d)}
# shellcheck source-path=SCRIPTDIR source=machine.sh
source tests/gpu/machine.sh

install_and_configure '# For what PyTorch brings, and for nothing else.
[[rails.rules]]
why = "to be seen in a log"
nccl = ">=2.28.7,<2.29.0"
set = { NCCL_MIN_CTAS = "4" }'

say "the node, without Slurm"
railgate check | tee "$out/check.txt" || wrong "railgate check: exit code $?"
grep -q ': fit$' "$out/check.txt" && ok "fit under its profile"
railgate snapshot --out "$out/snapshot.json" | tee "$out/parts.txt"
[[ $(grep -c ' read$' "$out/parts.txt") == 5 ]] || wrong "not every part was read"
ok "every part was read"
railgate rails

say "what can be planted without touching the cards"
planted() { # CHECK EXIT-CODE LINES-OF-THE-PROFILE: the machine under another profile
    printf 'id = "planted"\ntitle = "planted"\nextends = "here"\n%s\n' "$3" >/etc/railgate/profiles/planted.toml
    sed 's/"here"/"planted"/' /etc/railgate/railgate.toml >"$state/planted.toml"
    finds "$1" "$2" --config "$state/planted.toml"
}
finds() { # CHECK EXIT-CODE ARGUMENTS…
    local check=$1 want=$2 code=0
    shift 2
    railgate check --phase prolog "$@" >"$state/planted.txt" || code=$?
    cat "$state/planted.txt"
    grep -qE "^(warn|fail) +$check" "$state/planted.txt" || wrong "$check finds nothing"
    [[ $code == "$want" ]] || wrong "exit code $code, not $want"
    ok "$check"
}
planted gpu-count 1 "gpus.count = $((gpus + 1))"
planted gpu-versions 0 'gpus.driver = ["999.99"]'
runuser -u researcher -- python3 -c '
import time, torch
held = torch.zeros(1 << 30, device="cuda")
print("held", flush=True)
time.sleep(60)' >"$state/held" &
held() { grep -q held "$state/held"; }
until_true 40 held || wrong "nothing holds a GPU"
finds gpu-processes 0
pkill -u researcher python3
wait || true
rm /etc/railgate/profiles/planted.toml

start_slurm

cat >"$state/job.sh" <<'JOB'
#!/bin/bash
#SBATCH --job-name=gemm --gres=gpu:1 --railgate-gate=quick --railgate-requeue=auto
srun bash -c 'echo "task: ${RAILGATE_SET:-nothing} by railgate"; env | grep ^NCCL_ || true; nvidia-smi -L'
python3 - <<'PY'
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.time() + 10
while time.time() < end:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
PY
cat >nccl.py <<'PY'
import torch, torch.distributed as dist
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1, device="cuda"))
print("NCCL", torch.cuda.nccl.version())
PY
NCCL_NVLS_ENABLE=0 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV srun python3 nccl.py
JOB
id=$(cd "$state/reports" && runuser -u researcher -- sbatch --parsable -o "$state/reports/%j.log" "$state/job.sh")
done_() { [[ $(scontrol show job "$id" | grep -o 'JobState=[A-Z]*') == JobState=COMPLETED ]]; }
until_true 90 done_ || wrong "job: $(scontrol show job "$id" | grep -E 'JobState|Reason')"
grep -v 'NCCL INFO' "$state/reports/$id.log"
grep -h 'ENV/Plugin\|env plugin\|set by environment' "$state/reports/$id.log" || true
if grep -q "^NCCL (2, 28" "$state/reports/$id.log"; then
    grep -q 'NCCL_MIN_CTAS set by environment to 4' "$state/reports/$id.log" || wrong "the environment plugin gave no answer"
    ok "NCCL got its release's value from the environment plugin"
fi
reported() { runuser -u researcher -- railgate report "$id" | grep -q completed; }
until_true 20 reported || wrong "no report: $(runuser -u researcher -- railgate report "$id" 2>&1)"
runuser -u researcher -- railgate report "$id" | tee "$out/report.txt"
runuser -u researcher -- railgate report "$id" --format html --out "$state/reports/r.html" && cp "$state/reports/r.html" "$out/report.html"
runuser -u researcher -- railgate report "$id" --format json >"$out/report.json"
ok "prolog, plugin, epilog and report of job $id"
[[ $(sinfo -h -o %T) == idle ]] && ok "the node is idle again"

say "gate against nvidia-smi -q, 15 pairs, seconds"
python3 - "$out/bench.json" <<'PY'
import json, statistics, subprocess, sys, time
def once(*command):
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start
ours, theirs = [], []
for _ in range(15):
    ours.append(once("railgate", "check", "--phase", "prolog"))
    theirs.append(once("nvidia-smi", "-q"))
for name, times in (("railgate check", ours), ("nvidia-smi -q", theirs)):
    print(f"{name:15} median {statistics.median(times):.3f}  min {min(times):.3f}  max {max(times):.3f}")
ratios = [a / b for a, b in zip(ours, theirs)]
print(f"ratio           median {statistics.median(ratios):.2f}  min {min(ratios):.2f}  max {max(ratios):.2f}")
json.dump({"railgate": ours, "nvidia_smi": theirs}, open(sys.argv[1], "w"))
PY
railgate check --format json >"$out/check.json"
cp /var/log/railgate.log "$out/railgate.log"
cp "$state/slurmd.log" "$out/slurmd.log"

ok "all done; results in $out"
