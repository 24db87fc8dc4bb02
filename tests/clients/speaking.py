"""A server with a key and a seed of its own, and what its speech endpoint says: the measure for clients that speak otherwise."""

import contextlib
import functools
import json
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

from server import running

TEXT = "The morning train was late again, so we walked along the river."
LONG = " ".join([TEXT] * 12)
KEY = "key-of-the-client-tests-0123456789"
SEED = 7
RATE = 24_000


@contextlib.contextmanager
def guarded(*extra: str, more: str = ""):
    """Yields what `running` does, of a server that wants KEY and gives SEED to whoever names no seed. `more` is configuration."""
    with tempfile.TemporaryDirectory() as folder:
        keys, config = Path(folder, "keys.toml"), Path(folder, "voxlane.toml")
        keys.write_text(f'[[key]]\nname = "clients"\nkey = "{KEY}"\ntenant = "acme"\nscopes = ["speak", "voices"]\n')
        engine = f'seed = "{SEED}"\nfirst_audio_limit_ms = 20000'  # a busy machine refuses nobody
        config.write_text(f'[auth]\napi_keys_file = "{keys}"\n[engine]\n{engine}\n{more}\n')
        with running("--config", str(config), *extra) as urls:
            yield urls


def speech(server, text: str, voice: str, **fields) -> bytes:
    """PCM of the plain endpoint in the layout that sockets prefer."""
    body = {"input": text, "voice": voice, "response_format": "pcm", "layout": "streamed", "seed": SEED, **fields}
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(server[0] + "/v1/audio/speech", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def snr_db(reference: bytes, other: bytes) -> float:
    a, b = (np.frombuffer(pcm, "<i2").astype(np.float64) for pcm in (reference, other))
    assert len(a) == len(b), f"{len(a)} samples against {len(b)}"
    return 10 * np.log10(np.sum(a**2) / max(np.sum((a - b) ** 2), 1e-9))


def metric(server, name: str, label: str = "") -> float:
    """Summed over the labels that hold `label`."""
    with urllib.request.urlopen(server[2] + "/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{")) and label in line)


def cancelled(server) -> tuple[float, float]:
    """Contexts that were cancelled, and that the lm let go of within two of its steps; and later."""
    steps = functools.partial(metric, server, "voxlane_engine_cancelled_freed_total")
    late = steps('what="lm",steps="more"')
    return steps('what="lm"') - late, late


def freed_in_two_steps(server, before: tuple[float, float], count: int = 1) -> bool:
    """Whether the engine, which had cancelled `before`, lets go of `count` contexts more within two lm steps each. The
    seconds are the client's: some say late that they want to hear no more."""
    deadline = time.monotonic() + 10
    while cancelled(server)[0] < before[0] + count or metric(server, "voxlane_engine_contexts_open") > 0:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return cancelled(server)[1] == before[1]


def check_words(words: list[tuple[str, float]], text: str, seconds: float) -> None:
    """(word, start) pairs that are the text, in order, within the sound."""
    assert " ".join(word.strip() for word, _ in words).split() == text.split(), words
    starts = [start for _, start in words]
    assert starts == sorted(starts) and 0 <= starts[0] and starts[-1] < seconds, (starts, seconds)
    assert starts[-1] > seconds / 2, "the last word is in the second half"
