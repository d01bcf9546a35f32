"""Report steps, tokens and checkpoints of your training to railgate. One file, standard library only, Python >= 3.6.

    import railgate

    railgate.model(params=6.7e9, layers=32, heads=32, head_dim=128, seq_len=4096)     once
    for number, batch in enumerate(data):
        with railgate.waiting():                                                      optional: time waiting for input
            batch = next(data)
        loss = train(batch)
        railgate.step(number, tokens=batch.numel(), loss=loss)                        after each step
        if number % 1000 == 0:
            with railgate.checkpoint():
                save()

`railgate report JOBID` then shows model FLOP utilisation, goodput, stragglers, NaN. Call it in every rank.

No call raises an exception, waits, or needs the network or a thread. Without railgate on the node each call does nothing.
The module writes 12 KiB of counters per rank, mapped into memory on the node: they survive kill -9. Losses
are checked (NaN, infinite, five times the mean) and not kept, unless you use model(keep_loss=True).
The format: docs/application-reports.md.
"""

import atexit
import math
import os
import struct
import sys
import time

try:
    import fcntl
    import json
    import mmap
except ImportError:  # not Unix
    fcntl = None

__all__ = ["model", "step", "checkpoint", "waiting"]

_SIZE = 12288
_MAGIC = b"RGAPPL\r\n"
_CLASSES = 384
_PER_LOG = 1 / math.log(1.05)
_SLOTS = 240
_NAN, _SPIKE, _START, _END = 1, 2, 3, 4

# Offsets in the file, in units of eight bytes.
_STEPS, _LAST_STEP, _SEEN, _TOTAL, _TIMED, _MIN, _MAX = 8, 9, 10, 11, 12, 13, 14
_TOKENS, _SAMPLES, _TIMED_TOKENS, _TIMED_SAMPLES = 15, 16, 17, 18
_NUMBER, _REDONE, _REDONE_S, _INPUT_S, _START_UP_S = 19, 20, 21, 22, 23
_SAVES, _SAVE_S, _SAVE_NUMBER, _SAVING = 24, 25, 26, 27
_STARTS, _STARTED, _FIRST_STEP, _FIRST_NUMBER, _TOLD = 29, 30, 31, 32, 33
_EVENTS, _ORIGIN, _SPAN = 35, 1024, 1025
_TOLD_TOKENS, _TOLD_SAMPLES, _TOLD_INPUT = 1, 2, 4

_clock = time.monotonic
_log = math.log
_getpid = os.getpid
_step_pack = struct.Struct("<qdddqddddddqqddd").pack_into
_slot_pack = struct.Struct("<If").pack_into


def _env(*names):
    for name in names:
        value = os.environ.get(name, "")
        if value.isdecimal() and len(value) < 10:
            return int(value)
    return None


def _directory():
    own = os.environ.get("RAILGATE_APP_DIR")
    if own:
        return own
    job_dir = os.environ.get("RAILGATE_JOB_DIR")
    if not job_dir:
        job = os.environ.get("SLURM_JOB_ID", "")
        if not job.isdigit():
            return None
        job_dir = "/run/railgate/jobs/%s/current" % job
    return job_dir + "/user/app"


class _Nothing(object):
    """Used if railgate is not on the node."""

    def __init__(self):
        self.pid = os.getpid()

    def step(self, number, tokens, samples, loss):
        pass

    def describe(self, told):
        pass

    def saving(self, begins):
        pass

    def waited(self, seconds):
        pass

    def close(self):
        pass


