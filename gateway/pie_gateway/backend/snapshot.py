"""What the control process tells of itself to one user, asked for at most twice a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from pie_gateway.problems import of_client
from pie_py.client import Client, ClientError

FRESH_SECONDS = 0.5


@dataclass(frozen=True)
class Snapshot:
    """The server at a moment."""

    at: float  # seconds of the gateway's clock
    info: Mapping[str, Any]
    stats: Mapping[str, Mapping[str, Any]]  # by model
    instances: Sequence[Mapping[str, Any]]  # of the user, with those that ended lately


class Snapshots:
    """The newest snapshot; all who look at the same time share one."""

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
                try:
                    info = await self._client.server_info()
                    stats = await self._client.stats()
                    instances = await self._client.instances(ended=True)
                except ClientError as error:
                    raise of_client(error) from None
                found = self._newest = Snapshot(self._clock(), info, stats, instances)
            return found
