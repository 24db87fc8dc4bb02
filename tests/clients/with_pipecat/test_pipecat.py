"""pipecat's services for ElevenLabs and Cartesia, unmodified, pointed at us by URL alone."""

import asyncio

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
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.cartesia.tts import CartesiaHttpTTSService, CartesiaTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.tests.utils import SleepFrame, run_test

from speaking import KEY, LONG, RATE, TEXT, guarded, metric, snr_db, speech

SERVICES = ["elevenlabs", "cartesia"]
# Cartesia's clients name their language, which is part of what a model is told.
ASKED = {"elevenlabs": {}, "cartesia": {"language": "english"}}


@pytest.fixture(scope="module")
def server():
    with guarded() as urls:
        yield urls


@pytest.fixture(scope="module")
def scripted():
    with guarded("--engine", "scripted") as urls:
        yield urls


def socket(name, server, voice="june", key=KEY):
    url = server[0].replace("http", "ws")
    if name == "elevenlabs":
        return ElevenLabsTTSService(api_key=key, url=url, settings=ElevenLabsTTSService.Settings(voice=voice))
    settings = CartesiaTTSService.Settings(voice=voice)
    return CartesiaTTSService(api_key=key, url=url + "/tts/websocket", settings=settings)


def plain(name, server, session, voice="june"):
    if name == "elevenlabs":
        settings = ElevenLabsHttpTTSService.Settings(voice=voice)
        return ElevenLabsHttpTTSService(api_key=KEY, base_url=server[0], aiohttp_session=session, settings=settings)
    settings = CartesiaHttpTTSService.Settings(voice=voice)
    return CartesiaHttpTTSService(api_key=KEY, base_url=server[0], aiohttp_session=session, settings=settings)


async def play(service, *frames):
    """Everything the service pushes while it is sent these frames: frames, errors."""
    params = PipelineParams(audio_out_sample_rate=RATE)
    down, up = await run_test(service, frames_to_send=list(frames), pipeline_params=params, start_timeout=10)
    return down, [frame for frame in [*down, *up] if isinstance(frame, ErrorFrame)]


def sound(frames) -> bytes:
    return b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))


def said(frames) -> str:
    return " ".join(frame.text for frame in frames if isinstance(frame, TTSTextFrame))


def turn(text):
    """A turn of a language model, word by word."""
    words = [LLMTextFrame(word + " ") for word in text.split()]
    return [LLMFullResponseStartFrame(), *words, LLMFullResponseEndFrame()]


@pytest.mark.parametrize("name", SERVICES)
def test_a_sentence_over_the_socket_is_the_sentence_of_the_speech_endpoint(server, name):
    down, errors = asyncio.run(play(socket(name, server), TTSSpeakFrame(TEXT), SleepFrame(sleep=4)))
    assert not errors
    assert snr_db(speech(server, TEXT, "june", **ASKED[name]), sound(down)) >= 40
    assert said(down) == TEXT, "words came with their times"
    assert any(isinstance(frame, TTSStoppedFrame) for frame in down)


@pytest.mark.parametrize("name", SERVICES)
def test_a_turn_of_a_language_model_is_spoken_to_its_end(server, name):
    down, errors = asyncio.run(play(socket(name, server), *turn(TEXT), SleepFrame(sleep=4)))
    assert not errors and said(down).split() == TEXT.split()
    assert snr_db(speech(server, TEXT, "june", **ASKED[name]), sound(down)) >= 40


@pytest.mark.parametrize("name", SERVICES)
def test_an_interruption_frees_the_engine_while_the_socket_stays(server, name):
    async def go():
        seen = []

        async def watch():
            while True:
                names = ["voxlane_engine_contexts_open", "voxlane_sessions_open"]
                seen.append([await asyncio.to_thread(metric, server, name) for name in names])
                await asyncio.sleep(0.05)

        watcher = asyncio.create_task(watch())
        frames = [TTSSpeakFrame(LONG), SleepFrame(sleep=1.5), InterruptionFrame(), SleepFrame(sleep=1.5)]
        down, errors = await play(socket(name, server), *frames)
        watcher.cancel()
        return seen, down, errors

    seen, down, errors = asyncio.run(go())
    assert not errors and sound(down)
    spoke = next(at for at, (contexts, _) in enumerate(seen) if contexts == 1)
    assert [0, 1] in seen[spoke:], "no context, and the socket still there"


@pytest.mark.parametrize("name", SERVICES)
def test_the_plain_service_hears_the_same(server, name):
    async def go():
        async with aiohttp.ClientSession() as session:
            return await play(plain(name, server, session), TTSSpeakFrame(TEXT), SleepFrame(sleep=3))

    down, errors = asyncio.run(go())
    assert not errors
    assert snr_db(speech(server, TEXT, "june", layout="whole", **ASKED[name]), sound(down)) >= 40


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize(("voice", "key"), [("claire", KEY), ("steady", "wrong")])
def test_a_refusal_is_an_error_and_no_sound(scripted, name, voice, key):
    down, errors = asyncio.run(play(socket(name, scripted, voice, key), TTSSpeakFrame(TEXT), SleepFrame(sleep=1)))
    assert errors and not sound(down)


def test_an_overload_is_an_error_of_one_context(scripted):
    down, errors = asyncio.run(play(socket("cartesia", scripted, "overloaded"), TTSSpeakFrame(TEXT), SleepFrame(sleep=1)))
    assert any("concurrency_limited" in str(error.error) for error in errors) and not sound(down)
