#!/usr/bin/env bash
# Records kinds of real job on real GPUs: what each left behind, what the report said, and the truth by the program's own clock.
#
#   tests/gpu/corpus.sh [DIRECTORY [KIND…]]   output of prepare.sh (default: target/gpu); default: all of corpus.toml, in order
#
# Writes one archive, $OUT/corpus.tar.gz, also if interrupted. Kinds that would not end within $DEADLINE seconds (default 540), or
# need more GPUs than there are, are left out and listed. Only for a disposable machine.
# What `fields` prints becomes variables, kind_….
# shellcheck disable=SC2154
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu}")
out=${OUT:-$(mktemp -d)}
deadline=${DEADLINE:-540}
# A recording has no name of a machine.
node=gn1
# shellcheck source-path=SCRIPTDIR source=machine.sh
source tests/gpu/machine.sh
stage=$(mktemp -d)
list=$PWD/tests/gpu/corpus.toml
skipped=()

finish() {
    trap - EXIT
    local failed=()
    mapfile -t failed < <(cat "$stage/failed" 2>/dev/null)
    printf '%s\n' "${skipped[@]:+skipped: ${skipped[*]}}" "${failed[@]:+not recorded: ${failed[*]}}" | tee "$stage/left-out"
    cp /var/log/railgate.log "$state"/*.log "$state"/ctld/*.log "$stage/" 2>/dev/null || true
    tar -C "$stage" -czf "$out/corpus.tar.gz" . && du -h "$out/corpus.tar.gz"
    stop_slurm
}
trap finish EXIT

# Shell assignments of a kind's fields, with the defaults.
fields() { # KIND
    python3 - "$list" "$1" <<'PY'
import shlex, sys, tomllib

kind = tomllib.load(open(sys.argv[1], "rb"))[sys.argv[2]]
defaults = {
    "program": sys.argv[2], "launcher": "srun", "gpus": 1, "tasks": kind.get("gpus", 1), "helper": False, "seconds": 20,
    "options": "", "srun": "", "beside": False, "needs": "", "cancel": 0,
}
kind = {**defaults, **kind}
for name in defaults:
    print(f"kind_{name}={shlex.quote(str(kind[name]))}")
print(f"kind_takes={kind.get('takes', max(kind['seconds'], kind['cancel']))}")
PY
}
possible() {
    ((kind_gpus <= gpus)) || return 1
    case $kind_needs in
    numa) [[ -e /sys/devices/system/node/node1/cpulist ]] ;;
    jax) python3 -c 'import jax; assert jax.devices()[0].platform == "gpu"' >/dev/null 2>&1 ;;
    esac
}

install_and_configure '[stats]
nccl_profiler = "all"'
install -d "$state/lib" "$state/helper"
install -d -m 1777 "$state/truth"
cp -r tests/gpu/train/corpus "$state/lib/"
install -m 644 contrib/python/railgate.py "$state/helper/"
# Before railgate's own epilog, which removes the run's directory: slurmd starts them in reverse order of their names.
cat >/etc/slurm/epilog.d/99-corpus <<EPILOG
#!/bin/bash
run=/run/railgate/jobs/\$SLURM_JOB_ID/current
mkdir -p $state/runs/\$SLURM_JOB_ID
cp -r \$run/user/ranks \$run/user/app \$run/tasks.json \$run/pauses.json \$run/samples.* $state/runs/\$SLURM_JOB_ID/ 2>/dev/null
exit 0
EPILOG
chmod 755 /etc/slurm/epilog.d/99-corpus

# One script for all kinds: their fields are its environment.
cat >"$state/job.sh" <<'JOB'
#!/bin/bash
export STARTED=$(date +%s.%N) NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONUNBUFFERED=1
program=(-m corpus "$kind_program" "$kind_seconds")
case $kind_launcher in
torchrun) srun --ntasks=1 python3 -m torch.distributed.run --standalone --nproc-per-node="$kind_tasks" "${program[@]}" ;;
srun) srun --ntasks="$kind_tasks" $kind_srun python3 "${program[@]}" ;;
esac
JOB
{
    date -u +%FT%TZ
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    railgate --version
    uname -r
    nproc
    # It also brings the libraries into the page cache, so that the first kind starts as fast as the others.
    python3 -c 'import torch; torch.ones(8, 8, device="cuda").matmul(torch.ones(8, 8, device="cuda")); print("torch", torch.__version__, "CUDA", torch.version.cuda, "NCCL", torch.cuda.nccl.version())'
} | tee "$stage/machine"
hostname -f >"$stage/host" 2>/dev/null || echo "$host" >"$stage/host"
start_slurm

over() { [[ -z $(squeue -h -j "$1" -t PENDING,RUNNING,COMPLETING 2>/dev/null) ]]; }
runs() { [[ $(squeue -h -j "$1" -o %T 2>/dev/null) == *RUNNING* ]]; }
report_of() { runuser -u researcher -- railgate report "$@"; }
# shellcheck disable=SC2317  # until_true calls it
reported() { # ID FILE
    report_of "$1" --format json >"$2" && python3 -c 'import json, sys; sys.exit(not json.load(open(sys.argv[1]))["ended"])' "$2"
}
submit() { # NAME: the job's id
    # Tasks are threads of one machine to Slurm: torchrun is one task, which starts the others.
    local tasks=$kind_tasks
    [[ $kind_launcher == torchrun ]] && tasks=1
    # shellcheck disable=SC2086  # options are words
    (cd "$state/reports" && runuser -u researcher -- env TRUTH="$state/truth/$1.json" SCRATCH=/tmp \
        PYTHONPATH="$state/lib$([[ $kind_helper == True ]] && echo ":$state/helper")" \
        kind_program="$kind_program" kind_seconds="$kind_seconds" kind_launcher="$kind_launcher" kind_tasks="$kind_tasks" \
        kind_srun="$kind_srun" sbatch --parsable -J "$1" -o "$state/reports/%j.log" --railgate-requeue=never \
        --gres=gpu:"$kind_gpus" --ntasks="$tasks" --cpus-per-task=$(($(nproc) * kind_gpus / gpus / 2 / tasks)) \
        $kind_options "$state/job.sh")
}
record() { # NAME
    local id other='' to=$stage/$1
    mkdir -p "$to"
    if [[ $kind_beside == True ]]; then
        other=$(cd "$state/reports" && runuser -u researcher -- sbatch --parsable -J beside -o /dev/null --cpus-per-task=4 \
            --wrap 'for _ in 1 2 3 4; do (while :; do :; done) & done; sleep 300')
    fi
    id=$(submit "$1") || return 1
    if ((kind_cancel)); then
        until_true 30 runs "$id" || return 1
        until_true "$kind_cancel" over "$id" || scancel "$id"
    fi
    until_true $((kind_takes + 60)) over "$id" || { scancel "$id" && until_true 60 over "$id"; } || true
    [[ $other ]] && scancel "$other"
    until_true 20 reported "$id" "$to/said.json" || echo "no report of job $id"
    report_of "$id" >"$to/said.txt" 2>&1 || true
    cp -r "$state/reports/real/$id" "$to/report" || return 1
    cp -r "$state/runs/$id/." "$to/" || true
    cp "$state/reports/$id.log" "$to/log" 2>/dev/null || find "$state/reports" -name "$id*.log" -exec cp {} "$to/log" \;
    cp "$state/truth/$1.json"* "$to/" || true
    sed -n '1,9p' "$to/said.txt"
    cat "$to/$1.json" 2>/dev/null || tail -5 "$to/log"
}

# Kinds run at the same time while there are GPUs for them. $holds has the GPUs of each by its process.
declare -A holds=() names=()
free=$gpus
await_one() {
    local process
    wait -n -p process "${!holds[@]}" || echo "${names[$process]}" >>"$stage/failed"
    free=$((free + holds[$process]))
    say "${names[$process]} (until $SECONDS s)"
    cat "$stage/${names[$process]}.out"
    unset "holds[$process]" "names[$process]"
}
wanted=("${@:2}")
((${#wanted[@]})) || mapfile -t wanted < <(python3 -c 'import sys, tomllib; print(*tomllib.load(open(sys.argv[1], "rb")), sep="\n")' "$list")
for name in "${wanted[@]}"; do
    values=$(fields "$name")
    eval "$values"
    possible || { skipped+=("$name (not here)") && continue; }
    while ((free < kind_gpus)); do await_one; done
    ((SECONDS + kind_takes + 25 < deadline)) || { skipped+=("$name") && continue; }
    (record "$name" || exit 1) >"$stage/$name.out" 2>&1 &
    holds[$!]=$kind_gpus names[$!]=$name
    free=$((free - kind_gpus))
done
while ((${#holds[@]})); do await_one; done
ok "all done; results in $out"
