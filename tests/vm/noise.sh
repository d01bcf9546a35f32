# shellcheck shell=bash disable=SC2154,SC2034 # inside.sh sources this, and reads failed
# How much the results of healthy rails vary: many preflights of the nodes of nodes.sh. Each one is a line with its bandwidths (Gb/s) and
# latencies (us).

# shellcheck source=tests/vm/nodes.sh disable=SC1091
. "$here/nodes.sh"

make_nodes
began=$SECONDS
for number in {1..40}; do
    [[ $((SECONDS - began)) -gt 1300 ]] && break
    preflight_of --repeats 0 --format json >"$work/out" 2>"$work/err"
    python3 -c '
import json, sys
found = json.load(open("/tmp/preflight/out"))
measured = [one["outcome"]["measured"] for of in found["rounds"] for one in of["tested"] if "measured" in one["outcome"]]
print("why: noise", json.dumps({
    "gbps": [round(rate, 6) for one in measured for rate in one["gbps"]], "us": [round(one["latency_us"], 2) for one in measured],
    "tests": sum(len(of["tested"]) for of in found["rounds"]), "named": len(found["report"]["verdicts"])}))
' || { sed 's/^/why: /' "$work/err"; failed=1; }
done
echo "ok: noise: $number preflights in $((SECONDS - began)) s"
remove_nodes
