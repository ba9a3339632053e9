"""The gateway's own placements: by a replica of the directory's table."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import trio

from pie_cluster.directory.policies import load_policy
from pie_cluster.directory.replica import Replica
from pie_cluster.node.directory_link import DirectoryLink
from pie_cluster.wire.keys import program_key
from pie_cluster.wire.messages import Follow, News, NodeAddress, Placed, ToNode

FOLLOW_SECONDS = 0.5


class Placements:
    """Says where launches go, without a question while the replica is whole and new."""

    def __init__(self, policy: str, directory: DirectoryLink, clock: Callable[[], float]) -> None:
        """Nothing is known before `run`.

        Args:
            policy: its name or import path.
            directory: tells of nodes.
            clock: trio's, in seconds.

        Raises:
            UnknownPolicy: if there is no such policy.
        """
        self._replica = Replica(load_policy(policy), Random())
        self._clock = clock
        self._directory = directory
        directory.on_told = self._take

    async def run(self) -> None:
        """Follows the directory until cancelled."""
        while True:
            self._directory.say(Follow(self._replica.told))
            await trio.sleep(FOLLOW_SECONDS)

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
        self._directory.say(Placed(*life, program_key(user, program)))
        return NodeAddress(0, *life, what.endpoint, what.public_key)

    def _take(self, news: ToNode | News) -> None:
        if isinstance(news, News):
            self._replica.take(news, self._clock())
