#!/usr/bin/env bash
# Makes the PTX of selftest.cu with nvcc and writes it beside it, or compares both with --check.
#
#   crates/gpu-selftest/kernels/remake.sh [--check]     $NVCC: the compiler (default: nvcc), CUDA 13.0 for the same text
set -euo pipefail
cd "$(dirname "$0")"
nvcc=${NVCC:-nvcc}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# The version in the text is lowered to the first one that has these instructions: an older driver refuses a newer text. ptxas checks
# that nothing else is newer.
make_ptx() { # NAME ARCHITECTURE VERSION OPTION…
    "$nvcc" -ptx -O3 -std=c++17 -arch="compute_$2" "${@:4}" -o "$made/$1.ptx" selftest.cu
    sed -i "s/^\.version .*/.version $3/; /^\/\//d; /^\t*\/\//d" "$made/$1.ptx"
    for card in "$2" 90 100; do "${nvcc%nvcc}ptxas" -arch="sm_$card" -o /dev/null "$made/$1.ptx"; done
    if [[ ${check:-} ]]; then diff -q "$1.ptx" "$made/$1.ptx"; else cp "$made/$1.ptx" .; fi
}
[[ ${1:-} != --check ]] || check=1
make_ptx selftest 80 7.0
make_ptx selftest-fp8 89 8.4 -DFP8
