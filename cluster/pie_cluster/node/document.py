"""The cluster's document as this node has it: users' keys, adapters, MCP servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import structlog
import trio

from pie_cluster.config import MemberConfig
from pie_cluster.wire.links import GatewayLink, NodeLinks
from pie_cluster.wire.messages import Document, Setting
from pie_control.errors import ApiError, Refusal
from pie_control.rpc.auth import NotKnownNow
from pie_py.client.errors import ClientError, RpcError
from pie_py.config.keys import LOCAL_USER

log = structlog.get_logger("pie.cluster")

AGAIN_SECONDS = 1.0  # before what the gateway or the worker did not do is tried again
# Then the client has to connect again; a directory that was killed is back sooner.
ASK_SECONDS = 4.0
# Without word from the directory no new connection is let in: a key may have been removed. By then
# the life of this node is over for new clients in any case.
BELIEVED_SECONDS = 10.0
FOR_NOW = ("busy", "worker-lost")  # errors after which a setting is tried again


class NodeDocument:
    """Pulls the document when its version is another one, and has this node do what is new in it,
    as a client of its own. It tells who users are by their public keys; other members have the
    operator's rights.
    """

    def __init__(
        self,
        member: MemberConfig,
        gateway: GatewayLink,
        public_key: str,
        clock: Callable[[], float],
    ) -> None:
        """Has nothing of it yet. Raises `KeyProblem` if the members' keys cannot be read."""
        pair = member.pair
        self._member = "" if pair is None else pair.public
        self.changes = 0  # another number whenever keys may have been removed
        self._told = Document()  # by the gateway
        self._has: list[Setting] = []
        self.version = self._told.version  # that this node has
        self._due = trio.Event()
        self._gateway = gateway
        self._links = NodeLinks(member.key)
        self._public_key = public_key
        self._clock = clock
        self._heard = clock()

    def renewed(self, version: int) -> None:
        """The directory has renewed the lease, and tells which version there is."""
        self._heard = self._clock()
        if not version == self.version == self._told.version:
            self._due.set()

    # Users

    async def find(self, key: str) -> str | None:
        """The user of a key; None if no user has it. Raises `NotKnownNow` if the gateway does not
        answer.
        """
        if key == self._member:
            return LOCAL_USER
        if key not in self._told.users or self._clock() - self._heard >= BELIEVED_SECONDS:
            try:
                await self._pull(ASK_SECONDS)
            except (ApiError, Refusal) as error:
                raise NotKnownNow(str(error)) from None
        return self._told.users.get(key)

    # Settings

    async def run(self, endpoint: str) -> None:
        """Follows until cancelled; this node listens at the endpoint."""
        ask = partial(self._links.ask, endpoint, self._public_key)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._links.run)
            while True:
                await self._due.wait()
                self._due = trio.Event()
                try:
                    await self._pull()
                    if await self._follow(self._told, ask):
                        continue
                except (ApiError, Refusal, ClientError) as error:
                    log.warning("the cluster's settings are not known", reason=str(error))
                await trio.sleep(AGAIN_SECONDS)
                self._due.set()

    async def _pull(self, *seconds: float) -> None:
        told = await self._gateway.ask("document", *seconds, version=self._told.version)
        if told is not None:
            self._told = msgspec.convert(told, Document)
            self.changes += 1  # a version may come again

    async def _follow(self, told: Document, ask: Any) -> bool:
        """Takes back what is gone, and does what is new; False if some of it has to be tried again.
        What is refused for good would be refused again.
        """
        done = True
        for each in self._has:
            if each not in told.settings:
                await _done(ask(each.back, **each.back_params), "not-found")
        for each in told.settings:
            if each not in self._has:
                done = await _done(ask(each.method, **each.params), "already-exists") and done
        if done:
            self._has, self.version = told.settings, told.version
        return done


async def _done(asked: Any, harmless: str) -> bool:
    try:
        await asked
    except RpcError as error:
        if error.code in FOR_NOW:
            return False
        if error.code != harmless:
            log.error("a node has less than others", reason=error.message)
    return True
