"""Records what NCCL's RAS answers about ranks that hang: python3 tests/gpu/ras.py DIRECTORY LIBNCCL…

Each library plays the kinds of train/hangs.py below on two GPUs, as many libraries at once as there are GPUs for. Writes
DIRECTORY/<release>-<name>.json and .txt. A release without JSON answers the request for it with an error, which is kept.
"""

import concurrent.futures
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(__file__).parent / "train/hangs.py"
NAMES = {"order": "different-order", "sleep": "rank-behind", "exit-0": "rank-gone", "stop": "rank-stopped"}
# The ranks that are left notice a missing one by its silence.
SETTLES_S = {"order": 3, "sleep": 3, "exit-0": 8, "stop": 8}


def ask(port, form):
    with socket.create_connection(("localhost", port), timeout=20) as client:
        client.sendall(f"CLIENT PROTOCOL 2\nSET FORMAT {form}\nTIMEOUT 5\nVERBOSE STATUS\n".encode())
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
    return answer


def play(kind, library, pair, to):
    port = 28100 + pair
    with tempfile.TemporaryDirectory() as directory:
        truth = pathlib.Path(directory) / "truth"
        environment = {
            **os.environ, "LD_PRELOAD": str(library), "CUDA_VISIBLE_DEVICES": f"{2 * pair},{2 * pair + 1}", "WORK_S": "3",
            "NCCL_RAS_ADDR": f"localhost:{port}", "PORT": str(29600 + pair), "TRUTH": str(truth), "NCCL_NVLS_ENABLE": "0",
            "NCCL_DEBUG": "VERSION",
        }
        log = open(to / f"{library.stem}-{kind}.log", "w")
        ranks = [
            subprocess.Popen(
                [sys.executable, PROGRAM, kind], stdout=log, stderr=log,
                env={**environment, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)},
            )
            for rank in range(2)
        ]
        try:
            end = time.monotonic() + 60
            while not (truth.exists() and truth.read_text()):
                if time.monotonic() > end:
                    return f"{library.stem} {kind}: not played"
                time.sleep(0.1)
            time.sleep(SETTLES_S[kind])
            for form, suffix in (("json", "json"), ("text", "txt")):
                answer = ask(port, form)
                (to / f"{library.stem.removeprefix('libnccl-')}-{NAMES[kind]}.{suffix}").write_bytes(answer)
            return f"{library.stem} {kind}: recorded"
        except OSError as why:
            return f"{library.stem} {kind}: {why}"
        finally:
            for rank in ranks:
                rank.send_signal(signal.SIGKILL)
                rank.wait()


def main():
    to = pathlib.Path(sys.argv[1])
    to.mkdir(parents=True, exist_ok=True)
    gpus = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
    pairs = queue.SimpleQueue()
    for pair in range(gpus // 2):
        pairs.put(pair)

    def all_kinds(library):
        pair = pairs.get()
        for kind in NAMES:
            print(play(kind, library, pair, to), flush=True)
        pairs.put(pair)

    libraries = [pathlib.Path(one).resolve() for one in sys.argv[2:]]
    with concurrent.futures.ThreadPoolExecutor(gpus // 2) as pool:
        list(pool.map(all_kinds, libraries))


if __name__ == "__main__":
    main()
