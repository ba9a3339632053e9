"""What may happen to a sampler's logits before a token is chosen: small operations, in any order.

An operation has up to `ARGUMENTS` numbers, and some have tokens with a number each. `DEFAULT_ORDER`
is the order of `transformers`; names are those of the contract's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

ARGUMENTS = 4
LOGIT_ROWS = 256  # rows of logits that a worker keeps for samplers to mix in
OTHERS = ARGUMENTS - 2  # of these, what one choice may mix in
HISTORY = 4096  # tokens, the newest ones, that samplers look back at
MATCH = 64  # tokens of a repetition that DRY counts at most


class Operation(IntEnum):
    """An operation; its comment has its arguments."""

    MIX = 0  # own weight, plausibility; the weights of the others
    LOGIT_BIAS = 1  # tokens, and what is added to each
    ALLOWED_TOKENS = 2  # tokens: all others are ruled out
    REPETITION_PENALTY = 3  # factor
    PRESENCE_PENALTY = 4  # taken off
    FREQUENCY_PENALTY = 5  # taken off each time
    NO_REPEAT_NGRAM = 6  # size
    DRY = 7  # multiplier, base, allowed length; tokens: where a repetition ends
    WATERMARK = 8  # bias, share of the tokens, key: lower and upper 24 bits
    MASK = 9
    TEMPERATURE = 10  # divisor
    TOP_K = 11  # tokens
    TOP_P = 12  # mass
    MIN_P = 13  # share of the most likely token's probability
    TYPICAL_P = 14  # mass
    EPSILON_CUTOFF = 15  # probability
    ETA_CUTOFF = 16  # probability
    XTC = 17  # threshold, probability

    @property
    def label(self) -> str:
        """The name in a sampler's `order`."""
        return self.name.lower()


DEFAULT_ORDER = tuple(Operation)
COUNTING = frozenset(
    (Operation.REPETITION_PENALTY, Operation.PRESENCE_PENALTY, Operation.FREQUENCY_PENALTY)
)
LOOKING_BACK = frozenset((Operation.NO_REPEAT_NGRAM, Operation.DRY, Operation.WATERMARK))
# What the choice itself does, in this order: the end of a sampler's operations may be left to it.
CHOICE = (Operation.TEMPERATURE, Operation.TOP_K, Operation.TOP_P, Operation.MIN_P)


@dataclass(frozen=True, slots=True)
class Step:
    """An operation with its arguments."""

    operation: Operation
    arguments: Sequence[float] = ()
    tokens: Mapping[int, float] = field(default_factory=dict)  # with their numbers


def packed(programs: Sequence[Sequence[Step]]) -> dict[str, Any]:
    """The steps of samplers `[n]` as the arrays of `SetSampler`."""
    steps = [step for program in programs for step in program]
    if not steps:
        return {}
    arguments = np.zeros((len(steps), ARGUMENTS), np.float32)
    for row, step in zip(arguments, steps, strict=True):
        row[: len(step.arguments)] = step.arguments
    return {
        "operation_starts": np.cumsum([0, *map(len, programs)], dtype=np.int32),
        "operations": np.array([step.operation for step in steps], np.int32),
        "arguments": arguments,
        "token_starts": np.cumsum([0, *(len(step.tokens) for step in steps)], dtype=np.int32),
        "tokens": np.array([token for step in steps for token in step.tokens], np.int32),
        "values": np.array([n for step in steps for n in step.tokens.values()], np.float32),
    }
