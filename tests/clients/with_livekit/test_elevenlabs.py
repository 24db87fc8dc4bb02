"""ElevenLabs' SDK and LiveKit's plugin, unmodified, pointed at us by URL alone."""

import asyncio
import base64
import subprocess

import numpy as np
import pytest
from elevenlabs.client import ElevenLabs
from elevenlabs.core.api_error import ApiError
from livekit.agents import APIError, APIStatusError
from livekit.plugins import elevenlabs

import turns
from speaking import KEY, LONG, RATE, TEXT, cancelled, check_words, freed_in_two_steps, guarded, metric, snr_db, speech
from turns import ONCE, speak

FORMAT = f"pcm_{RATE}"


def sdk(server, key=KEY):
    return ElevenLabs(api_key=key, base_url=server[0])


def plugin(server, session, voice="june", key=KEY, **options):
    options = {"encoding": FORMAT, **options}
    return elevenlabs.TTS(voice_id=voice, api_key=key, base_url=server[0] + "/v1", http_session=session, **options)


def run(server, body, **options):
    return turns.run(lambda session: plugin(server, session, **options), body)


def test_the_sdk_hears_what_the_speech_endpoint_gives(server):
    expected = speech(server, TEXT, "june", layout="whole")
    tts = sdk(server).text_to_speech
    for way in (tts.convert, tts.stream):
        pcm = b"".join(way("june", text=TEXT, model_id="eleven_flash_v2_5", output_format=FORMAT))
        assert snr_db(expected, pcm) >= 40
    assert b"".join(tts.convert("june", text=TEXT, output_format="opus_48000_32"))[:4] == b"OggS"


def test_the_sdk_reads_times_of_characters(server):
    expected = speech(server, TEXT, "nora", layout="whole", seed=3)
    tts = sdk(server).text_to_speech
    whole = tts.convert_with_timestamps("nora", text=TEXT, seed=3, output_format=FORMAT)
    parts = list(tts.stream_with_timestamps("nora", text=TEXT, seed=3, output_format=FORMAT))
    assert len(parts) > 1
    for answers in ([whole], parts):
        assert snr_db(expected, b"".join(base64.b64decode(part.audio_base_64) for part in answers)) >= 40
        aligned = [part.alignment for part in answers if part.alignment]
        assert "".join(c for part in aligned for c in part.characters) == TEXT
        starts = [start for part in aligned for start in part.character_start_times_seconds]
        assert starts == sorted(starts) and starts[-1] < len(expected) / 2 / RATE


