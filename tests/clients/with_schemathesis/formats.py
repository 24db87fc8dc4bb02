"""What a schema cannot say of a text: that it can be spoken, and that bytes are sound."""

import base64
from pathlib import Path

import schemathesis
from hypothesis import strategies as st

CLIP = (Path(__file__).parents[3] / "config" / "models" / "tiny" / "voices" / "clara.wav").read_bytes()

schemathesis.openapi.format("spoken", st.from_regex(r"\A[A-Za-z0-9À-ÖØ-öø-ÿ ,.!?]{0,40}[A-Za-z0-9][.!? ]{0,3}\Z"))
schemathesis.openapi.format("sound", st.just(base64.b64encode(CLIP).decode()))
schemathesis.openapi.format("binary", st.just(CLIP))
