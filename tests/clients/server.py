"""Starts the binary under test on free ports."""

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(*extra: str):
    """Yields (http url, websocket url, admin url, process)."""
    port, admin = free_port(), free_port()
    command = [os.environ["VOXLANE_BINARY"], "serve", "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, *extra], stdout=log, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + 120  # a busy machine reads the model slowly
            while not answers(f"http://127.0.0.1:{admin}/readyz"):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"the server did not become ready:\n{log.read().decode()}")
                time.sleep(0.05)
            yield f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}/v1/stream", f"http://127.0.0.1:{admin}", process
        finally:
            process.terminate()
            process.wait(timeout=20)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


def read_json(url: str):
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)
