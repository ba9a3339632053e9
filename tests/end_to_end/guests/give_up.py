"""Gives up receiving in every state, and still gets every message."""

from inferlet import raw


async def main(args: list[str]) -> str:
    """Returns what it received."""
    first = raw.receive()
    raw.wait([first])  # it has its message now
    raw.cancel(first)
    waiting = raw.receive()
    raw.cancel(raw.receive())  # this one has none
    received = []
    for future in (waiting, raw.receive()):
        raw.wait([future])
        received.append(raw.take_text(future))
    return " ".join(received)
