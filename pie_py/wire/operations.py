"""Operations on a sampler's logits before a token is chosen: small ones, in any order.

This table is the one place where an operation and its parameters are declared. The contract's text,
the server's check of parameters, the fields of the HTTP API and the samplers of the three SDKs are
made from it; the worker has a function for each operation (`pie_inference.sampling.operations`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Any

import numpy as np

ARGUMENTS = 4  # numbers that an operation has at most
LOGIT_ROWS = 256  # rows of logits that a worker keeps for samplers to mix in
OTHERS = ARGUMENTS - 2  # of these, what one choice may mix in
HISTORY = 4096  # tokens, the newest ones, that samplers look back at
MATCH = 64  # tokens of a repetition that DRY counts at most
LARGEST = 1e4  # of numbers that have no natural end: far from where float32 loses its grip
_HALF_KEY = (1 << 24) - 1  # bits that a float32 holds


class Kind(Enum):
    """What a parameter is, and how it becomes an operation's numbers and tokens."""

    NUMBER = auto()  # a float
    COUNT = auto()  # a whole number
    KEY = auto()  # a whole number of 48 bits: two numbers, its lower half and its upper one
    WEIGHTS = auto()  # a list of numbers, `ARGUMENTS - 1` at most
    TOKENS = auto()  # a list of token ids
    SEQUENCES = auto()  # lists of token ids
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
        above: `least` itself is not allowed.
        tunes: it counts only where another parameter of the operation has not its default.
        http: requests over HTTP may have it.
    """

    name: str
    doc: str
    kind: Kind = Kind.NUMBER
    default: Any = 0.0
    least: float = 0
    most: float = LARGEST
    above: bool = False
    tunes: bool = False
    http: bool = True


class Operation(IntEnum):
    """An operation, in the order in which `transformers` does them."""

    MIX = 0
    LOGIT_BIAS = 1
    ALLOWED_TOKENS = 2
    REPETITION_PENALTY = 3
    PRESENCE_PENALTY = 4
    FREQUENCY_PENALTY = 5
    NO_REPEAT_NGRAM = 6
    BANNED_SEQUENCES = 7
    MIN_TOKENS = 8
    DRY = 9
    WATERMARK = 10
    MASK = 11
    TEMPERATURE = 12
    TOP_K = 13
    TOP_P = 14
    MIN_P = 15
    TYPICAL_P = 16
    EPSILON_CUTOFF = 17
    ETA_CUTOFF = 18
    XTC = 19

    @property
    def label(self) -> str:
        """The name in a sampler's `order`."""
        return self.name.lower()


# The parameters of each operation: their numbers are its arguments, in this order.
PARAMETERS: dict[Operation, tuple[Parameter, ...]] = {
    Operation.MIX: (
        Parameter(
            "plausibility",
            "share of the most likely token's own probability that a token needs",
            most=1,
            http=False,
        ),
        Parameter(
            "mix",
            "weights of the own logits, and of those of `mix-logits`: guidance is [s, 1 - s],"
            " contrastive decoding [1, -1]",
            Kind.WEIGHTS,
            default=[1.0],
            least=-LARGEST,
            http=False,
        ),
    ),
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
            http=False,  # there it is `allowed_token_ids`
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
    Operation.NO_REPEAT_NGRAM: (
        Parameter(
            "no_repeat_ngram_size",
            "no sequence of so many tokens comes twice",
            Kind.COUNT,
            0,
            most=MATCH,
        ),
    ),
    Operation.BANNED_SEQUENCES: (
        Parameter(
            "banned_sequences",
            f"lists of token ids, {MATCH} at most in each, that do not come as a whole",
            Kind.SEQUENCES,
            default=[],
            most=256,
            http=False,  # there they are `bad_words`
        ),
    ),
    Operation.MIN_TOKENS: (
        Parameter(
            "min_tokens", "so many tokens are chosen before `end_tokens`", Kind.COUNT, 0, most=2**24
        ),
        Parameter(
            "end_tokens",
            "token ids that end the text",
            Kind.TOKENS,
            default=[],
            most=256,
            tunes=True,
            http=False,
        ),
    ),
    Operation.DRY: (
        Parameter(
            "dry_multiplier",
            "`multiplier * base ** (n - allowed_length)` is taken off a token that goes on with a"
            f" repetition of n tokens, {MATCH} at most",
        ),
        Parameter(
            "dry_base", "the base of this power", default=1.75, least=1, most=100, tunes=True
        ),
        Parameter(
            "dry_allowed_length",
            "tokens that may be repeated",
            Kind.COUNT,
            2,
            most=MATCH,
            tunes=True,
        ),
        Parameter(
            "dry_sequence_breakers",
            "token ids at which a repetition ends",
            Kind.TOKENS,
            default=[],
            most=256,
            tunes=True,
        ),
    ),
    Operation.WATERMARK: (
        Parameter(
            "watermark_bias",
            "added to the tokens that a SplitMix64 hash of the key and the token before favours",
            least=-LARGEST,
            http=False,
        ),
        Parameter(
            "watermark_share",
            "share of the tokens that the hash favours",
            default=0.5,
            most=1,
            tunes=True,
            http=False,
        ),
        Parameter(
            "watermark_key",
            "of the hash, below 2^48",
            Kind.KEY,
            0,
            most=2**48 - 1,
            tunes=True,
            http=False,
        ),
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
    Operation.TYPICAL_P: (
        Parameter(
            "typical_p",
            "mass of the tokens whose surprise is nearest to the expected (Meister et al. 2022)",
            default=1.0,
            most=1,
            above=True,
        ),
    ),
    Operation.EPSILON_CUTOFF: (
        Parameter("epsilon_cutoff", "probability that a token needs", most=1),
    ),
    Operation.ETA_CUTOFF: (
        Parameter(
            "eta_cutoff", "the same, lower where the model is unsure (Hewitt et al. 2022)", most=1
        ),
    ),
    Operation.XTC: (
        Parameter(
            "xtc_threshold",
            "probability from which on a token is likely to XTC",
            default=0.1,
            most=1,
            tunes=True,
        ),
        Parameter(
            "xtc_probability",
            "how often XTC rules out all likely tokens but the least likely of them",
            most=1,
        ),
    ),
}
ALL_PARAMETERS = {p.name: p for operation in Operation for p in PARAMETERS[operation]}

DEFAULT_ORDER = tuple(Operation)
COUNTING = frozenset(
    (Operation.REPETITION_PENALTY, Operation.PRESENCE_PENALTY, Operation.FREQUENCY_PENALTY)
)
LOOKING_BACK = frozenset(
    (
        Operation.NO_REPEAT_NGRAM,
        Operation.BANNED_SEQUENCES,
        Operation.DRY,
        Operation.WATERMARK,
    )
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
    deciding = [p for p in parameters if not p.tunes]
    if deciding and all(values[p.name] == p.default for p in deciding):
        return None
    arguments: list[float] = []
    tokens: list[tuple[int, float]] = []
    for parameter in parameters:
        value = values[parameter.name]
        match parameter.kind:
            case Kind.NUMBER | Kind.COUNT:
                arguments.append(value)
            case Kind.KEY:
                arguments += [value & _HALF_KEY, value >> 24]
            case Kind.WEIGHTS:
                arguments += value
            case Kind.TOKENS:
                tokens = [(token, 0.0) for token in value]
            case Kind.SEQUENCES:
                tokens = [(token, n) for n, sequence in enumerate(value) for token in sequence]
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
