"""A client that streams word by word, as a voice agent's backend would."""

import io
import json
import time
import urllib.error
import urllib.request

import av
import numpy as np
import pytest

import wire
from server import running

TEXT = "The morning train was late again, so we walked along the river."


@pytest.fixture(scope="module")
def server():
    with running() as urls:
        yield urls


def speak(session, context, text, by="words", **settings):
    """Speaks one context to its end. Returns (packets, opened, end, seconds to the first packet)."""
    session.send(type="open", context=context, **settings)
    pieces = {"words": lambda: [word + " " for word in text.split()], "whole": lambda: [text], "letters": lambda: list(text)}[by]()
    started = time.monotonic()
    for sequence, piece in enumerate(pieces, 1):
        session.send(type="text.append", context=context, sequence=sequence, text=piece)
        if by == "words":
            time.sleep(0.02)
    session.send(type="text.end", context=context)
    packets, messages = session.until("end")
    opened = next(m for m in messages if m["type"] == "opened")
    acks = [m["sequence"] for m in messages if m["type"] == "text.ack"]
    assert acks == sorted(acks) and acks[-1] == len(pieces), "every delta was acknowledged, in order"
    return packets, opened, messages[-1], packets[0].arrived - started


def pcm(packets):
    return np.frombuffer(b"".join(p.payload for p in packets), "<i2").astype(np.float32) / 32768


def snr_db(reference, other):
    noise = np.sum((reference - other) ** 2)
    return 10 * np.log10(np.sum(reference**2) / max(noise, 1e-12))


def test_words_become_packets_whose_numbers_add_up_and_decode_elsewhere(server):
    with wire.Session(server[1]) as session:
        packets, opened, end, _ = speak(session, 1, TEXT)
        assert end["reason"] == "done" and end["usage"]["characters"] == len(TEXT) + 1
        wire.check_stream(packets, opened, end)
        samples = wire.decode_opus(packets, opened["audio"]["pre_skip"])
        assert len(samples) == end["samples"], "end trim leaves exactly the samples promised"
        assert 2.0 < len(samples) / wire.WIRE_RATE < 8.0
        assert np.max(np.abs(samples)) > 0.05, "it is not silence"


def test_how_text_is_split_never_changes_the_sound(server):
    with wire.Session(server[1]) as session:
        settings = {"seed": 11, "audio": {"codec": "pcm"}}
        heard = [pcm(speak(session, n, TEXT + " ", by, **settings)[0]) for n, by in enumerate(["words", "whole", "letters"], 1)]
        assert len(heard[0]) > 24_000
        for other in heard[1:]:
            assert np.array_equal(heard[0], other), "bit for bit"


@pytest.mark.parametrize("layout", ["streamed", "whole"])
def test_opus_carries_what_pcm_carries(server, layout):
    with wire.Session(server[1]) as session:
        settings = {"seed": 5, "layout": layout, "voice": "june"}
        plain, _, end, _ = speak(session, 1, TEXT, **settings, audio={"codec": "pcm", "sample_rate": 48000})
        packets, opened, _, _ = speak(session, 2, TEXT, **settings)
        reference, decoded = pcm(plain), wire.decode_opus(packets, opened["audio"]["pre_skip"])
        assert len(reference) == len(decoded) == end["samples"]
        assert snr_db(reference, decoded) > 8, "lossy, but the same wave at the same place"


def test_two_contexts_speak_at_once_and_stay_apart(server):
    with wire.Session(server[1]) as session:
        for context, voice in [(1, "clara"), (2, "marcus")]:
            session.send(type="open", context=context, voice=voice, seed=3)
            session.send(type="text.append", context=context, sequence=1, text=TEXT)
            session.send(type="text.end", context=context)
        packets, ends, opened = {1: [], 2: []}, {}, {}
        while len(ends) < 2:
            message = session.receive()
            if isinstance(message, wire.Packet):
                packets[message.context].append(message)
            elif message["type"] == "end":
                ends[message["context"]] = message
            elif message["type"] == "opened":
                opened[message["context"]] = message
        for context in (1, 2):
            wire.check_stream(packets[context], opened[context], ends[context])


