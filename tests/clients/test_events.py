"""The strict parsers of the agents SDKs, for Python and for JavaScript, on every event of OpenAI Realtime that this server says."""

import json
import subprocess

from agents.realtime.openai_realtime import get_server_event_type_adapter

from test_node import script

assert script  # a fixture


def test_the_agents_sdk_takes_every_event(realtime_events):
    adapter = get_server_event_type_adapter()
    for event in realtime_events:
        adapter.validate_python(event)


def test_the_agents_sdk_for_javascript_takes_every_event(realtime_events, script):
    lines = "\n".join(map(json.dumps, realtime_events))
    parser = script.with_name("parse.mjs")
    done = subprocess.run(["node", str(parser)], input=lines, capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout)
    assert told["read"] == len(realtime_events) and not told["refused"], told["refused"][:3]
    # Of this one it has no schema: it passes it on as it came.
    assert told["unknown"] == ["input_audio_buffer.timeout_triggered"]
