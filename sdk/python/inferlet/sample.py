"""Samplers, which say how the server chooses tokens, and distributions."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inferlet._generated.sampler_parameters import Parameters

if TYPE_CHECKING:
    from typing import Unpack

DISTRIBUTION_SIZE = 256  # most likely tokens of a distribution, by default


class Sampler:
    """How the server chooses a token, among the whole vocabulary: parameters by name, as in
    `Sampler(temperature=0.6, repetition_penalty=1.2)`, or a class method, as in
    `Sampler.top_p(0.6, 0.95)`, which takes others by name as well.

    A temperature of 0 takes the most likely token. The same seed gives the same text, however it is
    read. `Parameters` has the parameters, in the order in which they act; the server checks their
    values. A rule of one's own is a device program, or a function: `Context.generate(choose=rule)`.

    Attributes:
        parameters: by name.

    Raises:
        TypeError: there is no parameter of a name.
    """

    __slots__ = ("parameters",)

    def __init__(self, **parameters: Unpack[Parameters]) -> None:
        """Of the parameters that are not given each does nothing, but that the temperature is 1."""
        if unknown := parameters.keys() - Parameters.__annotations__.keys():
            names = ", ".join(Parameters.__annotations__)
            raise TypeError(f"Sampler has no parameter {min(unknown)}; there are {names}")
        self.parameters: dict[str, Any] = {
            name: value for name, value in parameters.items() if value is not None
        }

    def __init_subclass__(cls) -> None:
        raise TypeError(
            "Sampler has no subclasses: give your rule to `context.generate(choose=rule)`. It is a"
            " function, or an object that is called, of (tokens, probabilities), and returns one"
        )

    def __repr__(self) -> str:
        return (
            f"Sampler({', '.join(f'{name}={value!r}' for name, value in self.parameters.items())})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sampler) and self.parameters == other.parameters

    def __hash__(self) -> int:
        return hash(self.to_json())

    @classmethod
    def argmax(cls, **more: Any) -> Sampler:
        """Always the most likely token."""
        return cls(temperature=0.0, **more)

    greedy = argmax

    @classmethod
    def top_p(
        cls, temperature: float = 0.6, p: float = 0.95, seed: int | None = None, **more: Any
    ) -> Sampler:
        """Nucleus sampling: the fewest most likely tokens whose probabilities reach `p`."""
        return cls(temperature=temperature, top_p=p, seed=seed, **more)

    @classmethod
    def top_k(
        cls, temperature: float = 0.6, k: int = 40, seed: int | None = None, **more: Any
    ) -> Sampler:
        """Among the `k` most likely tokens."""
        return cls(temperature=temperature, top_k=k, seed=seed, **more)

    @classmethod
    def min_p(
        cls, temperature: float = 0.6, p: float = 0.1, seed: int | None = None, **more: Any
    ) -> Sampler:
        """Among the tokens that are at least `p` times as likely as the most likely one."""
        return cls(temperature=temperature, min_p=p, seed=seed, **more)

    @classmethod
    def top_k_top_p(
        cls,
        temperature: float = 0.6,
        k: int = 40,
        p: float = 0.95,
        seed: int | None = None,
        **more: Any,
    ) -> Sampler:
        """Top-k, then top-p among those."""
        return cls(temperature=temperature, top_k=k, top_p=p, seed=seed, **more)

    @classmethod
    def multinomial(cls, temperature: float = 1.0, seed: int | None = None, **more: Any) -> Sampler:
        """By probability, after temperature."""
        return cls(temperature=temperature, seed=seed, **more)

    def replaced(self, **more: Unpack[Parameters]) -> Sampler:
        """The same sampler with other values of some parameters."""
        return Sampler(**{**self.parameters, **more})

    def seeded(self, seed: int | None) -> Sampler:
        """The same sampler with another seed."""
        return self.replaced(seed=seed)

    @property
    def seed(self) -> int | None:
        """Its seed, if it has one."""
        return self.parameters.get("seed")

    @property
    def logprobs(self) -> int:
        """How many of the most likely tokens each step returns as well."""
        return int(self.parameters.get("logprobs", 0))

    def to_json(self) -> str:
        """The parameters, as `raw.create_sampler` takes them."""
        sent = {**self.parameters}
        if self.seed is not None:  # of another type the server says so
            sent["seed"] = self.seed % 2**64 if isinstance(self.seed, int) else self.seed
        return json.dumps(sent)


@dataclass(frozen=True, slots=True)
class Distribution:
    """The most likely next tokens, most likely first, and their probabilities at temperature 1."""

    tokens: list[int]
    probabilities: list[float]

    def max_index(self) -> int:
        """The most likely token."""
        return self.tokens[0]

    def probability(self, token: int) -> float:
        """A token's probability; 0 if it is not among those returned."""
        try:
            return self.probabilities[self.tokens.index(token)]
        except ValueError:
            return 0.0

    def logprob(self, token: int) -> float:
        """A token's log-probability; minus infinity if it is not among those returned."""
        probability = self.probability(token)
        return math.log(probability) if probability > 0 else -math.inf

    def __len__(self) -> int:
        return len(self.tokens)
