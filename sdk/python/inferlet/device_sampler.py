"""Choice by the server, where the model runs: it sends the token, not a distribution."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from inferlet._sampler_parameters import SamplerParameters
from inferlet.errors import PieError


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSampler(SamplerParameters):
    """How the server chooses a token, among the whole vocabulary.

    The steps go in the order of the fields, unless `order` names another one; the mask of a grammar
    is applied before the temperature. The contract's `create-sampler` says what each of them does.
    """

    order: Sequence[str] | None = None  # of the steps; None: as above
    logprobs: int = 0  # how many of the most likely tokens each step returns as well
    seed: int | None = None  # same seed (modulo 2^64), same tokens; without one the server draws it

    def seeded(self, seed: int | None) -> DeviceSampler:
        """The same sampler with another seed."""
        return replace(self, seed=seed)

    @property
    def beside(self) -> int:
        """How many contexts beside its own it mixes the logits of."""
        return len(self.mix) - 1

    def explain(self, error: PieError) -> None:
        """Adds to an error of it what only the inferlet knows: nothing."""

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
