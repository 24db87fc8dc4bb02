"""The native wire (docs/protocol.md) in a few lines, written from that page alone."""

import dataclasses
import json
import struct
import time

import av
import numpy as np
from websockets.sync.client import connect

WIRE_RATE = 48_000
START, END = 1, 2


@dataclasses.dataclass
class Packet:
    kind: int
    flags: int
    context: int
    sequence: int
    timestamp: int
    duration: int
    epoch: int
    payload: bytes
    arrived: float

    @staticmethod
    def read(message: bytes) -> "Packet":
        first, flags, context, sequence, timestamp, duration, epoch = struct.unpack(">BBHIIHH", message[:16])
        assert first >> 4 == 1, "version 1"
        return Packet(first & 15, flags, context, sequence, timestamp, duration, epoch, message[16:], time.monotonic())


class Session:
    """A connection with everything that came in sorted by kind."""

    def __init__(self, url: str, **hello):
        self.socket = connect(url, subprotocols=["voxlane.v1"], max_size=1 << 20, compression=None)
        self.ready = self.receive()
        assert self.ready["type"] == "ready", self.ready
        if hello:
            self.send(type="hello", **hello)

    def send(self, **message):
        self.socket.send(json.dumps(message))

    def receive(self, timeout=30):
        message = self.socket.recv(timeout=timeout)
        return Packet.read(message) if isinstance(message, bytes) else json.loads(message)

    def until(self, kind: str, timeout=60):
        """Everything up to and with the first message of `kind`: (packets, messages)."""
        packets, messages = [], []
        while True:
            message = self.receive(timeout)
            if isinstance(message, Packet):
                packets.append(message)
                continue
            messages.append(message)
            if message["type"] == kind:
                return packets, messages
            assert message["type"] != "error" or kind == "error", message

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def decode_opus(packets: list[Packet], pre_skip: int) -> np.ndarray:
    """Samples at 48 kHz, trimmed as section 5 says, by FFmpeg's own decoder."""
    decoder = av.CodecContext.create("opus", "r")
    decoder.sample_rate = WIRE_RATE
    decoder.layout = "mono"
    pieces = []
    for packet in packets:
        if packet.kind == 2:
            pieces.append(np.zeros(packet.duration, np.float32))
            continue
        samples = [frame.to_ndarray().astype(np.float32).reshape(-1) for frame in decoder.decode(av.Packet(packet.payload))]
        decoded = np.concatenate(samples) if samples else np.zeros(0, np.float32)
        pieces.append(decoded[: packet.duration])
    return np.concatenate(pieces)[pre_skip:]


def check_stream(packets: list[Packet], opened: dict, end: dict, first_sequence=1):
    """Sequence, timestamps, flags and the promise on durations."""
    assert packets, "an epoch with audio has packets"
    assert [p.sequence for p in packets] == list(range(first_sequence, first_sequence + len(packets)))
    position = 0
    for packet in packets:
        assert packet.timestamp == position, "timestamps are the sum of durations before"
        position += packet.duration
    assert packets[0].flags & START and not any(p.flags & START for p in packets[1:])
    assert packets[-1].flags & END and not any(p.flags & END for p in packets[:-1])
    assert position == opened["audio"]["pre_skip"] + end["samples"]
    assert end["sequence"] == packets[-1].sequence
