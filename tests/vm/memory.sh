# shellcheck shell=bash disable=SC2154 # inside.sh sources this
# Control groups of version 2 with the layout of slurmstepd: a process of one job exceeds its memory limit, and the program of
# a second job fails. Prolog and epilog run as slurmd runs them and read this kernel's log and counters. The report of each
# job must name its own end and nothing of the other job.

mount -t cgroup2 cgroup2 /sys/fs/cgroup
hostname n1
scope=/sys/fs/cgroup/system.slice/n1_slurmstepd.scope
mkdir -p "$scope" /shared
chmod 1777 /shared
{
    echo "alice:x:5001:5001::/tmp:/bin/bash"
    echo "bob:x:5002:5002::/tmp:/bin/bash"
} >>/etc/passwd
cat >/etc/railgate/railgate.toml <<END
profile = "cpu"
[report]
dir = "/shared"
END

# groups_of JOB BYTES: makes the job's groups with a memory limit; prints the path of the tasks' group.
groups_of() {
    local at=$scope name
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control
    echo +memory >/sys/fs/cgroup/system.slice/cgroup.subtree_control
    for name in "job_$1" step_0 user task_0; do
        echo +memory >"$at/cgroup.subtree_control"
        at=$at/$name
        mkdir "$at"
    done
    echo "$2" >"$scope/job_$1/memory.max"
    echo "$at"
}

# hook PROGRAM JOB UID NAME STATUS: runs prolog or epilog as slurmd does.
hook() {
    env -i PATH=/usr/bin:/bin SLURM_CLUSTER_NAME=vm SLURM_CONF=/etc/slurm/slurm.conf SLURM_JOB_ID="$2" SLURM_JOBID="$2" \
        SLURM_JOB_UID="$3" SLURM_JOB_GID="$3" SLURM_JOB_USER="$4" SLURM_JOB_PARTITION=main SLURMD_NODENAME=n1 SLURM_JOB_NODELIST=n1 \
        SLURM_NODELIST=n1 SLURM_JOB_EXIT_CODE="$5" SLURM_SCRIPT_CONTEXT="${1}_slurmd" "$programs/railgate-$1" ||
        echo "why: $1 of job $2: exit code $?"
}

# first_line USER JOB WANT NOT: the first line of the report must contain WANT, and the report must not match NOT.
# shellcheck disable=SC2034 # inside.sh reads failed
first_line() {
    local got
    "$programs/railgate" report "$2" >/tmp/report 2>/tmp/errors
    got=$(head -1 /tmp/report)
    if [[ $got == *"$3"* ]] && ! grep -q "$4" /tmp/report; then
        echo "ok: control groups v2: $got"
        grep -m2 -i 'killed\|limit' /tmp/report | sed 's/^/why: /'
    else
        echo "bad: control groups v2: job $2: want '$3', and nothing of '$4'"
        sed "s|^|why: |" /tmp/report /tmp/errors
        failed=1
    fi
}

hook prolog 71 5001 alice 0
hook prolog 72 5002 bob 0
small=$(groups_of 71 100M)
large=$(groups_of 72 40M)
# run_in GROUP UID COMMAND: runs a command in a control group as a user.
run_in() {
    bash -c 'echo $$ >"$1/cgroup.procs"; exec setpriv --reuid "$2" --regid "$2" --clear-groups bash -c "$3"' - "$@"
}
run_in "$large" 5002 'head -c 150000000 /dev/zero | tail >/dev/null' 2>/dev/null
run_in "$small" 5001 'python3 -c "{}[\"loss\"]"' 2>/dev/null
hook epilog 72 5002 bob 256
hook epilog 71 5001 alice 256
dmesg | grep -o 'oom-kill:.*' | tail -1 | sed 's/^/why: /'
first_line bob 72 "out of memory" 'job_71\|alice'
first_line alice 71 "looks like the application" 'job_72\|bob\|out of memory'
