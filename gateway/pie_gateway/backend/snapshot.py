"""Snapshots of the server as one user sees it, taken at most twice a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from pie_gateway.problems import asked
from pie_py.client import Client

FRESH_SECONDS = 0.5


@dataclass(frozen=True)
class Snapshot:
    """The server at a moment."""

    at: float  # seconds of the gateway's clock
    info: Mapping[str, Any]
    stats: Mapping[str, Mapping[str, Any]]  # by model
    instances: Sequence[Mapping[str, Any]]  # of the user, with those that ended lately


class Snapshots:
    """The newest snapshot; requests of the same moment share one."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._newest: Snapshot | None = None
        self._reading = anyio.Lock()

    async def newest(self) -> Snapshot:
        """The server as it is.

        Raises:
            Problem: the control process does not answer.
        """
        async with self._reading:
            found = self._newest
            if found is None or self._clock() - found.at >= FRESH_SECONDS:
                info = await asked(self._client.server_info())
                stats = await asked(self._client.stats())
                instances = await asked(self._client.instances(ended=True))
                found = self._newest = Snapshot(self._clock(), info, stats, instances)
            return found
