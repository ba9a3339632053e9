"""How often one user may launch, whatever the clock does."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.errors import ApiError
from pie_control.instances.user_totals import LaunchRates

STEPS = st.lists(st.floats(-10, 10), max_size=20)


@given(STEPS)
def test_without_a_rate_nothing_is_refused(steps: list[float]) -> None:
    now = 100.0
    rates = LaunchRates(lambda: now)
    for step in steps:
        now += step
        rates.take("ada", math.inf)


@given(STEPS, st.integers(1, 5))
def test_a_burst_is_a_second_of_launches(steps: list[float], rate: int) -> None:
    now = 100.0
    rates = LaunchRates(lambda: now)
    for step in steps:
        now += step
        with pytest.raises(ApiError, match="within a second"):  # noqa: PT012 - one of them
            for _ in range(rate + 1):
                rates.take("ada", rate)
