"""Tickets: names by which a client has the relay connect it to one life of a node."""

from __future__ import annotations

import hmac
from hashlib import blake2b

MAC_BYTES = 16
TICKET_BYTES = 255  # at most
SIGNATURE_BYTES = 10
SIGNATURE = b"\xff"  # its first byte, which no ticket has


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
        """The life and the user of a ticket. Raises `BadTicket` if it is none that `make` made."""
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


class NoTicket(ValueError):
    """Bytes that no ticket is in."""


def parted(begun: bytes) -> tuple[str, bytes] | None:
    """The ticket, and what is for the node, of a connection's first bytes; None if more must come.

    ZeroMQ, whose connection it is, says its signature (ZMTP 3) and no more before it hears its
    peer. The client writes the ticket, in a line, beside it, so either may come first; the ticket
    ends at the gateway, all else is for the node. Raises `NoTicket` if no ticket can come any more.
    """
    signature, rest = b"", begun
    if begun.startswith(SIGNATURE):
        signature, rest = begun[:SIGNATURE_BYTES], begun[SIGNATURE_BYTES:]
    ticket, end, rest = rest.partition(b"\n")
    if len(ticket) > TICKET_BYTES or not ticket.isascii():
        raise NoTicket("it begins with no ticket")
    return (ticket.decode(), signature + rest) if end else None
