"""Messages between the first rank of a worker and the hosts that start ranks on other machines.

One message is one frame, as in `pie_cluster.wire.messages`. The first rank says `Start`, then
passes on what it is told itself, and says `Beat` all the time: the host answers each, and ends its
ranks when it hears none, or when a frame is missing: a rank that has missed a plan would keep all
others waiting.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from pie_cluster.wire.messages import Frame

BEAT_SECONDS = 0.5


# First rank to host


class Start(Frame, tag="start", frozen=True):
    """Start these ranks, and end those of another worker. Answered as a `Beat` is."""

    ranks: list[int]
    config: str  # the worker's, as JSON
    meeting: str  # where all ranks meet


class Pass(Frame, tag="pass", frozen=True):
    """Tell the ranks what the first one was told."""

    frame: bytes


class Beat(Frame, tag="beat", frozen=True):
    """The first rank lives, and has passed on so many frames."""

    passed: int


class Leave(Frame, tag="leave", frozen=True):
    """The worker ends: so do its ranks."""


# Host to first rank


class Lives(Frame, tag="lives", frozen=True):
    """The ranks live."""


class Lost(Frame, tag="lost", frozen=True):
    """They do not, or never did: the worker has to end."""

    reason: str


ToHost: TypeAlias = Start | Pass | Beat | Leave
ToFirst: TypeAlias = Lives | Lost

_to_host: msgspec.msgpack.Decoder[ToHost] = msgspec.msgpack.Decoder(ToHost)
_to_first: msgspec.msgpack.Decoder[ToFirst] = msgspec.msgpack.Decoder(ToFirst)

encode = msgspec.msgpack.Encoder().encode
# They raise `msgspec.DecodeError` for bytes that are no such message.
decode_to_host, decode_to_first = _to_host.decode, _to_first.decode
