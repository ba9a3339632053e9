"""Connections of one member to the endpoints of others, by the protocol that clients speak."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import structlog
import trio

from pie_control.errors import ApiError
from pie_control.rpc.session import Session
from pie_py.client.connection import Connection
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import LOCAL_USER, ClientKey

log = structlog.get_logger("pie.cluster")

PATIENCE_SECONDS = 8.0  # a gateway that was killed is back sooner


@asynccontextmanager
async def connected(endpoint: str, key: ClientKey | None) -> AsyncIterator[Connection]:
    """A connection for as long as the context; what is raised within comes out as it is.

    Whether something answers there shows with the first request.
    """
    connection = Connection(parse_endpoint(endpoint), key, PATIENCE_SECONDS)
    raised: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(_run, connection))
        try:
            problem = await connection.ready()
            if problem is not None:
                raise problem
            yield connection
        except Exception as error:  # the nursery would wrap it
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


def check_member(session: Session) -> None:
    """Refuses who is no member of the cluster. On loopback every client is the operator, who may do
    what members do.

    Raises:
        ApiError: `permission-denied`.
    """
    if session.user != LOCAL_USER:
        raise ApiError("permission-denied", "only nodes of the cluster may ask for this")


class NodeLinks:
    """Connections to nodes: made when they are needed, kept while the node lives."""

    def __init__(
        self, key: Callable[[str], ClientKey | None], patience: float = PATIENCE_SECONDS
    ) -> None:
        """Has none yet.

        Args:
            key: for a node of a public key.
            patience: seconds to look for a node that is lost.
        """
        self._key = key
        self._patience = patience
        self._links: dict[str, Connection] = {}  # by endpoint
        self._scopes: dict[str, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the connections until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def keep_only(self, endpoints: set[str]) -> None:
        """Drops connections to nodes that are gone."""
        for endpoint in self._links.keys() - endpoints:
            self._drop(endpoint)

    async def ask(
        self,
        endpoint: str,
        public_key: str,
        method: str,
        *,
        on_late: Callable[[Any], None] | None = None,
        **params: Any,
    ) -> Any:
        """One request to a node. Cancelled, it may be done or not; `on_late` gets its answer then.

        Raises:
            ClientError: if it refuses, or does not answer.
        """
        connection = await self.reach(endpoint, public_key)
        problem = await connection.ready()
        if problem is not None:
            raise problem
        return await connection.request(method, on_late=on_late, **params)

    async def reach(self, endpoint: str, public_key: str) -> Connection:
        """The connection to a node, which may not have answered yet."""
        assert self._nursery is not None, "the links run"
        connection = self._links.get(endpoint)
        if connection is not None and connection.session.error is not None:
            self._drop(endpoint)
            connection = None
        if connection is None:
            connection = Connection(parse_endpoint(endpoint), self._key(public_key), self._patience)
            self._links[endpoint] = connection
            with trio.CancelScope(shield=True):  # it is there for others, too
                await self._nursery.start(self._keep, endpoint, connection)
        return connection

    async def _keep(
        self, endpoint: str, connection: Connection, task_status: trio.TaskStatus[None]
    ) -> None:
        with trio.CancelScope() as scope:
            self._scopes[endpoint] = scope
            await _run(connection, task_status=task_status)

    def _drop(self, endpoint: str) -> None:
        del self._links[endpoint]
        scope = self._scopes.pop(endpoint, None)
        if scope is not None:
            scope.cancel()


async def _run(connection: Connection, task_status: trio.TaskStatus[None]) -> None:
    await connection.run(task_status=task_status)
