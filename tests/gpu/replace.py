#!/usr/bin/env python3
"""Removes private data from a recorded node: serials, UUIDs, addresses, names, boot arguments.

    replace.py snapshot.json >tests/snapshots/name.json
"""
import json
import sys

snapshot = json.load(open(sys.argv[1]))
# Modules that are kept; others could identify the machine.
MODULES = ("ib_", "mlx5_", "nvidia", "virtio_", "overlay", "rdma", "nfs", "lustre", "ipv6", "loop")


def known(place, key, value):
    if isinstance(place.get(key), dict) and "known" in place[key]:
        place[key]["known"] = value


def uuid(index):
    return f"00000000-0000-4000-8000-{index:012d}"


snapshot["node"] = "h200"
snapshot["boot_id"] = uuid(0)
for index, gpu in enumerate(snapshot["gpus"]["read"]["data"]["gpus"]):
    known(gpu, "uuid", "GPU-" + uuid(index))
    known(gpu, "serial", str(1650000000000 + index))
host = snapshot["host"]["read"]["data"]
known(host, "hostname", "h200")
host["addresses"] = [[name, "192.0.2.2" if "." in address else "fd00::2"] for name, address in host["addresses"]]
system = host.get("system", {})
known(system, "boot_args", ["console=ttyS0", "quiet"])
for entry in system.get("file_systems", {}).get("known", []):
    entry["source"] = entry["source"] if entry["fs_type"] == "tmpfs" else "/dev/vda"
if isinstance(system.get("modules"), dict):
    system["modules"]["known"] = [name for name in system["modules"]["known"] if name.startswith(MODULES)]
log = snapshot["kernel_log"]["read"]["data"]
log["lines"] = [line for line in log["lines"] if "NVRM" in line["text"] or "nvidia" in line["text"]]
json.dump(snapshot, sys.stdout, indent=1)
print()
