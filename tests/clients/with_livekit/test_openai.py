"""LiveKit's plugin for OpenAI, unmodified, pointed at us by URL alone: its realtime model and its TTS."""

import asyncio

import numpy as np
import pytest
from livekit.agents import APIConnectOptions, APIStatusError
from livekit.plugins import openai

from speaking import KEY, LONG, TEXT, freed_within, guarded, snr_db, speech

ONCE = APIConnectOptions(max_retry=0, timeout=10)


@pytest.fixture(scope="module")
def server():
    with guarded() as urls:
        yield urls


def model(server, key=KEY, voice="june"):
    return openai.realtime.RealtimeModel(
        model="tts-tiny", voice=voice, base_url=server[0] + "/v1", api_key=key, turn_detection=None, conn_options=ONCE
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
            freed = await asyncio.to_thread(freed_within, server, 5)
            pcm, text = await hear(await session.generate_reply(instructions="Good night."))
        await session.aclose()
        await realtime.aclose()
        return freed, pcm, text

    freed, pcm, text = asyncio.run(go())
    assert freed and len(pcm) > 10_000 and text == "Good night."


@pytest.mark.parametrize(("key", "voice", "word"), [("wrong", "june", "401"), (KEY, "nobody", "clara")])
def test_a_bad_key_and_an_unknown_voice_are_errors_that_say_so(server, key, voice, word):
    async def go():
        realtime = model(server, key, voice)
        session, errors = realtime.session(), []
        session.on("error", errors.append)
        told = []
        # The plugin raises what ended its loop wherever it is waited for next.
        for step in (lambda: session.generate_reply(instructions=TEXT), session.aclose, realtime.aclose):
            try:
                async with asyncio.timeout(15):
                    await step()
            except Exception as error:
                told.append(error)
        return " ".join(map(str, [*told, *(error.error for error in errors)]))

    assert word in asyncio.run(go())


def tts(server, key=KEY, voice="june", **options):
    return openai.TTS(base_url=server[0] + "/v1", api_key=key, voice=voice, **options)


async def synthesize(engine) -> bytes:
    pcm = b""
    async with engine.synthesize(TEXT, conn_options=ONCE) as stream:
        async for event in stream:
            pcm += bytes(event.frame.data)
    return pcm


@pytest.mark.parametrize(("name", "form"), [("tts-1", "pcm"), ("gpt-4o-mini-tts", "pcm"), ("tts-1", "mp3"), ("tts-1", "wav")])
def test_the_tts_plugin_hears_the_same_sentence(server, name, form):
    pcm = asyncio.run(synthesize(tts(server, model=name, response_format=form)))
    expected = speech(server, TEXT, "june", layout="whole")
    if form == "mp3":
        # The default of the plugin; it is answered in Ogg, and the plugin follows the answer's type.
        assert abs(len(pcm) - len(expected)) < 4_000
        assert np.abs(np.frombuffer(pcm, "<i2")).max() > 1_000
    else:
        # The plugin's own buffers add 10 ms at the end.
        assert abs(len(pcm) - len(expected)) <= 2 * 960
        common = min(len(pcm), len(expected))
        assert snr_db(expected[:common], pcm[:common]) >= 40


def test_the_tts_plugin_is_refused_by_status(server):
    for key, voice, status in [("wrong", "june", 401), (KEY, "nobody", 404)]:
        with pytest.raises(APIStatusError) as caught:
            asyncio.run(synthesize(tts(server, key, voice, model="tts-1", response_format="pcm")))
        assert caught.value.status_code == status
