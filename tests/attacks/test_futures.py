"""Waiting for many futures costs in proportion to their number, however they become ready."""

from __future__ import annotations

from support.rig import Rig, runtime

from pie_control.instances.futures import FutureKind

COUNT = 4096


class Handle(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Handle.compared += 1
        return int(self) == other

    def __hash__(self) -> int:
        return int(self)


def test_futures_that_become_ready_together_are_looked_for_once_each() -> None:
    rig = Rig()
    one = rig.launch()
    futures = [one.futures.create(FutureKind.DONE) for _ in range(COUNT)]
    one.futures.announce = lambda handle: rig.executor._announce(one, handle)
    runtime.wait(one, [Handle(future.handle) for future in reversed(futures)])
    Handle.compared = 0
    for future in futures:
        future.resolve()
    assert one.turn.scheduled
    assert Handle.compared <= 2 * COUNT
