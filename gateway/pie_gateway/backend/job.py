"""A request as the program that serves it reads it (`inferlets/chat/rust/src/request.rs`)."""

from __future__ import annotations

from typing import Literal

import msgspec


class Sampling(msgspec.Struct, omit_defaults=True):
    """How tokens are chosen."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: list[tuple[int, float | None]] = []
    logprobs: int = 0  # most likely tokens reported with each token
    seed: int | None = None
    typical_p: float | None = None  # None, here and below: the contract's default
    epsilon_cutoff: float | None = None
    eta_cutoff: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    no_repeat_ngram_size: int | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_sequence_breakers: list[int] | None = None
    allowed_tokens: list[int] | None = None


class Grammar(msgspec.Struct):
    """What the text has to look like."""

    kind: Literal["json-schema", "regex", "lark"]
    text: str


class Job(msgspec.Struct, omit_defaults=True):
    """One prompt and how it is continued."""

    model: str
    sampler: Sampling
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
