"""The number of tokens of a request."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct):
    """The number of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def usage(prompt: int, completion: int) -> Usage:
    """Of a prompt and all its choices."""
    return Usage(prompt, completion, prompt + completion)
