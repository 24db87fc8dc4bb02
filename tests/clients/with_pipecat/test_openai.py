"""pipecat's services for OpenAI, unmodified, pointed at us by URL alone: realtime and TTS."""

import asyncio

import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMMessagesAppendFrame,
    LLMRunFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSTextFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.openai.realtime.events import AudioConfiguration, AudioInput, AudioOutput, SessionProperties
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import SleepFrame, run_test

from speaking import KEY, LONG, RATE, TEXT, guarded, metric, snr_db, speech


@pytest.fixture(scope="module")
def server():
    with guarded() as urls:
        yield urls


async def play(service, *frames):
    params = PipelineParams(audio_out_sample_rate=RATE, audio_in_sample_rate=RATE)
    down, up = await run_test(service, frames_to_send=list(frames), pipeline_params=params, start_timeout=10)
    return down, [frame for frame in [*down, *up] if isinstance(frame, ErrorFrame)]


def sound(frames) -> bytes:
    return b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))


def realtime(server, key=KEY, voice="june"):
    audio = AudioConfiguration(input=AudioInput(turn_detection=False), output=AudioOutput(voice=voice))
    settings = OpenAIRealtimeLLMService.Settings(model="tts-tiny", session_properties=SessionProperties(audio=audio))
    return OpenAIRealtimeLLMService(api_key=key, base_url=server[0].replace("http", "ws") + "/v1/realtime", settings=settings)


def asked(text):
    return LLMContextFrame(context=LLMContext(messages=[{"role": "user", "content": text}]))


def test_a_turn_over_realtime_is_the_sentence_of_the_speech_endpoint(server):
    down, errors = asyncio.run(play(realtime(server), asked(TEXT), SleepFrame(sleep=4)))
    assert not errors
    assert snr_db(speech(server, TEXT, "june", layout="whole"), sound(down)) >= 40
    assert "".join(frame.text for frame in down if isinstance(frame, TTSTextFrame)).strip() == TEXT


def test_an_interruption_frees_the_engine_and_the_loop_goes_on(server):
    before = metric(server, "voxlane_contexts_finished_total", "cancelled")
    frames = [asked(LONG), SleepFrame(sleep=1.5), InterruptionFrame(), SleepFrame(sleep=1.5)]
    down, errors = asyncio.run(play(realtime(server), *frames))
    assert not errors and sound(down)
    assert metric(server, "voxlane_contexts_finished_total", "cancelled") > before
    assert metric(server, "voxlane_engine_contexts_open") == 0


def test_an_unknown_voice_is_an_error_that_lists_the_known(server):
    _, errors = asyncio.run(play(realtime(server, voice="nobody"), asked(TEXT), SleepFrame(sleep=2)))
    assert any("clara" in str(error.error) for error in errors), errors


def tts(server, key=KEY):
    settings = OpenAITTSService.Settings(voice="alloy", model="tts-1")
    return OpenAITTSService(api_key=key, base_url=server[0] + "/v1", settings=settings)


def test_the_tts_service_hears_the_same_sentence(server):
    down, errors = asyncio.run(play(tts(server), TTSSpeakFrame(TEXT), SleepFrame(sleep=4)))
    assert not errors
    assert snr_db(speech(server, TEXT, "clara", layout="whole"), sound(down)) >= 40


def test_the_tts_service_tells_a_bad_key(server):
    _, errors = asyncio.run(play(tts(server, key="wrong"), TTSSpeakFrame(TEXT), SleepFrame(sleep=2)))
    assert any("401" in str(error.error) for error in errors), errors
