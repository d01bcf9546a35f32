# shellcheck shell=bash disable=SC2154 # inside.sh sources this
# `railgate preflight` over RDMA on the nodes of nodes.sh: healthy, and with faults.

# shellcheck source=tests/vm/nodes.sh disable=SC1091
. "$here/nodes.sh"
slow=4mbit

# preflight_names NAME CODE [EXPRESSION…]: the exit code, and one BAD line for each expression and no other, in at most three rounds.
# shellcheck disable=SC2034 # inside.sh reads failed
preflight_names() {
    local name=$1 code=$2 got began=$SECONDS expression ok=1
    shift 2
    preflight_of --format table >"$work/out" 2>"$work/err"
    got=$?
    [[ $got == "$code" && $(grep -c '^BAD ' "$work/out") == "$#" ]] || ok=0
    grep -Eq '^RAILS +2 rails by RDMA, [1-3] rounds?: ' "$work/out" || ok=0
    for expression; do
        grep -Eq "^BAD +$expression" "$work/out" || ok=0
    done
    if [[ $ok == 1 ]]; then
        echo "ok: preflight: $name"
    else
        echo "bad: preflight: $name: want exit code $code and: $*"
        sed 's/^/why: /' "$work/err"
        failed=1
    fi
    echo "why: exit code $got, $((SECONDS - began)) s"
    sed 's/^/why: /' "$work/out"
}

make_nodes

preflight_names "four healthy nodes with two rails" 0

limit gn2r1 "$slow"
preflight_names "a slow rail" 1 'rail 1 of gn2: [0-9.]* Mb/s to gn[134]'
limit gn2r1 "$rate"

# The device of one rail sends a flipped bit.
cat >"$work/corrupting" <<CORRUPTING
#!/bin/bash
[[ \$2 == gn3r0 ]] && export RAILGATE_PLANT=1000
exec $programs/selftest-planted "\$@"
CORRUPTING
chmod 755 "$work/corrupting"
on gn3 mount --bind "$work/corrupting" /usr/libexec/railgate/railgate-rdma-selftest
preflight_names "a rail that corrupts" 1 'rail 0 of gn3: .*wrong'

limit gn1r1 "$slow"
preflight_names "a rail that corrupts, and a slow one of another node" 1 'rail 0 of gn3: .*wrong' 'rail 1 of gn1: [0-9.]* Mb/s'
limit gn1r1 "$rate"
on gn3 umount /usr/libexec/railgate/railgate-rdma-selftest

ip link set gn4r1 down
preflight_names "a port that is down" 1 'rail 1 of gn4: .*down'
ip link set gn4r1 up

remove_nodes
