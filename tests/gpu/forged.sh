#!/usr/bin/env bash
# Kernel log records that a user's program causes or imitates, with a real libnvidia-ml: none drains the node.
#
#   tests/gpu/forged.sh RAILGATE      path of the `railgate` program
#
# As root on a machine with NVIDIA GPUs, PyTorch and cc. It changes nothing: its kernel log is a file that starts with this kernel's
# records if those can be read. Results are printed as "ok: …"; the first failure ends the script.
set -euo pipefail
railgate=$(realpath "$1")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

ok() { printf 'ok: %s\n' "$*"; }
wrong() {
    printf 'WRONG: %s\n' "$*"
    exit 1
}
address=$(nvidia-smi --query-gpu=pci.bus_id --format=csv,noheader | head -n1 | tr '[:upper:]' '[:lower:]')
address=${address#0000}
address=${address%.*}

printf '[source]\nkmsg = "%s/kmsg"\ntest_node = true\n[gate]\nstrikes = 1\n' "$place" >railgate.toml
seq=0
record() { # TEXT: appends one record of the kernel
    seq=$((seq + 1))
    printf '3,%s,%s,-;%s\n' "$((1000000 + seq))" "$((1000000 * seq))" "$1" >>kmsg
}
judged() { # EXIT-CODE WORDS…: exit code and output of a check that needs no second strike
    local want=$1 code=0
    shift
    "$railgate" --config railgate.toml check --phase prolog >said || code=$?
    [[ $code == "$want" ]] || { cat said && wrong "exit code $code, not $want"; }
    for words in "$@"; do
        grep -qF -- "$words" said || { cat said && wrong "no '$words'"; }
    done
}

: >kmsg
judged 0
ok "fit or degraded without records"

printf 'int main() { *(volatile int *)8 = 1; }\n' >crash.c
cc -o 'NVRM: fallen off the bus' crash.c
before=$(dmesg 2>/dev/null | wc -l || true)
('./NVRM: fallen off the bus' || true) 2>/dev/null
text=$(dmesg 2>/dev/null | tail -n +"$((before + 1))" | sed -n 's/^\[[^]]*\] \(NVRM: .*segfault.*\)/\1/p' | head -n1)
if [[ $text ]]; then
    ok "this kernel wrote: $text"
else
    text='NVRM: fallen of[77]: segfault at 8 ip 0 sp 0 error 6 in NVRM: fallen off the bus[401000+1000]'
    printf 'crash records of this kernel are not available; using a recorded one: %s\n' "$text"
fi
record "$text"
record 'NVRM: GPU 1:0:0[78]: segfault at 8 ip 0 sp 0 error 6 in fallen off the bus[401000+1000]'
judged 0 'kmsg-forged' 'imitated a driver'
grep -q 'gpu-lost' said && wrong "a GPU is lost"
ok "a program named like the driver is told from it"

# A real error of a program: access to an unmapped address.
before=$(dmesg 2>/dev/null | wc -l || true)
python3 - <<'PYTHON' >/dev/null 2>&1 || true
import torch
x = torch.zeros(4, dtype=torch.int32, device="cuda")
wild = torch.cuda._compile_kernel('extern "C" __global__ void wild(int *x) { x[1ll << 40] = 1; }', "wild")
wild(grid=(1, 1, 1), block=(1, 1, 1), args=[x])
torch.cuda.synchronize()
PYTHON
sleep 1
xid=$(dmesg 2>/dev/null | tail -n +"$((before + 1))" | sed -n 's/^\[[^]]*\] \(NVRM: Xid .*\)/\1/p' | head -n1)
if [[ $xid ]]; then ok "this driver wrote: $xid"; fi
record "${xid:-NVRM: Xid (PCI:$address): 31, pid=79, name=): 79, x, Ch 00000018, intr 00000000. MMU Fault}"
judged 0 'Xid 31'
ok "a program's own Xid fails nothing"

for code in '48, An uncorrectable double bit error (DBE) has been detected' '95, Uncontained: LTC TAG (0x2,0x0)' \
    '119, Timeout after 6s of waiting for RPC response from GPU0 GSP!' '79, GPU has fallen off the bus.'; do
    record "NVRM: Xid (PCI:$address): $code"
done
judged 0 'Xid 48' 'Xid 95' 'Xid 119' 'NVML reports no fault' 'fell off bus, Xid 79, answers again'
ok "whole sentences of the driver that this NVML denies fail nothing"

# Codes of the catalogue with action RESET_GPU that a program can raise or that are decoded; switch and kernel lines.
for code in '109, pid=79, name=x, Ch 00000018, errorString CTX SWITCH TIMEOUT, Info 0x2c014' \
    '145, RLW_RXPIPE  Nonfatal XC0 i0 Link 11 (0x00000002 0x00000001 0x00000000 0x00000000 0x00000000 0x00000000)' \
    '149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)'; do
    record "NVRM: Xid (PCI:$address): $code"
done
record 'nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 26006, SOE HALTED'
record 'NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out'
judged 0 'Xid 109' 'Xid 145' 'Xid 149' 'SXid 26006' 'net-timeout'
ok "RESET_GPU codes that NVML denies, a switch's line without a severity and a kernel line only warn"
cat said
ok "all done"
