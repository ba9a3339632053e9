"""Connections of one member to the endpoints of others, by the protocol that clients speak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from pie_cluster.config import MemberConfig
from pie_control.errors import ApiError, Refusal
from pie_py.client.connection import Connection
from pie_py.client.errors import ClientError, RpcError
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import ClientKey

PATIENCE_SECONDS = 8.0  # a gateway that was killed is back sooner
AGAIN_SECONDS = 0.1  # before the gateway is asked again


class NodeLinks:
    """Connections to nodes: made when they are needed, kept while the node lives."""

    def __init__(self, key: Callable[[str], ClientKey | None]) -> None:
        """Has none yet. `key` gives that for a node of a public key."""
        self._key = key
        self._links: dict[str, tuple[Connection, trio.CancelScope]] = {}  # by endpoint
        self._nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keeps the connections until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def keep_only(self, endpoints: set[str]) -> None:
        """Drops connections to nodes that are gone."""
        for endpoint in self._links.keys() - endpoints:
            self._links.pop(endpoint)[1].cancel()

    async def ask(self, endpoint: str, public_key: str, method: str, /, **params: Any) -> Any:
        """One request to a node. Cancelled, it may be done or not. Raises `ClientError` if it
        refuses, or does not answer.
        """
        assert self._nursery is not None, "the links run"
        link = self._links.get(endpoint)
        if link is not None and link[0].session.error is not None:
            self._links.pop(endpoint)[1].cancel()
            link = None
        if link is None:
            made = Connection(parse_endpoint(endpoint), self._key(public_key), PATIENCE_SECONDS)
            link = self._links[endpoint] = made, trio.CancelScope()
            with trio.CancelScope(shield=True):  # it is there for others, too
                await self._nursery.start(_keep, *link)
        connection, _ = link
        problem = await connection.ready()
        if problem is not None:
            raise problem
        return await connection.request(method, **params)


async def _keep(
    connection: Connection, scope: trio.CancelScope, task_status: trio.TaskStatus[None]
) -> None:
    with scope:
        await connection.run(task_status=task_status)


class GatewayLink:
    """A node's connection to the gateway, with the directory in it."""

    def __init__(self, member: MemberConfig) -> None:
        """Takes the node's configuration. Nothing is asked before `run`."""
        self._member = member
        self._links = NodeLinks(member.key)
        self.run = self._links.run

    async def ask(self, method: str, seconds: float = PATIENCE_SECONDS, /, **params: Any) -> Any:
        """The answer to a question, which is asked again until it comes, for so many seconds:
        asking it twice must do no harm. Raises `Refusal`: what the gateway refuses. Raises
        `ApiError`: `busy` if it does not answer.
        """
        member = self._member
        with trio.move_on_after(seconds):
            while True:
                try:
                    return await self._links.ask(
                        member.gateway, member.gateway_key, method, **params
                    )
                except RpcError as error:
                    raise Refusal(error.code, error.message) from None
                except ClientError:  # killed and started again, it knows no session of before
                    await trio.sleep(AGAIN_SECONDS)
        raise ApiError(
            "busy", "the gateway of the cluster does not answer; try again in a few seconds"
        )
