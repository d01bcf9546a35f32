#!/bin/bash
# Inside the virtual machine: each part prints one line for each check and sets failed=1 on a failure.
# shellcheck disable=SC2154 # init.sh exports the kernel's command line
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
failed=0
echo
# shellcheck source=tests/vm/verbs.sh
. "$here/verbs.sh"
# shellcheck source=tests/vm/pair.sh
. "$here/pair.sh"
# shellcheck source=tests/vm/memory.sh
. "$here/memory.sh"
[[ $failed == 0 ]] && echo "ok: all"
