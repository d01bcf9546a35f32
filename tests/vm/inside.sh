#!/bin/bash
# Inside the virtual machine: each part prints one line for each check and sets failed=1 on a failure.
# shellcheck disable=SC2154 # init.sh exports the kernel's command line
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
failed=0
echo
for part in ${parts//,/ }; do
    # shellcheck source=tests/vm/verbs.sh disable=SC1090,SC1091
    . "$here/$part.sh"
done
[[ $failed == 0 ]] && echo "ok: all"
