# shellcheck shell=bash disable=SC2013,SC2046
# The start of each task of a template: bash -c "$(railgate template task)" task PROGRAM. The same text on every node
# and in every image with bash.
#
# proctrack/cgroup only signals the first process of a task: this shell. It forwards SIGUSR1 (save) to all processes below
# it, and SIGTERM (scancel, preemption) to the program. All processes start with SIGUSR1 ignored, so that programs without a
# handler (torchrun, shells) are not killed by it.
pass_on() { for child in $(cat "/proc/$1"/task/*/children); do kill -USR1 "$child"; pass_on "$child"; done; }
# The shell that parses the program's command line executes the program; before 5.1 bash may stay its parent.
to_program() {
    local child
    child="$(cat "/proc/$1"/task/*/children)"
    case "$(tr '\0' ' ' <"/proc/${child% }/cmdline")" in
        bash*railgate-program*) kill $(cat "/proc/${child% }"/task/*/children) ;;
        *) kill "${child% }" ;;
    esac
}
trap '' USR1
# A signal at the moment at which the program ends makes bash forget the exit code (wait then returns 255), so it also goes through
# a pipe.
exec 4<> <(:)
# Hide these shells' messages about its end.
(trap : TERM; exec 3>&2 2>/dev/null; bash -c "$1" railgate-program 2>&3 3>&- 4>&-; code=$?; echo "$code" >&4; exit "$code") &
exec 2>/dev/null
trap 'pass_on $$' USR1
trap 'to_program "$!"' TERM
while kill -0 "$!"; do wait "$!"; done
trap '' USR1 TERM
if read -r -t 1 code <&4; then exit "$code"; fi
wait "$!"
