"""Two ranks that train and then hang: hangs.py KIND

For $WORK_S seconds (default 13) both ranks multiply matrices and add gradients up. Then rank 1 does what the kind says, and rank 0
waits for it. $TRUTH gets one JSON line: the Unix time of the fault, and the process id of rank 1.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

KINDS = {}
RANK = int(os.environ["SLURM_PROCID"])
PORT = int(os.environ.get("PORT", 29541))


def kind(play):
    KINDS[play.__name__.replace("_", "-")] = play
    return play


class Ranks:
    def __init__(self):
        torch.cuda.set_device(int(os.environ["SLURM_LOCALID"]))
        dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{PORT}", rank=RANK, world_size=2)
        self.left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
        self.gradients = torch.zeros(1 << 24, device="cuda")
        self.others = [dist.new_group([0, 1]) for _ in range(2)]
        for group in self.others:
            dist.all_reduce(self.gradients, group=group)
        torch.cuda.synchronize()

    def compute(self):
        out = self.left
        for _ in range(20):
            out = torch.nn.functional.normalize(self.left @ out)

    def add_up(self):
        dist.all_reduce(self.gradients)
        torch.cuda.synchronize()

    def train(self, seconds):
        end = time.time() + seconds
        go_on = torch.ones(1, device="cuda")
        while go_on.item():
            self.compute()
            self.add_up()
            go_on.fill_(float(RANK == 1 or time.time() < end))
            dist.all_reduce(go_on, op=dist.ReduceOp.MIN)


@kind
def sleep(ranks):
    if RANK == 1:
        time.sleep(3600)
    ranks.add_up()


@kind
def stop(ranks):
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    ranks.add_up()


@kind
def exit_0(ranks):
    if RANK == 1:
        os._exit(0)
    ranks.add_up()


@kind
def exception(ranks):
    """srun does not end the other rank."""
    if RANK == 1:
        raise ValueError("the label 32768 is out of range")
    ranks.add_up()


@kind
def order(ranks):
    """Each rank waits in a collective of another communicator."""
    dist.all_reduce(ranks.gradients, group=ranks.others[RANK])
    torch.cuda.synchronize()
    ranks.add_up()


@kind
def another_collective(ranks):
    """One communicator, two collectives."""
    if RANK == 1:
        dist.broadcast(ranks.gradients, 0)
        torch.cuda.synchronize()
    ranks.add_up()


@kind
def sizes(ranks):
    """NCCL sends 16 numbers in another way than 16 million."""
    ranks.gradients = torch.zeros(16 if RANK == 0 else 1 << 24, device="cuda")
    while True:
        ranks.add_up()


class Stuck(torch.utils.data.Dataset):
    def __len__(self):
        return 100

    def __getitem__(self, at):
        time.sleep(3600)


@kind
def loader(ranks):
    """The worker process of rank 1 does not deliver."""
    if RANK == 1:
        next(iter(torch.utils.data.DataLoader(Stuck(), num_workers=1)))
    ranks.add_up()


@kind
def receive(ranks):
    """Rank 0 sends more than NCCL buffers (64 MB went through), and rank 1 does not receive."""
    # The first message makes a communicator.
    if RANK == 1:
        dist.recv(ranks.gradients, 0)
    else:
        dist.send(ranks.gradients, 1)
        dist.send(torch.zeros(1 << 28, device="cuda"), 1)
        torch.cuda.synchronize()
    ranks.add_up()


@kind
def file_system(ranks):
    """$DEAD is on a file system that does not answer."""
    if RANK == 1:
        os.stat(os.environ["DEAD"] + "/data")
    ranks.add_up()


@kind
def kernel(ranks):
    if RANK == 1:
        torch.cuda._sleep(1 << 60)
        torch.cuda.synchronize()
    ranks.add_up()


class Freed:
    """An array whose memory is given back."""

    def __init__(self):
        owner = torch.zeros(1 << 28, device="cuda")
        self.__cuda_array_interface__ = {"shape": (1 << 28,), "typestr": "<f4", "data": (owner.data_ptr(), False), "version": 2}
        self.array = torch.as_tensor(self, device="cuda")
        del owner
        torch.cuda.empty_cache()


@kind
def page_fault(ranks):
    """A kernel reads memory that is not mapped (Xid 31), and the program ignores the error and polls."""
    if RANK == 1:
        try:
            Freed().array.sum().item()
        except RuntimeError as why:
            print("rank 1:", str(why).splitlines()[0])
        while True:
            pass
    ranks.add_up()


@kind
def checkpoint(ranks):
    """$FIFO has no reader."""
    if RANK == 1:
        torch.save({"model": ranks.gradients.cpu()}, os.environ["FIFO"])
    ranks.add_up()


@kind
def swap(ranks):
    """The kernel throttles rank 1, since its control group has more memory than it may."""
    if RANK == 1:
        blocks = []
        while True:
            blocks.append(bytearray(os.urandom(1 << 20)))
    ranks.add_up()


def main():
    play = KINDS[sys.argv[1]]
    ranks = Ranks()
    ranks.train(float(os.environ.get("WORK_S", "13")))
    if RANK == 1:
        with open(os.environ["TRUTH"], "w") as file:
            file.write(json.dumps({"fault": time.time(), "pid": os.getpid()}) + "\n")
    play(ranks)


main()
