#!/usr/bin/env python3
"""Turns archives of corpus.sh into recordings: python3 tests/gpu/corpus-pack.py ARCHIVE…

Writes tests/corpus/<GPU>/<KIND>/ with no name of a machine, no path of it and no identity of its GPUs:

recorded.json   when and on what it was recorded, and when the sampler ended
truth.json      what the program itself measured, one line for each rank
node.json       the node report without what follows from the files below, without the environment and the GPUs of other jobs
samples         the sampler's file
pauses.json     pauses of the ranks, if the sampler found any
ranks/, app/    files of NCCL's profiler plugin and of railgate.py: one line for each word that is not zero, its place and its value
slurm.json, decision.json, slurm-end.json   what Slurm and the controller said
log             output of the job, at most 200 lines
said.txt        what the report said on the day of the recording: its first lines without those of the machine and the model
"""

import json
import pathlib
import re
import shutil
import struct
import sys
import tarfile
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests/corpus"
MOST_LINES = 200


class Neutral:
    """Replaces what names the machine."""

    def __init__(self, host, text):
        short = host.split(".")[0]
        # A host named "vm" must not change "nvmlDevice".
        self.pairs = [(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "gn1") for name in sorted({host, short}, key=len, reverse=True) if name]
        self.pairs.append(("/var/tmp/railgate-gpu/?", "/home/researcher/"))
        uuids = sorted(set(re.findall(r"GPU-[0-9a-f]{8}-[0-9a-f-]{27}", text)))
        self.pairs += [(uuid, f"GPU-00000000-0000-0000-0000-{i:012}") for i, uuid in enumerate(uuids)]
        boots = sorted(set(re.findall(r'"boot_id": ?"([0-9a-f-]{36})"', text)))
        self.pairs += [(boot, f"00000000-0000-0000-0000-{i:012}") for i, boot in enumerate(boots)]

    def text(self, text):
        for old, new in self.pairs:
            text = re.sub(old, new, text)
        return text

    def samples(self, data):
        """The same for a file of the sampler."""
        return b"".join(frame(kind, self.text(payload.decode()).encode() if kind in b"HNE" else payload) for kind, payload in once(data))


def frame(kind, payload):
    return struct.pack("<IcI", len(payload), kind, zlib.crc32(kind + payload)) + payload


def once(data):
    """Frames of length, kind, CRC-32 and payload: each head that a sample follows and that is not yet in force, and each sample once."""
    frames, at = [], 0
    while at + 9 <= len(data):
        length, kind, check = struct.unpack_from("<IcI", data, at)
        payload = data[at + 9 : at + 9 + length]
        if zlib.crc32(kind + payload) != check:
            break
        at += 9 + length
        frames.append((kind, payload))
    head, seen = None, set()
    for (kind, payload), (following, _) in zip(frames, frames[1:] + [(b"E", b"")]):
        if kind == b"H":
            if following == b"H" or payload == head:
                continue
            head = payload
        elif kind in b"SM":
            if payload in seen:
                continue
            seen.add(payload)
        yield kind, payload


def words(data):
    """A mostly empty file as text: its size, then place and value of each word."""
    whole = data + bytes(-len(data) % 8)
    found = struct.unpack(f"<{len(whole) // 8}Q", whole)
    return "\n".join([str(len(data)), *(f"{i} {word:x}" for i, word in enumerate(found) if word)]) + "\n"


def clipped(text):
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > MOST_LINES:
        half = MOST_LINES // 2
        lines = [*lines[:half], f"[{len(lines) - MOST_LINES} lines left out]", *lines[-half:]]
    return "\n".join(line[:500] for line in lines) + "\n"


def summary(text):
    """The title, what the report said of the job, and its advice."""
    kept, keep = [], True
    for line in text.split("\n\n", 1)[0].splitlines():
        if not line.startswith(" "):
            keep = line.split(" ", 1)[0] in ("job", "VERDICT", "WHY", "PHASES", "TIME", "SLOW", "DO")
        if keep:
            kept.append(line)
    return "\n".join(kept) + "\n"


def needed(node):
    """The node report without what no row of the report's first screen and no rule reads."""
    kept = {key: value for key, value in node.items() if key not in ("settings", "steps", "applied")}
    kept["gpus"] = [gpu for gpu in node["gpus"] if gpu["own"] is not False]
    return json.dumps(kept, separators=(",", ":")) + "\n"


def pack(source, machine, host):
    attempts = sorted(source.glob("report/*/gn1.json"))
    if not attempts:
        return f"{source.name}: no node report"
    at = attempts[-1]
    text = at.read_text()
    neutral = Neutral(host, text)
    node = json.loads(neutral.text(text))
    card = re.search(r"[A-Z]+\d+", machine[1]).group().lower()
    place = ROOT / card / source.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)

    def put(name, content):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(content)

    usage = node.get("usage") or {}
    put("recorded.json", json.dumps({"date": machine[0], "gpu": machine[1], "sampler_end": usage.get("coverage", {}).get("end")}) + "\n")
    # What is made of raw files is left out where they were recorded.
    raw = {"communication": "ranks", "application": "app"}
    derived = {"usage"} | {key for key, files in raw.items() if any(source.glob(f"{files}/*"))}
    put("node.json", needed({key: value for key, value in node.items() if key not in derived}))
    truths = sorted(source.glob(f"{source.name}.json*"))
    put("truth.json", "".join(path.read_text() for path in truths if not path.name.endswith(".new")))
    samples = at.with_suffix(".samples")
    if samples.exists():
        (place / "samples").write_bytes(neutral.samples(samples.read_bytes()))
    pauses = source / "pauses.json"
    if pauses.exists():
        put("pauses.json", pauses.read_text())
    for kind in ("ranks", "app"):
        for path in sorted(source.glob(f"{kind}/*")):
            if path.name != "mode" and path.is_file():
                data = path.read_bytes()
                assert host.encode() not in data, f"{path} names the machine"
                put(f"{kind}/{neutral.text(path.name)}", words(data))
    for name in ("decision.json", "slurm-end.json"):
        path = at.with_name(name)
        if path.exists():
            put(name, neutral.text(path.read_text()))
    said = source / "said.json"
    if said.exists() and (slurm := json.loads(neutral.text(said.read_text())).get("slurm")):
        put("slurm.json", json.dumps(slurm) + "\n")
    for name, change in (("log", clipped), ("said.txt", summary)):
        if (source / name).exists():
            put(name, change(neutral.text((source / name).read_text(errors="replace"))))
    return f"{card}/{source.name}: {sum(path.stat().st_size for path in place.rglob('*') if path.is_file()) >> 10} KiB"


def main():
    for archive in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as place, tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
            stage = pathlib.Path(place)
            machine = (stage / "machine").read_text().splitlines()
            host = (stage / "host").read_text().strip()
            for source in sorted(path for path in stage.iterdir() if path.is_dir()):
                print(pack(source, machine, host))


main()
