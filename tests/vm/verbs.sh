# shellcheck shell=bash disable=SC2154 # inside.sh sources this
# Checks of a verbs device over a pair of interfaces: healthy, and with four faults.

for module in veth crc32_generic ib_uverbs rdma_rxe; do
    modprobe -d "$cache" "$module" || echo "why: no module $module"
done
ip link set lo up
ip link add veth0 type veth peer name veth1
ip link set veth0 mtu 9000 up
ip link set veth1 mtu 9000 up
ip address add 10.77.0.1/24 dev veth0
rdma link add rxe0 type rxe netdev veth0 || echo "why: no rxe device"
ulimit -l unlimited

rm -rf /etc/railgate /var/lib/railgate
mkdir -p /etc/railgate/profiles
cat >/etc/railgate/railgate.toml <<END
profile = "verbs"
[gate.checks.rdma-self-test]
program = "$programs/selftest"
[gate.checks.ib-port]
boot_grace = "0s"
END
cat >/etc/railgate/profiles/verbs.toml <<END
title = "one software RDMA device"
[gpus]
count = 0
[fabric]
hcas = 1
link_layer = "ethernet"
mtu = 4096
subnets = ["10.77.0.0/16"]
interfaces_up = true
END

# expect NAME WANT [ARGUMENT…]: compares the findings of the fabric checks above severity note, in their order, with WANT.
# shellcheck disable=SC2034 # inside.sh reads failed
expect() {
    local name=$1 want=$2 got
    shift 2
    got=$("$programs/railgate" check --format json "$@" 2>/tmp/errors | python3 -c '
import json, sys
answer = json.load(sys.stdin)
for one in answer.get("verdict", answer)["findings"]:
    check, severity = one["check"], one["severity"]
    if check.split("-")[0] in ("ib", "roce", "rdma"):
        print("why: " + check + "@" + one["part"] + ": " + one["what"], file=sys.stderr)
        if severity != "note" or check == "rdma-self-test":
            print(severity, check)
' 2>/tmp/why | paste -sd ';' | sed 's/;/; /g')
    got=${got:-nothing}
    cat /tmp/why
    if [[ $got == "$want" ]]; then
        echo "ok: $name: $got"
    else
        echo "bad: $name: got '$got', want '$want'"
        sed 's/^/why: /' /tmp/errors
        failed=1
    fi
}

expect "a healthy device" "nothing"
expect "the self-test" "note rdma-self-test" --full
ip link set veth0 mtu 1500
expect "an MTU that is too small" "warn roce-mtu"
ip link set veth0 mtu 9000
ip address del 10.77.0.1/24 dev veth0
expect "no address" "warn roce-gid"
ip address add 10.77.0.1/24 dev veth0
expect "healthy again" "nothing"
ip link set veth1 down
expect "the port is down, between jobs" "warn ib-interface; warn ib-port"
expect "the port is down, before a job" "fail ib-port; warn ib-interface" --phase prolog
ip link set veth1 up
rdma link delete rxe0
expect "no device" "fail ib-count" --phase prolog
