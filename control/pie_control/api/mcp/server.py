"""One registered MCP server: started when it is needed, and again when it has died."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import trio

from pie_control.errors import ApiError
from pie_py.config.mcp import McpServerConfig
from pie_py.config.processes import Backoff

if TYPE_CHECKING:
    from httpcore2 import AsyncNetworkBackend

    from pie_control.api.mcp.connection import McpConnection

Action: TypeAlias = "Callable[[McpConnection], Awaitable[str]]"

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
PAUSE_TO_WAIT_FOR = 1.0  # calls wait so long for the next start


class McpServer:
    """Makes the connection when the first call comes, and another when that one is lost.

    One that does not start again and again is left alone for a growing while, in which calls fail
    at once. One that starts but dies soon is started again after a moment.
    """

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        backend: AsyncNetworkBackend | None = None,
    ) -> None:
        """Takes what starts the task that owns a connection, and what makes connections to a
        URL."""
        self.name = name
        self.config = config
        self._start = start
        self._backend = backend
        self._closed: str | None = None
        self._connection: McpConnection | None = None
        self.repeatable: set[str] = set()  # tools that may be called again, as they say
        self._failures = 0  # in a row
        self._not_before = 0.0

    def close(self, reason: str) -> None:
        """Ends the connection for good; calls under way fail, and so do later ones."""
        self._closed = reason
        if self._connection is not None:
            self._connection.drop(reason)

    def allows(self, user: str) -> bool:
        """True if a user may use it."""
        return self.config.users is None or user in self.config.users

    async def call(self, action: Action, on_connected: Callable[[], None]) -> str:
        """Does something by a connection; `on_connected` is called when there is one, before the
        action.

        Raises:
            ApiError: `remote-failed` if there is none; and what the action raises.
        """
        # Its import takes half a second, and most servers have no tools.
        module = await trio.to_thread.run_sync(
            importlib.import_module, "pie_control.api.mcp.connection"
        )
        for _ in range(2):
            connection = await self._connected()
            if not connection.usable:  # lost between its start and this call's turn
                continue
            on_connected()
            try:
                return await action(connection)
            except module.SessionGone:  # it has not looked at the request, so nothing is done twice
                connection.drop("the server has ended the session")
        raise ApiError(
            "remote-failed",
            f"the MCP server {self.name} ends every session at once ({connection.failure})",
        )

    def suspect(self, since: float) -> None:
        """A call that began then has timed out: a process that has said nothing since is ended."""
        connection = self._connection
        if connection is not None and self.config.command is not None and connection.heard < since:
            connection.drop("it did not answer in time, nor say anything")

    async def _connected(self) -> McpConnection:
        """A connection that is ready; makes one if there is none.

        Raises:
            ApiError: `remote-failed`.
        """
        connection = self._connection
        while connection is None or not connection.usable:
            if self._closed is not None:
                raise ApiError("remote-failed", f"the MCP server {self.name}: {self._closed}")
            pause = self._not_before - trio.current_time()
            if pause <= 0:
                connection = self._connect()
                break
            if pause > PAUSE_TO_WAIT_FOR:
                reason = connection.failure if connection is not None else "it failed"
                raise ApiError(
                    "remote-failed",
                    f"the MCP server {self.name} keeps failing ({reason}); it is started again in"
                    f" {pause:.0f} s at the earliest",
                )
            await trio.sleep(pause)
            connection = self._connection  # another task may have been faster
        await connection.ready.wait()
        if not connection.connected:
            raise ApiError(
                connection.code,
                f"the MCP server {self.name} cannot be used: {connection.failure}",
            )
        return connection

    def _connect(self) -> McpConnection:
        from pie_control.api.mcp.connection import McpConnection

        connection = self._connection = McpConnection(
            self.name, self.config, self._backend, self.repeatable
        )
        self._start(lambda: self._run(connection))
        return connection

    async def _run(self, connection: McpConnection) -> None:
        began = trio.current_time()
        await connection.run()
        lived = trio.current_time() - began
        if connection.connected and lived >= Backoff.WELL_SECONDS:
            self._failures = 0
            return
        self._failures += 1
        if self._failures > 1:
            longest = PAUSE_TO_WAIT_FOR if connection.connected else LONGEST_PAUSE
            pause = min(longest, FIRST_PAUSE * 2.0 ** (self._failures - 2))
            self._not_before = trio.current_time() + pause
