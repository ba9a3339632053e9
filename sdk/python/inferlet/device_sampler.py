"""Choice by the server, where the model runs: it sends the token, not a distribution."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from inferlet import samplers
from inferlet.device import ProgramSampler, State, Tensor, draw, program, where
from inferlet.errors import PieError

_LOOK_BACK = 4096  # tokens: as many as the server remembers
_SORTED = 256  # of top-k: beyond this all tokens are sorted
_RANGES = {  # of numbers, which end far from where float32 loses its grip
    "repetition_penalty": (1e-9, 1e4),
    "presence_penalty": (-1e4, 1e4),
    "frequency_penalty": (-1e4, 1e4),
    "no_repeat_ngram_size": (0, 64),
    "min_tokens": (0, 2**24),
    "dry_multiplier": (0, 1e4),
    "dry_base": (1, 100),
    "dry_allowed_length": (0, 64),
    "temperature": (0, 1e4),
    "top_k": (0, 2**31 - 1),
    **dict.fromkeys(("top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff"), (0, 1)),
    **dict.fromkeys(("xtc_threshold", "xtc_probability"), (0, 1)),
}
_Step: TypeAlias = tuple[dict[str, Any], Callable[[Tensor, State], Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSampler:
    """How the server chooses a token, among the whole vocabulary.

    The steps go in the order of the fields, that of `transformers`; each looks at what those before
    have left. A grammar or mask comes before them. Temperature, top-k, top-p and min-p are built
    into the server; any other step makes a device program of `inferlet.samplers`, where another
    order, and further rules, are a function of one's own.

    Attributes:
        logit_bias: token ids to what is added to their logits; None rules a token out.
        allowed_tokens: token ids; all others are ruled out.
        repetition_penalty: of tokens given and generated, a logit above 0 is divided by it,
            one below multiplied.
        presence_penalty: taken off tokens generated, once.
        frequency_penalty: taken off tokens generated, each time.
        no_repeat_ngram_size: no sequence of so many tokens comes twice.
        banned_sequences: lists of token ids that do not come as a whole.
        min_tokens: so many tokens are chosen before `end_tokens`.
        end_tokens: token ids that end the text.
        dry_multiplier: `multiplier * base ** (n - allowed_length)` is taken off a token that goes
            on with a repetition of n tokens, 64 at most, among the newest 1 024.
        dry_base: the base of this power.
        dry_allowed_length: tokens that may be repeated.
        dry_sequence_breakers: token ids at which a repetition ends.
        temperature: divides the logits; 0 takes the most likely token of what is left, and ends the
            steps.
        top_k: so many of the most likely tokens; 0 is all.
        top_p: the fewest likely tokens that reach this mass.
        min_p: share of the most likely token's probability that a token needs.
        typical_p: mass of the tokens whose surprise is nearest to the expected.
        epsilon_cutoff: probability that a token needs.
        eta_cutoff: the same, lower where the model is unsure.
        xtc_threshold: probability from which on a token is likely to XTC.
        xtc_probability: how often XTC rules out all likely tokens but the least likely of them.
        logprobs: how many of the most likely tokens each step returns as well.
        seed: same seed (modulo 2^64), same tokens; without one the server draws it.

    Raises:
        ValueError: a number is outside its range, or `allowed_tokens` is empty.
    """

    logit_bias: Mapping[int, float | None] = field(default_factory=dict)
    allowed_tokens: Sequence[int] | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    banned_sequences: Sequence[Sequence[int]] = ()
    min_tokens: int = 0
    end_tokens: Sequence[int] = ()
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_sequence_breakers: Sequence[int] = ()
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    xtc_threshold: float = 0.1
    xtc_probability: float = 0.0
    logprobs: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        """A program would compute with whatever it is given, and the server sees numbers only."""
        for name, (least, most) in _RANGES.items():
            if not least <= (value := getattr(self, name)) <= most:
                raise ValueError(f"{name} is {value}; it is {least:g} to {most:g}")
        for token, bias in self.logit_bias.items():
            if not (bias is None or bias == -math.inf or abs(bias) <= 1e4):
                raise ValueError(
                    f"logit_bias of token {token} is {bias}; it is -10000 to 10000, or None"
                )
        if self.allowed_tokens is not None and not self.allowed_tokens:
            raise ValueError("allowed_tokens is empty: it would rule out every token")

    def seeded(self, seed: int | None) -> DeviceSampler:
        """The same sampler with another seed."""
        return replace(self, seed=seed)

    @property
    def counts(self) -> bool:
        """Whether a step counts the tokens of the context."""
        penalties = self.repetition_penalty, self.presence_penalty, self.frequency_penalty
        return penalties != (1.0, 0.0, 0.0)

    looks_back = False  # of what the server has built in
    beside = 0

    def explain(self, error: PieError) -> None:
        """Adds to an error of it what only the inferlet knows: nothing."""

    def resolved(self) -> DeviceSampler | ProgramSampler:
        """Itself if all of it is built into the server, else the device program of its meaning."""
        before, behind = list(self._before()), list(self._behind()) if self.temperature else []
        if not (before or behind):
            return self
        steps = [*before, *(self._built_in() if self.temperature else []), *behind]

        def rule(logits: Tensor, state: State) -> Tensor:
            for _, step in steps:
                logits = step(logits, state)
            token = draw(logits) if self.temperature else logits.argmax()
            return where(logits.max() > -math.inf, token, -1)  # none, if all are ruled out

        given = {name: value for values, _ in steps for name, value in values.items()}
        return program(rule)(seed=self.seed, logprobs=self.logprobs, **given)

    def to_json(self) -> str:
        """The parameters, as `raw.create_sampler` takes them."""
        found = self.resolved()
        if isinstance(found, ProgramSampler):
            return found.to_json()
        given: dict[str, Any] = {}
        for name, plain in _BUILT_IN.items():
            if (value := getattr(self, name)) != plain:
                given[name] = value
        if self.seed is not None:
            given["seed"] = self.seed % 2**64
        return json.dumps(given)

    # Each step with the state that it reads: what is of the state makes no other program.

    def _before(self) -> Iterator[_Step]:
        """What comes before the temperature."""
        if self.logit_bias:
            values = [-math.inf if one is None else float(one) for one in self.logit_bias.values()]
            yield (
                {"logit_bias": list(self.logit_bias), "biases": values},
                lambda x, s: samplers.logit_bias(x, s.logit_bias, s.biases),
            )
        if self.allowed_tokens is not None:
            yield (
                {"allowed_tokens": list(self.allowed_tokens)},
                lambda x, s: samplers.allowed_tokens(x, s.allowed_tokens),
            )
        if self.repetition_penalty != 1:
            yield (
                {"repetition": float(self.repetition_penalty)},
                lambda x, s: samplers.repetition_penalty(x, s.repetition),
            )
        if self.presence_penalty:
            yield (
                {"presence": float(self.presence_penalty)},
                lambda x, s: samplers.presence_penalty(x, s.presence),
            )
        if self.frequency_penalty:
            yield (
                {"frequency": float(self.frequency_penalty)},
                lambda x, s: samplers.frequency_penalty(x, s.frequency),
            )
        if size := self.no_repeat_ngram_size:
            yield {}, lambda x, s: samplers.no_repeat_ngram(x, size, _LOOK_BACK - size + 1)
        if self.banned_sequences:
            yield (
                {"banned_sequences": samplers.padded(self.banned_sequences)},
                lambda x, s: samplers.banned_sequences(x, s.banned_sequences),
            )
        if self.min_tokens and self.end_tokens:
            yield (
                {"least": self.min_tokens, "end_tokens": list(self.end_tokens)},
                lambda x, s: samplers.min_tokens(x, s.least, s.end_tokens),
            )
        if self.dry_multiplier:
            breakers = list(self.dry_sequence_breakers)
            yield (
                {
                    "multiplier": float(self.dry_multiplier),
                    "base": float(self.dry_base),
                    "free": self.dry_allowed_length,
                    **({"dry_sequence_breakers": breakers} if breakers else {}),
                },
                lambda x, s: samplers.dry(
                    x, s.multiplier, s.base, s.free, s.dry_sequence_breakers if breakers else None
                ),
            )

    def _built_in(self) -> Iterator[_Step]:
        """What the server does without a program as well."""
        if self.temperature != 1:
            yield {"temperature": float(self.temperature)}, lambda x, s: x / s.temperature
        if 0 < self.top_k <= _SORTED:
            yield {}, lambda x, s: samplers.top_k(x, self.top_k)
        elif self.top_k:
            yield {"k": self.top_k}, lambda x, s: samplers.top_k(x, s.k)
        if self.top_p < 1:
            yield {"p": float(self.top_p)}, lambda x, s: samplers.top_p(x, s.p)
        if self.min_p:
            yield {"least_p": float(self.min_p)}, lambda x, s: samplers.min_p(x, s.least_p)

    def _behind(self) -> Iterator[_Step]:
        """What comes behind it."""
        if self.typical_p < 1:
            yield {"typical": float(self.typical_p)}, lambda x, s: samplers.typical_p(x, s.typical)
        if self.epsilon_cutoff:
            yield (
                {"epsilon": float(self.epsilon_cutoff)},
                lambda x, s: samplers.epsilon_cutoff(x, s.epsilon),
            )
        if self.eta_cutoff:
            yield {"eta": float(self.eta_cutoff)}, lambda x, s: samplers.eta_cutoff(x, s.eta)
        if self.xtc_probability:
            yield (
                {"threshold": float(self.xtc_threshold), "chance": float(self.xtc_probability)},
                lambda x, s: samplers.xtc(x, s.threshold, s.chance),
            )


_BUILT_IN: dict[str, Any] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "logprobs": 0,
}
