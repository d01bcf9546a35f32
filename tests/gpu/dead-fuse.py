"""A file system that does not answer: dead-fuse.py DIRECTORY

Processes that access a file in it wait in the kernel in state D, as on a file server that is gone, until this one is killed.
"""

import ctypes
import os
import signal
import struct
import sys
import time

INIT, INTERRUPT = 26, 36
PARALLEL_LOOKUPS = 1 << 18
ENOSYS = -38


def answer(fuse, unique, body=b"", error=0):
    os.write(fuse, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def main():
    place = sys.argv[1].encode()
    fuse = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"dead", place, b"fuse", ctypes.c_ulong(6), options) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    first = None
    while True:
        request = os.read(fuse, 1 << 17)
        _, opcode, unique = struct.unpack_from("<IIQ", request)
        print("request", opcode, flush=True)
        if opcode == INIT:
            body = struct.pack("<IIIIHHIIHHI", 7, 31, 0, PARALLEL_LOOKUPS, 0, 0, 65536, 1, 0, 0, 0) + bytes(28)
            answer(fuse, unique, body)
            # The kernel waits uninterruptibly only where the file system has said that it does not know interrupts.
            first = os.fork()
            if first == 0:
                os.close(fuse)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(1)
                try:
                    os.stat(place + b"/first")
                finally:
                    os._exit(0)
        elif opcode == INTERRUPT:
            answer(fuse, unique, error=ENOSYS)
            time.sleep(0.1)
            print("waits cannot be interrupted from now on", flush=True)


main()
