"""pipecat's services for ElevenLabs and Cartesia, unmodified, pointed at us by URL alone."""

import asyncio
import functools
import itertools

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
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.worker import PipelineParams
from pipecat.services.cartesia.tts import CartesiaHttpTTSService, CartesiaTTSService
from pipecat.services.elevenlabs.tts import ElevenLabsHttpTTSService, ElevenLabsTTSService
from pipecat.tests.utils import SleepFrame, run_test

from speaking import KEY, LONG, RATE, TEXT, guarded, metric, snr_db, speech

SERVICES = ["elevenlabs", "cartesia"]
# Frames that end a turn.
ENDED = {ErrorFrame, TTSStoppedFrame}
# Seconds: longer than anything takes on a busy machine.
PATIENCE = 20
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


class Seen(BaseObserver):
    """The kinds of frames that have been pushed."""

    def __init__(self):
        super().__init__()
        self.kinds = set()

    async def on_push_frame(self, data):
        self.kinds.add(type(data.frame))


async def play(service, *frames):
    """Everything the service pushes while it is sent these frames: frames, errors. A set of kinds among the frames waits for one
    of them; a function waits until it gives true."""
    seen = Seen()

    def sending():
        for frame in frames:
            if isinstance(frame, set) or callable(frame):
                holds = frame if callable(frame) else lambda kinds=frame: seen.kinds & kinds
                waits = itertools.takewhile(lambda _: not holds(), range(PATIENCE * 20))
                yield from (SleepFrame(sleep=0.05) for _ in waits)
            else:
                yield frame

    options = {"pipeline_params": PipelineParams(audio_out_sample_rate=RATE), "observers": [seen], "start_timeout": PATIENCE}
    down, up = await run_test(service, frames_to_send=sending(), **options)
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


def test_an_overload_is_an_error_of_one_context(scripted):
    down, errors = asyncio.run(play(socket("cartesia", scripted, "overloaded"), TTSSpeakFrame(TEXT), {ErrorFrame}))
    assert any("concurrency_limited" in str(error.error) for error in errors) and not sound(down)
