"""A request as the program that serves it reads it (`inferlets/chat/rust/src/request.rs`)."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Grammar(msgspec.Struct):
    """What the text has to look like."""

    kind: Literal["json-schema", "regex", "lark"]
    text: str


class Job(msgspec.Struct, omit_defaults=True):
    """One prompt and how it is continued."""

    model: str
    sampler: dict[str, Any]  # parameters of the contract's `create-sampler`
    adapter: str | None = None
    # One of the next three is the prompt.
    text: str | None = None
    tokens: list[int] | None = None
    messages: str | None = None  # a JSON list for the chat template
    tools: str | None = None  # a JSON list for the chat template
    cue: bool = False  # messages are followed by what starts the assistant's turn
    images: int = 0  # files that follow as messages
    choices: int = 1
    max_tokens: int | None = None  # the rest of the model's longest context by default
    logprobs: bool = False
    prompt_logprobs: bool = False
    ids: bool = False
    stream: bool = False
    stop: list[str] = []
    stop_tokens: list[int] | None = None  # the model's own by default
    hidden: list[tuple[int, int]] = []  # first and last of tokens that have no text
    grammar: Grammar | None = None
