from __future__ import annotations

from pie_py.config.processes import Backoff


def test_pauses_double_up_to_a_bound_and_are_short_again_after_a_long_life() -> None:
    now = 0.0
    backoff = Backoff(lambda: now)
    assert [backoff.pause() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    backoff.start()
    now += Backoff.WELL_SECONDS + 1
    assert backoff.pause() == 0.5
    backoff.start()
    assert backoff.pause() == 1.0
