#!/usr/bin/env bash
# Real jobs on real GPUs with planted problems: the report must name the problem and the rank or part it affects.
#
#   tests/gpu/planted.sh [DIRECTORY [PLANT…]]   output of prepare.sh (default: target/gpu); default: all plants
#
# A slower clock and a slow rail cannot be planted without changing the machine's settings. A smaller batch needs three GPUs:
# with two it is unknown which one differs. Jobs run side by side as far as there are GPUs.
# Only for a disposable machine. Reports go to $OUT.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=$(realpath "${1:-target/gpu}")
out=${OUT:-$(mktemp -d)}
# shellcheck source-path=SCRIPTDIR source=machine.sh
source tests/gpu/machine.sh

# Plant, number of GPUs, the rule that must come first ("-": none), and the part or text that it must name.
# The longest one is first; one that needs more than two GPUs would delay those after it.
plants=(
    "hang 2 hang rank.1"
    "nothing 2 - -"
    "sleep 2 sleeping-rank rank.1"
    "input 2 input-bound -"
    "memory 2 memory-bound -"
    "tiny 2 launch-bound -"
    "nan 2 nan -"
    "killed 2 killed-rank rank.1"
    "batch 3 uneven-work rank.1"
)
wanted=("${@:2}")
failed=0

install_and_configure '[stats]
nccl_profiler = "all"'
torch_jobs planted.py "${PLANTED_SECONDS:-20}" --railgate-requeue=never
start_slurm

judge() { # PLANT RULE WHO REPORT
    python3 - "$@" <<'PY'
import json, re, sys

plant, rule, who, path = sys.argv[1:]
attempt = json.load(open(path))["attempts"][-1]
found = (attempt.get("analysis") or {}).get("diagnoses", [])
first = found[0] if found else None
right = first is None if rule == "-" else first is not None and first["rule"] == rule
right = right and (who == "-" or re.search(who, first["part"] + " " + first["what"]) is not None)
said = "; ".join(f"{one['rule']} ({one['confidence']}): {one['what']}" for one in found) or "nothing"
print(f"{'ok' if right else 'WRONG'}: {plant}: {said}")
sys.exit(not right)
PY
}

declare -A job=()
for row in "${plants[@]}"; do
    read -r plant has _ <<<"$row"
    ((has > gpus)) && continue
    ((${#wanted[@]})) && [[ " ${wanted[*]} " != *" $plant "* ]] && continue
    job[$plant]=$(submit_torch "$plant" "$has")
done
((${#job[@]})) || wrong "nothing to plant: $gpus GPUs, ${wanted[*]:-all}"
for row in "${plants[@]}"; do
    read -r plant _ rule who <<<"$row"
    id=${job[$plant]:-}
    [[ $id ]] || continue
    until_true 300 ended "$id" || wrong "job: $(scontrol show job "$id" | grep -E 'JobState|Reason')"
    # shellcheck disable=SC2317  # until_true calls it
    reported() {
        runuser -u researcher -- railgate report "$id" --format json >"$out/$plant.json" &&
            python3 -c 'import json, sys; sys.exit(not json.load(open(sys.argv[1]))["ended"])' "$out/$plant.json"
    }
    until_true 20 reported || wrong "no report: $(runuser -u researcher -- railgate report "$id" 2>&1)"
    runuser -u researcher -- railgate report "$id" >"$out/$plant.txt"
    sed -n '1,12p' "$out/$plant.txt"
    cp "$state/reports/$id.log" "$out/$plant.log"
    judge "$plant" "$rule" "$who" "$out/$plant.json" || failed=1
done
say "done; reports in $out"
exit "$failed"
