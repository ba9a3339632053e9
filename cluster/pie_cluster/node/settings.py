"""What is set at the gateway for all nodes, as this node has it."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import structlog
import trio

from pie_cluster.config import MemberConfig
from pie_cluster.node.links import GatewayLink, NodeLinks
from pie_cluster.wire.messages import Setting, version_of
from pie_cluster.wire.requests import member_key
from pie_control.errors import ApiError, Refusal
from pie_py.client.errors import ClientError, RpcError

log = structlog.get_logger("pie.cluster")

AGAIN_SECONDS = 1.0  # before what the gateway or the worker did not do is tried again
FOR_NOW = ("busy", "worker-lost")  # errors after which a setting is tried again


class NodeSettings:
    """Pulls the document when its version is another one, and has this node do what is new in it,
    as a client of its own.
    """

    def __init__(self, member: MemberConfig, gateway: GatewayLink, public_key: str) -> None:
        """Has nothing of it yet."""
        self._has: list[Setting] = []
        self.version = version_of(self._has)
        self._renewed = trio.Event()
        self._gateway = gateway
        self._links = NodeLinks(partial(member_key, member))
        self._public_key = public_key

    def renewed(self, version: int) -> None:
        """The directory tells which version there is."""
        if version != self.version:
            self._renewed.set()

    async def run(self, endpoint: str) -> None:
        """Follows until cancelled; this node listens at the endpoint."""
        ask = partial(self._links.ask, endpoint, self._public_key)
        async with trio.open_nursery() as nursery:
            await nursery.start(self._links.run)
            while True:
                await self._renewed.wait()
                self._renewed = trio.Event()
                try:
                    told = await self._gateway.ask("settings")
                    if await self._follow(msgspec.convert(told, list[Setting]), ask):
                        continue
                except (ApiError, Refusal, ClientError) as error:
                    log.warning("the cluster's settings are not known", reason=str(error))
                await trio.sleep(AGAIN_SECONDS)
                self._renewed.set()

    async def _follow(self, settings: list[Setting], ask: Any) -> bool:
        """Takes back what is gone, and does what is new; False if some of it has to be tried again.
        What is refused for good would be refused again.
        """
        done = True
        for each in self._has:
            if each not in settings:
                await _done(ask(each.back, **each.back_params), "not-found")
        for each in settings:
            if each not in self._has:
                done = await _done(ask(each.method, **each.params), "already-exists") and done
        if done:
            self._has, self.version = settings, version_of(settings)
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
