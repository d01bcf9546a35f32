#!/usr/bin/env bash
# Collects in one directory everything that templates.sh needs on a machine with NVIDIA GPUs: the output of prepare.sh, the
# source of nccl-tests, and Debian's MPICH, which works with Slurm's pmi2 without further software.
#
#   tests/gpu/prepare-templates.sh [DIRECTORY]        default: target/gpu-templates
#
# NCCL_TESTS_SOURCE: another repository to clone.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=${1:-target/gpu-templates}
tests=${NCCL_TESTS_SOURCE:-https://github.com/NVIDIA/nccl-tests.git}

tests/gpu/prepare.sh "$kit"
git -c advice.detachedHead=false clone -q --depth 1 --branch v2.19.6 "$tests" "$kit/nccl-tests"
rm -rf "$kit/nccl-tests/.git"

mkdir -p "$kit/mpi/include" "$kit/mpi/lib" "$kit/unpacked"
(cd "$kit/unpacked" && apt-get download -q libmpich12 libmpich-dev libucx0 libhwloc15)
for deb in "$kit"/unpacked/*.deb; do dpkg -x "$deb" "$kit/unpacked"; done
cp "$kit"/unpacked/usr/include/*/mpich/*.h "$kit/mpi/include/"
for library in mpich.so.12 ucp.so.0 ucs.so.0 uct.so.0 ucm.so.0 hwloc.so.15; do
    cp -L "$kit"/unpacked/usr/lib/*/lib"$library" "$kit/mpi/lib/"
done
ln -sf libmpich.so.12 "$kit/mpi/lib/libmpi.so"
rm -rf "$kit/unpacked"
du -sh "$kit"
