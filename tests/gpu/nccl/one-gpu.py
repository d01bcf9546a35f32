#!/usr/bin/env python3
"""Empties the code for all but one GPU type in NVIDIA's libnccl.so, so that it compresses well; sizes and offsets stay.

    one-gpu.py LIBRARY 90 OUT
"""
import struct
import sys

source, wanted, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
data = bytearray(open(source, "rb").read())
kept = dropped = 0
at = data.find(b"\x50\xed\x55\xba\x01\x00\x10\x00")
while at >= 0:
    # A container: magic, version, size of this header, size of the content.
    end = at + 16 + struct.unpack_from("<Q", data, at + 8)[0]
    place = at + 16
    while place + 64 <= end:
        # Code of one type: kind (1 PTX, 2 machine code), size of this header and of the code, and the type at offset 28.
        kind, _, head, size = struct.unpack_from("<HHIQ", data, place)
        arch = struct.unpack_from("<I", data, place + 28)[0]
        if kind not in (1, 2) or head < 64 or place + head + size > end:
            break
        if kind == 2 and arch == wanted:
            kept += size
        else:
            dropped += size
            data[place + head:place + head + size] = bytes(size)
        place += head + size
    at = data.find(b"\x50\xed\x55\xba\x01\x00\x10\x00", max(end, at + 16))
open(out, "wb").write(data)
print(f"{out}: {kept / 1e6:.0f} MB of code for sm_{wanted} kept, {dropped / 1e6:.0f} MB for others emptied")
