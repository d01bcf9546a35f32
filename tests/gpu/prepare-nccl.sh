#!/usr/bin/env bash
# Collects in one directory everything that nccl.sh needs on a machine with NVIDIA GPUs: railgate as a release build, and the
# sources of NCCL and its tests, which are built there.
#
#   tests/gpu/prepare-nccl.sh [DIRECTORY]   default: target/gpu-nccl
#
# NCCL_SOURCE and NCCL_TESTS_SOURCE: other repositories to clone.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=${1:-target/gpu-nccl}
nccl=${NCCL_SOURCE:-https://github.com/NVIDIA/nccl.git}
tests=${NCCL_TESTS_SOURCE:-https://github.com/NVIDIA/nccl-tests.git}

cargo build --release -p railgate-cli -p nccl-env-railgate
rm -rf "$kit"
mkdir -p "$kit"
cp target/release/{railgate,libnccl_env_railgate.so} "$kit/"
clone() { # URL TAG DIRECTORY
    git -c advice.detachedHead=false clone -q --depth 1 --branch "$2" "$1" "$kit/$3"
    rm -rf "$kit/$3"/{.git,contrib,docs,examples,bindings}
}
# The last release that does not merge the topologies of a node's ranks, and the first with version 2 of the env plugin's
# interface.
for release in 2.21.5 2.30.7; do clone "$nccl" "v$release-1" "nccl-$release"; done
clone "$tests" v2.19.6 nccl-tests
du -sh "$kit"
