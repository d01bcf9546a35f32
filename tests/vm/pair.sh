# shellcheck shell=bash disable=SC2154 # inside.sh sources this
# The RDMA test of a pair, as a user, on two devices: measured in both directions, clients without the key, a bit that is flipped
# before it is sent, and an end that is killed. The devices have link-local addresses only: with others the kernel would send
# from one address of its own to the other without the interfaces.

ip address del 10.77.0.1/24 dev veth0
rdma link add rxe0 type rxe netdev veth0 || echo "why: no rxe device"
rdma link add rxe1 type rxe netdev veth1 || echo "why: no rxe device"
mkdir -p /tmp/pair
key=$(printf '%064d' 7)

# pair_end NAME PROGRAM [VARIABLE=VALUE…] -- WORD…: starts one end as a user. Output in /tmp/pair/NAME, errors in NAME.err.
pair_end() {
    local name=$1 program=$2 settings=()
    shift 2
    while [[ $1 != -- ]]; do
        settings+=("$1")
        shift
    done
    shift
    rm -f "/tmp/pair/$name"*
    setpriv --reuid 5001 --regid 5001 --clear-groups env -i PATH="$PATH" "${settings[@]}" "$programs/$program" "$@" \
        >"/tmp/pair/$name" 2>"/tmp/pair/$name.err" &
}

# holds NAME EXPRESSION: an expression of Python over the lines of both ends must be true. `ended` has their exit codes.
# shellcheck disable=SC2034 # inside.sh reads failed
holds() {
    if python3 -c '
import json, sys
serve, connect = (json.loads(open("/tmp/pair/" + name).read() or "{}") for name in ("serve", "connect"))
ended = [int(code) for code in sys.argv[2].split()]
print("serve", ended[0], json.dumps(serve))
print("connect", ended[1], json.dumps(connect))
sys.exit(not eval("(" + sys.argv[1] + ")"))
' "$2" "$ended" >/tmp/pair/why 2>&1; then
        echo "ok: $1"
    else
        echo "bad: $1: not $2"
        cat /tmp/pair/*.err >>/tmp/pair/why
        failed=1
    fi
    sed 's/^/why: /' /tmp/pair/why
}

# both_end SERVE CONNECT: waits for both processes, keeps their exit codes, and prints the time since the call.
both_end() {
    local began=$SECONDS one two
    wait "$1"
    one=$?
    wait "$2"
    two=$?
    ended="$one $two"
    echo "why: $((SECONDS - began)) s"
}

pair_end serve selftest RAILGATE_PAIR_KEY="$key" -- serve rxe0 --port 18600 --listen 127.0.0.1
serve=$!
pair_end connect selftest RAILGATE_PAIR_KEY="${key/7/8}" -- connect rxe1 127.0.0.1:18600
wait $!
ended="0 $?"
holds "pair: another key is refused" \
    'ended[1] == 3 and connect["error"] == "the peer closed the connection" and connect["peer_device"] is None'
printf 'GET / HTTP/1.1\r\n\r\n' >/dev/tcp/127.0.0.1/18600
pair_end connect selftest RAILGATE_PAIR_KEY="$key" -- connect rxe1 127.0.0.1:18600
both_end "$serve" $!
holds "pair: measured in both directions, after two clients without the key" 'ended == [0, 0] and all(
    one["error"] is None and one["peer_device"] == peer and all(value > 0 for value in one["gbps"].values())
    and all(value > 0 for value in one["latency_us"].values()) and one["wrong_words"] == {"out": 0, "in": 0}
    and one["first_wrong"] == {"out": None, "in": None} for one, peer in ((serve, "rxe1"), (connect, "rxe0")))
    and abs(serve["gbps"]["write_in"] - connect["gbps"]["write_out"]) < 1e-9 * serve["gbps"]["write_in"]
    and open("/tmp/pair/serve.err").read().count("dropped 127.0.0.1") == 2'

pair_end serve selftest-planted RAILGATE_PAIR_KEY="$key" RAILGATE_PLANT=2000 -- serve rxe0 --port 18600
serve=$!
pair_end connect selftest-planted RAILGATE_PAIR_KEY="$key" RAILGATE_PLANT=1000 -- connect rxe1 127.0.0.1:18600
both_end "$serve" $!
# One word of a write and one of a read in each direction.
holds "pair: a flipped bit is found at its word, in writes and reads of both ends" 'ended == [0, 0]
    and connect["wrong_words"] == {"out": 2, "in": 2} and connect["first_wrong"] == {"out": 8000, "in": 16000}
    and serve["wrong_words"] == {"out": 2, "in": 2} and serve["first_wrong"] == {"out": 16000, "in": 8000}'

# killed NAME: kills one end while the other measures or waits.
killed() {
    local pids=()
    pair_end serve selftest RAILGATE_PAIR_KEY="$key" -- serve rxe0 --port 18600
    pids+=($!)
    pair_end connect selftest RAILGATE_PAIR_KEY="$key" -- connect rxe1 127.0.0.1:18600
    pids+=($!)
    until grep -q testing "/tmp/pair/$1.err"; do
        kill -0 "${pids[0]}" "${pids[1]}" 2>/dev/null || break
        sleep 0.1
    done
    sleep 0.5
    if [[ $1 == serve ]]; then kill -9 "${pids[0]}"; else kill -9 "${pids[1]}"; fi
    both_end "${pids[@]}"
}

killed serve
holds "pair: the end that connects reports that the other was killed" \
    'ended[0] == 137 and connect["error"].endswith("the peer closed the connection")'
killed connect
holds "pair: the end that serves reports that the other was killed" \
    'ended[1] == 137 and serve["error"].endswith("the peer closed the connection")'
