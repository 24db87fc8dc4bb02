"""OpenAI's Python SDK and agents SDK, unmodified, pointed at us by URL alone."""

import asyncio
import base64
import io
import json

import av
import numpy as np
import openai
import pytest
from agents.realtime import RealtimeAgent, RealtimeRunner
from agents.realtime.openai_realtime import get_server_event_type_adapter
from openai import AsyncOpenAI, OpenAI

import speaking
from speaking import KEY, LONG, SEED, TEXT, cancelled, freed_in_two_steps, guarded, snr_db


def client(server, key=KEY, **options):
    return AsyncOpenAI(api_key=key, base_url=server[0] + "/v1", max_retries=0, **options)


def speech(server, voice="june", **fields) -> bytes:
    """What the plain endpoint gives: whole texts, as these clients send them."""
    return speaking.speech(server, TEXT, voice, layout="whole", **fields)


async def turn(connection, adapter=get_server_event_type_adapter(), stop="response.done"):
    """Every event up to one of type `stop`, each held against the strict parser of the agents SDK."""
    events = []
    async for event in connection:
        adapter.validate_python(event.model_dump(exclude_unset=True))
        events.append(event)
        if event.type == stop:
            return events
    raise AssertionError([event.type for event in events])


def sound(events) -> bytes:
    return b"".join(base64.b64decode(event.delta) for event in events if event.type == "response.output_audio.delta")


async def say(connection, text, **response):
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    await connection.conversation.item.create(item=item)
    await connection.response.create(response=response)


def test_a_sentence_over_realtime_is_the_sentence_of_the_speech_endpoint(server):
    async def go():
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            await connection.session.update(session={"type": "realtime", "audio": {"output": {"voice": "june"}}, "voxlane": {"seed": SEED}})
            await say(connection, TEXT, metadata={"client_event_id": "m"})
            return await turn(connection)

    events = asyncio.run(go())
    pcm = sound(events)
    assert snr_db(speech(server), pcm) >= 40
    assert events[-1].response.metadata == {"client_event_id": "m"}
    assert events[-1].response.output[0].content[0].transcript == TEXT
    assert len(pcm) == events[-1].response.usage.output_tokens * 1920 * 2


def test_g711_is_the_same_sentence_at_8_khz(server):
    async def go(kind):
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            await connection.session.update(session={"type": "realtime", "audio": {"output": {"format": {"type": kind}, "voice": "june"}}, "voxlane": {"seed": SEED}})
            await say(connection, TEXT)
            return sound(await turn(connection))

    for kind, name in [("audio/pcmu", "mulaw"), ("audio/pcma", "alaw")]:
        assert asyncio.run(go(kind)) == speech(server, response_format=name)


def test_an_interruption_stops_the_engine_and_leaves_what_was_heard(server):
    before = cancelled(server)

    async def go():
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            await say(connection, LONG)
            item = None
            async for event in connection:
                if event.type == "response.output_audio.delta":
                    item = event.item_id
                    break
            await asyncio.sleep(1.0)
            await connection.response.cancel()
            ended = await turn(connection)
            await connection.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=700)
            await connection.conversation.item.retrieve(item_id=item)
            kept = await turn(connection, stop="conversation.item.retrieved")
            # Harmless mistakes, and then a session that goes on.
            await connection.response.cancel()
            await connection.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=10**9)
            await say(connection, "Good night.")
            return ended[-1].response, kept[-1].item, await turn(connection)

    response, item, last = asyncio.run(go())
    assert (response.status, response.status_details.reason) == ("cancelled", "client_cancelled")
    heard = item.content[0].transcript
    assert LONG.startswith(heard) and len(heard) < 40, heard
    assert last[-1].response.status == "completed" and len(sound(last)) > 10_000
    assert "response_cancel_not_active" in [event.error.code for event in last if event.type == "error"]
    assert freed_in_two_steps(server, before), "the engine keeps a context that nobody hears"


def test_out_of_band_responses_run_beside_the_conversation_and_leave_no_item(server):
    async def go():
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Beside it."}]}
            await connection.response.create(response={"conversation": "none", "input": [item], "metadata": {"n": "1"}})
            return await turn(connection)

    events = asyncio.run(go())
    assert not [event for event in events if event.type.startswith("conversation.")]
    assert events[-1].response.conversation_id is None and events[-1].response.status == "completed"


