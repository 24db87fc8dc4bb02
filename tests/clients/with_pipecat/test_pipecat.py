"""pipecat's services for ElevenLabs and Cartesia, unmodified, pointed at us by URL alone."""

import asyncio
import functools

import aiohttp
import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.services.cartesia.tts import CartesiaHttpTTSService, CartesiaTTSService, GenerationConfig
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService

from pipeline import ENDED, play, sound
from speaking import KEY, LONG, TEXT, cancelled, freed_in_two_steps, metric, snr_db, speech

SERVICES = ["elevenlabs", "cartesia"]
# Cartesia's clients name their language, which is part of what a model is told.
ASKED = {"elevenlabs": {}, "cartesia": {"language": "english"}}


def socket(name, server, voice="june", key=KEY, speed=None):
    url = server[0].replace("http", "ws")
    if name == "elevenlabs":
        options = {} if speed is None else {"stability": 0.5, "similarity_boost": 0.5, "speed": speed}
        return ElevenLabsTTSService(api_key=key, url=url, settings=ElevenLabsTTSService.Settings(voice=voice, **options))
    options = {} if speed is None else {"generation_config": GenerationConfig(speed=speed)}
    settings = CartesiaTTSService.Settings(voice=voice, **options)
    return CartesiaTTSService(api_key=key, url=url + "/tts/websocket", settings=settings)


def plain(name, server, session, voice="june"):
    if name == "elevenlabs":
        settings = ElevenLabsHttpTTSService.Settings(voice=voice)
        return ElevenLabsHttpTTSService(api_key=KEY, base_url=server[0], aiohttp_session=session, settings=settings)
    settings = CartesiaHttpTTSService.Settings(voice=voice)
    return CartesiaHttpTTSService(api_key=KEY, base_url=server[0], aiohttp_session=session, settings=settings)


def said(frames) -> str:
    return " ".join(frame.text for frame in frames if isinstance(frame, TTSTextFrame))


def turn(text):
    """A turn of a language model, word by word."""
    words = [LLMTextFrame(word + " ") for word in text.split()]
    return [LLMFullResponseStartFrame(), *words, LLMFullResponseEndFrame()]


@pytest.mark.parametrize("name", SERVICES)
def test_a_sentence_over_the_socket_is_the_sentence_of_the_speech_endpoint(server, name):
    down, errors = asyncio.run(play(socket(name, server), TTSSpeakFrame(TEXT), ENDED))
    assert not errors
    assert snr_db(speech(server, TEXT, "june", **ASKED[name]), sound(down)) >= 40
    assert said(down) == TEXT, "words came with their times"
    assert any(isinstance(frame, TTSStoppedFrame) for frame in down)


@pytest.mark.parametrize("name", SERVICES)
def test_a_turn_of_a_language_model_is_spoken_to_its_end(server, name):
    down, errors = asyncio.run(play(socket(name, server), *turn(TEXT), ENDED))
    assert not errors and said(down).split() == TEXT.split()
    assert snr_db(speech(server, TEXT, "june", **ASKED[name]), sound(down)) >= 40


@pytest.mark.parametrize("name", SERVICES)
def test_an_interruption_frees_the_engine_while_the_socket_stays(server, name):
    before = cancelled(server)
    contexts = functools.partial(metric, server, "voxlane_engine_contexts_open")
    sessions = functools.partial(metric, server, "voxlane_sessions_open")
    freed = []

    def is_freed():
        freed.append(contexts() == 0 and sessions() == 1)
        return freed[-1]

    frames = [TTSSpeakFrame(LONG), {TTSAudioRawFrame}, lambda: contexts() == 1, InterruptionFrame(), is_freed]
    down, errors = asyncio.run(play(socket(name, server), *frames))
    assert not errors and sound(down)
    assert freed[-1], "no context, and the socket still there"
    assert freed_in_two_steps(server, before)


@pytest.mark.parametrize("name", SERVICES)
def test_the_plain_service_hears_the_same(server, name):
    # Cartesia's waits for the whole sound, and gives up after some seconds: a short one is there by then on any machine.
    text = "Good evening."

    async def go():
        async with aiohttp.ClientSession() as session:
            return await play(plain(name, server, session), TTSSpeakFrame(text), ENDED)

    down, errors = asyncio.run(go())
    assert not errors
    assert snr_db(speech(server, text, "june", layout="whole", **ASKED[name]), sound(down)) >= 40


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize(("voice", "key"), [("claire", KEY), ("steady", "wrong")])
def test_a_refusal_is_an_error_and_no_sound(scripted, name, voice, key):
    down, errors = asyncio.run(play(socket(name, scripted, voice, key), TTSSpeakFrame(TEXT), {ErrorFrame}))
    assert errors and not sound(down)


# ElevenLabs' client reads no error of its socket: it says that a context ended without sound.
@pytest.mark.parametrize(("name", "word"), [("elevenlabs", "no audio"), ("cartesia", "concurrency_limited")])
def test_an_overload_is_an_error_of_one_context(scripted, name, word):
    down, errors = asyncio.run(play(socket(name, scripted, "overloaded"), TTSSpeakFrame(TEXT), {ErrorFrame}))
    assert any(word in str(error.error) for error in errors) and not sound(down), errors


@pytest.mark.parametrize("name", SERVICES)
def test_a_speed_of_the_service_is_that_of_the_speech_endpoint(server, name):
    down, errors = asyncio.run(play(socket(name, server, speed=1.2), TTSSpeakFrame(TEXT), ENDED))
    assert not errors and said(down) == TEXT
    assert snr_db(speech(server, TEXT, "june", speed=1.2, **ASKED[name]), sound(down)) >= 40
