#!/bin/bash
# Inside the machine: each part prints a line per look, and counts its failures.
# shellcheck disable=SC2154 # init.sh hands on the kernel's command line
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
failed=0
echo
# shellcheck source=tests/vm/verbs.sh
. "$here/verbs.sh"
# shellcheck source=tests/vm/memory.sh
. "$here/memory.sh"
[[ $failed == 0 ]] && echo "ok: all"
