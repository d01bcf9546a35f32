# shellcheck shell=bash disable=SC2013
# What each task of a template begins with: bash -c "$(railgate template task)" task PROGRAM. The same text on every node
# and in every image with bash.
#
# proctrack/cgroup signals the first process of a task only: this shell. SIGUSR1 (save) it passes on to all below it, and
# SIGTERM (scancel, preemption) to the program. Whoever does not ask for SIGUSR1 (torchrun, shells) is not to die of it,
# from its first moment on.
pass_on() { for child in $(cat "/proc/$1"/task/*/children); do kill -USR1 "$child"; pass_on "$child"; done 2>/dev/null; }
trap '' USR1
(trap : TERM; eval "$1") &
trap 'pass_on $$' USR1
trap 'kill $(cat "/proc/$!"/task/*/children)' TERM
while kill -0 "$!" 2>/dev/null; do wait "$!"; done
wait "$!"
