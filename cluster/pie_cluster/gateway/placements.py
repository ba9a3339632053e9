"""The gateway's own placements: by a replica of the directory's table."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import structlog
import trio
import zmq

from pie_cluster.config import MemberConfig
from pie_cluster.directory.policies import load_policy
from pie_cluster.directory.replica import Replica
from pie_cluster.wire.keys import program_key
from pie_cluster.wire.messages import Follow, NodeAddress, NotOfCluster, Placed, decode_news, encode
from pie_cluster.wire.sockets import member_dealer
from pie_py.wire.zmq_socket import Socket

log = structlog.get_logger("pie.cluster")

FOLLOW_SECONDS = 0.5


class Placements:
    """Says where launches go, without a question while the replica is whole and new."""

    def __init__(self, config: MemberConfig, clock: Callable[[], float]) -> None:
        """Connects; nothing is known before `run`.

        Args:
            config: of the member.
            clock: trio's, in seconds.

        Raises:
            KeyProblem: if the members' keys cannot be read.
            UnknownPolicy: if there is no such policy.
        """
        self._replica = Replica(load_policy(config.policy), Random())
        self._clock = clock
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = Socket(member_dealer(self._context, config.directory, config.pair()))

    async def run(self) -> None:
        """Follows the directory until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                while True:
                    self._socket.send(encode(Follow(self._replica.told)))
                    await trio.sleep(FOLLOW_SECONDS)
        finally:
            self._context.destroy(linger=0)

    def place(self, user: str, program: str) -> NodeAddress | None:
        """The node that a launch goes to; None if the directory has to be asked.

        Args:
            user: whose launch it is.
            program: the hash of what it runs.
        """
        node = self._replica.place(user, program, self._clock())
        if node is None:
            return None
        life, what = node.life, node.what
        self._socket.send(encode(Placed(*life, program_key(user, program))))
        return NodeAddress(0, *life, what.endpoint, what.public_key)

    async def _listen(self) -> None:
        while True:
            while (frame := self._socket.receive()) is not None:
                try:
                    news = decode_news(frame)
                except NotOfCluster as error:
                    log.warning("the directory says what this gateway does not know", reason=error)
                    continue
                self._replica.take(news, self._clock())
            await self._socket.wait()
