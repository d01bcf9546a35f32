"""python3 -m unittest discover contrib/python"""

import os
import signal
import struct
import subprocess
import sys
import tempfile
import textwrap
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def told(directory, name="x.3"):
    with open(os.path.join(directory, name), "rb") as file:
        return file.read()


def steps(content):
    return struct.unpack_from("<q", content, 64)[0]


class Helper(unittest.TestCase):
    def run_python(self, code, directory, expect=0):
        env = {"RANK": "3", "WORLD_SIZE": "8", "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
        if directory is not None:
            env["RAILGATE_APP_DIR"] = directory
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], env=env, cwd=HERE, stderr=subprocess.PIPE
        )
        self.assertEqual((done.returncode, done.stderr.decode()), (expect, ""))

    def test_reported_values_survive_a_kill(self):
        with tempfile.TemporaryDirectory() as directory:
            self.run_python(
                """
                import os, railgate
                railgate.model(params=1e9, layers=2, heads=2, head_dim=4, seq_len=8)
                for n in range(10):
                    railgate.step(n, tokens=100, loss=1.0)
                os.kill(os.getpid(), 9)
                """,
                directory,
                -signal.SIGKILL,
            )
            content = told(directory)
            self.assertEqual((len(content), steps(content)), (12288, 10))

    def test_a_restart_continues_and_counts_repeated_steps(self):
        with tempfile.TemporaryDirectory() as directory:
            for first in (0, 6):
                code = "import railgate\nfor n in range(%d, %d): railgate.step(n)" % (first, first + 10)
                self.run_python(code, directory)
            content = told(directory)
            number, redone = struct.unpack_from("<qq", content, 19 * 8)
            self.assertEqual((steps(content), number, redone), (20, 15, 4))

    def test_a_forked_child_does_not_write_into_its_parents_file(self):
        with tempfile.TemporaryDirectory() as directory:
            self.run_python(
                """
                import os, railgate
                railgate.step(0)
                if os.fork() == 0:
                    railgate.step(1)
                    os._exit(0)
                os.wait()
                railgate.step(1)
                """,
                directory,
            )
            self.assertEqual((steps(told(directory)), steps(told(directory, "x.3.1"))), (2, 1))

    def test_no_call_raises_without_railgate(self):
        code = """
            import railgate
            railgate.model(params="many", convention=7)
            railgate.step(object(), tokens="x", samples=None, loss=[])
            with railgate.checkpoint():
                pass
            with railgate.waiting():
                pass
            """
        self.run_python(code, None)
        self.run_python(code, "/proc/no/such/place")
        with tempfile.NamedTemporaryFile() as file:
            self.run_python(code, file.name)
        with tempfile.TemporaryDirectory() as directory:
            self.run_python(code, directory)

    def test_the_example_reports_all_values_of_a_report(self):
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as saves:
            program = [sys.executable, "example_train.py", "--plain", "--steps=20", "--save-every=8", "--save-dir", saves]
            for rank in ("1", "0"):  # rank 0 saves, so it runs last: rank 1 must not find a checkpoint
                env = {"RANK": rank, "RAILGATE_APP_DIR": directory, "PYTHONDONTWRITEBYTECODE": "1"}
                subprocess.run(program, env=env, cwd=HERE, check=True, stdout=subprocess.DEVNULL)
                content = told(directory, "x." + rank)
                saved, _, number = struct.unpack_from("<qdq", content, 24 * 8)
                samples, = struct.unpack_from("<d", content, 16 * 8)
                self.assertEqual((steps(content), saved, number, samples), (20, 3, 20, 640.0))
                self.assertIn(b'"name": "line"', content)

    def test_a_full_file_system_disables_the_report(self):
        # As on a full tmpfs: the file cannot be extended.
        with tempfile.TemporaryDirectory() as directory:
            self.run_python(
                """
                import resource, signal
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
                import railgate
                railgate.step(0)
                railgate.step(1)
                """,
                directory,
            )

    def test_exceptions_of_the_user_are_passed_on(self):
        code = """
            import railgate
            try:
                with railgate.checkpoint():
                    raise ValueError
            except ValueError:
                raise SystemExit(3)
            """
        with tempfile.TemporaryDirectory() as directory:
            self.run_python(code, directory, 3)
            self.assertEqual(struct.unpack_from("<q", told(directory), 24 * 8)[0], 0)


if __name__ == "__main__":
    unittest.main()
