"""Users' keys as a node knows them: asked of the directory, believed until it tells of changes."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from pie_cluster.config import MemberConfig
from pie_cluster.node.links import GatewayLink
from pie_control.errors import ApiError, Refusal
from pie_control.rpc.auth import NotKnownNow
from pie_py.config.keys import LOCAL_USER

log = structlog.get_logger("pie.cluster")

# Without word from the directory no new connection is let in: a key may have been removed. By then
# the life of this node is over for new clients in any case.
BELIEVED_SECONDS = 10.0
# Then the client has to connect again; a directory that was killed is back sooner.
ASK_SECONDS = 4.0


class ClusterUsers:
    """Users by their public keys; other members have the operator's rights.

    A look-up is asked once while keys stay as they are. Each renewal of the node's lease tells
    whether they have changed; then what is known is asked again.
    """

    def __init__(
        self, member: MemberConfig, gateway: GatewayLink, clock: Callable[[], float]
    ) -> None:
        """Knows no user yet. Raises `KeyProblem` if the members' keys cannot be read."""
        pair = member.pair()
        self._member = "" if pair is None else pair.public
        self._gateway = gateway
        self._clock = clock
        self._heard = clock()
        self._known: dict[str, str] = {}  # users by key, as of `changes`
        self.changes = 0

    def renewed(self, changes: int) -> None:
        """The directory has renewed the lease, and told the number of changes of keys."""
        self._heard = self._clock()
        if changes != self.changes:
            self.changes = changes
            self._known.clear()

    async def find(self, key: str) -> str | None:
        """The user of a key; None if no user has it. Raises `NotKnownNow` if the directory does not
        answer.
        """
        if key == self._member:
            return LOCAL_USER
        known = self._known.get(key)
        if known is not None and self._clock() - self._heard < BELIEVED_SECONDS:
            return known
        changes = self.changes
        try:
            name: str = await self._gateway.ask("user-of", ASK_SECONDS, key=key)
        except (ApiError, Refusal) as error:
            raise NotKnownNow(str(error)) from None
        if name and changes == self.changes:  # strangers' keys are not kept
            self._known[key] = name
        return name or None