def test_the_sdk_streams_text_over_tls(tmp_path, monkeypatch):
    # It takes no plain socket, whatever the URL says.
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", key, "-out", cert]
    subprocess.run([*command, *subject], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    with guarded("--tls-cert", str(cert), "--tls-key", str(key)) as server:
        secure = (server[0].replace("http", "https"), *server[1:])
        words = iter([word + " " for word in TEXT.split()])
        pcm = b"".join(sdk(secure).text_to_speech.convert_realtime("june", text=words, output_format=FORMAT))
        assert snr_db(speech(secure, TEXT, "june"), pcm) >= 40


def test_the_engine_lets_go_when_the_sdk_stops_reading(server):
    before = cancelled(server)
    stream = sdk(server).text_to_speech.stream("june", text=LONG, output_format=FORMAT)
    assert next(stream)
    stream.close()
    assert freed_in_two_steps(server, before)


def test_the_sdk_lists_the_voices(server):
    voices = sdk(server).voices.get_all().voices
    assert {voice.name for voice in voices} == {"clara", "marcus", "nora", "june"}


@pytest.mark.parametrize(
    ("voice", "key", "status", "name"),
    [("claire", KEY, 404, "voice_not_found"), ("steady", "wrong", 401, "invalid_api_key"), ("overloaded", KEY, 429, "system_busy")],
)
def test_the_sdk_is_refused_in_its_own_words(scripted, voice, key, status, name):
    with pytest.raises(ApiError) as caught:
        options = {"max_retries": 0}
        list(sdk(scripted, key).text_to_speech.convert(voice, text="Hi.", output_format=FORMAT, request_options=options))
    assert (caught.value.status_code, caught.value.body["detail"]["status"]) == (status, name)


def test_a_sentence_through_the_plugin_is_the_sentence_of_the_speech_endpoint(server):
    pcm, words = run(server, lambda tts: speak(tts, TEXT))
    assert snr_db(speech(server, TEXT, "june"), pcm) >= 40
    check_words([(str(word), word.start_time) for word in words], TEXT, len(pcm) / 2 / RATE)


def test_the_plugin_decodes_opus(server):
    pcm, _ = run(server, lambda tts: speak(tts, TEXT), encoding="opus_48000_32")
    decoded = np.frombuffer(pcm, "<i2").astype(float)
    expected = np.frombuffer(speech(server, TEXT, "june", sample_rate=48_000), "<i2").astype(float)
    # Its decoder begins with the second packet.
    expected = expected[48_000 // 50 :]
    assert len(decoded) == len(expected)
    assert np.corrcoef(decoded, expected)[0, 1] > 0.9, "lossy, but the same wave at the same place"


@pytest.mark.parametrize("speed", [0.8, 1.2])
def test_the_plugins_speed_is_that_of_the_speech_endpoint(server, speed):
    settings = elevenlabs.VoiceSettings(stability=0.5, similarity_boost=0.5, speed=speed)
    pcm, words = run(server, lambda tts: speak(tts, TEXT), voice_settings=settings)
    assert snr_db(speech(server, TEXT, "june", speed=speed), pcm) >= 40
    check_words([(str(word), word.start_time) for word in words], TEXT, len(pcm) / 2 / RATE)


def test_the_plugin_without_streaming_hears_the_same(server):
    async def synthesize(tts):
        return bytes((await tts.synthesize(TEXT, conn_options=ONCE).collect()).data)

    expected, pcm = speech(server, TEXT, "june", layout="whole"), run(server, synthesize)
    # The plugin ends its own frames with 10 ms of silence.
    assert not any(pcm[len(expected) :])
    assert snr_db(expected, pcm[: len(expected)]) >= 40


def test_the_plugin_speaks_turn_after_turn_on_one_connection(server):
    async def turns(tts):
        return [await speak(tts, text) for text in (TEXT, "And one more.")]

    before = metric(server, "voxlane_sessions_total")
    for (pcm, _), text in zip(run(server, turns), (TEXT, "And one more.")):
        assert snr_db(speech(server, text, "june"), pcm) >= 40
    assert metric(server, "voxlane_sessions_total") - before == 1


def test_the_plugin_is_interrupted_and_the_engine_lets_go(server):
    before = cancelled(server)

    async def interrupt(tts):
        stream = tts.stream(conn_options=ONCE)
        for word in LONG.split():
            stream.push_text(word + " ")
        await anext(stream)
        assert metric(server, "voxlane_engine_contexts_open") == 1
        await stream.aclose()
        # The connection stays: what ends the context is the plugin's message.
        return await asyncio.to_thread(freed_in_two_steps, server, before)

    # Words one by one, so that the turn is broken off before it is flushed.
    assert run(server, interrupt, auto_mode=False)


def test_the_plugin_that_is_closed_frees_the_engine(server):
    before = cancelled(server)

    async def leave(tts):
        stream = tts.stream(conn_options=ONCE)
        stream.push_text(LONG)
        await anext(stream)

    run(server, leave)
    assert freed_in_two_steps(server, before)


@pytest.mark.parametrize(("voice", "key", "status"), [("claire", KEY, 404), ("steady", "wrong", 401)])
def test_the_plugin_is_refused_before_the_upgrade(scripted, voice, key, status):
    with pytest.raises(APIStatusError) as caught:
        run(scripted, lambda tts: speak(tts, TEXT), voice=voice, key=key)
    assert caught.value.status_code == status


def test_the_plugin_is_told_of_an_overload_and_goes_on(scripted):
    with pytest.raises(APIError):
        run(scripted, lambda tts: speak(tts, TEXT), voice="overloaded")
    pcm, _ = run(scripted, lambda tts: speak(tts, "Still here."), voice="instant")
    assert len(pcm) > RATE