class _Report(object):
    def __init__(self, directory):
        self.pid = os.getpid()
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            pass
        self.rank = _env("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
        fd = self._lock(directory)
        self.fd = fd
        # Allocate the whole file: a full tmpfs then raises an error here, instead of SIGBUS at a later write.
        os.posix_fallocate(fd, 0, _SIZE)
        self.map = mmap.mmap(fd, _SIZE)
        whole = memoryview(self.map)
        self.real = whole.cast("d")
        self.whole_numbers = whole.cast("q")
        self.classes = whole[512:2048].cast("I")
        self.counts = whole[8208:10128].cast("I")
        self.sums = whole[8208:10128].cast("f")
        self.origin = time.monotonic()
        self.wall = time.time() - self.origin
        self.began = self.origin
        self.saved_s = 0.0
        self.last = None
        self.save_began = None
        self.keep_loss = False
        self.loss_mean = 0.0
        self.losses = 0
        q = self.whole_numbers
        now = self.origin + self.wall
        if self.map[:8] != _MAGIC:
            self.map[8:16] = (1).to_bytes(4, "little") + _SIZE.to_bytes(4, "little")
            self.real[_STARTED] = now
            q[_NUMBER] = q[_FIRST_NUMBER] = q[_SAVE_NUMBER] = -1
            self.real[_ORIGIN] = now
            self.real[_SPAN] = 10.0
            self.map[:8] = _MAGIC
        q[_STARTS] += 1
        q[_SAVING] = 0
        self._resume()
        self.real[_SEEN] = now
        who = {
            "rank": self.rank,
            "local_rank": _env("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"),
            "world": _env("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
            "start": _env("RAILGATE_START") or 0,
        }
        self._text(4096, who)
        self._event(_START, now, None)

    def _lock(self, directory):
        step = os.environ.get("SLURM_STEP_ID", "")
        step = step if step.isdigit() else "x"
        rank = "x" if self.rank is None else str(self.rank)
        for number in range(16):
            name = "%s.%s%s" % (step, rank, ".%d" % number if number else "")
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(os.path.join(directory, name), flags, 0o600)
            try:
                # A lock of the process: children do not inherit it, and the end of the process releases it.
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return fd
            except OSError:
                os.close(fd)
        raise OSError("sixteen other processes report as this rank")

    def _text(self, at, told):
        text = json.dumps(told).encode()[:2000]
        self.map[at + 4 : at + 4 + len(text)] = text
        self.map[at : at + 4] = len(text).to_bytes(4, "little")

    def _event(self, kind, now, loss):
        q = self.whole_numbers
        count = q[_EVENTS]
        place = (2048 + 32 * (count if count < 32 else 32 + count % 32)) // 8
        self.real[place] = now
        q[place + 1] = q[_NUMBER] if q[_NUMBER] >= 0 else q[_STEPS]
        q[place + 2] = kind | (0 if loss is None else 1 << 32)
        self.real[place + 3] = 0.0 if loss is None else loss
        q[_EVENTS] = count + 1

    def describe(self, told):
        self.keep_loss = bool(told.pop("keep_loss", False))
        self._text(6144, told)

    def step(self, number, tokens, samples, loss):
        at = _clock()
        now = at + self.wall
        last = self.last
        if last is None:
            took = None
            self.start_up += at - self.began - self.saved_s
            if not self.real[_FIRST_STEP]:
                self.real[_FIRST_STEP] = now
        else:
            took = at - last - self.saved_s
            if took < 1e-4:
                took = max(took, 0.0)
                place = 0
            else:
                place = int(_log(took * 1e4) * _PER_LOG)
                if place >= _CLASSES:
                    place = _CLASSES - 1
            self.timed += 1
            self.total += took
            if took > self.longest:
                self.longest = took
            if took < self.shortest:
                self.shortest = took
            self.classes[place] += 1
            if now >= self.slot_end:
                self._slot(now)
            slot = self.slot
            self.slot_count = count = self.slot_count + 1
            self.slot_sum = spent = self.slot_sum + took
            _slot_pack(self.map, slot, count, spent)
        if tokens is not None:
            tokens = float(tokens)
            self.tokens += tokens
            if took is not None:
                self.timed_tokens += tokens
            if not self.told & _TOLD_TOKENS:
                self._tell(_TOLD_TOKENS)
        if samples is not None:
            samples = float(samples)
            self.samples += samples
            if took is not None:
                self.timed_samples += samples
            if not self.told & _TOLD_SAMPLES:
                self._tell(_TOLD_SAMPLES)
        if number is not None:
            if number > self.number:
                if self.number < 0 and self.whole_numbers[_FIRST_NUMBER] < 0:
                    self.whole_numbers[_FIRST_NUMBER] = number
                self.number = number
            else:
                self.redone += 1
                if took is not None:
                    self.redone_s += took
        self.saved_s = 0.0
        self.last = at
        self.steps = steps = self.steps + 1
        _step_pack(
            self.map,
            64,
            steps,
            now,
            now,
            self.total,
            self.timed,
            self.shortest,
            self.longest,
            self.tokens,
            self.samples,
            self.timed_tokens,
            self.timed_samples,
            self.number,
            self.redone,
            self.redone_s,
            self.input_s,
            self.start_up,
        )
        if loss is not None:
            self._loss(loss, now)

    def _tell(self, what):
        self.told |= what
        self.whole_numbers[_TOLD] = self.told

    def _resume(self):
        """Continue the counts of an earlier process of this rank."""
        q, d = self.whole_numbers, self.real
        self.steps, self.timed, self.number, self.redone = q[_STEPS], q[_TIMED], q[_NUMBER], q[_REDONE]
        self.total, self.longest = d[_TOTAL], d[_MAX]
        self.shortest = d[_MIN] if self.timed else 1e12
        self.tokens, self.timed_tokens = d[_TOKENS], d[_TIMED_TOKENS]
        self.samples, self.timed_samples = d[_SAMPLES], d[_TIMED_SAMPLES]
        self.redone_s, self.input_s, self.start_up = d[_REDONE_S], d[_INPUT_S], d[_START_UP_S]
        self.told = q[_TOLD]
        self.slot = 0
        self.slot_end = 0.0

    def _slot(self, now):
        """Selects the time slot that contains now."""
        span = self.real[_SPAN]
        slot = max(0, int((now - self.real[_ORIGIN]) / span))
        if slot >= _SLOTS:
            slot = self._widen(now)
            span = self.real[_SPAN]
        self.slot = 8208 + 8 * slot
        self.slot_end = self.real[_ORIGIN] + (slot + 1) * span
        self.slot_count, self.slot_sum = struct.unpack_from("<If", self.map, self.slot)

    def _widen(self, now):
        """Merges pairs of slots, doubling their span, until now falls into a slot. Returns its index."""
        d, counts, sums = self.real, self.counts, self.sums
        while True:
            slot = int((now - d[_ORIGIN]) / d[_SPAN])
            if slot < _SLOTS:
                return max(slot, 0)
            for place in range(_SLOTS):
                left = 4 * place
                inside = 2 * place + 1 < _SLOTS
                counts[2 * place] = counts[left] + counts[left + 2] if inside else 0
                sums[2 * place + 1] = sums[left + 1] + sums[left + 3] if inside else 0.0
            d[_SPAN] *= 2

    def _loss(self, loss, now):
        # Reading a tensor on a GPU would make the program wait for the GPU.
        if type(loss) is not float:
            if getattr(loss, "is_cuda", False):
                return
            loss = float(loss)
        kept = loss if self.keep_loss else None
        if loss - loss != 0.0:
            self._event(_NAN, now, kept)
            return
        if self.losses >= 20 and self.loss_mean > 0.0 and loss > 5.0 * self.loss_mean:
            self._event(_SPIKE, now, kept)
            return
        self.losses = count = self.losses + 1
        self.loss_mean += (loss - self.loss_mean) * (0.02 if count > 50 else 1.0 / count)

    def saving(self, begins):
        at = time.monotonic()
        q, d = self.whole_numbers, self.real
        if begins:
            self.save_began = at
            q[_SAVING] = 1
        elif self.save_began is not None:
            took = at - self.save_began
            self.save_began = None
            self.saved_s += took
            d[_SAVE_S] += took
            q[_SAVES] += 1
            q[_SAVE_NUMBER] = q[_NUMBER]
            q[_SAVING] = 0
        d[_SEEN] = at + self.wall

    def waited(self, seconds):
        if not self.told & _TOLD_INPUT:
            self._tell(_TOLD_INPUT)
        # Time before the first step counts as start-up, not as input.
        if self.last is not None:
            self.input_s += seconds

    def close(self):
        now = time.monotonic() + self.wall
        self.real[_SEEN] = now
        self._event(_END, now, None)


_report = None


def _mine():
    """The report of this process; a forked child gets a new one."""
    global _report
    report = _report
    if report is None or report.pid != os.getpid():
        report = _Nothing()
        try:
            directory = _directory()
            if fcntl is not None and sys.byteorder == "little" and directory is not None:
                report = _Report(directory)
        except Exception:
            pass
        _report = report
    return report


def _at_exit():
    try:
        if _report is not None and _report.pid == os.getpid():
            _report.close()
    except Exception:
        pass


atexit.register(_at_exit)


def model(
    name="",
    convention="palm",
    params=None,
    active_params=None,
    layers=None,
    heads=None,
    head_dim=None,
    hidden=None,
    seq_len=None,
    vocab=None,
    flops_per_token=None,
    flops_per_sample=None,
    dtype="bf16",
    tokens="rank",
    gpus=1,
    keep_loss=False,
):
    """Describes the model; call it once. convention: palm (6N + 12LHQT per token), causal (6N + 6LHQT), megatron
    (72Lh^2(1 + T/6h + V/12Lh)), explicit (flops_per_token or flops_per_sample, forward and backward).
    active_params: parameters that one token uses in a mixture of experts. tokens: "rank" if step() gets this
    rank's share, "global" if every rank passes the whole job's number. gpus: number of GPUs of this rank."""
    try:
        told = dict(name=str(name)[:200], convention=str(convention), dtype=str(dtype)[:16])
        numbers = dict(params=params, active_params=active_params, layers=layers, heads=heads, head_dim=head_dim)
        numbers.update(hidden=hidden, seq_len=seq_len, vocab=vocab, gpus=gpus)
        numbers.update(flops_per_token=flops_per_token, flops_per_sample=flops_per_sample)
        told.update((key, float(value)) for key, value in numbers.items() if value is not None)
        told["global"] = tokens == "global"
        told["keep_loss"] = keep_loss
        _mine().describe(told)
    except Exception:
        pass


def step(step=None, tokens=None, samples=None, loss=None):
    """Reports the end of a step. step: its number, if any, which identifies repeated steps after a restart.
    tokens, samples: number processed. loss: a plain number; tensors on a GPU are ignored."""
    try:
        report = _report
        if report is None or report.pid != _getpid():
            report = _mine()
        report.step(step, tokens, samples, loss)
    except Exception:
        pass


class checkpoint(object):
    """with railgate.checkpoint(): the time inside does not count as part of a step."""

    def __enter__(self):
        try:
            _mine().saving(True)
        except Exception:
            pass
        return self

    def __exit__(self, kind, value, trace):
        # A failed checkpoint does not count.
        try:
            if kind is None:
                _mine().saving(False)
        except Exception:
            pass
        return False


class waiting(object):
    """with railgate.waiting(): the time inside counts as waiting for input."""

    def __enter__(self):
        self.began = time.monotonic()
        return self

    def __exit__(self, kind, value, trace):
        try:
            _mine().waited(time.monotonic() - self.began)
        except Exception:
            pass
        return False
