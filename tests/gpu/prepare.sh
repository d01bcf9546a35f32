#!/usr/bin/env bash
# Collects in one directory everything that run.sh needs on a machine with NVIDIA GPUs: railgate's programs as a release
# build, and Debian's Slurm packages.
#
#   tests/gpu/prepare.sh [DIRECTORY]        default: target/gpu
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=${1:-target/gpu}
packages=(
    slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libhwloc15 liblz4-1 libnuma1
    libjson-c5 libyaml-0-2 libhttp-parser2.9 libdbus-1-3
)

built=${CARGO_TARGET_DIR:-target}/release

cargo build --release
rm -rf "$kit"
mkdir -p "$kit/bin" "$kit/debs"
cp "$built"/railgate{,-prolog,-epilog,-epilog-ctld,-sampler} "$kit/bin/"
cp "$built"/libnccl_env_railgate.so "$kit/bin/libnccl-env-railgate.so"
cp "$built"/libnccl_profiler_railgate.so "$kit/bin/libnccl-profiler-railgate.so"
cp "$built"/libspank_railgate.so "$kit/bin/spank_railgate.so"
(cd "$kit/debs" && apt-get download -q "${packages[@]}")
du -sh "$kit"
