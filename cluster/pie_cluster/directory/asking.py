"""Asking the directory from plain code: the command line, and the actors around nodes.

It is asked as clients ask, at the gateway that it is in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import trio

from pie_cluster.config import ClusterProblem
from pie_cluster.wire.messages import NodeFacts
from pie_py.client.connection import Connection
from pie_py.client.errors import ClientError, RpcError
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import ClientKey

ASK_SECONDS = 5.0  # that the directory has


@asynccontextmanager
async def connected(endpoint: str, key: ClientKey | None) -> AsyncIterator[Connection]:
    """A connection for as long as the context; what is raised within comes out as it is.

    Whether something answers there shows with the first request.
    """
    connection = Connection(parse_endpoint(endpoint), key, ASK_SECONDS)
    raised: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(connection.run)
        try:
            problem = await connection.ready()
            if problem is not None:
                raise problem
            yield connection
        except Exception as error:  # noqa: BLE001  the nursery would wrap it
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


class DirectoryAway(ClusterProblem):
    """The directory does not answer."""


class DirectoryRefuses(ClusterProblem):
    """The directory does not grant what was asked."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Directory:
    """The directory of a gateway, for a member."""

    def __init__(self, gateway: str, key: ClientKey | None) -> None:
        """Whether it is there shows with the first question."""
        self._gateway = gateway
        self._key = key

    def nodes(self) -> list[NodeFacts]:
        """All nodes, by name. Raises as `ask`."""
        return [NodeFacts(**node) for node in self.ask("nodes")]

    def begin(self, node: str, reason: str = "") -> int:
        """The number of a node's new life; the reason is why the one before has ended, if there was
        one. Raises as `ask`.
        """
        number: int = self.ask("begin", node=node, reason=reason)
        return number

    def allot(self, count: int, cluster: str) -> list[str]:
        """Names of so many new nodes, of a machine whose token has this hash. Raises as `ask`."""
        names: list[str] = self.ask("allot", count=count, cluster=cluster)
        return names

    def drain(self, node: str, seconds: float, again: bool = False) -> None:
        """Has a node take no more; another life of it begins then, or none. Raises as `ask`."""
        self.ask("drain", node=node, seconds=seconds, again=again)

    def ask(self, method: str, **params: Any) -> Any:
        """The answer to a question. Raises `DirectoryAway` if none comes within `ASK_SECONDS`, and
        `DirectoryRefuses` if it is not granted.
        """
        # A signal's handler may raise in the thread that waits, but not within trio's loop.
        with ThreadPoolExecutor(1) as asking:
            return asking.submit(trio.run, self._ask, method, params).result()

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        with trio.move_on_after(ASK_SECONDS):
            try:
                async with connected(self._gateway, self._key) as connection:
                    return await connection.request(method, **params)
            except RpcError as error:
                raise DirectoryRefuses(error.code, error.message) from None
            except ClientError as error:
                raise DirectoryAway(self._why(error)) from None
        raise DirectoryAway(self._why(None))

    def _why(self, error: ClientError | None) -> str:
        """Why nothing answers; what a client says of that is advice for a single server."""
        if error is not None and "starts one" not in str(error):
            return str(error)
        return (
            f"no gateway of a cluster answers at {self._gateway}: is the address right, and does"
            " its head run? `pie-py cluster up` there starts it again"
        )
