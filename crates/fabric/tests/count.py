#!/usr/bin/env python3
"""Counts devices and links in a topology file of ibnetdiscover, to compare them with the result of railgate's parser.

Written from out_switch_port, out_ca_port and dump_topology in infiniband-diags/ibnetdiscover.c (rdma-core 58), not from
railgate's source: one regular expression for each kind of line. Usage: count.py FILE; prints JSON. A file without
such lines, or with a line that does not match, gives {"error": TEXT}.
"""

import collections
import json
import re
import sys

ID = r'"([SHR])-([0-9a-f]{1,16})"'
RECORD = re.compile(r'(?:Switch|Ca|Rt)\s+\d+\s+' + ID + r'\s*(?:#\s*"(.*)")?')
PORT = re.compile(
    r'\[(\d+)\](?:\[ext \d+\])?(?:\(([0-9a-f]+)\))?\s+' + ID + r'\[(\d+)\](?:\[ext \d+\])?\s*(?:\(([0-9a-f]+)\))?'
    r'\s*#(?: lid -?\d* lmc \d+)? "(.*)" lid\s+-?\d*(?:\s+(1|2|4|8|12)x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR))?'
)
LANE = dict(SDR=2500, DDR=5000, QDR=10000, FDR10=10000, FDR=14000, EDR=25000, HDR=50000, NDR=100000, XDR=200000)
HOST = re.compile(
    r'([A-Za-z0-9][A-Za-z0-9._-]*)(?: ((?:HCA-|mlx[45]_|hfi1_|qib|ipath|mthca|bnxt_re|i?rdma)\d+|ibp\d+s\d+(?:f\d+)?))?'
)
NO_HOST = re.compile(r'localhost(\..*)?|MT\d{4,}.*|HCA-\d+|mlx[45]_\d+|Mellanox|QLogic|OmniPath|HFI')


def count(path):
    names, links, own, record = {}, {}, None, False
    for number, line in enumerate(open(path, encoding='utf-8', errors='replace'), 1):
        line = line.strip()
        if found := RECORD.match(line):
            own, record = found.group(1) + found.group(2).zfill(16), True
            names[own] = names.get(own) or found.group(3) or ''
        elif found := PORT.match(line):
            if own is None:
                return {'error': f'line {number}: a port before its device'}
            port, _, kind, guid, peer_port, _, name, lanes, speed = found.groups()
            peer = kind + guid.zfill(16)
            names[peer] = names.get(peer) or name
            ends = tuple(sorted([(own, int(port)), (peer, int(peer_port))]))
            rate = int(lanes) * LANE[speed] if lanes else 0
            if ends[0] != ends[1]:
                links[ends] = links.get(ends) or rate
        elif re.match(r'(Switch|Ca|Rt|\[\d)', line) or re.match(r'(SW|CA|RT)\s+\d', line):
            return {'error': f'line {number}'}
    if not record:
        return {'error': 'no record'}
    cards = {guid: name for guid, name in names.items() if guid[0] == 'H' and 'Aggregation Node' not in name}
    hosts, used = {}, collections.defaultdict(list)
    for guid, name in cards.items():
        found = HOST.fullmatch(' '.join(name.split()))
        if found and not NO_HOST.fullmatch(found.group(1)):
            hosts[guid] = found.group(1)
            used[found.group(1)].append(found.group(2))
    shared = {host for host, hcas in used.items() if len(hcas) != len(set(hcas))}
    rates, leafs, seen, ports = collections.Counter(), set(), set(), 0
    for ends, rate in links.items():
        rates[str(rate)] += 1
        for (one, _), (other, _) in (ends, ends[::-1]):
            if one in cards and other[0] == 'S':
                leafs.add(other)
                if hosts.get(one, '') not in shared | {''}:
                    seen.add(hosts[one])
                    ports += 1
    kinds = collections.Counter(guid[0] for guid in names)
    return {
        'switches': kinds['S'], 'hcas': kinds['H'], 'routers': kinds['R'], 'links': dict(rates),
        'leafs': len(leafs), 'ports': ports, 'hosts': sorted(seen),
    }


print(json.dumps(count(sys.argv[1])))
