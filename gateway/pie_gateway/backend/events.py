"""What the program that serves a request tells (`inferlets/chat/rust/src/report.rs`)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

TokenLogprobs: TypeAlias = tuple[float, list[tuple[int, float]]]  # its own, and the likeliest


class Prompt(msgspec.Struct, tag="prompt", array_like=True):
    """The first event: the prompt has been read."""

    tokens: int
    ids: list[int] = []
    tail: str = ""  # the end of what the chat template has written
    logprobs: list[TokenLogprobs] = []  # of each token but the first, or none


class Piece(msgspec.Struct, tag="piece", array_like=True):
    """A choice goes on."""

    choice: int
    text: str
    tokens: int
    ids: list[int] = []
    logprobs: list[TokenLogprobs] = []  # of each token, or none


class End(msgspec.Struct, tag="end", array_like=True):
    """A choice ends."""

    choice: int
    reason: str  # "stop" or "length"
    stop: str | None  # the stop string that was found
    tokens: int
    cached: int = 0  # tokens of the prompt that the prefix cache had


Event: TypeAlias = Prompt | Piece | End
decode_event = msgspec.json.Decoder(Event).decode
