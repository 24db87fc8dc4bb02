"""pipecat's parser on every event of OpenAI Realtime that this server says. What it does not take ends its loop."""

import json

from pipecat.services.openai.realtime.events import parse_server_event


def test_the_parser_takes_every_event(realtime_events):
    unknown = {event["type"] for event in realtime_events if parse_server_event(json.dumps(event)) is None}
    # Of this one it has no model: it passes it over.
    assert unknown <= {"input_audio_buffer.timeout_triggered"}
