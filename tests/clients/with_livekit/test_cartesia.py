"""Cartesia's SDK and LiveKit's plugin, unmodified, pointed at us by URL alone."""

import asyncio

import cartesia as vendor
import pytest
from livekit.agents import APIError
from livekit.plugins import cartesia

import turns
from speaking import KEY, LONG, RATE, TEXT, cancelled, check_words, freed_in_two_steps, metric, snr_db, speech
from turns import ONCE, speak

RAW = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": RATE}


def sdk(server, key=KEY):
    return vendor.Cartesia(
        api_key=key, base_url=server[0], websocket_base_url=server[0].replace("http", "ws"), max_retries=0
    )


def plugin(server, session, voice="june", key=KEY, **options):
    return cartesia.TTS(voice=voice, api_key=key, base_url=server[0], http_session=session, sample_rate=RATE, **options)


def run(server, body, **options):
    return turns.run(lambda session: plugin(server, session, **options), body)


def asked(voice, **fields):
    return {"model_id": "sonic-3", "voice": {"mode": "id", "id": voice}, "language": "en", "output_format": RAW, **fields}


def test_the_sdk_hears_what_the_speech_endpoint_gives(server):
    expected = speech(server, TEXT, "june", layout="whole", language="english")
    pcm = sdk(server).tts.generate(transcript=TEXT, **asked("june")).read()
    assert snr_db(expected, pcm) >= 40
    wav = sdk(server).tts.generate(transcript=TEXT, **asked("june", output_format={**RAW, "container": "wav"})).read()
    assert wav[:4] == b"RIFF" and wav[wav.index(b"data") + 8 :] == pcm


def test_the_sdk_reads_events_with_words(server):
    events = list(sdk(server).tts.generate_sse(transcript=TEXT, add_timestamps=True, **asked("june")))
    assert [event.type for event in events].count("done") == 1 and events[-1].type == "done"
    pcm = b"".join(event.audio for event in events if event.type == "chunk")
    assert snr_db(speech(server, TEXT, "june", layout="whole", language="english"), pcm) >= 40
    times = [event.word_timestamps for event in events if event.type == "timestamps"]
    words = [pair for part in times for pair in zip(part.words, part.start)]
    check_words(words, TEXT, len(pcm) / 2 / RATE)


def test_the_sdk_streams_text_over_its_socket(server):
    with sdk(server).tts.websocket_connect() as connection:
        context = connection.context(**asked("june"), add_timestamps=True)
        for word in TEXT.split():
            context.push(word + " ")
        context.no_more_inputs()
        events = list(context.receive())
    pcm = b"".join(event.audio for event in events if event.type == "chunk")
    assert snr_db(speech(server, TEXT, "june", language="english"), pcm) >= 40
    times = [event.word_timestamps for event in events if event.type == "timestamps"]
    check_words([pair for part in times for pair in zip(part.words, part.start)], TEXT, len(pcm) / 2 / RATE)
    assert events[-1].type == "done"


def test_the_sdk_cancels_one_context_and_hears_the_other(server):
    before = cancelled(server)
    with sdk(server).tts.websocket_connect() as connection:
        doomed = connection.context(**asked("clara"))
        doomed.push(LONG)
        kept = connection.context(**asked("june"))
        kept.push(TEXT, continue_=False)
        first = next(event for event in doomed.receive() if event.type == "chunk")
        assert first.audio
        doomed.cancel()
        # What was on its way when the cancel came may still arrive.
        events = [event for event in kept.receive() if event.context_id == kept._context_id]
        assert events[-1].type == "done"
        pcm = b"".join(event.audio for event in events if event.type == "chunk")
        assert snr_db(speech(server, TEXT, "june", language="english"), pcm) >= 40
        assert freed_in_two_steps(server, before)


@pytest.mark.parametrize(
    ("voice", "key", "status", "name"),
    [
        ("claire", KEY, 404, "voice_not_found"),
        ("steady", "wrong", 401, "invalid_api_key"),
        ("overloaded", KEY, 503, "concurrency_limited"),
    ],
)
def test_the_sdk_is_refused_in_its_own_words(scripted, voice, key, status, name):
    with pytest.raises(vendor.APIStatusError) as caught:
        sdk(scripted, key).tts.generate(transcript="Hi.", **asked(voice)).read()
    assert (caught.value.status_code, caught.value.body["error_code"]) == (status, name)


def test_the_sdk_reads_errors_of_its_socket_and_the_socket_goes_on(scripted):
    with sdk(scripted).tts.websocket_connect() as connection:
        for voice, name in [("claire", "voice_not_found"), ("overloaded", "concurrency_limited")]:
            context = connection.context(**asked(voice))
            context.push("Hi.", continue_=False)
            errors = [event for event in context.receive() if event.type == "error"]
            assert [error.error_code for error in errors] == [name]
        context = connection.context(**asked("instant"))
        context.push("Still here.", continue_=False)
        assert sum(len(event.audio) for event in context.receive() if event.type == "chunk") > RATE


def test_a_sentence_through_the_plugin_is_the_sentence_of_the_speech_endpoint(server):
    pcm, words = run(server, lambda tts: speak(tts, TEXT))
    assert snr_db(speech(server, TEXT, "june", language="english"), pcm) >= 40
    check_words([(str(word), word.start_time) for word in words], TEXT, len(pcm) / 2 / RATE)


@pytest.mark.parametrize("speed", [0.6, 1.5])
def test_the_plugins_speed_is_that_of_the_speech_endpoint(server, speed):
    pcm, words = run(server, lambda tts: speak(tts, TEXT), speed=speed)
    assert snr_db(speech(server, TEXT, "june", language="english", speed=speed), pcm) >= 40
    check_words([(str(word), word.start_time) for word in words], TEXT, len(pcm) / 2 / RATE)


def test_the_plugin_without_streaming_hears_the_same(server):
    async def synthesize(tts):
        return bytes((await tts.synthesize(TEXT, conn_options=ONCE).collect()).data)

    expected, pcm = speech(server, TEXT, "june", layout="whole", language="english"), run(server, synthesize)
    # The plugin ends its own frames with 10 ms of silence.
    assert not any(pcm[len(expected) :])
    assert snr_db(expected, pcm[: len(expected)]) >= 40


def test_the_plugin_is_interrupted_and_the_engine_lets_go(server):
    freed = cancelled(server)

    async def interrupt(tts):
        stream = tts.stream(conn_options=ONCE)
        stream.push_text(LONG)
        stream.end_input()
        await anext(stream)
        assert metric(server, "voxlane_engine_contexts_open") == 1
        await stream.aclose()
        # It sends no cancel: it closes the socket when the next turn begins.
        await speak(tts, "And one more.")
        return await asyncio.to_thread(freed_in_two_steps, server, freed)

    before = metric(server, "voxlane_contexts_finished_total", 'reason="done"')
    assert run(server, interrupt)
    assert metric(server, "voxlane_contexts_finished_total", 'reason="done"') - before == 1, "only the next turn"


@pytest.mark.parametrize(
    ("voice", "key", "word"), [("claire", KEY, "voice_not_found"), ("steady", "wrong", "401"), ("overloaded", KEY, "concurrency_limited")]
)
def test_the_plugin_is_told_of_errors(scripted, voice, key, word):
    with pytest.raises(APIError) as caught:
        run(scripted, lambda tts: speak(tts, TEXT), voice=voice, key=key)
    assert word in f"{caught.value} {caught.value.body}"
