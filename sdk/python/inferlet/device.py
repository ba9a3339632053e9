"""How the server chooses a token, where the model runs: it sends the token, not a distribution."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSampler:
    """How the server chooses a token, among the whole vocabulary.

    The steps go in the order of the fields, unless `order` names another one; the mask of a grammar
    is applied before the temperature. The contract's `create-sampler` says what each of them does.
    """

    mix: Sequence[float] = (1.0,)  # weights: of the own logits, and of those of `generate(beside=)`
    plausibility: float = (
        0.0  # share of the likeliest token's probability that one needs to be mixed
    )
    logit_bias: Mapping[int, float | None] = field(default_factory=dict)  # None rules a token out
    allowed_tokens: Sequence[int] | None = None  # None: all
    repetition_penalty: float = 1.0  # of tokens in the prompt and generated
    presence_penalty: float = 0.0  # of generated tokens, once
    frequency_penalty: float = 0.0  # of generated tokens, each time
    no_repeat_ngram_size: int = 0  # no sequence of so many tokens comes twice
    dry_multiplier: float = 0.0  # DRY: against going on with a repetition
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: Sequence[int] = ()
    watermark_bias: float = 0.0  # for the tokens that `watermark.is_green` tells
    watermark_share: float = 0.5
    watermark_key: int = 0
    temperature: float = 1.0  # 0 takes the most likely token
    top_k: int = 0  # 0 is all
    top_p: float = 1.0
    min_p: float = 0.0  # share of the most likely token's probability that a token must have
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    xtc_probability: float = 0.0  # how often XTC leaves out the likely tokens but the last of them
    xtc_threshold: float = 0.1
    order: Sequence[str] | None = None  # of the steps; None: as above
    logprobs: int = 0  # how many of the most likely tokens each step returns as well
    seed: int | None = None  # same seed (modulo 2^64), same tokens; without one the server draws it

    def seeded(self, seed: int | None) -> DeviceSampler:
        """The same sampler with another seed."""
        return replace(self, seed=seed)

    @property
    def counts(self) -> bool:
        """Whether it has a penalty, and so counts the tokens of the context."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
        )

    @property
    def looks_back(self) -> bool:
        """Whether it has to be told of the tokens of the context."""
        steps = self.no_repeat_ngram_size, self.dry_multiplier, self.watermark_bias
        return self.counts or any(steps)

    def to_json(self) -> str:
        """The parameters, as `raw.create_sampler` takes them: those that were set."""
        given: dict[str, Any] = {}
        for name, plain in _PLAIN.items():
            value = getattr(self, name)
            if value != plain:
                given[name] = value
        if self.logit_bias:
            given["logit_bias"] = {str(token): bias for token, bias in self.logit_bias.items()}
        if self.seed is not None:
            given["seed"] = self.seed % 2**64
        return json.dumps(given, default=list)


_PLAIN = {one.name: getattr(DeviceSampler(), one.name) for one in fields(DeviceSampler)}
