# shellcheck shell=bash disable=SC2154 # inside.sh sources this
# `railgate preflight` over RDMA: four nodes with two rails each, healthy and with faults. A node is a network namespace with an
# address for the conversation of the pairs, and a mount namespace that shows two of the RDMA devices. The devices are on
# interfaces of the machine's first network namespace, where rdma_rxe of this kernel works; each rail is a bridge. A script in
# the place of srun starts the tasks of each node.

# It changes the system on which it runs.
: "${programs:?only in the virtual machine}" "${cache:?}"
nodes=(gn1 gn2 gn3 gn4)
# The processors of an emulated machine have no rate of their own.
rate=8mbit
slow=4mbit
work=/tmp/preflight
mkdir -p "$work/bin" /usr/libexec/railgate /etc/railgate/profiles
for module in veth crc32_generic ib_uverbs rdma_rxe bridge sch_tbf; do
    modprobe -d "$cache" "$module" || echo "why: no module $module"
done
ip link set lo up
ulimit -l unlimited
rdma link delete rxe0 2>/dev/null
rdma link delete rxe1 2>/dev/null
echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad

cat >/etc/railgate/railgate.toml <<'CONFIG'
profile = "two-rails"
CONFIG
cat >/etc/railgate/profiles/two-rails.toml <<'PROFILE'
title = "two software RDMA devices"
[gpus]
count = 0
[fabric]
hcas = 2
link_layer = "ethernet"
PROFILE
# The one that transfers less: two processors are all eight ends of a round.
cp "$programs/selftest-planted" /usr/libexec/railgate/railgate-rdma-selftest

# limit INTERFACE RATE: limits what an interface sends. Nothing is dropped: a queue pair has less data in flight.
limit() {
    tc qdisc replace dev "$1" root tbf rate "$2" burst 64kb limit 16mb
}

# bridge_of NAME: makes a bridge without an address.
bridge_of() {
    ip link add "$1" type bridge
    echo 1 >"/proc/sys/net/ipv6/conf/$1/disable_ipv6"
    ip link set "$1" up
}

# cable BRIDGE INTERFACE PEER: connects an interface to a bridge.
cable() {
    ip link add "$2" type veth peer name "$3"
    echo 1 >"/proc/sys/net/ipv6/conf/$3/disable_ipv6"
    ip link set "$3" mtu 9000 master "$1" up
    ip link set "$2" mtu 9000 up
}

# node NAME NUMBER: makes a node; the id of the process that keeps its namespaces is in $work/NAME.
node() {
    local rail
    echo "10.78.0.$2 $1" >>/etc/hosts
    for rail in 0 1; do
        cable "rail$rail" "$1r$rail" "$1p$rail"
        limit "$1r$rail" "$rate"
        rdma link add "$1r$rail" type rxe netdev "$1r$rail" || echo "why: no rxe device $1r$rail"
    done
    cable control "$1c" "$1d"
    # shellcheck disable=SC2016 # the inner shell expands it
    unshare --net --mount --propagation private bash -c '
        for device in "$1"r0 "$1"r1; do
            readlink -f "/sys/class/infiniband/$device" >>"$2/$1.devices"
        done
        mount -t tmpfs devices /sys/class/infiniband
        while read -r device; do
            ln -s "$device" "/sys/class/infiniband/${device##*/}"
        done <"$2/$1.devices"
        echo $$ >"$2/$1.new"
        mv "$2/$1.new" "$2/$1"
        exec sleep infinity' - "$1" "$work" &
    until [[ -e $work/$1 ]]; do sleep 0.1; done
    ip link set "$1c" netns "$(<"$work/$1")"
    on "$1" ip link set lo up
    on "$1" ip address add "10.78.0.$2/24" dev "$1c"
    on "$1" ip link set "$1c" up
}

# on NODE COMMAND…: runs a command in the namespaces of a node.
on() {
    local node=$1
    shift
    nsenter --target "$(<"$work/$node")" --net --mount --root --wd "$@"
}

# Starts the program once on each node, as a user.
cat >"$work/bin/srun" <<'SRUN'
#!/bin/bash
while [[ $1 == --* ]]; do
    case $1 in
    --nodes | --ntasks | --jobid) shift 2 ;;
    *) shift ;;
    esac
done
for node in gn1 gn2 gn3 gn4; do
    nsenter --target "$(</tmp/preflight/$node)" --net --mount --root --wd \
        setpriv --reuid 5001 --regid 5001 --clear-groups \
        env SLURMD_NODENAME="$node" "$@" &
done
wait
SRUN
chmod 755 "$work/bin/srun"

# preflight_names NAME CODE [EXPRESSION…]: the exit code, and one BAD line for each expression and no other, in at most three rounds.
# shellcheck disable=SC2034 # inside.sh reads failed
preflight_names() {
    local name=$1 code=$2 got began=$SECONDS expression ok=1
    shift 2
    PATH=$work/bin:$PATH SLURM_JOB_ID=7 SLURM_JOB_NODELIST='gn[1-4]' "$programs/railgate" preflight --net rdma --gpus none \
        >"$work/out" 2>"$work/err"
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

bridge_of rail0
bridge_of rail1
bridge_of control
for number in 1 2 3 4; do
    node "gn$number" "$number"
done

preflight_names "four healthy nodes with two rails" 0

limit gn2r1 "$slow"
preflight_names "a slow rail" 1 'rail 1 of gn2: 0\.0[0-9]* Gb/s to gn[134]'
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
preflight_names "a rail that corrupts, and a slow one of another node" 1 'rail 0 of gn3: .*wrong' 'rail 1 of gn1: 0\.0[0-9]* Gb/s'
limit gn1r1 "$rate"
on gn3 umount /usr/libexec/railgate/railgate-rdma-selftest

ip link set gn4r1 down
preflight_names "a port that is down" 1 'rail 1 of gn4: .*down'
ip link set gn4r1 up

for name in "${nodes[@]}"; do
    kill "$(<"$work/$name")"
    ip link delete "${name}r0"
    ip link delete "${name}r1"
done
