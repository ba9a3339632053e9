"""Operations on a sampler's logits before a token is chosen: small ones, in any order.

It has what requests ask for most; everything else is a device program of the SDKs' samplers, and
the SDKs send penalties and biases as such, too: they cost no more (`docs/device-programs.md`). The
contract's text and the server's check of parameters are made from this table; the worker has a
function for each operation (`pie_inference.sampling.operations`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Any

import numpy as np

ARGUMENTS = 1  # numbers that an operation has at most
LOGIT_ROWS = 256  # rows of logits that a worker keeps for device programs to read
OTHERS = 2  # of these, what one choice may read
HISTORY = 4096  # tokens, the newest ones, that device programs look back at
LARGEST = 1e4  # of numbers that have no natural end: far from where float32 loses its grip


class Kind(Enum):
    """What a parameter is, and how it becomes an operation's numbers and tokens."""

    NUMBER = auto()  # a float
    COUNT = auto()  # a whole number
    TOKENS = auto()  # a list of token ids
    BIASES = auto()  # token ids to numbers; None rules a token out


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation.

    Attributes:
        name: in the contract's JSON.
        doc: what it says, in a few words.
        default: the value at which it changes nothing.
        least: the smallest value.
        most: the largest value, or the most entries of a list.
    """

    name: str
    doc: str
    kind: Kind = Kind.NUMBER
    default: Any = 0.0
    least: float = 0
    most: float = LARGEST


class Operation(IntEnum):
    """An operation, in the order in which `transformers` does them."""

    LOGIT_BIAS = 0
    ALLOWED_TOKENS = 1
    REPETITION_PENALTY = 2
    PRESENCE_PENALTY = 3
    FREQUENCY_PENALTY = 4
    MASK = 5
    TEMPERATURE = 6
    TOP_K = 7
    TOP_P = 8
    MIN_P = 9

    @property
    def label(self) -> str:
        """The name in a sampler's `order`."""
        return self.name.lower()


# The parameters of each operation: their numbers are its arguments, in this order.
PARAMETERS: dict[Operation, tuple[Parameter, ...]] = {
    Operation.LOGIT_BIAS: (
        Parameter(
            "logit_bias",
            "token ids to what is added to their logits; null rules a token out",
            Kind.BIASES,
            default={},
            most=4096,
        ),
    ),
    Operation.ALLOWED_TOKENS: (
        Parameter(
            "allowed_tokens",
            "token ids; all others are ruled out",
            Kind.TOKENS,
            default=None,
            most=math.inf,
        ),
    ),
    Operation.REPETITION_PENALTY: (
        Parameter(
            "repetition_penalty",
            "of tokens given and generated, a logit above 0 is divided by it, one below multiplied",
            default=1.0,
            least=1 / LARGEST,
        ),
    ),
    Operation.PRESENCE_PENALTY: (
        Parameter("presence_penalty", "taken off tokens generated, once", least=-LARGEST),
    ),
    Operation.FREQUENCY_PENALTY: (
        Parameter("frequency_penalty", "taken off tokens generated, each time", least=-LARGEST),
    ),
    Operation.MASK: (),
    Operation.TEMPERATURE: (
        Parameter(
            "temperature",
            "divides the logits; 0 takes the most likely token of what is left, and ends the steps",
            default=1.0,
        ),
    ),
    Operation.TOP_K: (
        Parameter(
            "top_k", "so many of the most likely tokens; 0 is all", Kind.COUNT, 0, most=2**31 - 1
        ),
    ),
    Operation.TOP_P: (
        Parameter("top_p", "the fewest likely tokens that reach this mass", default=1.0, most=1),
    ),
    Operation.MIN_P: (
        Parameter(
            "min_p", "share of the most likely token's probability that a token needs", most=1
        ),
    ),
}
ALL_PARAMETERS = {p.name: p for operation in Operation for p in PARAMETERS[operation]}

DEFAULT_ORDER = tuple(Operation)
COUNTING = frozenset(
    (Operation.REPETITION_PENALTY, Operation.PRESENCE_PENALTY, Operation.FREQUENCY_PENALTY)
)
# What the choice itself does, in this order: the end of a sampler's operations may be left to it.
CHOICE = (Operation.TEMPERATURE, Operation.TOP_K, Operation.TOP_P, Operation.MIN_P)


@dataclass(frozen=True, slots=True)
class Step:
    """An operation with its arguments."""

    operation: Operation
    arguments: Sequence[float] = ()
    tokens: Sequence[tuple[int, float]] = ()  # with their numbers


def step(operation: Operation, values: Mapping[str, Any]) -> Step | None:
    """An operation with the arguments that parameters give it; None if it would change nothing.

    Args:
        operation: which one.
        values: of all parameters, by name; they have been checked.
    """
    parameters = PARAMETERS[operation]
    if parameters and all(values[p.name] == p.default for p in parameters):
        return None
    arguments: list[float] = []
    tokens: list[tuple[int, float]] = []
    for parameter in parameters:
        value = values[parameter.name]
        match parameter.kind:
            case Kind.NUMBER | Kind.COUNT:
                arguments.append(value)
            case Kind.TOKENS:
                tokens = [(token, 0.0) for token in value]
            case Kind.BIASES:
                tokens = [(int(t), -math.inf if b is None else b) for t, b in value.items()]
    return Step(operation, arguments, tokens)


def packed(programs: Sequence[Sequence[Step]]) -> dict[str, Any]:
    """The steps of samplers `[n]` as the arrays of `SetSampler`."""
    steps = [each for program in programs for each in program]
    if not steps:
        return {}
    arguments = np.zeros((len(steps), ARGUMENTS), np.float32)
    for row, each in zip(arguments, steps, strict=True):
        row[: len(each.arguments)] = each.arguments
    return {
        "operation_starts": np.cumsum([0, *map(len, programs)], dtype=np.int32),
        "operations": np.array([each.operation for each in steps], np.int32),
        "arguments": arguments,
        "token_starts": np.cumsum([0, *(len(each.tokens) for each in steps)], dtype=np.int32),
        "tokens": np.array([token for each in steps for token, _ in each.tokens], np.int32),
        "values": np.array([n for each in steps for _, n in each.tokens], np.float32),
    }
