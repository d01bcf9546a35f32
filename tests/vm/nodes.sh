# shellcheck shell=bash disable=SC2154 # preflight.sh and noise.sh source this
# Four nodes with two rails each, for `railgate preflight` over RDMA. A node is a network namespace with an
# address for the conversation of the pairs, and a mount namespace that shows two of the RDMA devices. The devices are on
# interfaces of the machine's first network namespace, where rdma_rxe of this kernel works; each rail is a bridge. A script in
# the place of srun starts the tasks of each node.

# It changes the system on which it runs.
: "${programs:?only in the virtual machine}" "${cache:?}"
nodes=(gn1 gn2 gn3 gn4)
# The processors of an emulated machine have no rate of their own.
rate=8mbit
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

# Starts the program once on each node, or on those of --nodelist=gn[1,3-4], as a user.
cat >"$work/bin/srun" <<'SRUN'
#!/bin/bash
numbers=$(seq 1 4)
while [[ $1 == --* ]]; do
    case $1 in
    --nodes | --ntasks | --jobid) shift 2 ;;
    --nodelist=*)
        list=${1#--nodelist=gn}
        list=${list//[][]/}
        numbers=
        for range in ${list//,/ }; do numbers+=" $(seq "${range%-*}" "${range#*-}")"; done
        shift
        ;;
    *) shift ;;
    esac
done
for number in $numbers; do
    node=gn$number
    nsenter --target "$(</tmp/preflight/$node)" --net --mount --root --wd \
        setpriv --reuid 5001 --regid 5001 --clear-groups \
        env SLURMD_NODENAME="$node" "$@" &
done
wait
SRUN
chmod 755 "$work/bin/srun"

make_nodes() {
    bridge_of rail0
    bridge_of rail1
    bridge_of control
    local number
    for number in 1 2 3 4; do
        node "gn$number" "$number"
    done
}

remove_nodes() {
    local name
    for name in "${nodes[@]}"; do
        kill "$(<"$work/$name")"
        ip link delete "${name}r0"
        ip link delete "${name}r1"
    done
    for name in rail0 rail1 control; do
        ip link delete "$name"
    done
}

# preflight_of OPTION…: runs the command in a job of these nodes.
preflight_of() {
    PATH=$work/bin:$PATH SLURM_JOB_ID=7 SLURM_JOB_NODELIST='gn[1-4]' "$programs/railgate" preflight --net rdma --gpus none "$@"
}
