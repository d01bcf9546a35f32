#!/usr/bin/env python3
"""Gives a recorded machine without RDMA one HCA for each GPU, so that railgate has a topology file to write.

    railgate snapshot --out here.json
    plant.py here.json >planted.json
    railgate rails --snapshot planted.json --format xml >good.xml      # with planted.toml's wiring in the profile

The HCAs have bus ids that do not exist (domain 01xx): NCCL ignores their elements and keeps the bridges, so the same file is
valid on the real machine.
"""
import json
import sys

snapshot = json.load(open(sys.argv[1]))
gpus = snapshot["gpus"]["read"]["data"]["gpus"]


def hca(k):
    port = {
        "number": 1,
        "link_layer": {"known": "infini-band"},
        "state": {"known": "active"},
        "phys_state": {"known": "link-up"},
        "rate_gbps": {"known": 400.0},
        "rate_text": {"known": "400 Gb/sec (4X NDR)"},
        "lid": {"known": 256 + k},
        "sm_lid": {"known": 1},
        "counters": {},
    }
    return {
        "name": f"mlx5_{k}",
        "pci": {"known": f"{0x101 + k:04x}:00:00.0"},
        "node_guid": "unsupported",
        "firmware": "unsupported",
        "hca_type": "unsupported",
        "numa_node": "unsupported",
        "netdevs": [],
        "ports": [port],
    }


snapshot["fabric"] = {"read": {"data": {"hcas": [hca(k) for k in range(len(gpus))]}, "took_ms": 0.0}}
json.dump(snapshot, sys.stdout)
