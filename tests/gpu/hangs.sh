#!/usr/bin/env bash
# Lets jobs of two ranks hang on two real GPUs, and shows whether the guard names the right rank, how soon, and with which stack.
#
#   tests/gpu/hangs.sh [DIRECTORY [KIND…]]   output of prepare.sh (default: target/gpu); default: all kinds of train/hangs.py
#
# $AFTER is [guard] after (default 2m 30s); a hang is awaited for $WITHIN seconds (default 200). With four GPUs two kinds are played at
# a time. Writes $OUT/hangs.tar.gz, also if interrupted. Kinds that would not end within $DEADLINE seconds (default 540) are left out
# and listed. Only for a disposable machine.
# machine.sh uses $kit and $node, and sets $gpus and $state.
# shellcheck disable=SC2034,SC2154
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu}")
out=${OUT:-$(mktemp -d)}
deadline=${DEADLINE:-540}
after=${AFTER:-2m 30s}
# A recording has no name of a machine.
node=gn1
# shellcheck source-path=SCRIPTDIR source=machine.sh
source tests/gpu/machine.sh
stage=$(mktemp -d)
((gpus >= 2)) || wrong "this machine has $gpus GPU"

# What is expected, by kind: the rank that has to be named ("-": none may be; an Xid from NVML names no process), and what its stack has to show.
declare -A rank=(
    [exit-0]=1 [exception]=1 [stop]=1 [sleep]=1 [loader]=1 [checkpoint]=1 [file-system]=1 [swap]=1 [kernel]=1
    [page-fault]='1|-' [order]=- [another-collective]=- [sizes]=- [receive]=-
)
declare -A stack=(
    [stop]='stop \(hangs' [sleep]='sleep \(hangs' [loader]='[Ll]oader(Iter)?(\.[a-z_]+)? \(hangs' [checkpoint]='checkpoint \(hangs|save' [kernel]='kernel \(hangs|synchronize'
    [page-fault]='page_fault \(hangs' [file-system]='file_system \(hangs' [swap]='swap \(hangs' [order]='order \(hangs|synchronize' [another-collective]='hangs|synchronize'
    [sizes]='sizes \(hangs|synchronize' [receive]='receive \(hangs|synchronize'
)
wanted=("${@:2}")
((${#wanted[@]})) || wanted=(exit-0 exception stop order kernel sizes receive loader file-system sleep checkpoint swap another-collective page-fault)

finish() {
    trap - EXIT
    cp /var/log/railgate.log "$state"/*.log "$stage/" 2>/dev/null || true
    tar -C "$stage" -czf "$out/hangs.tar.gz" . && du -h "$out/hangs.tar.gz"
    cat "$stage/table" 2>/dev/null || true
    stop_slurm
    umount -l "$state/dead" 2>/dev/null || true
}
trap finish EXIT

install_and_configure "[stats]
nccl_profiler = 'all'
[guard]
after = '$after'
[rails]
flight_recorder = true"
install -d -m 1777 "$state/truth" "$state/dead"
install -m 644 tests/gpu/train/hangs.py "$state/"
cp tests/gpu/dead-fuse.py "$state/"
# Copies what a run leaves behind, before railgate's epilog removes it.
cat >/etc/slurm/epilog.d/99-hangs <<EPILOG
#!/bin/bash
mkdir -p $state/runs/\$SLURM_JOB_ID
cp -r /run/railgate/jobs/\$SLURM_JOB_ID/current/. $state/runs/\$SLURM_JOB_ID/ 2>/dev/null
exit 0
EPILOG
chmod 755 /etc/slurm/epilog.d/99-hangs
cat >"$state/job.sh" <<JOB
#!/bin/bash
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONUNBUFFERED=1 DEAD=$state/dead
export TRUTH=$state/truth/\$1.json FIFO=$state/truth/\$1.fifo PORT=\$2
srun --ntasks=2 python3 $state/hangs.py "\$1"
JOB
python3 "$state/dead-fuse.py" "$state/dead" >"$stage/dead-fuse.log" 2>&1 &
{
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
    railgate --version
    uname -r
    python3 -c 'import torch; print("torch", torch.__version__, "CUDA", torch.version.cuda, "NCCL", torch.cuda.nccl.version())'
    echo "after $after"
} | tee "$stage/machine"
start_slurm

over() { [[ -z $(squeue -h -j "$1" -t PENDING,RUNNING,COMPLETING 2>/dev/null) ]]; }
report_of() { runuser -u researcher -- railgate report "$@"; }
# Kind, ranks, and time of naming of the last hang, as the sampler has recorded it.
hang_of() { # ID
    python3 - "/run/railgate/jobs/$1/current/hangs.json" <<'PY'
import json, sys

hang = json.load(open(sys.argv[1]))["list"][-1]
print(hang["kind"], ",".join(str(one["rank"]) for one in hang["culprits"]) or "-", hang["named"] / 1000)
PY
}
# shellcheck disable=SC2317  # until_true calls it
seen() { # ID WORD
    grep -q "^$2" <(report_of "$1" --live 2>/dev/null)
}

play() { # KIND PORT
    local to=$stage/$1 id kind ranks time fault shown verdict=right sampler
    mkdir -p "$to"
    mkfifo -m 666 "$state/truth/$1.fifo"
    id=$(cd "$state/reports" && runuser -u researcher -- sbatch --parsable -J "$1" -o "$state/reports/%j.log" --gres=gpu:2 \
        --ntasks=2 --cpus-per-task=$(($(nproc) / gpus / 2)) --railgate-requeue=never "$state/job.sh" "$1" "$2")
    until_true 90 test -s "$state/truth/$1.json" || {
        tail -5 "$state/reports/$id.log" || true
        echo "$1 did not start" >>"$stage/table"
        scancel "$id"
        return
    }
    fault=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["fault"])' "$state/truth/$1.json")
    if [[ $1 == swap ]]; then throttle "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["pid"])' "$state/truth/$1.json")"; fi
    until_true "${WITHIN:-200}" hang_of "$id" || verdict="not named"
    read -r kind ranks time < <(hang_of "$id" 2>/dev/null || echo "- - 0")
    until_true 20 seen "$id" HANG || true
    shown=$(date +%s.%N)
    until_true 15 seen "$id" STACKS || true
    # PyTorch writes its record some eight seconds later. The end of a process needs none.
    [[ $kind == gone ]] || until_true 14 seen "$id" RECORDED || true
    [[ $ranks =~ ^(${rank[$1]})$ ]] || verdict="${verdict/right/another rank}"
    report_of "$id" --live >"$to/report.txt" 2>&1 || true
    runuser -u researcher -- railgate why "$id" >"$to/why.txt" 2>&1 || true
    # Lines are wrapped.
    if [[ $kind != gone && $verdict == right ]] &&
        ! sed -n '/^STACKS/,/^RECORDED/p' "$to/report.txt" | tr -s '\n ' ' ' | grep -qE "${stack[$1]}"; then
        verdict="another stack"
    fi
    sampler=$(pgrep -o -f "^/usr/libexec/railgate/railgate-sampler $id " || true)
    [[ -z $sampler ]] || awk '{ print "sampler ticks", $14 + $15, "of children", $16 + $17 }' "/proc/$sampler/stat" >"$to/sampler"
    echo "sampler seconds $(ps -o etimes= -p "${sampler:-1}")" >>"$to/sampler"
    scancel "$id"
    [[ $1 != file-system ]] || pkill -9 -f "$state/dead-fuse.py" || true
    until_true 40 over "$id" || echo "$1: job $id does not end"
    cp -r "$state/runs/$id" "$to/run" 2>/dev/null || true
    cp "$state/reports/$id.log" "$to/log" || true
    find "$state/reports" -name "$node.stacks" -path "*/$id/*" -exec cp {} "$to/" \; || true
    cp "$state/truth/$1.json" "$to/truth.json"
    python3 - "$1" "$verdict" "$kind" "$ranks" "$time" "$fault" "$shown" <<'PY' | tee -a "$stage/table"
import sys

name, verdict, kind, ranks, *times = sys.argv[1:]
time, fault, shown = (float(one) for one in times)
named = f"{kind:<9} rank {ranks:<4} named after {time - fault:.1f} s, in the report after {shown - fault:.1f} s" if time else ""
print(f"{name:<20} {verdict:<14} {named}")
PY
    sed -n '/^HANG/,/^PHASES/p' "$to/report.txt"
}
# The control group of a rank has more memory than it may have from now on.
throttle() { # PID
    local group part at=/sys/fs/cgroup
    group=$(sed -n 's/^0:://p' "/proc/$1/cgroup")
    # Slurm enables only the controllers that it uses itself.
    while read -r part; do
        echo +memory >"$at/cgroup.subtree_control" || return 0
        at=$at/$part
    done < <(tr / '\n' <<<"${group#/}")
    echo 64M >"$at/memory.high" || echo "no memory.high in $at"
}

# As many kinds at a time as there are pairs of GPUs. $names has the kind that a process plays.
declare -A names=()
await_one() {
    local process
    wait -n -p process "${!names[@]}" || echo "${names[$process]} was not played to its end" >>"$stage/table"
    say "${names[$process]} (until $SECONDS s)"
    cat "$stage/${names[$process]}.out"
    unset "names[$process]"
}
left=() port=29541
for kind in "${wanted[@]}"; do
    while ((${#names[@]} == gpus / 2)); do await_one; done
    ((SECONDS + ${WITHIN:-200} + 45 < deadline)) || { left+=("$kind") && continue; }
    ((port += 1))
    play "$kind" "$port" >"$stage/$kind.out" 2>&1 &
    names[$!]=$kind
done
while ((${#names[@]})); do await_one; done
((${#left[@]} == 0)) || echo "left out: ${left[*]}" | tee -a "$stage/table"
ok "all done; results in $out"
