#!/usr/bin/env bash
# Tests railgate's settings for NCCL with real NCCL releases on real GPUs.
#
#   tests/gpu/nccl.sh [DIRECTORY [STAGE…]]  output of prepare-nccl.sh (default: target/gpu-nccl); default: all stages
#
# Only for a disposable machine: it writes profiles to /etc/railgate. Results are printed as "ok: …" or "WRONG: …"; with a
# wrong one the exit code is 1. Logs go to $OUT.
#
# NCCL_HOME names the main NCCL (default: the one in PyTorch's packages, else the system's). NVLink multicast
# stays off.
# Functions are called by the name of their stage; variables set in a subshell are only used there.
# shellcheck disable=SC2317,SC2030,SC2031
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
kit=$(realpath "${1:-target/gpu-nccl}")
here=$PWD/tests/gpu
out=${OUT:-$(mktemp -d)}
work=/var/tmp/railgate-nccl
cuda=${CUDA_HOME:-/usr/local/cuda}
gpus=$(nvidia-smi -L | wc -l)
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
gencode="-gencode=arch=compute_$arch,code=sm_$arch"
stages=("${@:2}")
((${#stages[@]})) || stages=(build build-others topology refusals bandwidth env-plugin per-rank node)
failed=0
for name in $(compgen -e NCCL_ | grep -v NCCL_HOME); do unset "$name"; done
export NCCL_NVLS_ENABLE=0
mkdir -p "$work"

say() { printf '\n== %s (%ds)\n' "$*" "$SECONDS"; }
ok() { printf 'ok: %s\n' "$*"; }
wrong() {
    printf 'WRONG: %s\n' "$*"
    failed=1
}
check() { # WHAT COMMAND…
    local what=$1
    shift
    if "$@"; then ok "$what"; else wrong "$what"; fi
}
railgate() { "$kit/railgate" --config "$work/railgate.toml" "$@"; }
perf() { # LIBRARY-DIRECTORY ARGUMENTS…; one process for all GPUs
    LD_LIBRARY_PATH=$1:$cuda/lib64 timeout 90 "$work/tests/all_reduce_perf" "${@:2}"
}
version() {
    python3 -c 'import ctypes, sys
n = ctypes.c_int()
ctypes.CDLL(sys.argv[1] + "/libnccl.so.2").ncclGetVersion(ctypes.byref(n))
print(n.value // 10000, n.value // 100 % 100, n.value % 100, sep=".")' "$1"
}

# Directories of all tested NCCLs, named after their versions.
libraries() { find "$work" -maxdepth 1 -name 'lib-*' | sort -V; }

# Those with which the test program runs: it was built for the main one.
recent() { libraries | sed -n '/lib-2\.2[89]\|lib-2\.[3-9]/p'; }

build() {
    say "build"
    local home=${NCCL_HOME:-}
    [[ $home ]] || home=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null) || home=
    if [[ -z $home ]]; then
        home=$work/system
        mkdir -p "$home/lib"
        ln -sfn /usr/include "$home/include"
        ln -sf "$(ldconfig -p | sed -n 's/.*libnccl\.so\.2 .*=> //p' | head -1)" "$home/lib/libnccl.so.2"
    fi
    mkdir -p "$work/home/lib"
    ln -sfn "$home/include" "$work/home/include"
    ln -sf "$home/lib/libnccl.so.2" "$work/home/lib/libnccl.so.2"
    ln -sf libnccl.so.2 "$work/home/lib/libnccl.so"
    for lib in "$work/home/lib/libnccl.so.2" $(ldconfig -p | sed -n 's/.*libnccl\.so\.2 .*=> //p' | head -1); do
        local number
        number=$(version "$(dirname "$lib")")
        mkdir -p "$work/lib-$number"
        ln -sf "$(realpath "$lib")" "$work/lib-$number/libnccl.so.2"
    done
    version "$work/home/lib" >"$work/main-version"
    rm -rf "$work/tests-source"
    cp -r "$kit/nccl-tests" "$work/tests-source"
    make -s -j"$(nproc)" -C "$work/tests-source/src" build BUILDDIR="$work/tests" BIN_FILES_LIST=all_reduce \
        NCCL_HOME="$work/home" CUDA_HOME="$cuda" NVCC_GENCODE="$gencode" >"$out/tests-build.log" 2>&1 ||
        { tail -20 "$out/tests-build.log"; wrong "nccl-tests do not build"; return; }
    gcc -O2 -Wall -shared -fPIC -fvisibility=hidden -I "$kit/nccl-2.30.7/plugins/net/example/nccl" "$here/nccl/hcas.c" \
        -o "$work/libhcas.so" || wrong "hcas.c does not compile"
    gcc -O2 -Wall -I "$cuda/include" -I "$work/home/include" "$here/nccl/ranks.c" -o "$work/ranks" \
        -L "$work/home/lib" -L "$cuda/lib64" -lnccl -lcudart || wrong "ranks.c does not compile"
    ok "built against NCCL $(<"$work/main-version"); asked are $(libraries | sed 's/.*lib-//' | xargs)"
}

# Other releases of NCCL, only for this GPU and with only two collectives.
build-others() {
    say "build other NCCLs"
    local source name place number
    for source in "$kit"/nccl-2*; do
        name=$(basename "$source") place=$work/$(basename "$source")
        rm -rf "$place-source"
        cp -r "$source" "$place-source"
        # For releases before CUDA 13: their language standard, and runtime functions that have one more argument since.
        if grep -q 'std=c++11' "$place-source/makefiles/common.mk"; then
            python3 "$here/nccl/cuda13.py" "$cuda/include/cudaTypedefs.h" >"$place-source/src/include/cuda13.h"
            sed -i 's/-std=c++11/-std=c++17/' "$place-source"/makefiles/common.mk "$place-source"/src/Makefile "$place-source"/src/device/Makefile
            sed -i 's|#include <cudaTypedefs.h>|&\n#include "cuda13.h"|' "$place-source/src/include/cudawrap.h"
        fi
        if make -s -j"$(nproc)" -C "$place-source" src.build BUILDDIR="$place" NVCC_GENCODE="$gencode" CUDA_HOME="$cuda" \
            ONLY_FUNCS="AllReduce Sum f32 * *|SendRecv" >"$out/$name-build.log" 2>&1; then
            number=$(version "$place/lib")
            ln -sfn "$place/lib" "$work/lib-$number"
            ok "NCCL $number built from source for sm_$arch (${SECONDS}s)"
        else
            tail -20 "$out/$name-build.log"
            wrong "$name does not build"
        fi
    done
}

# The live machine with one HCA for each GPU, in reverse order, which only the profile's wiring can express.
plant() {
    mkdir -p /etc/railgate/profiles "$work/hcas/pci" "$work/cases"
    # GPUs of an HGX board in a virtual machine: no InfiniBand, and no NVLink for a single GPU.
    printf 'id = "here"\ntitle = "this machine"\nextends = "h200-sxm"\n[gpus]\ncount = %d\nnvlinks_up = %d\n[fabric]\nhcas = 0\n' \
        "$gpus" $((gpus > 1 ? 18 : 0)) >/etc/railgate/profiles/here.toml
    printf 'profile = "here"\n' >/etc/railgate/railgate.toml
    printf 'profile = "planted"\n' >"$work/railgate.toml"
    {
        printf 'id = "planted"\ntitle = "this machine with HCAs"\nextends = "h200-sxm"\n'
        printf '[gpus]\ncount = %d\n[fabric]\nhcas = %d\n[rails]\nwiring = [' "$gpus" "$gpus"
        for ((k = 0; k < gpus; k++)); do printf '[%d, "mlx5_%d"], ' "$k" $((gpus - 1 - k)); done
        printf ']\n'
    } >/etc/railgate/profiles/planted.toml
    "$kit/railgate" snapshot --out "$work/here.json" >/dev/null && python3 "$here/topologies/plant.py" "$work/here.json" >"$work/planted.json"
    HCAS=
    for ((k = 0; k < gpus; k++)); do
        local busid
        busid=$(printf '%04x:00:00.0' $((0x101 + k)))
        HCAS+=${HCAS:+,}mlx5_$k=$busid
        mkdir -p "$work/hcas/$busid"
        ln -sfn ../pci "$work/hcas/$busid/subsystem"
    done
    export HCAS HCAS_DIR=$work/hcas
    railgate rails --snapshot "$work/planted.json" --format xml >"$work/good.xml"
}

topology() {
    say "topology file"
    cp "$work/good.xml" "$out/good.xml"
    check "our validator accepts our file" railgate rails --check "$work/good.xml" --snapshot "$work/planted.json"
    local lib subset
    for lib in $(recent); do
        local name=${lib##*/lib-}
        NCCL_TOPO_DUMP_FILE=$work/none-$name.xml NCCL_DEBUG=WARN perf "$lib" -b 8 -e 8 -n 1 -w 0 -g "$gpus" >"$work/none-$name.log" 2>&1 ||
            wrong "NCCL $name without a file: $(tail -3 "$work/none-$name.log")"
        NCCL_TOPO_FILE=$work/good.xml NCCL_TOPO_DUMP_FILE=$work/dump-$name.xml NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ALL \
            perf "$lib" -b 8 -e 64M -f 8 -n 1 -w 0 -c 1 -g "$gpus" >"$work/good-$name.log" 2>&1
        check "NCCL $name takes the file" test $? = 0
        check "NCCL $name: every GPU under its bridge" python3 "$here/nccl/judge.py" bridges "$work/good.xml" "$work/dump-$name.xml"
        NCCL_NET_PLUGIN=$work/libhcas.so NCCL_TOPO_FILE=$work/good.xml NCCL_TOPO_DUMP_FILE=$work/hcas-$name.xml NCCL_DEBUG=INFO \
            NCCL_DEBUG_SUBSYS=ALL perf "$lib" -b 8 -e 64M -f 8 -n 1 -w 0 -c 1 -g "$gpus" >"$work/hcas-$name.log" 2>&1
        check "NCCL $name takes the file, with HCAs" test $? = 0
        check "NCCL $name: every HCA beside its GPU" python3 "$here/nccl/judge.py" bridges "$work/good.xml" "$work/hcas-$name.xml"
        cp "$work/none-$name.xml" "$work/dump-$name.xml" "$work/hcas-$name.xml" "$work"/{none,good,hcas}-"$name".log "$work/logs/" 2>/dev/null
    done
    # Every proper subset of the GPUs.
    lib=$work/lib-$(<"$work/main-version")
    local pids=() names=()
    for ((set = 1; set < (1 << gpus) - 1; set++)); do
        subset=
        for ((k = 0; k < gpus; k++)); do ((set >> k & 1)) && subset+=${subset:+,}$k; done
        (
            commas=${subset//[^,]/}
            export CUDA_VISIBLE_DEVICES=$subset NCCL_TOPO_FILE=$work/good.xml NCCL_TOPO_DUMP_FILE=$work/subset-$subset.xml NCCL_DEBUG=WARN
            perf "$lib" -b 8 -e 1M -f 8 -n 1 -w 0 -c 1 -g $((${#commas} + 1)) >"$work/subset-$subset.log" 2>&1 &&
                python3 "$here/nccl/judge.py" bridges "$work/good.xml" "$work/subset-$subset.xml" >>"$work/subset-$subset.log" 2>&1
        ) &
        pids+=($!)
        names+=("$subset")
    done
    for k in "${!pids[@]}"; do
        check "GPUs ${names[k]} with the whole node's file" wait "${pids[k]}"
    done
    cp "$work"/subset-* "$work/logs/" 2>/dev/null
}

refusals() {
    say "broken files"
    python3 "$here/topologies/break.py" "$work/good.xml" "$work/cases"
    local lib
    for lib in $(libraries); do
        local name=${lib##*/lib-} file case
        for file in "$work"/cases/*.xml; do
            case=$(basename "$file" .xml)
            NCCL_TOPO_FILE=$file NCCL_TOPO_DUMP_FILE=$work/cases/$case.$name.dump NCCL_DEBUG=WARN \
                LD_LIBRARY_PATH=$lib:$cuda/lib64 timeout 60 "$work/ranks" all "$gpus" >"$work/cases/$case.$name.log" 2>&1 &
            echo "$case $!" >>"$work/cases/running"
            while (($(jobs -rp | wc -l) > 20)); do sleep 0.1; done
        done
        : >"$work/cases/$name.tsv"
        while read -r case pid; do
            wait "$pid"
            local code=$? ours
            ours=$(railgate rails --check "$work/cases/$case.xml" --snapshot "$work/planted.json" --nccl "$name" --format json 2>/dev/null |
                python3 -c 'import re, sys
said = re.search(r"\"accepted\": *(true|false)", sys.stdin.read())
print({"true": "accepted", "false": "refused"}[said[1]] if said else "unknown")')
            printf '%s\t%s\t%s\t%s\n' "$case" "$code" "$ours" \
                "$(grep -ah 'NCCL WARN' "$work/cases/$case.$name.log" | sed 's/.*NCCL WARN //' | head -1 | tr '\t' ' ' | cut -c1-90)" >>"$work/cases/$name.tsv"
        done <"$work/cases/running"
        rm "$work/cases/running"
        check "NCCL $name and railgate refuse the same files" python3 "$here/nccl/judge.py" cases "$work/cases/expected.txt" "$work/cases/$name.tsv"
    done
    cp -r "$work/cases" "$work/logs/"
}

# Exports NAME=value lines into this shell.
take() {
    local line
    while read -r line; do [[ $line == NCCL_* ]] && export "${line?}"; done
}

bandwidth() {
    say "bandwidth, variants in turn"
    local lib round variant
    lib=$work/lib-$(<"$work/main-version")
    rm -f "$work"/pairs-*; mkdir -p "$work/pairs"
    for ((round = 0; round < ${ROUNDS:-9}; round++)); do
        # Each variant is first, second and last equally often.
        local all=(0-default 1-railgate 2-rails) order
        order=("${all[@]:round % 3}" "${all[@]:0:round % 3}")
        for variant in "${order[@]}"; do
            (
                case $variant in
                    1-railgate) take < <("$kit/railgate" rails --format env) ;;
                    2-rails)
                        take < <(railgate rails --snapshot "$work/planted.json" --format env)
                        export NCCL_TOPO_FILE=$work/good.xml NCCL_NET_PLUGIN=$work/libhcas.so
                        ;;
                esac
                perf "$lib" -b 8 -e 1G -f 8 -n 20 -w 5 -c 0 -g "$gpus" >"$work/pairs/$variant.$round.log" 2>&1
            ) || wrong "$variant, round $round: $(tail -2 "$work/pairs/$variant.$round.log")"
        done
    done
    "$kit/railgate" rails --format env
    railgate rails --snapshot "$work/planted.json" --format env
    python3 "$here/nccl/judge.py" pairs "$work"/pairs/*.log >"$out/bandwidth.txt"
    check "not slower than NCCL's default" test $? = 0
    cat "$out/bandwidth.txt"
    cp -r "$work/pairs" "$work/logs/"
}

env-plugin() {
    say "env plugin"
    local lib
    mkdir -p "$work/job"
    printf 'railgate-nccl-env 1\ndefault 2.28.7 2.30.0 - NCCL_MIN_CTAS=4\ndefault 2.30.0 - - NCCL_MIN_CTAS=8\nforce - - - NCCL_MAX_CTAS=16\n' >"$work/job/nccl.env"
    for lib in $(recent); do
        local name=${lib##*/lib-} log=$work/logs/env-${lib##*/lib-}
        asked() { # LOG VARIABLE=VALUE…
            env NCCL_ENV_PLUGIN="$kit/libnccl_env_railgate.so" RAILGATE_JOB_DIR="$work/job" NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING \
                LD_LIBRARY_PATH="$lib:$cuda/lib64" "${@:2}" timeout 90 "$work/tests/all_reduce_perf" -b 8 -e 8 -n 1 -w 0 -g "$gpus" >"$1" 2>&1
        }
        asked "$log.log" || wrong "NCCL $name with the plugin: $(tail -3 "$log.log")"
        grep -ah 'ENV/Plugin\|external env plugin\|_CTAS' "$log.log" | sed 's/.*NCCL INFO //' | sort | uniq -c
        if [[ $name == 2.28.3 ]]; then
            check "NCCL $name has no such plugins and comes up as without" test "$(grep -c 'MIN_CTAS' "$log.log")" = 0
            continue
        fi
        local want=4
        [[ $name == 2.3* ]] && want=8
        check "NCCL $name loads it" grep -q 'Successfully loaded external env plugin' "$log.log"
        check "NCCL $name uses its answer" grep -q "NCCL_MIN_CTAS set by environment to $want" "$log.log"
        asked "$log-user.log" NCCL_MIN_CTAS=2 NCCL_MAX_CTAS=12
        check "NCCL $name: the user's value stays" grep -q 'NCCL_MIN_CTAS set by environment to 2' "$log-user.log"
        check "NCCL $name: a forced one does not" grep -q 'NCCL_MAX_CTAS set by environment to 16' "$log-user.log"
        asked "$log-ours.log" NCCL_MIN_CTAS=2 RAILGATE_SET_NCCL_MIN_CTAS=2
        check "NCCL $name: the launcher's own gives way" grep -q "NCCL_MIN_CTAS set by environment to $want" "$log-ours.log"
        asked "$log-none.log" RAILGATE_JOB_DIR=/nonexistent
        check "NCCL $name: no file, no change" test "$(grep -c 'MIN_CTAS' "$log-none.log")" = 0
        check "NCCL $name: no library, no harm" asked "$log-lost.log" NCCL_ENV_PLUGIN=/nonexistent/libnccl-env.so
    done
}

# Two simulated hosts on this machine (NCCL_HOSTID), each with half of the GPUs, connected through simulated HCAs.
per-rank() {
    say "one HCA for each rank, or one list for all"
    # A single GPU is in both, which suffices to test that they connect.
    local ranks=$((gpus > 1 ? gpus / 2 * 2 : 2)) lib variant rank
    local half=$((ranks / 2))
    for lib in $(libraries); do
        local name=${lib##*/lib-}
        for variant in list one one-without-pxn; do
            local dir=$work/logs/per-rank-$name-$variant pids=() codes='' pxn=0
            [[ $variant == *pxn ]] && pxn=1
            rm -rf "$dir"
            mkdir -p "$dir"
            for ((rank = 0; rank < ranks; rank++)); do
                local host=$((rank / half)) gpu=$((rank % gpus)) own='' first last
                first=$gpu last=$gpu
                [[ $variant == list ]] && ((gpus > 1)) && first=$((host * half)) last=$((host * half + half - 1))
                for ((k = first; k <= last; k++)); do own+=${own:+,}mlx5_$((gpus - 1 - k)):1; done
                env NCCL_HOSTID="host$host" NCCL_IB_HCA="=$own" NCCL_NET_PLUGIN="$work/libhcas.so" NCCL_TOPO_FILE="$work/good.xml" \
                    NCCL_TOPO_DUMP_FILE="$dir/dump-$rank.xml" NCCL_TOPO_DUMP_FILE_RANK="$rank" NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,NET,ENV \
                    HCAS_LOG="$dir/flows" HCAS_WHO="rank$rank" NCCL_PXN_DISABLE="$pxn" \
                    LD_LIBRARY_PATH="$lib:$cuda/lib64" timeout 60 "$work/ranks" "$rank" "$ranks" "$gpu" "$dir/id" 64 >"$dir/rank$rank.log" 2>&1 &
                pids+=($!)
            done
            for pid in "${pids[@]}"; do
                wait "$pid"
                codes+="$? "
            done
            echo "-- NCCL $name, $variant: exit codes $codes"
            grep -ahE 'Channel [0-9]+/[0-9]+ : .*via NET' "$dir"/rank*.log | sed 's/.*NCCL INFO //; s/^Channel [0-9/]* : //' | sort | uniq -c
            grep -ah 'NCCL WARN' "$dir"/rank*.log | sed 's/.*NCCL WARN/WARN/' | sort | uniq -c | head -5
            [[ -e $dir/flows ]] && python3 "$here/nccl/judge.py" flows "$dir/flows"
            [[ $variant == list ]] && check "NCCL $name: one list for all ranks of a host works" test "${codes// /}" = "$(printf '0%.0s' $(seq "$ranks"))"
        done
    done
}

node() {
    say "this node"
    "$kit/railgate" snapshot --out "$out/snapshot-$gpus.json"
    "$kit/railgate" check | tee "$out/check-$gpus.txt"
    "$kit/railgate" check --format json >"$out/check-$gpus.json"
    python3 - <<'PY'
import statistics, subprocess, time
def once(*command):
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start
import os
ours, theirs = [], []
for _ in range(12):
    ours.append(once(os.environ["RAILGATE"], "check"))
    theirs.append(once("nvidia-smi", "-q"))
for name, times in (("railgate check", ours), ("nvidia-smi -q", theirs)):
    print(f"{name:15} median {statistics.median(times):.3f}  min {min(times):.3f}  max {max(times):.3f}")
ratios = [a / b for a, b in zip(ours, theirs)]
print(f"ratio           median {statistics.median(ratios):.2f}  min {min(ratios):.2f}  max {max(ratios):.2f}")
PY
}

export RAILGATE=$kit/railgate
mkdir -p "$work/logs"
plant || wrong "no topology file"
for stage in "${stages[@]}"; do "$stage"; done
tar czf "$out/logs.tar.gz" -C "$work" logs 2>/dev/null
say "done"
exit "$failed"
