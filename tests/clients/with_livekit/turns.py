"""What a voice agent does with one of LiveKit's plugins for speech."""

import asyncio

import aiohttp
from livekit.agents import APIConnectOptions

ONCE = APIConnectOptions(max_retry=0, timeout=10)


async def speak(tts, text):
    """Speaks text word by word; gives PCM and timed words."""
    pcm, words = b"", []
    async with tts.stream(conn_options=ONCE) as stream:
        for word in text.split():
            stream.push_text(word + " ")
        stream.end_input()
        async for event in stream:
            pcm += bytes(event.frame.data)
            words += event.frame.userdata.get("lk.timed_transcripts", [])
    return pcm, words


def run(make, body):
    """Gives what `body` makes of the plugin that `make` makes of a session."""

    async def go():
        async with aiohttp.ClientSession() as session:
            tts = make(session)
            try:
                return await body(tts)
            finally:
                await tts.aclose()

    return asyncio.run(go())
