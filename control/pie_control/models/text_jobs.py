"""Work on long texts, in a confined process."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from pie_control.models.tokenizer import TextCodec


@lru_cache(maxsize=8)
def codec_of(folder: str) -> TextCodec:
    """The tokenizer of a folder."""
    return TextCodec(Path(folder))


def encode(folder: str, text: str) -> bytes:
    """Token ids of a text, as bytes of uint32."""
    return np.array(codec_of(folder).encode(text), np.uint32).tobytes()


def decode(folder: str, tokens: bytes) -> str:
    """Text of token ids, given as bytes of uint32."""
    return codec_of(folder).decode(np.frombuffer(tokens, np.uint32).tolist())


def render(folder: str, request: str, add_generation_prompt: bool) -> str:
    """A chat template's text, see `ChatTemplates.render`."""
    return codec_of(folder).apply_chat_template(request, add_generation_prompt)
