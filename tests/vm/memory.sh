# shellcheck shell=bash disable=SC2154 # inside.sh sources this
# Slurm with control groups of version 2, for real: a job that exceeds its memory, and one beside it that fails by a bug
# of its own. The report of each must name its own end.

mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir /sys/fs/cgroup/system.slice # as systemd has it: slurmd makes its own scope below
hostname n1
echo "127.0.0.1 localhost n1" >/etc/hosts
echo "alice:x:5001:5001::/tmp:/bin/bash" >>/etc/passwd
echo "bob:x:5002:5002::/tmp:/bin/bash" >>/etc/passwd
mkdir -p /run/munge /var/log/slurm /var/spool/slurm{ctld,d} /etc/slurm /shared/out
chmod 1777 /shared /shared/out
dd if=/dev/urandom of=/etc/munge.key bs=128 count=1 status=none
chmod 400 /etc/munge.key
munged --force --key-file=/etc/munge.key --log-file=/var/log/slurm/munge.log 2>/dev/null

cat >/etc/slurm/slurm.conf <<END
ClusterName=vm
SlurmctldHost=n1
SlurmUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=nohold_on_prolog_fail
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmctldTimeout=60
MinJobAge=900
PrologFlags=Alloc,Contain,DeferBatch
Prolog=$programs/railgate-prolog
Epilog=$programs/railgate-epilog
EpilogSlurmctld=$programs/railgate-epilog-ctld
NodeName=n1 NodeAddr=127.0.0.1 CPUs=2 RealMemory=600
PartitionName=main Nodes=ALL Default=YES OverSubscribe=NO
END
printf '%s\n' CgroupPlugin=cgroup/v2 IgnoreSystemd=yes ConstrainRAMSpace=yes >/etc/slurm/cgroup.conf
cat >/etc/railgate/railgate.toml <<END
profile = "cpu"
[report]
dir = "/shared"
END
ln -sfn /proc/self/fd /dev/fd
slurmctld && slurmd || echo "why: no Slurm"

# as USER COMMAND…
as() {
    local user=$1
    shift
    setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups --inh-caps=-all env HOME=/tmp "$@"
}

# wait_for SECONDS COMMAND…
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || return 1
        sleep 1
    done
}

node_idle() { sinfo -h -o %t | grep -qx idle; }
ended() { ! scontrol -o show job "$1" | grep -qE 'JobState=(PENDING|RUNNING|COMPLETING|CONFIGURING)'; }
written() { as "$1" "$programs/railgate" report "$2" 2>/dev/null | grep -q '^VERDICT\|^job .*: '; }

# first_line USER JOB WANT: the first line of the report; no word of the other job.
first_line() {
    local user=$1 job=$2 want=$3 got
    wait_for 60 written "$user" "$job"
    as "$user" "$programs/railgate" report "$job" >/tmp/report 2>&1
    got=$(head -1 /tmp/report)
    if [[ $got == *"$want"* ]] && ! grep -q "$4" /tmp/report; then
        echo "ok: control groups v2: $got"
    else
        echo "bad: control groups v2: want '$want', and nothing of '$4'"
        sed 's/^/why: /' /tmp/report
        failed=1
    fi
}

wait_for 60 node_idle || sed 's/^/why: /' /var/log/slurm/slurmd.log
cd /tmp || exit
hungry='#!/bin/bash
(head -c 150000000 /dev/zero; sleep 3) | tail > /dev/null'
buggy='#!/bin/bash
sleep 20
python3 -c "{}[\"loss\"]"'
bug=$(as alice sbatch --parsable -n1 --mem=60 -o /shared/out/bug <<<"$buggy")
big=$(as bob sbatch --parsable -n1 --mem=60 -o /shared/out/big <<<"$hungry")
for job in $bug $big; do
    wait_for 120 ended "$job" || echo "why: job $job does not end: $(scontrol -o show job "$job")"
done
scontrol -o show job "$big" | grep -o 'JobState=[A-Z_]*' | sed 's/^/why: Slurm: /'
first_line bob "$big" "out of memory" "job_$bug\|alice"
first_line alice "$bug" "looks like the application" "job_$big\|bob\|out of memory"
dmesg | grep -o "oom-kill:.*" | tail -1 | sed "s/^/why: /"