def test_mistakes_are_told_in_the_protocols_own_words(server):
    async def refused(model, key=KEY):
        async with client(server, key).realtime.connect(model=model) as connection:
            await turn(connection)

    for model, key, status in [("tts-tiny", "wrong", 401), ("gpt-realtime", KEY, 404)]:
        with pytest.raises(Exception) as caught:
            asyncio.run(refused(model, key))
        assert str(status) in str(caught.value), caught.value

    async def voice():
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            await connection.session.update(session={"type": "realtime", "audio": {"output": {"voice": "nobody"}}})
            await say(connection, TEXT)
            return (await turn(connection, stop="error"))[-1].error

    error = asyncio.run(voice())
    assert error.code == "unknown_voice" and "clara" in error.message


def test_a_client_secret_opens_a_session_with_its_settings(server):
    secret = OpenAI(api_key=KEY, base_url=server[0] + "/v1").realtime.client_secrets.create(
        expires_after={"anchor": "created_at", "seconds": 60},
        session={"type": "realtime", "audio": {"output": {"voice": "marcus"}}, "voxlane": {"seed": 3}},
    )
    assert secret.value.startswith("ek_")

    async def go():
        async with client(server, secret.value).realtime.connect(model="tts-tiny") as connection:
            await say(connection, TEXT)
            return await turn(connection)

    assert snr_db(speech(server, "marcus", seed=3), sound(asyncio.run(go()))) >= 40


def secret_of(server, voice, key=KEY) -> str:
    session = {"type": "realtime", "audio": {"output": {"voice": voice}}}
    return OpenAI(api_key=key, base_url=server[0] + "/v1", max_retries=0).realtime.client_secrets.create(session=session).value


def test_a_session_of_a_client_secret_is_interrupted(server):
    before = cancelled(server)

    async def go():
        async with client(server, secret_of(server, "june")).realtime.connect(model="tts-tiny") as connection:
            await say(connection, LONG)
            await turn(connection, stop="response.output_audio.delta")
            await asyncio.sleep(0.5)
            await connection.response.cancel()
            return (await turn(connection))[-1].response

    assert asyncio.run(go()).status == "cancelled"
    assert freed_in_two_steps(server, before)


def test_client_secrets_are_refused_to_a_bad_key_and_tell_an_unknown_voice_and_an_overload(scripted):
    with pytest.raises(openai.AuthenticationError):
        secret_of(scripted, "instant", key="wrong")
    with pytest.raises(openai.BadRequestError) as caught:
        secret_of(scripted, {"id": 7})
    assert "voice" in caught.value.message

    async def go(voice, stop):
        async with client(scripted, secret_of(scripted, voice)).realtime.connect(model="tts-scripted") as connection:
            await say(connection, TEXT)
            return (await turn(connection, stop=stop))[-1]

    assert asyncio.run(go("nobody", "error")).error.code == "unknown_voice"
    assert asyncio.run(go("overloaded", "response.done")).response.status_details.error.code == "overloaded"


def test_an_overload_is_a_failed_response_and_the_sdk_goes_on(scripted):
    async def go():
        async with client(scripted).realtime.connect(model="tts-scripted") as connection:
            responses = []
            for voice in ("overloaded", "instant"):
                await connection.session.update(session={"type": "realtime", "audio": {"output": {"voice": voice}}})
                await say(connection, TEXT)
                responses.append((await turn(connection))[-1].response)
            return responses

    refused, spoken = asyncio.run(go())
    assert (refused.status, refused.status_details.error.code) == ("failed", "overloaded")
    assert spoken.status == "completed"


