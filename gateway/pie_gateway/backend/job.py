"""The protocol with the program that serves a request (`inferlets/http_answer/rust/src/`): its job,
which `request.rs` reads, and its events, which `report.rs` writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

# Precedes the text of a token that is a marker; a character that is assigned to nothing.
MARK = "\uf8ff"
TokenLogprobs: TypeAlias = tuple[float, list[tuple[int, float]]]  # its own, and the likeliest


class Grammar(msgspec.Struct):
    """The form that a text is held to."""

    kind: Literal["json-schema", "regex", "lark"]
    text: str
    field: str = "response_format"  # of the request, which says so


class Job(msgspec.Struct, omit_defaults=True):
    """One prompt and how it is continued."""

    model: str
    sampler: dict[str, Any]  # parameters of the SDKs' `Sampler`
    adapter: str | None = None
    # One of the next three is the prompt.
    text: str | None = None
    tokens: list[int] | None = None
    messages: str | None = None  # a JSON list for the chat template
    tools: str | None = None  # a JSON list, for asynchronous calls
    template: str | None = None  # a JSON object of the chat template's further arguments
    cue: bool = False  # messages are followed by what starts the assistant's turn
    continued: str | None = None  # the end of the last message, which is not ended but continued
    images: int = 0  # files that follow as messages
    choices: int = 1
    max_tokens: int | None = None  # the rest of the model's longest context by default
    counts: bool = False  # the prompt is told of, however long it is, and nothing follows
    clamp: bool = False  # whether more `max_tokens` than that mean the rest, and are no error
    logprobs: bool = False
    prompt_logprobs: int | None = None  # so many of the likeliest with each token's own
    truncate: int | None = None  # tokens of the prompt's end that are kept
    bare: bool = False  # no token that begins every text precedes `text`
    priority: int = 0  # of the contract's `set-queue-priority`
    ids: bool = False
    stream: bool = False
    stop: list[str] = []
    include_stop: bool = False  # the stop string that was found belongs to the text
    bad_words: list[str] = []
    stop_tokens: list[int] | None = None  # the model's own by default
    hidden: list[tuple[int, int]] = []  # first and last of tokens that have no text
    marks: list[tuple[int, str]] = []  # tokens whose text is preceded by `MARK`, and that text
    grammar: Grammar | None = None
    # In turn how a prompt ends, and what then may precede the form, in Lark: the first that fits.
    leads: list[str] = []


class EmbeddingJob(msgspec.Struct, omit_defaults=True):
    """Texts of which vectors are made (`inferlets/embedding/main.py`): float32 numbers in base64
    are the text of a piece, whose choice is the text's number.
    """

    model: str
    inputs: Sequence[str | Sequence[int] | Sequence[str]]  # pairs of texts are for an encoder
    adapter: str | None = None
    most: int | None = None  # tokens that are read of each; -1: as many as the model takes
    raw: bool = False  # of an encoder: see the contract's `encode`


class Prompt(msgspec.Struct, tag="prompt", array_like=True):
    """The first event: the prompt has been read."""

    tokens: int
    ids: list[int] = []
    tail: str = ""  # the end of what the chat template has written
    logprobs: list[TokenLogprobs] = []  # of each token but the first, or none
    version: str = ""  # of an uploaded adapter


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
