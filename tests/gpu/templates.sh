#!/usr/bin/env bash
# The templates on real GPUs under a real Slurm of one node, filled in as a researcher would: torchrun with DDP, signalled
# to save and requeued, and with FSDP; JAX; an array; nccl-tests; one round of the soak.
#
#   tests/gpu/templates.sh [DIRECTORY [NAME…]]  output of prepare-templates.sh (default: target/gpu-templates); default: all
#
# Only for a disposable machine. Logs and reports go to $OUT. Failures are listed at the end; they do not stop the other
# templates.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu-templates}")
out=${OUT:-$(mktemp -d)}
names=("${@:2}")
# shellcheck source-path=SCRIPTDIR source=machine.sh
source tests/gpu/machine.sh

build_nccl_tests() {
    local arch nccl
    arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
    nccl=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])')
    mkdir -p "$state/nccl/lib"
    ln -sfn "$nccl/include" "$state/nccl/include"
    ln -sf "$nccl/lib/libnccl.so.2" "$state/nccl/lib/libnccl.so"
    ln -sf "$nccl/lib/libnccl.so.2" "$state/nccl/lib/libnccl.so.2"
    cp -r "$kit/nccl-tests" "$state/"
    make -s -j 8 -C "$state/nccl-tests/src" build MPI=1 MPI_HOME="$state/mpi" NCCL_HOME="$state/nccl" BUILDDIR="$state/nccl-tests/build" \
        NVCC_GENCODE="-gencode=arch=compute_$arch,code=sm_$arch"
}

