"""Tickets: names by which a client has the relay connect it to one life of a node."""

from __future__ import annotations

import hmac
from hashlib import blake2b

MAC_BYTES = 16


class BadTicket(Exception):
    """A name that is no ticket of this cluster."""


class Tickets:
    """Made for a life and a user, `n7.3.ada.MAC`, and the same for all who have the secret."""

    def __init__(self, secret: str) -> None:
        """Takes what only gateways of this cluster know."""
        self._secret = secret.encode()

    def make(self, life: str, user: str) -> str:
        """A ticket for a life, of a user."""
        return f"{life}.{user}.{self._mac(life, user)}"

    def read(self, ticket: str) -> tuple[str, str]:
        """The life and the user of a ticket.

        Raises:
            BadTicket: if it is none that `make` has made.
        """
        node, _, rest = ticket.partition(".")
        incarnation, _, rest = rest.partition(".")
        user, _, mac = rest.rpartition(".")  # a user's name may have dots
        life = f"{node}.{incarnation}"
        if not hmac.compare_digest(mac.encode(), self._mac(life, user).encode()):
            raise BadTicket(f"{ticket[:80]!a} is no ticket")
        return life, user

    def _mac(self, life: str, user: str) -> str:
        # No life and no user has a space in its name.
        text = f"{life} {user}".encode()
        return blake2b(
            text, key=self._secret, digest_size=MAC_BYTES, person=b"relay ticket"
        ).hexdigest()
