"""The servers that clients are pointed at."""

import pytest

from speaking import guarded, speech


@pytest.fixture(scope="module")
def server():
    """The embedded model."""
    with guarded() as urls:
        yield urls


@pytest.fixture(scope="module")
def scripted():
    """An engine whose voices misbehave by name: `overloaded` refuses whoever asks for it."""
    with guarded("--engine", "scripted") as urls:
        yield urls


@pytest.fixture
def used_up():
    """A server whose quota of one request a minute has been used."""
    with guarded("--engine", "scripted", more="[quotas]\nrequests_per_minute = 1") as urls:
        speech(urls, "Hi.", "instant")
        yield urls


@pytest.fixture(scope="module")
def realtime_events():
    """Every event that clients of OpenAI Realtime were recorded to hear, and one of every type, of a server with quotas."""
    # Not every environment has what it speaks with.
    import events

    with guarded("--engine", "scripted", more="[quotas]\nrequests_per_minute = 1000\ncharacters_per_minute = 1000000") as urls:
        return events.recorded() + events.every(urls)
