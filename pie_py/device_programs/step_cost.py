"""How much of a step's time choices by device programs may take, and which of them fit into it.

A program costs something once in a step, for each of its operations, and something for each row
that it chooses for. Operations on few elements are all of the first kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_py.device_programs.program import NOMINAL, Program

OF_A_STEP = 1 << 20  # what all programs of a step may cost together; one row may always run
# Additions, of 0.3 ns each on one core, that stand for it: as many as 32 rows of top-p take, which
# large vocabularies need; or 10 ms.
PER_TOKEN = 1 << 14
LEAST = 1 << 25
PER_PROGRAM, PER_NODE = 400_000, 13_000  # additions that calls of PyTorch take as long as
PER_LAYER = 400_000  # of a row whose layers are read apart, for its program chooses what they read


class StepCost(NamedTuple):
    """The cost of choices by one program, in parts of `OF_A_STEP`.

    Attributes:
        program: a number of 31 bits that tells it from others.
        once: in each step, for however many rows.
        row: for each of them.
    """

    program: int
    once: int
    row: int


FREE = StepCost(0, 0, 0)


@lru_cache(256)
def step_cost(program: Program, vocabulary: int) -> StepCost:
    """The cost of a program with a model of so many tokens."""
    part = _part(vocabulary)
    once = (PER_PROGRAM + PER_NODE * program.calls) * part
    # Strings' hashes are different in each process: no guest can make two programs look alike.
    return StepCost(
        hash(program.text) & 0x7FFF_FFFF, int(once) + 1, int(program.cost(vocabulary) * part) + 1
    )


def attend_cost(
    program: Program, vocabulary: int, layers: int, context: Mapping[int, int] = NOMINAL
) -> int:
    """The cost of a row with a program of the stage `attend`, in parts of `OF_A_STEP`, with the
    sizes of a context.
    """
    layers = len(program.layers) or layers
    each = PER_LAYER + PER_NODE * program.calls + program.cost(vocabulary, context)
    return int(layers * each * _part(vocabulary)) + 1


def _part(vocabulary: int) -> float:
    return OF_A_STEP / max(LEAST, PER_TOKEN * vocabulary)


def affordable(costs: NDArray[Any], room: int = OF_A_STEP) -> NDArray[np.bool_]:
    """Which of some choices fit into a step, `[n]`: earlier ones before later ones, and one always.
    The costs are int32 `[3, n]`, a `StepCost` in each column; `FREE` always fits.
    """
    own = _each(costs)
    total = own.cumsum()
    fits: NDArray[np.bool_] = (total <= room) | (own == 0) | (total == own)
    return fits


def whole_cost(costs: NDArray[Any]) -> int:
    """The cost of some choices, `[3, n]`, together in one step."""
    return int(_each(costs).sum())


def _each(costs: NDArray[Any]) -> NDArray[np.int64]:
    """The cost that each adds, `[n]`: the first row of a program has what it costs once."""
    programs, once, _ = costs
    own: NDArray[np.int64] = costs[2].astype(np.int64)
    firsts = np.unique(programs, return_index=True)[1]
    own[firsts] += once[firsts]
    return own


def fitting(users: Sequence[str], costs: NDArray[Any], room: int) -> NDArray[np.bool_]:
    """Which choices of users fit into a step, `[n]`: of each user earlier ones before later ones,
    and each user's go as far as another's: who asks for little is not behind who asks for much.
    The costs are int32 `[3, n]`, a `StepCost` in each column. If `room`, what they may cost, is
    above 0, one fits always.
    """
    if room <= 0:
        free: NDArray[np.bool_] = costs[2] == 0
        return free
    had: dict[str, int] = {}
    before = []
    for user, own in zip(users, costs[2].tolist(), strict=True):
        before.append(had.get(user, 0))
        had[user] = before[-1] + own
    order = np.argsort(before, kind="stable")
    fits = np.empty(len(users), np.bool_)
    fits[order] = affordable(costs[:, order], room)
    return fits
