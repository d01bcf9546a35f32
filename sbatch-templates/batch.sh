# shellcheck shell=bash
# The start of a template's script: eval "$(railgate template batch)". The log then ends with one line:
# the outcome of the job and the command that shows its report.
#
# run COMMAND…  runs the step that trains, and returns its exit code. On SIGUSR1 (the time limit is near) it sends
#               SAVE_SIGNAL to the step's programs, waits for them, and with AGAIN=yes puts the job back into the queue.
# launch srun…  starts the step again, on a spare node, when a node fails (railgate launch): $SPARES nodes of the job stay spare, and
#               there are at most $RESTARTS restarts.
# TASK          the start of each task (railgate template task).
#
# The job's own id. In an array $SLURM_JOB_ID may mean all members.
railgate_id="${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}"
railgate_id="${railgate_id:-$SLURM_JOB_ID}"
railgate_step="" railgate_told="" railgate_outcome="" railgate_ended=""

run() {
    local code
    "$@" &
    railgate_step=$!
    # A signal ends wait, not the step.
    while [ -z "$railgate_ended" ] && kill -0 "$railgate_step" 2>/dev/null; do wait "$railgate_step" 2>/dev/null || :; done
    if [ -n "$railgate_ended" ]; then
        # Slurm gives the programs some seconds to end (KillWait), and then ends this script as well.
        for _ in {1..50}; do
            kill -0 "$railgate_step" 2>/dev/null || break
            sleep 0.1
        done
        railgate_say
    fi
    wait "$railgate_step" 2>/dev/null && code=0 || code=$?
    # The sender of SIGTERM (143) to the step is about to send it to this script as well.
    if [ "$code" = 143 ] && [ -z "$railgate_ended" ]; then { sleep 1; } 2>/dev/null || :; fi
    if [ -n "$railgate_told" ] && [ -z "$railgate_ended" ]; then railgate_saved "$code"; fi
    return "$code"
}

launch() {
    local words=(railgate launch --spares "${SPARES:-0}" --restarts "${RESTARTS:-3}" --)
    # Behind run it takes the place of the shell, which would end earlier by Slurm's signals.
    if [ "$BASHPID" = "$$" ]; then "${words[@]}" "$@"; else exec "${words[@]}" "$@"; fi
}

railgate_save() {
    # Fails shortly before the end of the job, when it no longer has steps.
    if scancel --signal="${SAVE_SIGNAL:-USR1}" "$railgate_id"; then railgate_told="${SAVE_SIGNAL:-USR1}"; fi
}

railgate_saved() {
    local said
    railgate_outcome="SIG$railgate_told asked the program to save; it $(railgate_code "$1")"
    # srun reports a step that got SIGTERM as terminated, regardless of the exit codes of its programs.
    if [ "$1" != 0 ] && [ "$railgate_told" != TERM ]; then
        railgate_outcome+="; not requeued: it may not have saved"
    elif [ "${AGAIN:-no}" != yes ]; then
        railgate_outcome+="; not requeued: AGAIN=${AGAIN:-no}"
    elif trap '' TERM && said="$(scontrol requeue "$railgate_id" 2>&1)"; then
        railgate_outcome+="; the job goes back into the queue"
        # Slurm logs a line, then ends this script.
        sleep 1
    else
        railgate_outcome+="; not requeued: ${said//$'\n'/; }"
    fi
}

# Why Slurm ended the job, if it did.
railgate_ask() {
    local state="" reason="" restarts="" fields=State:20,RestartCnt:10,Reason:60
    # A busy slurmctld may not answer in time. Slurm gives this script 30 s (KillWait).
    read -r state restarts reason < <(timeout 10 squeue -h -j "$railgate_id" -O "$fields" ||
        timeout 10 squeue -h -j "$railgate_id" -O "$fields") || :
    if [ -z "$state" ] || [ "$state" = RUNNING ]; then return 0; fi
    if [ "$restarts" -gt "${SLURM_RESTART_COUNT:-0}" ]; then
        railgate_outcome="requeued or preempted; the job goes back into the queue"
        case "$reason" in *[Hh]eld*) railgate_outcome+=", held (scontrol release $railgate_id)" ;; esac
    elif [ "$reason" = TimeLimit ]; then
        railgate_outcome="stopped at the time limit; not requeued"
        if [ -n "$railgate_told" ]; then
            railgate_outcome+=": the program received SIGUSR1 and had not ended"
        elif [ -n "${AGAIN:-}" ]; then
            railgate_outcome+=": nothing told the program to save before (--signal=B:USR1@300)"
        fi
    elif [ -n "$(timeout 10 squeue -h -j "$railgate_id" -t PREEMPTED)" ]; then
        railgate_outcome="preempted; not requeued"
    elif [ "$reason" = None ]; then
        railgate_outcome="cancelled"
    else
        railgate_outcome="ended by Slurm ($reason)"
    fi
}

railgate_terminated() {
    trap '' TERM USR1
    railgate_ended=yes
    railgate_ask
    if [ -z "$railgate_outcome" ]; then
        # Only this script received the signal: forward it.
        railgate_outcome="ended by SIGTERM"
        scancel --signal=TERM "$railgate_id" || :
    fi
}

railgate_code() {
    local signal
    if [ "$1" -gt 128 ] && signal="$(kill -l "$1" 2>/dev/null)"; then
        echo "was killed by SIG$signal"
    else
        echo "ended with exit code $1"
    fi
}

railgate_say() {
    [ -z "$railgate_outcome" ] || echo "railgate: $railgate_outcome. See: railgate report $railgate_id"
    railgate_outcome=""
}

railgate_exit() {
    local code=$? what="the script"
    trap '' TERM USR1
    if [ -n "$railgate_ended" ]; then
        railgate_say
        # End by the signal, so that Slurm records the end that it requested.
        trap - TERM EXIT
        kill -TERM "$$"
    fi
    # Slurm may have ended the steps, and not this script yet. A program that saves on SIGTERM ends with exit code 0.
    if [ -z "$railgate_outcome" ]; then railgate_ask; fi
    [ -z "$railgate_step" ] || what="the program"
    railgate_outcome="${railgate_outcome:-$what $(railgate_code "$code")}"
    railgate_say
}

# Hide bash's messages about children that the same signal ends.
trap 'railgate_save 2>/dev/null' USR1
trap 'railgate_terminated 2>/dev/null' TERM
trap railgate_exit EXIT
