"""How the server chooses a token, where the model runs: it sends the token, not a distribution."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSampler:
    """How the server chooses a token, among the whole vocabulary.

    The order: bias, penalties, grammar, temperature, top-k, top-p, min-p. The contract's
    `create-sampler` says what each of them does.
    """

    temperature: float = 1.0  # 0 takes the most likely token
    top_k: int = 0  # 0 is all
    top_p: float = 1.0
    min_p: float = 0.0  # share of the most likely token's probability that a token must have
    repetition_penalty: float = 1.0  # of tokens in the prompt and generated
    presence_penalty: float = 0.0  # of generated tokens, once
    frequency_penalty: float = 0.0  # of generated tokens, each time
    logit_bias: Mapping[int, float | None] = field(default_factory=dict)  # None rules a token out
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

    def to_json(self) -> str:
        """The parameters, as `raw.create_sampler` takes them."""
        return json.dumps(
            {
                "temperature": self.temperature,
                "top_k": self.top_k,
                "top_p": self.top_p,
                "min_p": self.min_p,
                "repetition_penalty": self.repetition_penalty,
                "presence_penalty": self.presence_penalty,
                "frequency_penalty": self.frequency_penalty,
                "logit_bias": {str(token): bias for token, bias in self.logit_bias.items()},
                "logprobs": self.logprobs,
                "seed": None if self.seed is None else self.seed % 2**64,
            }
        )
