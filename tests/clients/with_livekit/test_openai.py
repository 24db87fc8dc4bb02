"""LiveKit's plugin for OpenAI, unmodified, pointed at us by URL alone: its realtime model and its TTS."""

import asyncio

import numpy as np
import pytest
from livekit.agents import APIStatusError
from livekit.plugins import openai

from speaking import KEY, LONG, TEXT, cancelled, freed_in_two_steps, snr_db, speech
from turns import ONCE


def model(server, key=KEY, voice="june", model="tts-tiny"):
    return openai.realtime.RealtimeModel(
        model=model, voice=voice, base_url=server[0] + "/v1", api_key=key, turn_detection=None, conn_options=ONCE
    )


async def hear(generation) -> tuple[bytes, str]:
    """PCM and transcript of one reply."""
    pcm, text = b"", ""
    async for message in generation.message_stream:

        async def sound():
            return b"".join([bytes(frame.data) async for frame in message.audio_stream])

        async def words():
            return "".join([str(piece) async for piece in message.text_stream])

        heard = await asyncio.gather(sound(), words())
        pcm, text = pcm + heard[0], text + heard[1]
    return pcm, text


def test_a_reply_is_the_sentence_of_the_speech_endpoint_word_by_word(server):
    async def go():
        realtime = model(server)
        session = realtime.session()
        await session.update_instructions("Be kind.")
        async with asyncio.timeout(20):
            heard = await hear(await session.generate_reply(instructions=TEXT))
        await session.aclose()
        await realtime.aclose()
        return heard

    pcm, text = asyncio.run(go())
    assert text == TEXT
    assert snr_db(speech(server, TEXT, "june", layout="whole"), pcm) >= 40


def test_an_interruption_frees_the_engine_and_the_session_goes_on(server):
    before = cancelled(server)

    async def go():
        realtime = model(server)
        session = realtime.session()
        async with asyncio.timeout(30):
            generation = await session.generate_reply(instructions=LONG)
            async for message in generation.message_stream:
                async for _ in message.audio_stream:
                    break
                session.interrupt()
                session.truncate(message_id=message.message_id, modalities=["audio"], audio_end_ms=500)
                break
            freed = await asyncio.to_thread(freed_in_two_steps, server, before)
            pcm, text = await hear(await session.generate_reply(instructions="Good night."))
        await session.aclose()
        await realtime.aclose()
        return freed, pcm, text

    freed, pcm, text = asyncio.run(go())
    assert freed and len(pcm) > 10_000 and text == "Good night."


def told(server, **options) -> str:
    """Whatever the plugin says went wrong."""

    async def go():
        realtime = model(server, **options)
        session, errors = realtime.session(), []
        session.on("error", errors.append)
        told = []
        async def heard():
            while not (told or errors):
                await asyncio.sleep(0.05)

        # The plugin raises what ended its loop wherever it is waited for next, or tells it.
        for step in (lambda: session.generate_reply(instructions=TEXT), heard, session.aclose, realtime.aclose):
            try:
                async with asyncio.timeout(15):
                    await step()
            except Exception as error:
                told.append(error)
        # What the service said stands in the body of an error that may pass.
        return " ".join(map(str, [*told, *(f"{error.error} {getattr(error.error, 'body', '')}" for error in errors)]))

    return asyncio.run(go())


def test_a_bad_key_an_unknown_voice_and_an_overload_are_errors_that_say_so(server, scripted):
    assert "401" in told(server, key="wrong")
    assert "clara" in told(server, voice="nobody")
    assert "overloaded" in told(scripted, voice="overloaded", model="tts-scripted")


def tts(server, key=KEY, voice="june", **options):
    return openai.TTS(base_url=server[0] + "/v1", api_key=key, voice=voice, **options)


async def synthesize(engine) -> bytes:
    pcm = b""
    async with engine.synthesize(TEXT, conn_options=ONCE) as stream:
        async for event in stream:
            pcm += bytes(event.frame.data)
    return pcm


@pytest.mark.parametrize(("name", "form"), [("tts-1", "pcm"), ("gpt-4o-mini-tts", "pcm"), ("tts-1", "mp3"), ("tts-1", "wav"), ("tts-1", "flac")])
def test_the_tts_plugin_hears_the_same_sentence(server, name, form):
    pcm = asyncio.run(synthesize(tts(server, model=name, response_format=form)))
    expected = speech(server, TEXT, "june", layout="whole")
    if form == "mp3":
        # The default of the plugin; it is answered in Ogg, and the plugin follows the answer's type.
        assert abs(len(pcm) - len(expected)) < 4_000
        assert np.abs(np.frombuffer(pcm, "<i2")).max() > 1_000
    elif form == "flac":
        # Its decoder begins with the second block of any FLAC, also of one that FFmpeg has written: 40 ms here.
        expected = expected[2 * 960 :]
        assert snr_db(expected, pcm[: len(expected)]) >= 40 and not any(pcm[len(expected) :])
    else:
        # The plugin's own buffers add 10 ms at the end.
        assert abs(len(pcm) - len(expected)) <= 2 * 960
        common = min(len(pcm), len(expected))
        assert snr_db(expected[:common], pcm[:common]) >= 40


def test_the_tts_plugin_is_refused_by_status(scripted):
    for key, voice, status in [("wrong", "steady", 401), (KEY, "nobody", 404), (KEY, "overloaded", 503)]:
        with pytest.raises(APIStatusError) as caught:
            asyncio.run(synthesize(tts(scripted, key, voice, model="tts-1", response_format="pcm")))
        assert caught.value.status_code == status


def test_the_engine_lets_go_when_the_tts_plugin_is_closed(server):
    before = cancelled(server)

    async def leave():
        stream = tts(server, model="tts-1", response_format="pcm").synthesize(LONG, conn_options=ONCE)
        await anext(stream)
        await stream.aclose()

    asyncio.run(leave())
    assert freed_in_two_steps(server, before)
