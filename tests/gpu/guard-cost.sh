#!/usr/bin/env bash
# Measures what the guard costs: two jobs train at the same time, one under `[guard] mode = "off"`, and the CPU time of their samplers
# is compared.
#
#   tests/gpu/guard-cost.sh [DIRECTORY [SECONDS]]   output of prepare.sh (default: target/gpu); default: 90 s
#
# Needs four GPUs, two for each job. Only for a disposable machine.
# machine.sh uses $kit, and sets $gpus and $state.
# shellcheck disable=SC2034,SC2154
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu}")
seconds=${2:-90}
out=${OUT:-$(mktemp -d)}
# shellcheck source-path=SCRIPTDIR source=machine.sh
source tests/gpu/machine.sh
((gpus >= 4)) || wrong "this machine has $gpus GPUs"

install_and_configure '[stats]
nccl_profiler = "all"
[guard]
mode = "off"'
install -m 644 tests/gpu/train/hangs.py "$state/"
cat >"$state/job.sh" <<JOB
#!/bin/bash
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 WORK_S=600 TRUTH=/dev/null PORT=\$1
srun --ntasks=2 python3 $state/hangs.py sleep
JOB
start_slurm

submit() { # PORT
    cd "$state/reports" && runuser -u researcher -- sbatch --parsable -o "$state/reports/%j.log" --gres=gpu:2 --ntasks=2 \
        --cpus-per-task=$(($(nproc) / gpus)) --railgate-requeue=never "$state/job.sh" "$1"
}
sampler_of() { pgrep -o -f "^/usr/libexec/railgate/railgate-sampler $1 "; }
# Clock ticks of a sampler and its children, those that have ended included.
ticks() { # ID
    local sampler
    sampler=$(sampler_of "$1")
    { cat "/proc/$sampler/stat" && for child in $(pgrep -P "$sampler"); do cat "/proc/$child/stat"; done; } |
        sed 's/.*) //' | awk '{ sum += $12 + $13 + $14 + $15 } END { print sum }'
}
without=$(submit 29541)
until_true 30 sampler_of "$without" || wrong "job $without has no sampler"
sed -i 's/mode = "off"/mode = "report"/' /etc/railgate/railgate.toml
with=$(submit 29542)
until_true 30 sampler_of "$with" || wrong "job $with has no sampler"
# Start-up differs from training.
sleep 40
before=("$(ticks "$without")" "$(ticks "$with")")
sleep "$seconds"
after=("$(ticks "$without")" "$(ticks "$with")")
for place in 0 1; do
    awk -v which="$( ((place)) && echo 'with the guard' || echo 'without the guard')" -v s="$seconds" -v hz="$(getconf CLK_TCK)" \
        -v t=$((after[place] - before[place])) 'BEGIN { printf "%s: %.2f %% of a core over %d s\n", which, t / hz / s * 100, s }'
done | tee "$out/guard-cost"
runuser -u researcher -- railgate report "$with" --live | head -20
scancel "$with" "$without"
