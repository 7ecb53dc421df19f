"""Starts `kinora serve` on a free port of the loopback interface for a test, and ends it."""
import os
import re
import signal
import subprocess
import tempfile

# A program that sanitizers watch is many times slower, and so is all that waits for it.
SLOWER = float(os.environ.get("KINORA_SLOWER", "1"))


def patience(seconds):
    return seconds * SLOWER


class Serving:
    def __init__(self, program, *flags, environment=None):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", *flags], stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, **(environment or {})})
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)/", line)
        if not found:
            raise RuntimeError(f"kinora serve did not start: {line}{self.logged()}")
        self.port = int(found.group(1))
        self.url = f"http://127.0.0.1:{self.port}"

    def logged(self):
        self.log.flush()
        with open(self.log.name) as log:
            return log.read()

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(timeout=patience(60))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