say "machine"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
mkdir -p "$state"
cp -r "$kit/mpi" "$state/"
build_nccl_tests >"$out/nccl-tests-build.log" 2>&1 &
built=$!
# A requeued job waits for cred_expire.
install_and_configure '[stats]
nccl_profiler = "all"'
sed -i 's/^AuthType=.*/&\nAuthInfo=cred_expire=10/' /etc/slurm/slurm.conf
install -m 644 -t "$state" tests/gpu/train/train.py tests/gpu/train/jax_ring.py contrib/python/*.py
# The checkout's templates, independent of those in the kit.
install -D -m 644 -t /etc/railgate/sbatch-templates sbatch-templates/*.sbatch
start_slurm
user=/home/researcher
work=$state/reports
# NVLink multicast stays off.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONPATH=$state
cpus=$(($(nproc) / gpus))
failed=()

wanted() { ((!${#names[@]})) || [[ " ${names[*]} " == *" $1 "* ]]; }
as_user() { (cd "$work" && runuser -u researcher -- env HOME="$user" "$@"); }
submit() { # TEMPLATE KEY=VALUE…: submits as described in docs/templates.md
    local name=$1 words=()
    shift
    for setting in "$@"; do words+=(--set "$setting"); done
    as_user railgate template show "$name" "${words[@]}" --set "output=$work/$name.log" --out "$work/$name.sbatch" >/dev/null
    as_user sbatch --parsable "$name.sbatch"
}
state_of() { scontrol show job "$1" | grep -o 'JobState=[A-Z]*' | sort -u | cut -d= -f2 | tr '\n' ' '; }
over() { [[ $(state_of "$1") != *@(PENDING|RUNNING|COMPLETING)* ]]; }
end_of() { # NAME ID SECONDS WORDS-OF-THE-LOG…
    local name=$1 id=$2 word
    until_true "$3" over "$id" || true
    say "$name: $(state_of "$id")"
    cp "$work/$name.log" "$out/"
    tail -n 40 "$work/$name.log"
    [[ $(state_of "$id") == "COMPLETED " ]] || failed+=("$name: $(state_of "$id")")
    for word in "${@:4}"; do
        grep -qE -- "$word" "$work/$name.log" || failed+=("$name: its log lacks '$word'")
    done
}
report_of() { # NAME ID
    reported() { as_user railgate report "$2" | grep -qi completed; }
    until_true 20 reported "$@" || failed+=("$1: no report")
    as_user railgate report "$2" 2>&1 | tee "$out/$1-report.txt"
}

if wanted torchrun-single; then
    steps=4000
    ddp=$(submit torchrun-single "gres=gpu:$gpus" "cpus-per-task=$((cpus * gpus / 2))" "CHECKPOINTS=$work/ddp" \
        "TRAIN=torchrun --standalone --nproc-per-node=\$SLURM_GPUS_ON_NODE --max-restarts=0 $state/example_train.py \
--save-dir \$CHECKPOINTS --steps $steps --save-every 500 --step-seconds 0.002")
    at_work() { (($(wc -l <"$work/ddp/loss.csv") > 700)); }
    until_true 90 at_work || failed+=("torchrun-single: does not train")
    as_user scancel --batch --signal=USR1 "$ddp"
    end_of torchrun-single "$ddp" 90 'attempt 0 on' 'saved at step' 'attempt 1 on' 'begins after step' "finished at step $steps"
    if [[ $(cut -d, -f1 "$work/ddp/loss.csv") == "$(seq "$steps")" ]]; then ok "every step once"; else failed+=("torchrun-single: steps"); fi
    report_of torchrun-single "$ddp"
fi
if wanted torchrun-multinode; then
    id=$(submit torchrun-multinode nodes=1 "gres=gpu:$gpus" "cpus-per-task=$((cpus * gpus / 2))" "CHECKPOINTS=$work/fsdp" \
        "TRAIN=torchrun --nnodes=\$SLURM_JOB_NUM_NODES --nproc-per-node=\$SLURM_GPUS_ON_NODE --rdzv-backend=c10d \
--rdzv-endpoint=\$MASTER_ADDR:\$MASTER_PORT --rdzv-id=\$SLURM_JOB_ID-\$ATTEMPT --max-restarts=0 $state/train.py fsdp 12")
    end_of torchrun-multinode "$id" 90 'MFU by hand'
    report_of torchrun-multinode "$id"
fi
if wanted jax; then
    id=$(submit jax nodes=1 "gres=gpu:$gpus" "ntasks-per-node=$gpus" "cpus-per-task=$((cpus / 2))" "CHECKPOINTS=$work/jax" \
        "TRAIN=python3 $state/jax_ring.py")
    end_of jax "$id" 90 "sum over $gpus processes is right"
fi
if wanted array; then
    printf -- '--steps 30 --save-every 10\n--steps 40 --save-every 10\n' >"$work/experiments.txt"
    id=$(submit array array=1-2 "cpus-per-task=$((cpus / 2))" "RESULTS=$work/array" "TRAIN=python3 $state/example_train.py")
    end_of array "$id" 60 'finished at step 30' 'finished at step 40'
fi

wait "$built" || { tail -n 20 "$out/nccl-tests-build.log"; failed+=("nccl-tests: not built"); }
mpi=("NCCL_TESTS=$state/nccl-tests/build" MPI=pmi2 nodes=1 "gres=gpu:$gpus" "ntasks-per-node=$gpus" "cpus-per-task=$((cpus / 2))")
export LD_LIBRARY_PATH=$state/nccl/lib:$state/mpi/lib:${CUDA_HOME:-/usr/local/cuda}/lib64
if wanted nccl-tests; then
    id=$(submit nccl-tests "${mpi[@]}")
    end_of nccl-tests "$id" 180 "nranks? $gpus|Rank +$((gpus - 1)) " 'Avg bus bandwidth'
    report_of nccl-tests "$id"
fi
if wanted soak; then
    id=$(submit soak "${mpi[@]}" HOURS=0 ROUND_MINUTES=0)
    end_of soak "$id" 90 'round 1: [1-9][0-9.]* GB/s' '1 rounds in 0 hours'
fi

cp /var/log/railgate.log "$out/" || true
if ((${#failed[@]})); then
    printf 'WRONG: %s\n' "${failed[@]}"
    exit 1
fi
ok "every template that was tried did what it says"
