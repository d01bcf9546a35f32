#!/usr/bin/env bash
# Measures what the guard costs: two jobs train, one under `[guard] mode = "off"`, and the CPU time of their samplers is compared.
#
#   tests/gpu/guard-cost.sh [DIRECTORY [SECONDS]]   output of prepare.sh (default: target/gpu); default: 90 s
#
# Each job has two GPUs. They train at the same time where there are four, else one after the other. Only for a disposable machine.
# machine.sh uses $kit, and sets $gpus and $state.
# shellcheck disable=SC2034,SC2154
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu}")
seconds=${2:-90}
out=${OUT:-$(mktemp -d)}
# shellcheck source-path=SCRIPTDIR source=machine.sh
source tests/gpu/machine.sh
((gpus >= 2)) || wrong "this machine has $gpus GPU"

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
# Starts a job under a mode of the guard. Sets $job.
start() { # MODE PORT
    sed -i "/^\[guard\]/,/^\[/s/^mode = .*/mode = \"$1\"/" /etc/railgate/railgate.toml
    job=$(submit "$2")
    until_true 60 sampler_of "$job" || wrong "job $job has no sampler"
}
# Prints the CPU time of samplers in some seconds of training. Start-up differs from training.
measure() { # ID…
    local id before=()
    sleep 40
    for id in "$@"; do before+=("$(ticks "$id")"); done
    sleep "$seconds"
    for id in "$@"; do
        awk -v which="${mode[$id]}" -v s="$seconds" -v hz="$(getconf CLK_TCK)" -v t=$(($(ticks "$id") - before[0])) \
            'BEGIN { printf "guard %s: %.2f %% of a core over %d s\n", which, t / hz / s * 100, s }' | tee -a "$out/guard-cost"
        before=("${before[@]:1}")
    done
}
declare -A mode=()
jobs=()
for each in off report; do
    start "$each" $((29541 + ${#jobs[@]}))
    mode[$job]=$each
    jobs+=("$job")
    if ((gpus < 4)); then
        measure "$job"
        [[ $each = report ]] || scancel "$job"
    fi
done
((gpus < 4)) || measure "${jobs[@]}"
runuser -u researcher -- railgate report "$job" --live | head -20
scancel "${jobs[@]}"
