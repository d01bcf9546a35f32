"""Two ranks that call NCCL without PyTorch and then hang: nccl_hangs.py KIND LIBNCCL

Plays kinds of hangs.py with a library that PyTorch need not load with. For $WORK_S seconds (default 3) both ranks add gradients
up. Then rank 1 does what the kind says, and rank 0 waits for it. Rank 0 writes the communicators' unique ids to the file
$UNIQUE_IDS. $TRUTH gets one JSON line: the Unix time of the fault, the process id of rank 1, and NCCL's release.
"""

import ctypes
import json
import os
import pathlib
import signal
import struct
import sys
import time

RANK = int(os.environ["SLURM_PROCID"])
DEVICE = int(os.environ["SLURM_LOCALID"])
GRADIENTS = 1 << 24
UNIQUE_ID_BYTES = 128
FLOAT_32 = 7
SUM = 0


class UniqueId(ctypes.Structure):
    """NCCL takes it by value."""

    _fields_ = [("internal", ctypes.c_byte * UNIQUE_ID_BYTES)]


class Library:
    """Functions of a C library that return 0, or a number that `explain` has a text for."""

    def __init__(self, path, functions):
        self.library = ctypes.CDLL(path)
        for name, arguments in functions.items():
            function = getattr(self.library, name)
            function.argtypes = arguments
            function.restype = ctypes.c_int
            setattr(self, name, self.checked(name, function))

    def checked(self, name, function):
        def call(*arguments):
            if code := function(*arguments):
                sys.exit(f"rank {RANK}: {name} returned {code}: {self.explain(code)}")

        return call

    def explain(self, code):
        raise NotImplementedError


class Driver(Library):
    def __init__(self):
        pointer = ctypes.c_uint64
        super().__init__("libcuda.so.1", {
            "cuInit": [ctypes.c_uint],
            "cuDeviceGet": [ctypes.POINTER(ctypes.c_int), ctypes.c_int],
            "cuDevicePrimaryCtxRetain": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int],
            "cuCtxSetCurrent": [ctypes.c_void_p],
            "cuMemAlloc_v2": [ctypes.POINTER(pointer), ctypes.c_size_t],
            "cuMemsetD32Async": [pointer, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p],
            "cuMemcpyDtoH_v2": [ctypes.c_void_p, pointer, ctypes.c_size_t],
            "cuStreamCreate": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint],
            "cuStreamSynchronize": [ctypes.c_void_p],
        })

    def explain(self, code):
        text = ctypes.c_char_p()
        self.library.cuGetErrorString(ctypes.c_int(code), ctypes.byref(text))
        return (text.value or b"unknown error").decode()


class Nccl(Library):
    def __init__(self, path):
        super().__init__(path, {
            "ncclGetVersion": [ctypes.POINTER(ctypes.c_int)],
            "ncclGetUniqueId": [ctypes.POINTER(UniqueId)],
            "ncclCommInitRank": [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int],
            "ncclAllReduce": [
                ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p,
            ],
        })
        self.library.ncclGetErrorString.argtypes = [ctypes.c_int]
        self.library.ncclGetErrorString.restype = ctypes.c_char_p

    def explain(self, code):
        return self.library.ncclGetErrorString(code).decode()

    def release(self):
        number = ctypes.c_int()
        self.ncclGetVersion(ctypes.byref(number))
        return f"{number.value // 10000}.{number.value // 100 % 100}.{number.value % 100}"


class Ranks:
    def __init__(self, library):
        self.driver = Driver()
        self.driver.cuInit(0)
        device = ctypes.c_int()
        self.driver.cuDeviceGet(ctypes.byref(device), DEVICE)
        # NCCL uses the device of the current context, which has to be the primary one.
        context = ctypes.c_void_p()
        self.driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        self.driver.cuCtxSetCurrent(context)
        self.stream = ctypes.c_void_p()
        self.driver.cuStreamCreate(ctypes.byref(self.stream), 0)
        self.gradients = self.allocate(GRADIENTS)
        self.ends = self.allocate(1)

        self.nccl = Nccl(library)
        self.world, *self.others = [self.communicator(unique_id) for unique_id in self.unique_ids(3)]
        for communicator in self.others:
            self.all_reduce(self.gradients, GRADIENTS, communicator)

    def allocate(self, numbers):
        memory = ctypes.c_uint64()
        self.driver.cuMemAlloc_v2(ctypes.byref(memory), 4 * numbers)
        self.fill(memory, numbers, 0.0)
        return memory

    def fill(self, memory, numbers, value):
        (bits,) = struct.unpack("I", struct.pack("f", value))
        self.driver.cuMemsetD32Async(memory, bits, numbers, self.stream)

    def unique_ids(self, count):
        path = pathlib.Path(os.environ["UNIQUE_IDS"])
        if RANK == 0:
            made = [UniqueId() for _ in range(count)]
            for unique_id in made:
                self.nccl.ncclGetUniqueId(ctypes.byref(unique_id))
            # Rank 1 never sees a part of the file.
            part = path.with_name(path.name + ".part")
            part.write_bytes(b"".join(bytes(unique_id) for unique_id in made))
            part.rename(path)
            return made
        end = time.monotonic() + 60
        while not path.exists():
            if time.monotonic() > end:
                sys.exit(f"rank {RANK}: no unique ids from rank 0 within 60 s")
            time.sleep(0.05)
        content = path.read_bytes()
        return [UniqueId.from_buffer_copy(content, at * UNIQUE_ID_BYTES) for at in range(count)]

    def communicator(self, unique_id):
        made = ctypes.c_void_p()
        self.nccl.ncclCommInitRank(ctypes.byref(made), 2, unique_id, RANK)
        return made

    def all_reduce(self, memory, numbers, communicator):
        self.nccl.ncclAllReduce(memory.value, memory.value, numbers, FLOAT_32, SUM, communicator, self.stream)
        self.driver.cuStreamSynchronize(self.stream)

    def add_up(self):
        self.all_reduce(self.gradients, GRADIENTS, self.world)

    def train(self, seconds):
        """Rank 0 looks at the clock, and both ranks see its decision."""
        end = time.monotonic() + seconds
        ends = ctypes.c_float(0.0)
        while ends.value == 0.0:
            self.add_up()
            self.fill(self.ends, 1, float(RANK == 0 and time.monotonic() > end))
            self.all_reduce(self.ends, 1, self.world)
            self.driver.cuMemcpyDtoH_v2(ctypes.byref(ends), self.ends, ctypes.sizeof(ends))


def sleep(ranks):
    if RANK == 1:
        time.sleep(3600)
    ranks.add_up()


def stop(ranks):
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    ranks.add_up()


def exit_0(ranks):
    if RANK == 1:
        os._exit(0)
    ranks.add_up()


def order(ranks):
    """Each rank waits in a collective of another communicator."""
    ranks.all_reduce(ranks.gradients, GRADIENTS, ranks.others[RANK])
    ranks.add_up()


KINDS = {"sleep": sleep, "stop": stop, "exit-0": exit_0, "order": order}


def main():
    play, library = KINDS[sys.argv[1]], sys.argv[2]
    ranks = Ranks(library)
    ranks.train(float(os.environ.get("WORK_S", "3")))
    if RANK == 1:
        with open(os.environ["TRUTH"], "w") as file:
            file.write(json.dumps({"fault": time.time(), "pid": os.getpid(), "nccl": ranks.nccl.release()}) + "\n")
    play(ranks)


main()
