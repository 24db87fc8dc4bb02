"""The release binary, serving with each example's environment: only ports and folders are moved."""

import os
import pathlib
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from examples import Dockerfile, Example, all_examples
from server import answers, free_port

SPEECH = b'{"model":"tts-tiny","input":"Good evening.","response_format":"pcm"}'


class Server:
    """One example at work in `folder`."""

    def __init__(self, example: Example, folder: pathlib.Path) -> None:
        self.port, self.admin = free_port(), free_port()
        self.grace_s = example.grace_s
        (folder / "secret").write_text(secrets.token_hex(32))
        (folder / "secret").chmod(0o400)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
            + ["-subj", "/CN=localhost", "-keyout", folder / "key", "-out", folder / "cert"],
            check=True,
            capture_output=True,
        )
        moved = {
            "VOXLANE_SERVER_LISTEN": f"0.0.0.0:{self.port}",
            "VOXLANE_SERVER_ADMIN": example.environment.get("VOXLANE_SERVER_ADMIN", "127.0.0.1:0").split(":")[0] + f":{self.admin}",
            "VOXLANE_AUTH_SECRET_FILE": str(folder / "secret"),
            "VOXLANE_SERVER_TLS_CERT": str(folder / "cert"),
            "VOXLANE_SERVER_TLS_KEY": str(folder / "key"),
            "VOXLANE_VOICES_FOLDER": str(folder / "voices"),
            "VOXLANE_LOG_USAGE": str(folder / "usage.jsonl"),
        }
        set_here = {name: moved.get(name, value) for name, value in example.environment.items()}
        added = {name: moved[name] for name in ("VOXLANE_SERVER_ADMIN",)}
        outside = {name: value for name, value in os.environ.items() if not name.startswith("VOXLANE_")}
        self.environment = {**outside, **set_here, **added}
        self.tls = "VOXLANE_SERVER_TLS_CERT" in set_here
        self.process = subprocess.Popen(
            [os.environ["VOXLANE_BINARY"], "serve"], env=self.environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + 30
        while not answers(f"http://127.0.0.1:{self.admin}/readyz"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f"{example.name} did not become ready:\n{self.process.communicate()[0].decode()}")
            time.sleep(0.05)

    def token(self) -> str:
        command = [os.environ["VOXLANE_BINARY"], "token", "--subject", "ann"]
        return subprocess.run(command, env=self.environment, check=True, capture_output=True, text=True).stdout.strip()

    def speak(self, token: str | None) -> tuple[int, int]:
        """Status, and bytes of the answer."""
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}/v1/audio/speech"
        # The certificate is the example's own, made a moment ago.
        trusting = ssl._create_unverified_context()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, SPEECH, headers), context=trusting) as answer:
                return answer.status, len(answer.read())
        except urllib.error.HTTPError as refusal:
            return refusal.code, len(refusal.read())

    def stop(self) -> int:
        """Its exit status, which is waited for as long as the example grants."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(timeout=self.grace_s)
        finally:
            self.process.kill()


@pytest.mark.parametrize("example", all_examples(), ids=lambda example: example.name)
def test_an_example_becomes_ready_lets_in_who_has_a_token_and_ends_in_time(example: Example, tmp_path: pathlib.Path) -> None:
    server = Server(example, tmp_path)
    try:
        assert server.speak(None)[0] == 401
        status, size = server.speak(server.token())
        assert status == 200 and size > 24_000
        assert (tmp_path / "voices").is_dir()
    finally:
        status = server.stop()
    assert status == 0


def test_the_images_check_follows_readiness(tmp_path: pathlib.Path) -> None:
    example = all_examples()[0]
    options, command = Dockerfile().healthcheck()

    def healthy(port: int) -> bool:
        assert "127.0.0.1/9464" in command[-1]
        here = [*command[:-1], command[-1].replace("127.0.0.1/9464", f"127.0.0.1/{port}")]
        return subprocess.run(here, capture_output=True, timeout=float(options["timeout"].rstrip("s"))).returncode == 0

    server = Server(example, tmp_path)
    try:
        assert healthy(server.admin)
        # Something answers there, but not that it is ready.
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{server.admin}/nothing")
        assert not healthy(server.port)
    finally:
        assert server.stop() == 0
    assert not healthy(server.admin)
