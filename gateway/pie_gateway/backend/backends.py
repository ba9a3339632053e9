"""The connections of all users, opened when they are first needed."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.abc
import anyio.to_thread

from pie_gateway.backend.backend import Backend
from pie_gateway.problems import of_client
from pie_py.client import Client, ClientError, ClientKey
from pie_py.config.endpoint import answers, parse_endpoint
from pie_py.config.gateway import GatewayConfig

IDLE_SECONDS = 600.0  # after which a user's connection is closed
LOOK_SECONDS = 30.0


class Backends:
    """A backend per user. One task owns each: a client is left by the task that entered it."""

    def __init__(self, endpoint: str, config: GatewayConfig, clock: Callable[[], float]) -> None:
        self._endpoint = endpoint
        self._config = config
        self._clock = clock
        self._tasks: anyio.abc.TaskGroup | None = None
        self._open: dict[ClientKey | None, Backend] = {}
        self._opening = anyio.Lock()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keeps the connections until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            await anyio.sleep_forever()

    async def of(self, key: ClientKey | None) -> Backend:
        """The backend of a user's key, or of the machine's user where no keys are needed.

        Raises:
            Problem: the server is not reached, or does not take the key.
        """
        async with self._opening:
            if key not in self._open or not self._open[key].client.is_alive:
                assert self._tasks is not None
                try:
                    await self._tasks.start(self._keep, key)
                except ClientError as error:
                    raise of_client(error) from None
            backend = self._open[key]
        backend.used_at = self._clock()
        return backend

    async def is_reachable(self) -> bool:
        """Whether the control process listens."""
        endpoint = parse_endpoint(self._endpoint)
        return await anyio.to_thread.run_sync(answers, endpoint)

    async def _keep(
        self, key: ClientKey | None, *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        """Connects, and stays connected until it is not used, or lost for good."""
        async with Client(self._endpoint, key) as client:
            backend = Backend(client, self._config.programs, self._clock)
            self._open[key] = backend
            task_status.started()
            try:
                while client.is_alive and not (key is not None and self._is_idle(backend)):
                    await anyio.sleep(LOOK_SECONDS)
            finally:
                if self._open.get(key) is backend:  # it may have a successor
                    del self._open[key]

    def _is_idle(self, backend: Backend) -> bool:
        return not backend.requests and self._clock() - backend.used_at > IDLE_SECONDS
