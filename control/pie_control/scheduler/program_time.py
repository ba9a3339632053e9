"""The time of a step that device programs have, divided among users.

Choices without a program always go. Of the others each user's go as far as another's: who asks for
little is not behind who asks for much.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_py.device_programs.step_cost import affordable


def fitting(users: Sequence[str], costs: NDArray[Any], room: int) -> NDArray[np.bool_]:
    """Which choices of users fit into a step, `[n]`: of each user earlier ones before later ones.
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
