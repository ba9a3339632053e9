"""The beginning of a connection that a gateway passes on to a node: a ticket, in a line.

ZeroMQ, whose connection it is, says its signature (ZMTP 3) and no more before it hears its peer.
The client writes the ticket beside it, so either may come first; the ticket ends at the gateway,
all else is for the node.
"""

from __future__ import annotations

SIGNATURE_BYTES = 10
SIGNATURE = b"\xff"  # its first byte, which no ticket has
TICKET_BYTES = 255  # at most


class NoTicket(ValueError):
    """Bytes that no ticket is in."""


def parted(begun: bytes) -> tuple[str, bytes] | None:
    """The ticket, and what is for the node, of a connection's first bytes; None if more must come.

    Raises:
        NoTicket: if no ticket can come any more.
    """
    signature, rest = b"", begun
    if begun.startswith(SIGNATURE):
        signature, rest = begun[:SIGNATURE_BYTES], begun[SIGNATURE_BYTES:]
    ticket, end, rest = rest.partition(b"\n")
    if len(ticket) > TICKET_BYTES or not ticket.isascii():
        raise NoTicket("it begins with no ticket")
    return (ticket.decode(), signature + rest) if end else None
