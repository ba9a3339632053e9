"""Asking the directory from plain code: the command line, and the actors around nodes.

It is asked as clients ask, at the gateway that it is in.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import trio

from pie_cluster.config import ClusterProblem
from pie_cluster.wire.links import NodeLinks
from pie_cluster.wire.messages import NodeFacts
from pie_py.client.errors import ClientError, RpcError
from pie_py.config.keys import ClientKey

ASK_SECONDS = 5.0  # that the directory has


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
        """The first question shows whether it is there."""
        self._gateway = gateway
        self._key = key

    def nodes(self) -> list[NodeFacts]:
        """All nodes, by name. Raises as `ask`."""
        return [NodeFacts(**node) for node in self.ask("nodes")]

    def ask(self, method: str, **params: Any) -> Any:
        """The answer to a question. Raises `DirectoryAway` if none comes within `ASK_SECONDS`, and
        `DirectoryRefuses` if it is not granted.
        """
        # A signal's handler may raise in the thread that waits, but not within trio's loop.
        with ThreadPoolExecutor(1) as asking:
            return asking.submit(trio.run, self._ask, method, params).result()

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        links = NodeLinks(lambda server: self._key)
        answer: Any = DirectoryAway(self._why(None))
        with trio.move_on_after(ASK_SECONDS):
            async with trio.open_nursery() as nursery:
                await nursery.start(links.run)
                try:
                    answer = await links.ask(self._gateway, "", method, **params)
                except RpcError as error:
                    answer = DirectoryRefuses(error.code, error.message)
                except ClientError as error:
                    answer = DirectoryAway(self._why(error))
                nursery.cancel_scope.cancel()
        if isinstance(answer, ClusterProblem):
            raise answer
        return answer

    def _why(self, error: ClientError | None) -> str:
        """Why nothing answers; what a client says of that is advice for a single server."""
        if error is not None and "starts one" not in str(error):
            return str(error)
        return (
            f"no gateway of a cluster answers at {self._gateway}: is the address right, and does"
            " its head run? `pie-py cluster up` there starts it again"
        )
