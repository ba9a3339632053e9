"""The server and this instance: names, clocks, random bytes, children."""

from __future__ import annotations

from inferlet import raw
from inferlet._generated import awaited
from inferlet._guest.streams import MOST_OF_A_LINE
from inferlet.raw import LogLevel, checkpoint, instance_id, last_checkpoint, version
from inferlet.raw import available_models as models
from inferlet.raw import get_arg as arguments
from inferlet.raw import user as username

__all__ = [
    "arguments",
    "checkpoint",
    "instance_id",
    "last_checkpoint",
    "launch",
    "log",
    "models",
    "monotonic",
    "now",
    "random_bytes",
    "sleep",
    "username",
    "version",
]


async def sleep(seconds: float) -> None:
    """Waits; other tasks run meanwhile. The same as `asyncio.sleep`."""
    await awaited.sleep(max(0, int(seconds * 1e9)))


def now() -> float:
    """Seconds since the Unix epoch."""
    return raw.now() / 1e9


def monotonic() -> float:
    """Seconds of a clock that never goes back, from an arbitrary start."""
    return raw.monotonic_now() / 1e9


def random_bytes(count: int) -> bytes:
    """Random bytes fit for cryptography."""
    most = 65536
    return b"".join(raw.random_bytes(min(most, count - start)) for start in range(0, count, most))


def log(message: object, level: LogLevel = "info") -> None:
    """Writes a line to the instance's log, which `pie-py logs` shows. `print` does the same."""
    raw.log(level, str(message)[:MOST_OF_A_LINE])


async def launch(program: str, *args: str) -> str:
    """Runs a child instance of an uploaded program to its end and returns its result.

    Args:
        program: its name or content hash.
        args: its arguments.

    Raises:
        PieError: `not-found`; `limit-exceeded`; `failed-dependency` if the child failed, with the
            child's own error text as its message; `cancelled` if the child was killed.

    If the calling task is cancelled, the child is killed; it ends with this instance at the latest.
    A child has no client: to talk with it, hand it a topic of `messaging` as an argument, say one
    that begins with `instance_id()`.
    """
    return await awaited.launch(program, args)