def test_quotas_are_told_with_each_response_and_end_one_when_they_are_used_up(used_up):
    async def go():
        async with client(used_up).realtime.connect(model="tts-scripted") as connection:
            await connection.session.update(session={"type": "realtime", "audio": {"output": {"voice": "instant"}}})
            await say(connection, TEXT)
            return await turn(connection)

    response = asyncio.run(go())[-1].response
    assert (response.status, response.status_details.error.code) == ("failed", "rate_limit_exceeded")
    with pytest.raises(openai.RateLimitError) as caught:
        speech_sdk(used_up).audio.speech.create(model="tts-1", voice="instant", input=TEXT)
    assert caught.value.code == "rate_limit_exceeded" and int(caught.value.response.headers["retry-after"]) > 0


def test_quotas_that_are_left_are_told_by_their_names():
    with guarded("--engine", "scripted", more="[quotas]\nrequests_per_minute = 5\ncharacters_per_minute = 1000") as urls:

        async def go():
            async with client(urls).realtime.connect(model="tts-scripted") as connection:
                await say(connection, TEXT)
                return await turn(connection)

        events = asyncio.run(go())
    told = [event for event in events if event.type == "rate_limits.updated"]
    assert [(limit.name, limit.limit, limit.remaining) for limit in told[0].rate_limits] == [("requests", 5, 4), ("tokens", 1000, 1000)]
    assert [event.type for event in events].index("rate_limits.updated") == [event.type for event in events].index("response.created") + 1


@pytest.mark.parametrize("speed", [0.5, 1.5])
def test_a_speed_changes_the_length_and_not_the_words(server, speed):
    async def go():
        async with client(server).realtime.connect(model="tts-tiny") as connection:
            audio = {"output": {"voice": "june", "speed": speed}}
            await connection.session.update(session={"type": "realtime", "audio": audio, "voxlane": {"seed": SEED}})
            await say(connection, TEXT)
            return await turn(connection)

    events = asyncio.run(go())
    assert sound(events) == speech(server, speed=speed), "bit for bit what the speech endpoint gives"
    assert events[-1].response.output[0].content[0].transcript == TEXT


def speech_sdk(server, key=KEY):
    return OpenAI(api_key=key, base_url=server[0] + "/v1", max_retries=0)


def decoded(data: bytes) -> np.ndarray:
    """The file's samples at 24 kHz, by FFmpeg."""
    resampler = av.AudioResampler("s16", "mono", 24_000)
    with av.open(io.BytesIO(data)) as container:
        frames = [f for frame in container.decode(audio=0) for f in resampler.resample(frame)] + resampler.resample(None)
    return np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])


def test_the_speech_endpoint_speaks_every_format_of_the_sdk(server):
    sdk = speech_sdk(server)
    plain = np.frombuffer(speech(server), "<i2")
    for name in ["wav", "pcm", "flac", "opus", "mp3"]:
        with sdk.audio.speech.with_streaming_response.create(
            model="tts-1", voice="june", input=TEXT, response_format=name, extra_body={"seed": SEED}
        ) as answer:
            data, media_type = answer.read(), answer.headers["content-type"]
        if name == "mp3":
            assert media_type == "audio/ogg; codecs=opus", "it says what it is"
        heard = np.frombuffer(data, "<i2") if name == "pcm" else decoded(data)
        if name in ("wav", "pcm", "flac"):
            assert np.array_equal(heard, plain), name
        else:
            assert abs(len(heard) - len(plain)) <= 2
    for speed in (0.5, 2.0):
        pcm = sdk.audio.speech.create(model="tts-1", voice="june", input=TEXT, response_format="pcm", speed=speed, extra_body={"seed": SEED}).read()
        assert len(pcm) // 2 == round(len(plain) / speed)


def test_the_speech_endpoint_streams_events_and_refuses_by_name(server):
    sdk = speech_sdk(server)
    pcm, done = b"", None
    with sdk.audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="alloy", input=TEXT, response_format="pcm", stream_format="sse", extra_body={"seed": SEED}
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                pcm += base64.b64decode(event.get("audio", ""))
                done = event
    assert pcm == speech(server, "clara"), "alloy is the first voice"
    assert done["type"] == "speech.audio.done" and done["finish_reason"] == "stop"
    with pytest.raises(openai.NotFoundError, match="clara"):
        sdk.audio.speech.create(model="tts-1", voice="nobody", input=TEXT)
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.audio.speech.create(model="tts-1", voice="june", input=TEXT, response_format="aac")
    assert (caught.value.code, caught.value.param) == ("unsupported", "response_format") and caught.value.request_id
    with pytest.raises(openai.AuthenticationError):
        speech_sdk(server, "wrong").audio.speech.create(model="tts-1", voice="june", input=TEXT)


