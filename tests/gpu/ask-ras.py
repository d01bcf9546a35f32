"""Asks NCCL's RAS of a job, in text and as JSON, and prints the answers with their times: ask-ras.py PORT"""

import socket
import sys
import time

for commands in (["TIMEOUT 5", "VERBOSE STATUS"], ["TIMEOUT 5", "SET FORMAT json", "VERBOSE STATUS"]):
    began = time.monotonic()
    try:
        with socket.create_connection(("localhost", int(sys.argv[1])), timeout=15) as ras:
            file = ras.makefile("rwb", buffering=0)
            for command in ["CLIENT PROTOCOL 2", *commands]:
                file.write(command.encode() + b"\n")
                if command != "VERBOSE STATUS":
                    print(">", command, "<", file.readline(), flush=True)
            print(file.read().decode(errors="replace"))
    except OSError as why:
        print("error:", why)
    print(f"== {time.monotonic() - began:.3f} s", flush=True)
    time.sleep(1)
