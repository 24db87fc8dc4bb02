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
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.openai.realtime.events import AudioConfiguration, AudioInput, AudioOutput, SessionProperties
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.services.openai.tts import OpenAITTSService
from pipecat.tests.utils import SleepFrame

from pipeline import ENDED, play, sound
from speaking import KEY, LONG, TEXT, cancelled, freed_in_two_steps, snr_db, speech


def realtime(server, key=KEY, voice="june", model="tts-tiny"):
    audio = AudioConfiguration(input=AudioInput(turn_detection=False), output=AudioOutput(voice=voice))
    settings = OpenAIRealtimeLLMService.Settings(model=model, session_properties=SessionProperties(audio=audio))
    return OpenAIRealtimeLLMService(api_key=key, base_url=server[0].replace("http", "ws") + "/v1/realtime", settings=settings)


def asked(text):
    return LLMContextFrame(context=LLMContext(messages=[{"role": "user", "content": text}]))


def test_a_turn_over_realtime_is_the_sentence_of_the_speech_endpoint(server):
    down, errors = asyncio.run(play(realtime(server), asked(TEXT), ENDED))
    assert not errors
    assert snr_db(speech(server, TEXT, "june", layout="whole"), sound(down)) >= 40
    assert "".join(frame.text for frame in down if isinstance(frame, TTSTextFrame)).strip() == TEXT


def test_an_interruption_frees_the_engine_and_the_loop_goes_on(server):
    before = cancelled(server)
    frames = [asked(LONG), {TTSAudioRawFrame}, SleepFrame(sleep=0.5), InterruptionFrame(), SleepFrame(sleep=1.5)]
    down, errors = asyncio.run(play(realtime(server), *frames))
    assert not errors and sound(down)
    assert freed_in_two_steps(server, before)


@pytest.mark.parametrize(("voice", "key", "word"), [("steady", "wrong", "401"), ("nobody", KEY, "instant"), ("overloaded", KEY, "first audio")])
def test_a_bad_key_an_unknown_voice_and_an_overload_are_errors_that_say_so(scripted, voice, key, word):
    _, errors = asyncio.run(play(realtime(scripted, key, voice, "tts-scripted"), asked(TEXT), {ErrorFrame}))
    assert any(word in str(error.error) for error in errors), errors


def tts(server, key=KEY, voice="alloy"):
    settings = OpenAITTSService.Settings(voice=voice, model="tts-1")
    return OpenAITTSService(api_key=key, base_url=server[0] + "/v1", settings=settings)


def test_the_tts_service_hears_the_same_sentence(server):
    down, errors = asyncio.run(play(tts(server), TTSSpeakFrame(TEXT), ENDED))
    assert not errors
    assert snr_db(speech(server, TEXT, "clara", layout="whole"), sound(down)) >= 40


def test_an_interruption_of_the_tts_service_frees_the_engine(server):
    before = cancelled(server)
    frames = [TTSSpeakFrame(LONG), {TTSAudioRawFrame}, InterruptionFrame(), SleepFrame(sleep=0.5)]
    down, errors = asyncio.run(play(tts(server), *frames))
    assert not errors and sound(down)
    assert freed_in_two_steps(server, before)


# It knows thirteen names and asks for no other; `echo` is the sixth voice of a model, here the one that refuses.
@pytest.mark.parametrize(("voice", "key", "word"), [("alloy", "wrong", "401"), ("echo", KEY, "503")])
def test_the_tts_service_tells_a_bad_key_and_an_overload(scripted, voice, key, word):
    _, errors = asyncio.run(play(tts(scripted, key, voice), TTSSpeakFrame(TEXT), {ErrorFrame}))
    assert any(word in str(error.error) for error in errors), errors


def test_the_tts_service_refuses_an_unknown_voice_by_itself(scripted):
    down, errors = asyncio.run(play(tts(scripted, voice="nobody"), TTSSpeakFrame(TEXT), {ErrorFrame}))
    assert errors and not sound(down), "its own list has no such name, and nothing is asked"
