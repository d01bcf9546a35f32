#!/usr/bin/env bash
# A private /tmp for each job (job_container/tmpfs) under a real Slurm with cgroup v2: railgate's files in the
# job's mount namespace, and leftovers of both. That plugin cannot run in the namespaces of the test cluster.
#
#   tests/gpu/setups.sh [DIRECTORY]      output of prepare.sh; default: target/gpu
#
# Only for a disposable machine with NVIDIA GPUs.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu}")
out=${OUT:-$(mktemp -d)}
# shellcheck source-path=SCRIPTDIR source=machine.sh
source tests/gpu/machine.sh

install_and_configure ''
mkdir -p /var/jobs
mount --bind /var/jobs /var/jobs
mount --make-private /var/jobs
printf 'AutoBasePath=true\nBasePath=/var/jobs\n' >/etc/slurm/job_container.conf
sed -i 's/^ProctrackType=.*/&\nJobContainerType=job_container\/tmpfs/' /etc/slurm/slurm.conf
start_slurm
cat >"$state/private.sh" <<'JOB'
#!/bin/bash
srun bash -c 'touch /tmp/mine; echo "tmp: $(ls -A /tmp)"; echo noted >"$RAILGATE_JOB_DIR/user/note" && echo "user: $(<"$RAILGATE_JOB_DIR/user/note")"
    echo "set: $RAILGATE_SET"'
JOB
id=$(cd "$state/reports" && runuser -u researcher -- sbatch --parsable --gres=gpu:1 -o private.log "$state/private.sh")
over() { [[ $(scontrol show job "$id") != *JobState=@(PENDING|RUNNING|COMPLETING)* ]]; }
until_true 40 over || wrong "$(scontrol show job "$id")"
cat "$state/reports/private.log"
for line in 'tmp: mine' 'user: noted' 'set: ..*'; do
    grep -qx "$line" "$state/reports/private.log" || wrong "no '$line': $(tail -n 20 "$state/slurmd.log")"
done
ok "a job in a mount namespace of its own has railgate's directory, and may write its part of it"
gone() { ! grep -q "/run/railgate/jobs/$id" /proc/self/mounts && [[ ! -e /run/railgate/jobs/$id ]]; }
until_true 20 gone || wrong "left: $(grep railgate /proc/self/mounts)"
[[ ! -e /tmp/mine ]] || wrong "/tmp was the node's"
ok "nothing of it is left on the node"
runuser -u researcher -- railgate report "$id" | head -n 12
