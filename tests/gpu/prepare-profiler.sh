#!/usr/bin/env bash
# Collects in one directory everything that profiler.sh needs on a machine with GPUs: the plugin, built for an old glibc, and
# the sources of nccl-tests and of NVIDIA's profiler plugin.
#
#   tests/gpu/prepare-profiler.sh [DIRECTORY]     default: target/gpu-profiler
#
# NCCL_SOURCE and NCCL_TESTS_SOURCE may name local clones; cargo-zigbuild and zig come from PyPI.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=${1:-target/gpu-profiler}
nccl=${NCCL_SOURCE:-https://github.com/NVIDIA/nccl.git}
tests=${NCCL_TESTS_SOURCE:-https://github.com/NVIDIA/nccl-tests.git}
built=${CARGO_TARGET_DIR:-target}
rm -rf "$kit"
mkdir -p "$kit"
cargo zigbuild --release -p nccl-profiler-railgate --target x86_64-unknown-linux-gnu.2.17
cp "$built"/x86_64-unknown-linux-gnu/release/libnccl_profiler_railgate.so "$kit/"
cargo build -p railgate-rankfile --example show
cargo build -p railgate-node-report --example collectives
cp "$built"/debug/examples/{show,collectives} "$kit/"
# Machines with GPUs may have CUDA's compiler but no development files of the C library.
for name in null-profiler turns; do
    gcc -O2 -Wall -shared -fPIC "tests/gpu/nccl/$name.c" -o "$kit/$name.so"
done
clone() { # SOURCE TAG PLACE
    git -c advice.detachedHead=false clone -q --depth 1 --branch "$2" "$1" "$kit/$3"
    rm -rf "$kit/$3/.git"
}
clone "$tests" v2.19.6 nccl-tests
clone "$nccl" v2.28.3-1 nccl
mv "$kit/nccl/ext-profiler" "$kit/" && rm -rf "$kit/nccl"
du -sh "$kit"
