#!/usr/bin/env bash
# Compares the NCCL profiler plugin with nccl-tests on real GPUs: calls, bytes, bandwidth, and the plugin's cost.
#
#   tests/gpu/profiler.sh [DIRECTORY [STAGE…]]    output of prepare-profiler.sh (default: target/gpu-profiler)
#
# Stages: build, exact, turns, cost, together, step, releases (of NCCL: NVIDIA's libraries, reduced by one-gpu.py, as
# *.so.xz in DIRECTORY). Results are printed as "ok: …" or "WRONG: …". Logs go to $OUT.
# Needs nvcc, NCCL's header (PyTorch's packages have it) and Open MPI; NVLink multicast stays off.
# shellcheck disable=SC2086,SC2317
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
kit=$(realpath "${1:-target/gpu-profiler}")
here=$PWD/tests/gpu
out=${OUT:-$(mktemp -d)}
work=/var/tmp/railgate-profiler
cuda=${CUDA_HOME:-/usr/local/cuda}
gpus=${GPUS:-$(nvidia-smi -L | wc -l)}
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
stages=("${@:2}")
((${#stages[@]})) || stages=(build exact turns cost together step)
for name in $(compgen -e NCCL_ | grep -v NCCL_HOME); do unset "$name"; done
export NCCL_NVLS_ENABLE=0 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mkdir -p "$work"
failed=0
say() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }
wrong() { printf 'WRONG: %s\n' "$*"; failed=1; }

mpi=${MPI_HOME:-/usr/lib/x86_64-linux-gnu/openmpi}
ranks=(mpirun -np "$gpus" --bind-to none)

build() {
    say "build"
    local home
    home=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null) || home=/usr
    mkdir -p "$work/home/lib"
    ln -sfn "$home/include" "$work/home/include"
    local lib=$home/lib/libnccl.so.2
    [[ -e $lib ]] || lib=$(ldconfig -p | sed -n 's/.*libnccl\.so\.2 .*=> //p' | head -1)
    ln -sf "$lib" "$work/home/lib/libnccl.so.2"
    ln -sf libnccl.so.2 "$work/home/lib/libnccl.so"
    cp -r "$kit/nccl-tests" "$kit/ext-profiler" "$work/"
    # A profiler cannot distinguish in-place from out-of-place calls, so both loops are out of place.
    sed -i 's/BenchTime(args, type, op, root, 1)/BenchTime(args, type, op, root, 0)/' "$work/nccl-tests/src/common.cu"
    grep -c 'BenchTime(args, type, op, root, 0)' "$work/nccl-tests/src/common.cu"
    if [[ -e $kit/built.tgz ]]; then
        # Remove files of an earlier run in $OUT.
        tar -C "$work" -xzf "$kit/built.tgz" && return
    fi
    make -s -C "$work/ext-profiler/inspector" NCCL_HOME="$work/home" CUDA_HOME="$cuda" >"$out/inspector.log" 2>&1 ||
        { tail -5 "$out/inspector.log"; wrong "Inspector does not build"; } &
    make -s -j"$(nproc)" -C "$work/nccl-tests/src" build BUILDDIR="$work/tests" MPI=1 MPI_HOME="$mpi" NCCL_HOME="$work/home" \
        BIN_FILES_LIST="all_reduce all_gather reduce_scatter alltoall broadcast sendrecv" CUDA_HOME="$cuda" \
        NVCC_GENCODE="-gencode=arch=compute_$arch,code=sm_$arch" >"$out/tests.log" 2>&1 ||
        { tail -5 "$out/tests.log"; wrong "nccl-tests do not build"; }
    wait
    ls "$work/tests" "$work"/ext-profiler/inspector/*.so
    tar -C "$work" -czf "$out/built.tgz" tests/{all_reduce,all_gather,reduce_scatter,alltoall,broadcast,sendrecv}_perf \
        ext-profiler/inspector/libnccl-profiler-inspector.so
}

# VARIANT PROGRAM ARGUMENTS…: runs with the environment of a variant; the counts are written to $work/job/VARIANT.
with() {
    local variant=$1
    shift
    (
        export LD_LIBRARY_PATH=$work/home/lib:$cuda/lib64
        case $variant in
            none*) ;;
            null6) export NCCL_PROFILER_PLUGIN=$kit/null-profiler.so RAILGATE_NULL_MASK=0x06 ;;
            null46) export NCCL_PROFILER_PLUGIN=$kit/null-profiler.so ;;
            inspector)
                export NCCL_PROFILER_PLUGIN=$work/ext-profiler/inspector/libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1 \
                    NCCL_INSPECTOR_DUMP_DIR=$work/inspector NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500000
                ;;
            *)
                rm -rf "$work/job/$variant"
                mkdir -p "$work/job/$variant/user"
                export NCCL_PROFILER_PLUGIN=$kit/libnccl_profiler_railgate.so RAILGATE_JOB_DIR=$work/job/$variant RAILGATE_NCCL_MODE=$variant
                ;;
        esac
        timeout 120 "$@"
    )
}

exact() {
    say "calls, bytes and bandwidth, one process per GPU"
    local op mode attempt iterations
    for mode in ${MODES:-full sample}; do
        # With many more in a row NCCL's proxy thread delays them in `full`; a sample needs enough calls.
        [[ $mode == full ]] && iterations=${ITERATIONS:-100} || iterations=${ITERATIONS:-800}
        for op in ${OPS:-all_reduce all_gather reduce_scatter alltoall broadcast sendrecv}; do
            # Only figures with a small error are compared.
            for attempt in 1 2 3; do
                with "$mode" "${ranks[@]}" "$work/tests/${op}_perf" -b 8 -e 1G -f 2 -n "$iterations" -w 5 -c 0 >"$out/$mode-$op.txt" 2>&1 ||
                    wrong "$op: $(tail -3 "$out/$mode-$op.txt")"
                "$kit/collectives" "$work/job/$mode/user/ranks/"* >"$out/$mode-$op.json"
                "$kit/show" "$work/job/$mode/user/ranks/"* >"$out/$mode-$op.counted"
                python3 "$here/nccl/profiler.py" steady "$out/$mode-$op.txt" "$out/$mode-$op.json"
                (($? == 3)) || break
                echo "$op: run $attempt cannot be compared"
            done
            python3 "$here/nccl/profiler.py" exact "$op" "$iterations" 5 "$out/$mode-$op.txt" "$out/$mode-$op.json" || failed=1
        done
    done
}

alternate() { # NAME ROUNDS LAUNCHER-WORDS -- PROGRAM ARGUMENTS… -- VARIANTS…
    local name=$1 rounds=$2 round variant launch=() program=()
    shift 2
    while [[ $1 != -- ]]; do launch+=("$1"); shift; done; shift
    while [[ $1 != -- ]]; do program+=("$1"); shift; done; shift
    local all=("$@")
    for ((round = 0; round < rounds; round++)); do
        for variant in "${all[@]:round % ${#all[@]}}" "${all[@]:0:round % ${#all[@]}}"; do
            with "$variant" "${launch[@]}" "${program[@]}" >>"$work/cost-$name.$variant" 2>&1 || wrong "$name $variant"
        done
    done
    python3 "$here/nccl/profiler.py" cost "$name" "$work"/cost-"$name".* | tee "$out/cost-$name.txt"
}

variants=(none-a null6 count none-b null46 full sample inspector)
cost() {
    say "cost, one process per GPU"
    rm -f "$work"/cost-*
    alternate small "${ROUNDS:-3}" "${ranks[@]}" -- "$work/tests/all_reduce_perf" -b 8 -e 256K -f 8 -n "${CALLS:-10000}" -w 20 -c 0 -- "${variants[@]}"
    alternate large "${LARGE:-2}" "${ranks[@]}" -- "$work/tests/all_reduce_perf" -b 2M -e 1G -f 8 -n 100 -w 5 -c 0 -- "${variants[@]}"
}

together() {
    say "cost, one process for all GPUs"
    # Pinned to the same few cores: their distance makes more of a difference than any plugin.
    alternate together "${ROUNDS:-3}" taskset -c "${CORES:-0-7}" -- "$work/tests/all_reduce_perf" -b 8 -e 2M -f 8 -n "${CALLS:-10000}" -w 20 -c 0 -g "$gpus" -- "${variants[@]}"
}

turns_of() { # PLUGIN processes|threads ROUNDS LARGE MILLISECONDS VARIANT…
    local pin=()
    # Pinned to the same few cores: their distance makes more of a difference than any plugin.
    [[ $2 == threads ]] && pin=(taskset -c "${CORES:-0-7}")
    rm -rf "$work/job/turns"
    LD_LIBRARY_PATH=$work/home/lib:$cuda/lib64 timeout 300 "${pin[@]}" python3 "$here/nccl/turns.py" "$work/home/lib/libnccl.so.2" \
        "$kit/turns.so" "$1" "$work/job/turns" "$gpus" "${@:2}" || wrong "turns: $*"
    "$kit/show" "$work/job/turns/user/ranks/"*.* >>"$out/turns.counted" 2>&1
}

turns() {
    say "cost, by turns within one process"
    local how inspector=$work/ext-profiler/inspector/libnccl-profiler-inspector.so
    for how in ${HOW:-processes threads}; do
        turns_of "$kit/libnccl_profiler_railgate.so" "$how" $((6 * ${ROUNDS:-20})) "${LARGE:-6}" 6 none again floor6 count
        turns_of "$kit/libnccl_profiler_railgate.so" "$how" "${ROUNDS:-20}" "${LARGE:-6}" 30 none again sample
        turns_of "$kit/libnccl_profiler_railgate.so" "$how" $((6 * ${ROUNDS:-20})) "${LARGE:-6}" 6 none again floor46 full
        turns_of "$inspector" "$how" "${OTHERS:-8}" 3 30 none again inspector
    done > >(tee "$out/turns.txt")
}

releases() {
    say "other releases of NCCL"
    local library
    for library in "$kit"/*.so.xz; do
        rm -rf "$work/job/release"
        timeout 150 python3 "$here/nccl/releases.py" "$library" "$kit/libnccl_profiler_railgate.so" "$kit/show" "$work/job/release" ||
            wrong "$library"
    done
}

step() {
    say "cost, a training step of DDP, by turns"
    local batch
    for batch in ${BATCH:-64 16}; do
        rm -rf "$work/job/step"
        LD_LIBRARY_PATH=$work/home/lib:$cuda/lib64 timeout 300 torchrun --standalone --nproc-per-node "$gpus" "$here/nccl/step.py" \
            "$kit/turns.so" "$kit/libnccl_profiler_railgate.so" "$work/job/step" "${ROUNDS:-20}" "$batch" \
            ${STEP:-none again sample} 2>&1 | tee "$out/step-$batch.txt"
        grep -q '^ *none' "$out/step-$batch.txt" || wrong "step"
    done
    "$kit/show" "$work/job/step/user/ranks/"*.* >"$out/step.counted" 2>&1
}

for stage in "${stages[@]}"; do "$stage"; done
say "done"
exit "$failed"
