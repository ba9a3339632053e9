"""What a policy is, and how a setting becomes one.

A policy is a function of plain values, without state and without I/O. It is asked once per step and
returns a choice for each waiting instance. The mechanisms carry out what they can: they swap as
much as the step's budget and host memory have room for, and the rest in later steps. The server
never discards the pages of an instance that has not asked for it: it could not recompute them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from pie_control.interception.costs import Costs
from pie_control.interception.policies import cheapest, discard, min_waste, preserve, swap
from pie_control.interception.waste import Choice, Load, Paused
from pie_py.config.plugins import named_policy

Policy: TypeAlias = Callable[[Sequence[Paused], Load, Costs], list[Choice]]

SOONEST_SECONDS = 0.02  # after which a waiting program asks again

POLICIES: dict[str, Policy] = {
    "preserve": preserve.decide,
    "discard": discard.decide,
    "swap": swap.decide,
    "min-waste": min_waste.decide,
    "cheapest": cheapest.decide,
}


def load_policy(name: str) -> Policy:
    """The policy of a name, or of an import path `package.module:function`.

    Raises:
        UnknownPolicy: if there is none.
    """
    return named_policy(name, POLICIES, "interception")
