"""Which node has the topics and work queues of a user, in the PostgreSQL of the store.

An owner's row is held under its node's lease, and goes when that is taken over.
"""

from __future__ import annotations

from typing import NamedTuple

from pie_cluster.database.statements import Statements

_COLUMNS = "lease, life, endpoint, public_key, claim"


class Owner(NamedTuple):
    """A node that has them.

    Attributes:
        lease: of the node.
        life: of the node.
        endpoint: where other nodes reach it.
        public_key: of the endpoint; empty on loopback.
        claim: counts claims; 0 of one that is to be made.
    """

    lease: int
    life: str
    endpoint: str
    public_key: str
    claim: int = 0


class Owners(Statements):
    """The table of owners."""

    def claim(self, user: str, owner: Owner) -> Owner | None:
        """Makes a node the owner, if there is none and its lease is not over.

        Returns:
            The owner that there is now; None if it could not be told: ask again.
        """
        row = self._one(
            'WITH claimed AS (INSERT INTO bus_owners ("user", lease, life, endpoint, public_key)'
            " SELECT %s, number, %s, %s, %s FROM leases WHERE number = %s"
            ' AND until > clock_timestamp() ON CONFLICT ("user") DO UPDATE'
            " SET claim = nextval('bus_owners_claim_seq') WHERE bus_owners.lease = EXCLUDED.lease"
            f" RETURNING {_COLUMNS}) SELECT {_COLUMNS} FROM claimed UNION ALL"
            f' (SELECT {_COLUMNS} FROM bus_owners WHERE "user" = %s'
            " AND NOT EXISTS (SELECT 1 FROM claimed))",
            (user, *owner[1:4], owner.lease, user),
        )
        return None if row is None else Owner(*row)

    def release(self, user: str, claim: int) -> None:
        """An owner has nothing of a user any more, since a claim of its own.

        If it arrives late, after another claim, it does nothing.
        """
        self._changes('DELETE FROM bus_owners WHERE "user" = %s AND claim = %s', (user, claim))
