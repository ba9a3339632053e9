"""One client's session: it outlives the connections it is carried over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import trio

from pie_control.errors import ApiError
from pie_control.rpc.outlet import Outlet
from pie_py.config.keys import LOCAL_USER
from pie_py.wire.rpc import Failure, Response

MAX_PENDING = 4096  # requests without an answer, or whose answer the client has not confirmed
MAX_ANSWER_BYTES = 64 << 20  # of answers that the client has not confirmed
MAX_UPLOADS = 4  # at once


@dataclass(slots=True)
class Upload:
    """A program that is being sent."""

    digest: str
    name: str
    size: int
    path: Path
    file: BinaryIO
    received: int = 0

    def discard(self) -> None:
        """Removes what has been received."""
        self.file.close()
        self.path.unlink(missing_ok=True)


@dataclass(slots=True)
class Pending:
    """A request: under way while `answer` is None."""

    answer: bytes | None = None
    opened: str | None = None  # the instance whose stream the answer tells of
    scope: trio.CancelScope | None = None  # of the task that works on it


@dataclass(slots=True, eq=False)
class Session:
    """State of one client at the server."""

    id: bytes
    user: str
    heard: float  # trio time of the last message
    peer: bytes | None  # routing id of the connection; None while there is none
    gone_at: float | None = None  # trio time since when the client is not heard
    pending: dict[int, Pending] = field(default_factory=dict)  # by number, in order
    highest: int = 0  # request number
    answer_bytes: int = 0
    streams: dict[str, Outlet] = field(default_factory=dict)  # by instance
    uploads: dict[str, Upload] = field(default_factory=dict)  # by content hash
    outgoing: list[bytes] = field(default_factory=list)  # frames that wait for the turn's end
    sending: set[str] = field(default_factory=set)  # instances with a message that waits for room

    @property
    def scope(self) -> str | None:
        """Whose programs and instances the session sees; None is everyone's."""
        return None if self.user == LOCAL_USER else self.user

    def check_admin(self, admins: Collection[str]) -> None:
        """Refuses what only the operator may do: who connects without a key, or with an admin's.

        Raises:
            ApiError: `permission-denied`.
        """
        if self.user != LOCAL_USER and self.user not in admins:
            raise ApiError(
                "permission-denied",
                f"user {self.user!r} may not do this; the server's `admins` may, and who connects"
                " from its own machine without a key",
            )

    def confirm(self, answered_below: int) -> None:
        """Forgets requests whose answers the client has, and stops those it gave up."""
        while self.pending:
            number = next(iter(self.pending))
            if number >= answered_below:
                return
            request = self.pending.pop(number)
            if request.answer is not None:
                self.answer_bytes -= len(request.answer)
            elif request.scope is not None:
                request.scope.cancel()

    def answered(self, answer: Response | Failure, frame: bytes) -> bool:
        """Keeps an answer until it is confirmed. False if the client has given the request up."""
        request = self.pending.get(answer.number)
        if request is None:
            return False
        request.answer = frame
        request.scope = None
        if isinstance(answer, Response) and isinstance(answer.value, dict):
            request.opened = answer.value.get("instance")
        self.answer_bytes += len(frame)
        return True

    def close(self) -> None:
        """Ends the session: its streams lose their reader, its tasks stop."""
        self.peer = None
        for outlet in self.streams.values():
            outlet.detach()
        self.streams.clear()
        for request in self.pending.values():
            if request.scope is not None:
                request.scope.cancel()
        self.pending.clear()
        for upload in self.uploads.values():
            upload.discard()
        self.uploads.clear()
