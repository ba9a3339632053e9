"""A guest that never ends is interrupted, whenever the threads that see to it get their turns."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator

import pytest
from support.wat_guests import LIMITS, guest

from pie_control.wasm.engine import Engine, EngineConfig
from pie_control.wasm.guest import Guest, Status
from pie_control.wasm.linker import Linker

FOREVER = "(loop $l (br $l)) unreachable"


class Watch:
    """Frees a thread that is stuck in a guest, and remembers that it had to."""

    def __init__(self, engine: Engine) -> None:
        self.rounds = 0
        self.stuck = False
        self._engine = engine
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        seen, since = -1, time.monotonic()
        while not self._ended.wait(0.05):
            if self.rounds != seen:
                seen, since = self.rounds, time.monotonic()
            elif time.monotonic() - since > 3:
                self.stuck = True
                self._engine.engine.increment_epoch()


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads, one of which is always busy, take the interpreter from each other all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    ended = threading.Event()

    def spin() -> None:
        while not ended.is_set():
            pass

    thread = threading.Thread(target=spin)
    thread.start()
    yield
    ended.set()
    thread.join()
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_a_slice_that_ends_before_the_guest_is_under_way_ends_again() -> None:
    """A guest's next deadline counts from the moment it goes on, which may be after its slice is
    over.
    """
    engine = Engine(EngineConfig(max_instances=4, slice_ms=0.01))
    linker, component = Linker(engine, []), engine.load(guest([], FOREVER))
    spinning = Guest(linker, component, None, LIMITS)
    spinning.start([])
    with Watch(engine) as watch:
        while watch.rounds < 3000 and not watch.stuck:
            assert spinning.poll() is Status.RUNNING
            watch.rounds += 1
    spinning.close()
    assert not watch.stuck, f"round {watch.rounds} would never have ended"


def test_a_slice_lasts_for_one_epoch() -> None:
    """The later ones as the first, but for those in which the machine lets the guest wait."""
    engine = Engine(EngineConfig(max_instances=1, slice_ms=50))
    spinning = Guest(Linker(engine, []), engine.load(guest([], FOREVER)), None, LIMITS)
    spinning.start([])
    for _ in range(10):
        assert spinning.poll() is Status.RUNNING
    spinning.close()
    assert 10 <= engine.ticker.epoch <= 15
