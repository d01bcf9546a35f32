"""Records what NCCL's RAS answers about ranks that hang: python3 tests/gpu/ras.py DIRECTORY LIBNCCL…

Each library plays the kinds of train/nccl_hangs.py on two GPUs, as many libraries at once as there are GPUs for. Writes
DIRECTORY/<release>-<name>.json and .txt. A release without JSON answers the request for it with an error and then with text,
which is kept. DIRECTORY/<library>-<kind>.log has what the ranks wrote.
"""

import concurrent.futures
import json
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM = pathlib.Path(__file__).parent / "train/nccl_hangs.py"
NAMES = {"order": "different-order", "sleep": "rank-behind", "exit-0": "rank-gone", "stop": "rank-stopped"}
# The ranks that are left notice a missing one by its silence.
SETTLES_S = {"order": 3, "sleep": 3, "exit-0": 8, "stop": 8}
START_S = 60
ANSWER_S = 30
# Releases crashed when asked in quick succession (nccl#1718, nccl#1762).
PAUSE_S = 3
# Text is the default. NCCL 2.27 has no SET FORMAT.
REQUESTS = {"json": "SET FORMAT json\n", "txt": ""}


def ask(port, form):
    """RAS closes the connection at the end of its answer."""
    end = time.monotonic() + ANSWER_S
    answer = b""
    with socket.create_connection(("localhost", port), timeout=ANSWER_S) as client:
        client.sendall(f"CLIENT PROTOCOL 2\n{form}TIMEOUT 5\nVERBOSE STATUS\n".encode())
        while True:
            client.settimeout(max(end - time.monotonic(), 0.001))
            try:
                part = client.recv(1 << 16)
            except TimeoutError:
                raise TimeoutError(f"no end of the answer within {ANSWER_S} s, after {len(answer)} bytes") from None
            if not part:
                return answer
            answer += part


def record(port, prefix, rank_0):
    """What went well or wrong, by request."""
    outcomes = []
    for suffix, form in REQUESTS.items():
        try:
            answer = ask(port, form)
            pathlib.Path(f"{prefix}.{suffix}").write_bytes(answer)
            outcomes.append(f"{suffix} {len(answer)} bytes")
        except OSError as why:
            outcomes.append(f"{suffix}: {why}")
        time.sleep(PAUSE_S)
        if rank_0.poll() is not None:
            outcomes.append(f"rank 0 ended with {rank_0.returncode}")
            break
    return ", ".join(outcomes)


def play(kind, library, pair, to):
    # NCCL listens with SO_REUSEPORT. With one address for both ranks, the kernel gives some requests to rank 1, which does not
    # answer when it is stopped. Therefore each rank has an address of its own, and rank 0 is asked.
    ports = [28100 + 2 * pair + rank for rank in range(2)]
    with tempfile.TemporaryDirectory() as directory, open(to / f"{library.stem}-{kind}.log", "w") as log:
        truth = pathlib.Path(directory) / "truth"
        environment = {
            **os.environ, "CUDA_VISIBLE_DEVICES": f"{2 * pair},{2 * pair + 1}", "WORK_S": "3", "TRUTH": str(truth),
            "UNIQUE_IDS": f"{directory}/unique-ids", "NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "VERSION",
        }
        ranks = [
            subprocess.Popen(
                [sys.executable, PROGRAM, kind, library], stdout=log, stderr=log,
                env={
                    **environment, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "NCCL_RAS_ADDR": f"localhost:{ports[rank]}",
                },
            )
            for rank in range(2)
        ]
        try:
            end = time.monotonic() + START_S
            while True:
                # A rank may end right after it has written the truth.
                over = time.monotonic() > end or any(rank.poll() is not None for rank in ranks)
                if truth.exists() and (line := truth.read_text()):
                    break
                if over:
                    return f"{library.stem} {kind}: not played, see {log.name}"
                time.sleep(0.1)
            time.sleep(SETTLES_S[kind])
            prefix = to / f"{json.loads(line)['nccl']}-{NAMES[kind]}"
            return f"{library.stem} {kind}: {record(ports[0], prefix, ranks[0])}"
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