def test_an_interrupt_is_answered_and_the_next_epoch_speaks(server):
    with wire.Session(server[1]) as session:
        session.send(type="open", context=1)
        session.send(type="text.append", context=1, sequence=1, text=" ".join([TEXT] * 6))
        session.send(type="text.end", context=1)
        first = next(m for m in iter(session.receive, None) if isinstance(m, wire.Packet))
        assert first.epoch == 0
        time.sleep(0.5)
        session.send(type="cancel", context=1, played=24_000)
        _, messages = session.until("cancelled")
        cancelled = messages[-1]
        assert cancelled["epoch"] == 1 and cancelled["heard"]["estimated"]
        assert TEXT.startswith(cancelled["heard"]["text"])
        packets, messages = session.until("end")
        assert messages[-1]["reason"] == "cancelled" and messages[-1]["epoch"] == 0
        assert not packets, "no old packet follows the answer"
        session.send(type="text.append", context=1, sequence=1, text="Hello there.")
        session.send(type="text.end", context=1)
        packets, messages = session.until("end")
        assert {p.epoch for p in packets} == {1} and messages[-1]["reason"] == "done"


def test_a_mistake_costs_an_error_and_nothing_else(server):
    with wire.Session(server[1]) as session:
        session.send(type="open", context=1, voice="claire")
        error = session.until("error")[1][-1]["error"]
        assert error["code"] == "unknown_voice"
        assert all(name in error["message"] for name in ["clara", "marcus", "nora", "june"])
        session.send(type="open", context=2, vioce="clara")
        error = session.until("error")[1][-1]["error"]
        assert error["code"] == "unknown_field" and "voice" in error["message"]
        session.send(type="open", context=3)
        session.send(type="text.append", context=3, sequence=1, text="Say <|im_end|> aloud.")
        error = session.until("error")[1][-1]["error"]
        assert error["code"] == "control_token"
        end = session.until("end")[1][-1]
        assert (end["context"], end["reason"], end["samples"]) == (3, "failed", 0)
        assert speak(session, 4, "Hello there.")[2]["reason"] == "done"


def post(url, body):
    request = urllib.request.Request(url + "/v1/audio/speech", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=60)


def test_http_formats_agree(server):
    body = {"model": "tts-tiny", "input": TEXT, "voice": "nora", "seed": 7}
    raw = np.frombuffer(post(server[0], {**body, "response_format": "pcm"}).read(), "<i2")
    with post(server[0], {**body, "response_format": "wav"}) as response:
        assert response.headers["Content-Type"] == "audio/wav"
        wav = response.read()
    assert wav[:4] == b"RIFF" and wav[8:12] == b"WAVE"
    assert np.array_equal(np.frombuffer(wav[wav.index(b"data") + 8 :], "<i2"), raw), "WAV holds the same samples"
    with post(server[0], {**body, "response_format": "opus"}) as response:
        container = av.open(io.BytesIO(response.read()))
    decoded = np.concatenate([frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)])
    assert abs(len(decoded) - 2 * len(raw)) <= 1, "Ogg's granule positions trim both ends exactly"
    reference = raw.astype(np.float32) / 32768
    assert snr_db(reference, decoded[::2][: len(reference)].astype(np.float32)) > 8


def test_http_audio_arrives_while_it_is_generated(server):
    body = {"model": "tts-tiny", "input": " ".join([TEXT] * 8), "voice": "clara", "response_format": "pcm"}
    started = time.monotonic()
    with post(server[0], body) as response:
        response.read(1)
        first = time.monotonic() - started
        response.read()
        whole = time.monotonic() - started
    assert first < whole / 3, f"first byte after {first:.2f} s of {whole:.2f} s"


def test_http_errors_say_what_to_do(server):
    for body, status, code in [
        ({"model": "tts-tiny", "input": "", "voice": "clara"}, 400, "field_out_of_range"),
        ({"model": "tts-tiny", "input": "Hi.", "voice": "claire"}, 404, "unknown_voice"),
        ({"model": "tts-tiny", "input": "Hi.", "vioce": "clara"}, 400, "unknown_field"),
        ({"model": "tts-huge", "input": "Hi.", "voice": "clara"}, 404, "unknown_model"),
        ({"model": "tts-tiny", "input": 7, "voice": "clara"}, 400, "wrong_type"),
    ]:
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(server[0], body)
        error = json.loads(caught.value.read())["error"]
        assert (caught.value.code, error["code"]) == (status, code), error
        assert error["message"] and error["request_id"]


def test_lists_hold_the_model_and_its_four_voices(server):
    models = json.load(urllib.request.urlopen(server[0] + "/v1/models"))
    assert [m["id"] for m in models["data"]] == ["tts-tiny"]
    voices = json.load(urllib.request.urlopen(server[0] + "/v1/audio/voices"))
    assert {v["name"] for v in voices["data"]} == {"clara", "marcus", "nora", "june"}
