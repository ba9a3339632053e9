"""Warm instances: guests of the Python runtime that are started before a program needs them.

Starting CPython takes milliseconds of the one thread that runs all guests: the component is
instantiated, and every page that it writes to is copied. A warm instance has that behind it when a
launch claims it. It runs one program and ends with it, like any other guest; none is reused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import structlog
import trio

from pie_control.programs.instantiation import Instantiation, Unclaimed
from pie_control.wasm import Component, Guest, GuestTrap, Status

log = structlog.get_logger("pie.warm")

# The pool fills after so long without a program, so that a series of launches is not disturbed.
QUIET_SECONDS = 0.1
BUSY_SECONDS = 1.0  # between two slices of a start while programs run


class WarmInstances:
    """A pool of warm instances, made one at a time: fast while no program runs, else slowly."""

    def __init__(
        self, instantiation: Instantiation, count: int, is_busy: Callable[[], bool]
    ) -> None:
        """Takes the size of the pool, and a function that says whether programs run."""
        self._instantiation = instantiation
        self._count = count
        self._is_busy = is_busy
        self._component: Component | None = None
        self._ready: deque[Guest] = deque()
        self._wanted = trio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    def offer(self, component: Component) -> None:
        """Keeps instances of this component warm from now on."""
        self._component = component
        self._instantiation.offer(component)
        self._wanted.set()

    def take(self, component: Component, state: object) -> Guest | None:
        """Claims a warm instance for `state`, an instance's; None if none is ready."""
        if component is not self._component or not self._ready:
            return None
        guest = self._ready.popleft()
        guest.state = state
        guest.cpu_ns = 0
        self._wanted.set()
        return guest

    async def run(self) -> None:
        """Refills the pool, until cancelled."""
        try:
            while True:
                await trio.sleep(QUIET_SECONDS)
                await self._fill()
                await self._wanted.wait()
                self._wanted = trio.Event()
        finally:
            while self._ready:
                self._ready.pop().close()

    async def _quiet(self) -> None:
        """Lets programs go first; returns in a later turn of the event loop in any case."""
        await trio.sleep(BUSY_SECONDS if self._is_busy() else 0)

    async def _fill(self) -> None:
        while self._component is not None and len(self._ready) < self._count:
            await self._quiet()
            guest = await self._make(self._component)
            if guest is None:
                break
            self._ready.append(guest)

    async def _make(self, component: Component) -> Guest | None:
        """Starts a guest that waits for its program; None if that failed."""
        guest = self._instantiation.guest(component, Unclaimed())
        try:
            guest.start([])
            while (status := guest.poll()) is Status.RUNNING:
                await self._quiet()
            if status is Status.WAITING:
                return guest
            log.error("the Python runtime ended before it had a program", outcome=guest.outcome)
        except GuestTrap as trap:
            log.error("the Python runtime cannot be started ahead", reason=str(trap))
        except BaseException:
            guest.close()
            raise
        return None
