"""OpenAI's SDKs for JavaScript, unmodified, pointed at us by URL alone: over TLS, which they insist on."""

import base64
import contextlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from agents.realtime.openai_realtime import get_server_event_type_adapter

from speaking import KEY, LONG, TEXT, cancelled, freed_in_two_steps, guarded, snr_db, speech

HERE = Path(__file__).parent
MODULES = HERE.parents[1] / "target" / "client-node"
CLIENTS = ["server", "browser", "agents"]


@contextlib.contextmanager
def over_tls(folder, *extra):
    certificate, key = folder / "cert.pem", folder / "key.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        + ["-subj", "/CN=localhost", "-addext", names, "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )
    with pytest.MonkeyPatch.context() as patch, guarded("--tls-cert", str(certificate), "--tls-key", str(key), *extra) as (url, *rest):
        patch.setenv("SSL_CERT_FILE", str(certificate))
        yield url.replace("http", "https"), *rest


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with over_tls(tmp_path_factory.mktemp("tls")) as urls:
        yield urls


@pytest.fixture(scope="module")
def script():
    """The script beside its packages: Node looks for them from where a script lies."""
    MODULES.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "parse.mjs", "realtime.mjs"):
        shutil.copy(HERE / "node" / name, MODULES / name)
    if not (MODULES / "node_modules" / "openai").exists():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=MODULES, check=True)
    return MODULES / "realtime.mjs"


def run(script, server, client, key=KEY, model="tts-tiny", voice="june"):
    environment = {**os.environ, "NODE_EXTRA_CA_CERTS": os.environ["SSL_CERT_FILE"]}
    command = ["node", str(script), client, server[0] + "/v1", key, model, voice, TEXT, LONG]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("client", CLIENTS)
def test_a_sentence_is_that_of_the_speech_endpoint_and_an_interruption_stops_the_next(server, script, client):
    before = cancelled(server)
    heard = run(script, server, client)
    assert "error" not in heard, heard
    assert snr_db(speech(server, TEXT, "june", layout="whole"), base64.b64decode(heard["pcm"])) >= 40
    assert heard["interrupted"] == "cancelled"
    assert freed_in_two_steps(server, before)
    adapter = get_server_event_type_adapter()
    for event in heard["events"]:
        adapter.validate_python(event)


@pytest.mark.parametrize(("client", "told"), [("server", "401"), ("browser", "invalid_api_key"), ("agents", "401")])
def test_a_bad_key_is_told_to_programs_by_status_and_to_browsers_by_an_event(server, script, client, told):
    assert told in run(script, server, client, key="wrong")["error"]


@pytest.mark.parametrize("client", CLIENTS)
def test_an_unknown_voice_is_told_by_its_code(server, script, client):
    assert run(script, server, client, voice="nobody")["error"] == "unknown_voice"


def test_an_overload_is_a_failed_response_of_each_client(script, tmp_path):
    with over_tls(tmp_path, "--engine", "scripted") as overloaded:
        for client in CLIENTS:
            told = run(script, overloaded, client, model="tts-scripted", voice="overloaded")
            assert told == {"error": "overloaded"}, client
