#!/usr/bin/env bash
# Real training on real GPUs under a real Slurm of one node: the report's figures beside those computed by hand.
#
#   tests/gpu/train.sh [DIRECTORY [SECONDS [GPUS]]]   output of prepare.sh; default: target/gpu, 45 s a job, all GPUs
#
# Only for a disposable machine. Reports, logs and samples go to $OUT.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu}")
seconds=${2:-45}
out=${OUT:-$(mktemp -d)}
# shellcheck source-path=SCRIPTDIR source=machine.sh
source tests/gpu/machine.sh
has=${3:-$gpus}

install_and_configure '[stats]
nccl_profiler = "all"'
torch_jobs train.py "$seconds" --railgate-requeue=auto
start_slurm

for kind in ddp fsdp; do
    say "$kind on $has GPUs"
    id=$(submit_torch "$kind" "$has")
    for _ in $(seq 20); do
        sleep 1
        [[ $(scontrol show job "$id") == *JobState=RUNNING* ]] && break
    done
    sleep $((seconds / 2))
    nvidia-smi --query-gpu=clocks.sm,power.draw,utilization.gpu,temperature.gpu --format=csv
    runuser -u researcher -- railgate report "$id" --live || true
    until_true $((seconds + 90)) ended "$id" || wrong "job: $(scontrol show job "$id" | grep -E 'JobState|Reason')"
    cat "$state/reports/$id.log"
    reported() { runuser -u researcher -- railgate report "$id" | grep -qi completed; }
    until_true 20 reported || wrong "no report: $(runuser -u researcher -- railgate report "$id" 2>&1)"
    runuser -u researcher -- railgate report "$id" | tee "$out/$kind.txt"
    runuser -u researcher -- railgate report "$id" --format json >"$out/$kind.json"
    runuser -u researcher -- railgate report "$id" --format html --out "$state/reports/$kind.html"
    cp "$state/reports/$kind.html" "$out/"
    find "$state/reports/real/$id" -name '*.samples' -exec cp {} "$out/$kind.samples" \;
    ok "$kind ran and has its report"
done
cp /var/log/railgate.log "$out/railgate.log"
ok "all done; results in $out"
