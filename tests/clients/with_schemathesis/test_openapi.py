"""What /openapi.json says is so: schemathesis looks for what is not."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from speaking import KEY, guarded, metric

# A run is the same every time; another asks other things: SCHEMATHESIS_SEED=7 SCHEMATHESIS_EXAMPLES=200.
SEED = os.environ.get("SCHEMATHESIS_SEED", "1")
EXAMPLES = os.environ.get("SCHEMATHESIS_EXAMPLES", "30")


def told(report: str) -> str:
    """What was found, without the bytes of clips."""
    found = report[max(report.find("= FAILURES"), report.find("= ERRORS"), 0) :]
    return "\n".join(line[:1_500] for line in found.splitlines())[:16_000]


@pytest.fixture(scope="module")
def voices(tmp_path_factory):
    with guarded("--engine", "scripted", more=f'[voices]\nfolder = "{tmp_path_factory.mktemp("voices")}"') as urls:
        yield urls


def test_the_document_is_of_openapi_3_1_and_needs_no_key(voices):
    with urllib.request.urlopen(voices[0] + "/openapi.json") as answer:
        document = json.load(answer)
    assert document["openapi"].startswith("3.1.")
    speech = document["paths"]["/v1/audio/speech"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    speech = document["components"]["schemas"][speech["$ref"].rsplit("/", 1)[1]]
    assert speech["properties"]["speed"]["maximum"] == 4.0 and speech["additionalProperties"] is False


def test_schemathesis_finds_nothing(voices, tmp_path):
    command = [Path(sys.executable).with_name("st"), "run", voices[0] + "/openapi.json", "--max-examples", EXAMPLES, "--seed", SEED]
    command += ["--header", f"Authorization: Bearer {KEY}", "--no-color"]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "formats", "PYTHONPATH": str(Path(__file__).parent), "PYTHONHASHSEED": "0"}
    # Where one operation's answer is another's question, only what is right is asked: what is wrong with each was asked before.
    for phases in (["--phases", "examples,coverage,fuzzing"], ["--phases", "stateful", "--mode", "positive"]):
        done = subprocess.run(list(map(str, command + phases)), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"seed {SEED}:\n{told(done.stdout)}"
    kept = metric(voices, "voxlane_voices_kept_total")
    request = urllib.request.Request(voices[0] + "/v1/audio/voices", headers={"authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as answer:
        left = [voice for voice in json.load(answer)["data"] if voice["type"] == "clip"]
    assert kept > 10, "voices were kept"
    assert len(left) < kept, "and forgotten"
