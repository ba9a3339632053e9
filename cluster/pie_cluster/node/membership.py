"""A node's side of its membership: says from the control loop that it lives, and what it has.

The control loop itself sends the reports, so a process that is stopped but not dead falls silent.
It tells its parent, too, by a line on standard output, who ends a process that says nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio
import zmq

from pie_cluster.config import MemberConfig
from pie_cluster.node.facts import NodeFacts
from pie_cluster.node.settings import NodeSettings
from pie_cluster.node.users import ClusterUsers
from pie_cluster.wire.messages import (
    CLUSTER_PROTOCOL,
    Fenced,
    Join,
    JoinAgain,
    NotOfCluster,
    Renewed,
    Report,
    ToNode,
    decode_told,
    encode,
)
from pie_cluster.wire.sockets import member_dealer
from pie_control.instances.registry import Registry
from pie_py import __version__
from pie_py.config.child import report
from pie_py.wire.zmq_socket import Socket

log = structlog.get_logger("pie.cluster")


class Membership:
    """Joins the cluster, reports, and drains when told to."""

    def __init__(
        self,
        config: MemberConfig,
        facts: NodeFacts,
        registry: Registry,
        public_key: str,
        clock: Callable[[], float],
        users: ClusterUsers,
        settings: NodeSettings,
    ) -> None:
        """Nothing is sent before `run`. The public key is of the endpoint that clients connect to,
        empty on loopback. Raises `KeyProblem` if the members' keys cannot be read.
        """
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._directory = Socket(member_dealer(self._context, config.directory, config.pair()))
        self._config = config
        self._facts = facts
        self._registry = registry
        self._public_key = public_key
        self._clock = clock
        self._users, self._settings = users, settings
        self._leave: Callable[[str, bool], None] = lambda reason, drained: None  # until `run`
        self._number: int | None = None  # of the last report; None: it has to join
        self._drain_until: float | None = None
        self._again = False  # another life follows
        self._empty: trio.Event | None = None  # set once a drained node has no instance

    async def run(self, endpoint: str, leave: Callable[[str, bool], None]) -> None:
        """Reports until cancelled that clients connect at an endpoint; `leave` is called when the
        node is to end, with the reason and whether it is drained.
        """
        self._leave = leave
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear)
            await self._report(endpoint)

    async def _hear(self) -> None:
        try:
            while True:
                while (frame := self._directory.receive()) is not None:
                    try:
                        self._take(decode_told(frame))
                    except NotOfCluster as error:
                        log.warning("the directory says what is not known", reason=str(error))
                await self._directory.wait()
        finally:
            self._context.destroy(linger=0)

    async def _report(self, endpoint: str) -> None:
        while True:
            self._say(endpoint)
            report({"alive": self._config.life})
            await trio.sleep(0.5)
            if self._is_drained():
                self._leave("it is drained", True)

    def _say(self, endpoint: str) -> None:
        config, drain = self._config, self._drain_ms()
        if self._number is None:
            self._facts.begin()
        cached, (exported, released) = self._facts.cached(), self._facts.exports()
        if self._number is None:
            message: Join | Report = Join(
                config.node,
                config.incarnation,
                CLUSTER_PROTOCOL,
                __version__,
                endpoint,
                self._public_key,
                self._registry.most,
                self._facts.pool_tokens,
                self._facts.prefill_rate,
                self._facts.load(),
                cached,
                exported,
                drain,
                self._again,
            )
        else:
            message = Report(
                config.node,
                config.incarnation,
                self._number + 1,
                self._facts.load(),
                cached,
                exported,
                released,
                drain,
                self._settings.version,
            )
        sent = self._directory.send(encode(message)) is None
        if sent and isinstance(message, Report):
            self._number = message.number

    def _take(self, message: ToNode) -> None:
        match message:
            case Renewed(number, drain_ms, keys, again, settings):
                self._again = again
                self._users.renewed(keys)
                self._settings.renewed(settings)
                if number == 0:
                    self._number = self._number or 0
                self._take_drain(drain_ms)
            case JoinAgain():
                self._number = None
            case Fenced(reason):
                log.error("this life is over", life=self._config.life, reason=reason)
                self._leave(f"this life is over: {reason}", False)

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

    def _is_drained(self) -> bool:
        if self._empty is None or self._drain_until is None:
            return False
        return self._empty.is_set() or self._clock() >= self._drain_until
