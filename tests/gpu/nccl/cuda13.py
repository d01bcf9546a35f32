#!/usr/bin/env python3
"""Prints a header with the names that CUDA 13 dropped, so that older releases of NCCL compile with it.

    cuda13.py cudaTypedefs.h
"""
import re
import sys

newest = {}
for name, version in re.findall(r"\(CUDAAPI \*(PFN_\w+)_v(\d+)\)", open(sys.argv[1]).read()):
    # As in CUDA 12.
    if int(version) <= 12040:
        newest[name] = max(newest.get(name, 0), int(version))
newest.pop("PFN_cuGraphInstantiate", None)
for name, version in newest.items():
    print(f"typedef {name}_v{version} {name};")
print("""#define cudaStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count) \\
  cudaStreamGetCaptureInfo(stream, status, id, graph, nodes, NULL, count)
#define cudaStreamUpdateCaptureDependencies(stream, nodes, count, flags) \\
  cudaStreamUpdateCaptureDependencies(stream, nodes, NULL, count, flags)""")
