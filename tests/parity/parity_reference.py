"""Loads the reference package (PyPI `qwen-tts`) for CPU, float32 and eager attention.

`qwen-tts` imports `sox` and `gradio` at package import although speech generation uses neither;
empty stand-ins keep a demo web framework and a command-line audio tool out of the environment.
"""

import logging
import os
import sys
import types
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
for _absent in ("sox", "gradio"):
    sys.modules.setdefault(_absent, types.ModuleType(_absent))
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from qwen_tts import Qwen3TTSModel  # noqa: E402

logging.getLogger("transformers").setLevel(logging.ERROR)


def load(path, attention="eager"):
    """The wrapper object of the package for the checkpoint folder `path`, in float32.

    `attention` reaches the talker and the code predictor; the codec always runs with the package's own choice.
    """
    return Qwen3TTSModel.from_pretrained(
        str(path), dtype=torch.float32, attn_implementation=attention, device_map="cpu"
    )
