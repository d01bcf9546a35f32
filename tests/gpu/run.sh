#!/usr/bin/env bash
# railgate on real GPUs: its own programs, the real libnvidia-ml, a real Slurm of one node.
#
#   tests/gpu/run.sh [DIRECTORY]            what prepare.sh made; default: target/gpu
#
# For a machine that is thrown away afterwards: it unpacks Slurm over / and starts daemons. What it proves is
# printed as "ok: …"; the first thing that is wrong ends it. Results (snapshot, reports, logs) go to $OUT.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu}")
out=${OUT:-$(mktemp -d)}
node=$(hostname -s)
gpus=$(nvidia-smi -L | wc -l)
state=/var/tmp/railgate-gpu
say() { printf '\n== %s\n' "$*"; }
ok() { printf 'ok: %s\n' "$*"; }
wrong() {
    printf 'WRONG: %s\n' "$*"
    cp -r /var/log/railgate.log "$state"/*.log "$out" 2>/dev/null || true
    exit 1
}
until_true() { # SECONDS COMMAND…
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 0.2
    done
}

say "install"
for deb in "$kit"/debs/*.deb; do dpkg -x "$deb" /; done
ldconfig
for daemon in slurmctld slurmd slurmstepd; do
    [[ -e /usr/sbin/$daemon ]] || ln -s "$daemon-wlm" "/usr/sbin/$daemon"
done
install -D -m 755 -t /usr/libexec/railgate "$kit"/bin/railgate-*
install -m 755 "$kit/bin/railgate" /usr/bin/railgate
install -D -m 755 -t /usr/lib/railgate "$kit"/bin/*.so
for user in munge slurm researcher; do id "$user" >/dev/null 2>&1 || useradd --system --create-home "$user"; done
install -d -m 755 "$state" "$state/spool" /etc/slurm /etc/slurm/prolog.d /etc/slurm/epilog.d /etc/railgate/profiles
install -d -o munge -g munge -m 700 /etc/munge /var/lib/munge /var/log/munge
install -d -o munge -g munge -m 755 /run/munge
install -d -o slurm -g slurm -m 755 "$state/ctld"
install -d -m 1777 "$state/reports"
dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 status=none
chown munge:munge /etc/munge/munge.key
chmod 400 /etc/munge/munge.key

say "configure"
mkdir -p /sys/fs/cgroup/system.slice
for place in /sys/fs/cgroup /sys/fs/cgroup/system.slice; do
    echo "+cpuset +cpu +memory" >"$place/cgroup.subtree_control" || true
done
printf 'CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\n' >/etc/slurm/cgroup.conf
for ((i = 0; i < gpus; i++)); do echo "NodeName=$node Name=gpu File=/dev/nvidia$i"; done >/etc/slurm/gres.conf
ln -sf /usr/libexec/railgate/railgate-prolog /etc/slurm/prolog.d/95-railgate
ln -sf /usr/libexec/railgate/railgate-epilog /etc/slurm/epilog.d/95-railgate
echo "optional /usr/lib/railgate/spank_railgate.so" >/etc/slurm/plugstack.conf
cat >/etc/slurm/slurm.conf <<CONF
ClusterName=real
SlurmctldHost=$node(127.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool
SlurmctldLogFile=$state/ctld/slurmctld.log
SlurmdLogFile=$state/slurmd.log
SlurmctldPidFile=$state/ctld/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
SelectType=select/cons_tres
GresTypes=gpu
PrologFlags=Alloc,Contain,DeferBatch
SchedulerParameters=nohold_on_prolog_fail
Prolog=/etc/slurm/prolog.d/*
Epilog=/etc/slurm/epilog.d/*
EpilogSlurmctld=/usr/libexec/railgate/railgate-epilog-ctld
PrologEpilogTimeout=120
BatchStartTimeout=180
JobFileAppend=1
NodeName=$node NodeAddr=127.0.0.1 CPUs=$(nproc) Gres=gpu:$gpus State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
# One GPU of an HGX board in a virtual machine: no InfiniBand, and alone no NVLink either.
cat >/etc/railgate/profiles/h200-here.toml <<CONF
id = "h200-here"
title = "H200 of this virtual machine, no InfiniBand"
extends = "h200-sxm"
[gpus]
count = $gpus
nvlinks_up = $([[ $gpus -gt 1 ]] && echo 18 || echo 0)
[fabric]
hcas = 0
CONF
cat >/etc/railgate/railgate.toml <<CONF
profile = "h200-here"
[gate]
mode = "enforce"
[report]
dir = "$state/reports"
[requeue]
default = "auto"
# For what PyTorch brings, and for nothing else.
[[rails.rules]]
why = "to be seen in a log"
nccl = ">=2.28.7,<2.29.0"
set = { NCCL_MIN_CTAS = "4" }
CONF
railgate config check

say "the node, without Slurm"
railgate check | tee "$out/check.txt" || wrong "railgate check: exit code $?"
grep -q ': fit$' "$out/check.txt" && ok "fit under its profile"
railgate snapshot --out "$out/snapshot.json" | tee "$out/parts.txt"
[[ $(grep -c ' read$' "$out/parts.txt") == 5 ]] || wrong "not every part was read"
ok "every part was read"
railgate rails

say "Slurm"
# Every standard stream elsewhere: a daemon that keeps a pipe open keeps its caller waiting.
runuser -u munge -- /usr/sbin/munged </dev/null >/dev/null 2>&1
(cd "$state" && slurmctld </dev/null >/dev/null 2>&1 && slurmd </dev/null >/dev/null 2>&1)
idle() { [[ $(sinfo -h -o %T) == idle ]]; }
until_true 30 idle || wrong "node is $(sinfo -h -o '%T %E')"

cat >"$state/job.sh" <<'JOB'
#!/bin/bash
#SBATCH --job-name=gemm --gres=gpu:1 --railgate-gate=quick --railgate-requeue=auto
srun bash -c 'echo "task: ${RAILGATE_SET:-nothing} by railgate"; env | grep ^NCCL_ || true; nvidia-smi -L'
python3 - <<'PY'
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.time() + 10
while time.time() < end:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
PY
cat >nccl.py <<'PY'
import torch, torch.distributed as dist
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1, device="cuda"))
print("NCCL", torch.cuda.nccl.version())
PY
NCCL_NVLS_ENABLE=0 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV srun python3 nccl.py
JOB
id=$(cd "$state/reports" && runuser -u researcher -- sbatch --parsable -o "$state/reports/%j.log" "$state/job.sh")
done_() { [[ $(scontrol show job "$id" | grep -o 'JobState=[A-Z]*') == JobState=COMPLETED ]]; }
until_true 90 done_ || wrong "job: $(scontrol show job "$id" | grep -E 'JobState|Reason')"
grep -v 'NCCL INFO' "$state/reports/$id.log"
grep -h 'ENV/Plugin\|env plugin\|set by environment' "$state/reports/$id.log" || true
if grep -q "^NCCL (2, 28" "$state/reports/$id.log"; then
    grep -q 'NCCL_MIN_CTAS set by environment to 4' "$state/reports/$id.log" || wrong "the environment plugin gave no answer"
    ok "NCCL got its release's value from the environment plugin"
fi
reported() { runuser -u researcher -- railgate report "$id" | grep -q completed; }
until_true 20 reported || wrong "no report: $(runuser -u researcher -- railgate report "$id" 2>&1)"
runuser -u researcher -- railgate report "$id" | tee "$out/report.txt"
runuser -u researcher -- railgate report "$id" --format html --out "$state/reports/r.html" && cp "$state/reports/r.html" "$out/report.html"
runuser -u researcher -- railgate report "$id" --format json >"$out/report.json"
ok "prolog, plugin, epilog and report of job $id"
[[ $(sinfo -h -o %T) == idle ]] && ok "the node is idle again"

say "gate against nvidia-smi -q, 15 pairs, seconds"
python3 - "$out/bench.json" <<'PY'
import json, statistics, subprocess, sys, time
def once(*command):
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start
ours, theirs = [], []
for _ in range(15):
    ours.append(once("railgate", "check"))
    theirs.append(once("nvidia-smi", "-q"))
for name, times in (("railgate check", ours), ("nvidia-smi -q", theirs)):
    print(f"{name:15} median {statistics.median(times):.3f}  min {min(times):.3f}  max {max(times):.3f}")
ratios = [a / b for a, b in zip(ours, theirs)]
print(f"ratio           median {statistics.median(ratios):.2f}  min {min(ratios):.2f}  max {max(ratios):.2f}")
json.dump({"railgate": ours, "nvidia_smi": theirs}, open(sys.argv[1], "w"))
PY
railgate check --format json >"$out/check.json"
cp /var/log/railgate.log "$out/railgate.log"
cp "$state/slurmd.log" "$out/slurmd.log"

say "leave"
pkill slurmctld || true
pkill slurmd || true
pkill munged || true
ok "all done; results in $out"
