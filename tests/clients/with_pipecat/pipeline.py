"""Services of pipecat in a pipeline of their own."""

import itertools

from pipecat.frames.frames import ErrorFrame, TTSAudioRawFrame, TTSStoppedFrame
from pipecat.observers.base_observer import BaseObserver
from pipecat.pipeline.worker import PipelineParams
from pipecat.tests.utils import SleepFrame, run_test

from speaking import RATE

# Frames that end a turn.
ENDED = {ErrorFrame, TTSStoppedFrame}
# Seconds: longer than anything takes on a busy machine.
PATIENCE = 20


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

    options = {"pipeline_params": PipelineParams(audio_out_sample_rate=RATE, audio_in_sample_rate=RATE), "observers": [seen], "start_timeout": PATIENCE}
    down, up = await run_test(service, frames_to_send=sending(), **options)
    return down, [frame for frame in [*down, *up] if isinstance(frame, ErrorFrame)]


def sound(frames) -> bytes:
    return b"".join(frame.audio for frame in frames if isinstance(frame, TTSAudioRawFrame))
