"""A node's side of its membership: says from the control loop that it lives, and what it has.

The control loop itself sends the reports, so a process that is stopped but not dead falls silent.
It tells its parent, too, by a line on standard output, who ends a process that says nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog
import trio

from pie_cluster.config import MemberConfig
from pie_cluster.node.document import NodeDocument
from pie_cluster.node.facts import NodeFacts
from pie_cluster.wire.links import GatewayLink
from pie_cluster.wire.messages import About, Fenced, JoinAgain, Renewed, Report, ToNode
from pie_control.errors import ApiError, Refusal
from pie_control.instances.registry import Registry
from pie_py import __version__
from pie_py.config.child import report

log = structlog.get_logger("pie.cluster")

SAY_SECONDS = 0.5  # between two reports


class Membership:
    """Joins the cluster, reports, and drains when told to."""

    def __init__(
        self,
        config: MemberConfig,
        gateway: GatewayLink,
        facts: NodeFacts,
        registry: Registry,
        public_key: str,
        clock: Callable[[], float],
        document: NodeDocument,
    ) -> None:
        """Nothing is sent before `run`. The public key is of the endpoint that clients connect to,
        empty on loopback.
        """
        self._config = config
        self._gateway = gateway
        self._facts = facts
        self._registry = registry
        self._public_key = public_key
        self._clock = clock
        self._document = document
        self._leave: Callable[[str, bool], None] = lambda reason, drained: None  # until `run`
        self._has_joined = False
        self._drain_until: float | None = None
        self._again = False  # another life follows
        self._empty: trio.Event | None = None  # set once a drained node has no instance

    async def run(self, endpoint: str, leave: Callable[[str, bool], None]) -> None:
        """Reports until cancelled that clients connect at an endpoint; `leave` is called when the
        node is to end, with the reason and whether it is drained.
        """
        self._leave = leave
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report, endpoint)
            while True:
                report({"alive": self._config.life})
                await trio.sleep(SAY_SECONDS)
                if self._empty is not None and (self._empty.is_set() or self._drain_ms() == 0):
                    leave("it is drained", True)

    async def _report(self, endpoint: str) -> None:
        while True:
            config, facts, about = self._config, self._facts, None
            if not self._has_joined:
                facts.begin()
                own = endpoint, self._public_key, self._registry.most
                about = About(__version__, *own, facts.pool_tokens, facts.prefill_rate)
            message = Report(
                config.node,
                config.incarnation,
                facts.load(),
                facts.cached(),
                self._drain_ms(),
                self._again,
                self._document.version,
                about,
            )
            try:
                told = await self._gateway.ask("report", **msgspec.structs.asdict(message))
                match msgspec.convert(told, ToNode):
                    case Renewed(drain_ms, document, again):
                        self._again, self._has_joined = again, True
                        self._document.renewed(document)
                        self._take_drain(drain_ms)
                    case JoinAgain():
                        self._has_joined = False
                    case Fenced(reason):
                        log.error("this life is over", life=self._config.life, reason=reason)
                        self._leave(f"this life is over: {reason}", False)
            except (ApiError, Refusal) as error:
                log.warning("the directory does not answer", reason=str(error))
                self._has_joined = False  # what this report had may be missing there
            await trio.sleep(SAY_SECONDS)

    # Drains

    def _take_drain(self, drain_ms: int | None) -> None:
        if drain_ms is None:
            return
        if self._empty is None:
            self._empty = self._registry.close()
            log.info("draining", seconds=drain_ms / 1000, instances=self._registry.live_count)
        self._drain_until = self._clock() + drain_ms / 1000

    def _drain_ms(self) -> int | None:
        if self._drain_until is None:
            return None
        return max(0, int((self._drain_until - self._clock()) * 1000))
