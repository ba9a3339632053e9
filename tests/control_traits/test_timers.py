"""Timers: those that are withdrawn do not stay."""

from __future__ import annotations

import trio
import trio.testing

from pie_control.timers import Timers


def test_withdrawn_timers_behind_a_far_one_are_dropped() -> None:
    """A guest may sleep and give it up in a loop, behind its own hour of wall time."""

    async def main() -> None:
        timers = Timers(trio.current_time)
        fired: list[int] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(timers.run)
            timers.call_later(3600, lambda: fired.append(0))
            kept = [timers.call_later(0.05, lambda i=i: fired.append(i)) for i in range(100)]  # type: ignore[misc]
            for _ in range(10):
                for _ in range(1000):
                    timers.call_later(7200, lambda: fired.append(-1)).cancel()
                await trio.lowlevel.checkpoint()
            assert len(timers) < 1000
            await trio.sleep(0.1)
            assert fired == list(range(len(kept)))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
