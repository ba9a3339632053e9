"""Sweeps up after clients that have left."""

from __future__ import annotations

from collections.abc import Callable

import trio

from pie_control.instances.instance import State
from pie_control.instances.registry import Registry

SWEEP_SECONDS = 1.0


class LeftClients:
    """Ends instances whose client has vanished, and drops messages that no client fetches."""

    def __init__(self, registry: Registry, clock: Callable[[], float]) -> None:
        """Takes trio's clock, in seconds."""
        self._registry = registry
        self._clock = clock

    async def run(self) -> None:
        """Sweeps until cancelled."""
        while True:
            await trio.sleep(SWEEP_SECONDS)
            self._sweep()

    def _sweep(self) -> None:
        now = self._clock()
        for instance in list(self._registry.everyone):
            seconds = instance.limits.detached_seconds
            since = instance.client.left_at
            if since is None or now - since <= seconds:
                continue
            instance.client.left_at = None
            if instance.state is State.RUNNING:
                self._registry.condemn(instance, f"its client has been gone for {seconds:g} s")
            else:
                instance.outbox.drop_all_but_last()
