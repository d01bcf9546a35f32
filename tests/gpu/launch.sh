#!/usr/bin/env bash
# `railgate launch` under torchrun on two real GPUs and a real Slurm of one node: a training that is not disturbed, one of whose
# ranks is killed, and one whose rank is stopped, which the guard ends and launch starts again.
#
#   tests/gpu/launch.sh [DIRECTORY [STEPS [CASE…]]]   output of prepare.sh (default: target/gpu); default: 12000 steps; undisturbed,
#                                                     killed and stopped
#
# Only for a disposable machine. Logs and reports go to $OUT. Failures are listed at the end; they do not stop the other cases.
# machine.sh uses $kit, and sets $gpus and $state.
# shellcheck disable=SC2034,SC2154
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu}")
steps=${2:-12000}
out=${OUT:-$(mktemp -d)}
# shellcheck source-path=SCRIPTDIR source=machine.sh
source tests/gpu/machine.sh
((gpus >= 2)) || wrong "this machine has $gpus GPU"

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
install_and_configure '[stats]
nccl_profiler = "all"'
install -m 644 -t "$state" contrib/python/*.py
install -D -m 644 -t /etc/railgate/sbatch-templates sbatch-templates/*
start_slurm
work=$state/reports
# NVLink multicast stays off.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONPATH=$state
cases=("${@:3}")
failed=()

wanted() { ((!${#cases[@]})) || [[ " ${cases[*]} " == *" $1 "* ]]; }
as_user() { (cd "$work" && runuser -u researcher -- env HOME=/home/researcher "$@"); }
submit() { # NAME OPTION-OF-SBATCH…: a torchrun of two ranks, from the template
    as_user railgate template show torchrun-single --set gres=gpu:2 --set "cpus-per-task=$(($(nproc) / gpus))" --set "CHECKPOINTS=$work/$1" \
        --set "TRAIN=torchrun --standalone --nproc-per-node=\$SLURM_GPUS_ON_NODE --max-restarts=0 $state/example_train.py \
--save-dir \$CHECKPOINTS --steps $steps --save-every 1000 --width 1000000" --set "output=$work/$1.log" --out "$work/$1.sbatch" >/dev/null
    as_user sbatch --parsable -J "$1" "${@:2}" "$1.sbatch"
}
trained() { [[ -s $work/$1/loss.csv ]]; }
rank_1() { # NAME: its process
    local pid
    for pid in $(pgrep -f "^[^ ]*python[^ ]* .*example_train.py --save-dir $work/$1 "); do
        if tr '\0' '\n' <"/proc/$pid/environ" | grep -qx RANK=1; then echo "$pid" && return; fi
    done
    return 1
}
has() { # NAME WORDS
    grep -qE -- "$2" "$work/$1.log" || failed+=("$1: its log lacks '$2'")
}
end_of() { # NAME ID SECONDS
    until_true "$3" ended "$2" || failed+=("$1: does not end: $(scontrol show job "$2" | grep JobState)")
    reported() { as_user railgate report "$2" 2>/dev/null | head -1 | grep -qE 'completed|application'; }
    until_true 15 reported "$@" || failed+=("$1: its report has no end")
    say "$1: $(scontrol show job "$2" | grep -oE '(JobState|ExitCode)=[^ ]*' | tr '\n' ' ')"
    cp "$work/$1.log" "$out/"
    grep -E 'railgate|begins|finished|saved' "$work/$1.log" || true
    as_user railgate report "$2" >"$out/$1-report.txt" 2>&1 || failed+=("$1: no report")
    cat "$out/$1-report.txt"
}
each_step_once() { # NAME
    if [[ $(cut -d, -f1 "$work/$1/loss.csv") == "$(seq "$steps")" ]]; then ok "$1: every step once"; else failed+=("$1: steps"); fi
}

if wanted undisturbed; then
    id=$(submit undisturbed)
    end_of undisturbed "$id" 200
    has undisturbed 'start 0 on 1 node'
    each_step_once undisturbed
fi
if wanted killed; then
    id=$(submit killed)
    until_true 60 trained killed || failed+=("killed: does not train")
    sleep 5
    kill -9 "$(rank_1 killed)" || failed+=("killed: no process of rank 1")
    end_of killed "$id" 60
    has killed 'start 0 ended after .* first error: torchrun: local rank 1 \(pid [0-9]+\) was ended by SIGKILL'
    if grep -q 'start 1 ' "$work/killed.log"; then failed+=("killed: the program's own end was started again"); else ok "killed: not started again"; fi
fi
if wanted stopped; then
    id=$(submit stopped --railgate-hang=end,after=30s)
    until_true 60 trained stopped || failed+=("stopped: does not train")
    sleep 15
    kill -STOP "$(rank_1 stopped)" || failed+=("stopped: no process of rank 1")
    stopped=$SECONDS
    until_true 150 grep -q 'start 1 on' "$work/stopped.log" || failed+=("stopped: no second start")
    echo "stopped: second start $((SECONDS - stopped)) s after SIGSTOP"
    end_of stopped "$id" 150
    has stopped "steps are ended by --railgate-hang=end"
    has stopped 'begins after step'
    each_step_once stopped
fi
if wanted undisturbed && wanted stopped; then
    if cmp -s "$work/undisturbed/loss.csv" "$work/stopped/loss.csv"; then
        ok "stopped: the same losses as undisturbed"
    else
        diff "$work/undisturbed/loss.csv" "$work/stopped/loss.csv" | head -4 || true
        failed+=("stopped: other losses than undisturbed")
    fi
fi

cp -r /var/log/railgate.log "$out/"
((!${#failed[@]})) || { printf 'WRONG: %s\n' "${failed[@]}"; exit 1; }
ok "all done; results in $out"