def test_the_speech_endpoint_stops_when_the_sdk_lets_go_and_tells_an_overload(server, scripted):
    before = cancelled(server)
    with speech_sdk(server).audio.speech.with_streaming_response.create(model="tts-1", voice="june", input=LONG) as answer:
        next(answer.iter_bytes(4096))
    assert freed_in_two_steps(server, before)
    with pytest.raises(openai.InternalServerError) as caught:
        speech_sdk(scripted).audio.speech.create(model="tts-1", voice="overloaded", input=TEXT)
    assert (caught.value.status_code, caught.value.code) == (503, "overloaded")


def agents_session(server, key=KEY, voice="june", model="tts-tiny"):
    """A session of the agents SDK, which validates every event and is told only our URL."""
    url = server[0].replace("http", "ws") + "/v1/realtime?model=" + model
    settings = {"model_name": model, "audio": {"output": {"voice": voice}}}
    runner = RealtimeRunner(RealtimeAgent(name="speaker", instructions="Speak."))
    return runner.run(model_config={"url": url, "api_key": key, "initial_model_settings": settings})


async def listen(session, stop, limit=30):
    """Sound and events of the agents SDK up to the first that `stop` says yes to."""
    pcm, events = b"", []
    async with asyncio.timeout(limit):
        async for event in session:
            events.append(event)
            if event.type == "audio":
                pcm += event.audio.data
            assert event.type != "error", event.error
            if stop(event):
                return pcm, events
    raise AssertionError([event.type for event in events])


def test_the_agents_sdk_hears_the_same_sentence_and_keeps_the_history(server):
    async def go():
        async with await agents_session(server) as session:
            await session.send_message(TEXT)
            pcm, _ = await listen(session, lambda event: event.type == "audio_end")
            _, events = await listen(session, lambda event: event.type == "history_updated" and spoken(event.history))
            return pcm, spoken(events[-1].history)

    def spoken(history):
        """What the assistant has finished saying."""
        items = [item for item in history if item.role == "assistant" and item.status == "completed"]
        return [part.transcript for item in items for part in item.content]

    pcm, said = asyncio.run(go())
    assert snr_db(speech(server), pcm) >= 40
    assert said == [TEXT]


def test_the_agents_sdk_interrupts(server):
    before = cancelled(server)

    async def go():
        async with await agents_session(server) as session:
            await session.send_message(LONG)
            await listen(session, lambda event: event.type == "audio")
            await asyncio.sleep(0.7)
            await session.interrupt()
            _, events = await listen(session, lambda event: event.type == "audio_interrupted")
            freed = await asyncio.to_thread(freed_in_two_steps, server, before)
            await session.send_message("Good night.")
            pcm = b""
            # The end of what was interrupted may come first.
            while len(pcm) <= 10_000:
                pcm += (await listen(session, lambda event: event.type in ("audio", "audio_end")))[0]
            return freed, pcm

    freed, pcm = asyncio.run(go())
    assert freed and len(pcm) > 10_000


def test_the_agents_sdk_is_told_of_a_bad_key_an_unknown_voice_and_an_overload(server, scripted):
    async def told(server, **options):
        """The error, or how the response failed."""
        async with await agents_session(server, **options) as session:
            await session.send_message(TEXT)
            async with asyncio.timeout(30):
                async for event in session:
                    if event.type == "error":
                        return event.error.code
                    raw = getattr(event.data, "data", None) if event.type == "raw_model_event" else None
                    if isinstance(raw, dict) and raw.get("type") == "response.done":
                        return raw["response"]["status_details"]["error"]["code"]

    with pytest.raises(Exception, match="401"):
        asyncio.run(told(server, key="wrong"))
    assert asyncio.run(told(server, voice="nobody")) == "unknown_voice"
    assert asyncio.run(told(scripted, voice="overloaded", model="tts-scripted")) == "overloaded"
