# shellcheck shell=bash
# To be sourced: turns a machine with NVIDIA GPUs into a Slurm cluster of one node with railgate.
#
# Needs $kit (the output of prepare.sh) and $out (directory for logs). Only for a disposable machine: it unpacks Slurm over /
# and starts daemons. $node may name the node.
host=$(hostname -s)
node=${node:-$host}
gpus=$(nvidia-smi -L | wc -l)
# "NVIDIA H100 80GB HBM3"; the built-in profiles are h100-sxm and h200-sxm.
model=$(nvidia-smi -L | grep -oE 'H[12]00' | head -1 | tr H h)
state=/var/tmp/railgate-gpu
say() { printf '\n== %s\n' "$*"; }
ok() { printf 'ok: %s\n' "$*"; }
wrong() {
    printf 'WRONG: %s\n' "$*"
    cp -r /var/log/railgate.log "$state"/*.log "${out:?}" 2>/dev/null || true
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

# Installs railgate as on a site; $1: additional lines of its configuration.
install_and_configure() {
    say "install"
    # `dpkg -x` would replace the link /lib by a directory.
    for deb in "${kit:?}"/debs/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x --keep-directory-symlink -C /; done
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
SlurmctldHost=$host(127.0.0.1)
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
SelectTypeParameters=CR_CPU
GresTypes=gpu
PrologFlags=Alloc,Contain,DeferBatch
SchedulerParameters=nohold_on_prolog_fail
Prolog=/etc/slurm/prolog.d/*
Epilog=/etc/slurm/epilog.d/*
EpilogSlurmctld=/usr/libexec/railgate/railgate-epilog-ctld
PrologEpilogTimeout=120
BatchStartTimeout=180
JobFileAppend=1
NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 CPUs=$(nproc) Gres=gpu:$gpus State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
    # GPUs of an HGX board in a virtual machine: no InfiniBand, and no NVLink for a single GPU.
    cat >/etc/railgate/profiles/here.toml <<CONF
id = "here"
title = "$model of this virtual machine, no InfiniBand"
extends = "$model-sxm"
[gpus]
count = $gpus
nvlinks_up = $([[ $gpus -gt 1 ]] && echo 18 || echo 0)
[fabric]
hcas = 0
CONF
    cat >/etc/railgate/railgate.toml <<CONF
profile = "here"
[gate]
mode = "enforce"
[report]
dir = "$state/reports"
[requeue]
default = "auto"
$1
CONF
    railgate config check
}

start_slurm() {
    say "Slurm"
    # All standard streams are redirected, since the caller waits while a daemon keeps a pipe open.
    runuser -u munge -- /usr/sbin/munged </dev/null >/dev/null 2>&1
    (cd "$state" && slurmctld </dev/null >/dev/null 2>&1 && slurmd -N "$node" </dev/null >/dev/null 2>&1)
    # shellcheck disable=SC2317  # until_true calls it
    idle() { [[ $(sinfo -h -o %T) == idle ]]; }
    until_true 30 idle || wrong "node is $(sinfo -h -o '%T %E')"
}

# Jobs of PyTorch: PROGRAM (in tests/gpu/train) gets the job's name and SECONDS.
torch_jobs() { # PROGRAM SECONDS OPTION-OF-SBATCH…
    install -m 644 "tests/gpu/train/$1" contrib/python/railgate.py "$state/"
    cat >"$state/job.sh" <<JOB
#!/bin/bash
#SBATCH --ntasks=1 ${*:3}
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 PYTHONPATH=$state
srun python3 -m torch.distributed.run --standalone --nproc-per-node=\$2 $state/$1 "\$1" $2
JOB
}
submit_torch() { # NAME GPUS: the job's id
    local has=$2
    cd "$state/reports" && runuser -u researcher -- sbatch --parsable -J "$1" -o "$state/reports/%j.log" --gres=gpu:"$has" \
        --cpus-per-task=$(($(nproc) * has / gpus / 2)) "$state/job.sh" "$1" "$has"
}
ended() { # ID
    [[ $(scontrol show job "$1" | grep -o 'JobState=[A-Z]*') != JobState=@(PENDING|RUNNING|COMPLETING) ]]
}

# Also if the script is interrupted: jobs left running would disturb the next measurement.
stop_slurm() {
    if scancel --user=researcher 2>/dev/null; then until_true 20 none_left || true; fi
    pkill slurmctld || true
    pkill slurmd || true
    pkill munged || true
}
# shellcheck disable=SC2317  # until_true calls it
none_left() { [[ -z $(squeue -h) ]]; }
trap stop_slurm EXIT
trap 'exit 143' TERM INT
