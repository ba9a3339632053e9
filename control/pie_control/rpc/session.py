"""What the server knows of one client: its presence, requests and streams. No I/O."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from pie_control.errors import ApiError
from pie_control.rpc.outlet import Outlet
from pie_py.config.keys import LOCAL_USER
from pie_py.wire.rpc import Failure, Response

MAX_PENDING = 4096  # requests without an answer, or whose answer the client has not confirmed
MAX_ANSWER_BYTES = 64 << 20  # of answers that the client has not confirmed


class Presence(Enum):
    """Whether a session's client can be reached."""

    PRESENT = auto()  # it has a connection, and was heard lately
    SILENT = auto()  # it has a connection, and was not heard for `Timing.dead` seconds
    CUT = auto()  # it has no connection: it must say hello on a new one
    ENDED = auto()  # for good


class Change(Enum):
    """What happens to a session."""

    HELLO = auto()  # its client says hello, on whatever connection
    MESSAGE = auto()  # its client says anything else
    SILENCE = auto()  # nothing was heard for `Timing.dead` seconds
    LOST = auto()  # its connection is gone, takes nothing, or carries another session now
    EXPIRED = auto()  # it has not been present for `Timing.kept` seconds
    LEFT = auto()  # its client says bye, or breaks the rules, or the server stops


_P, _S, _C, _E = Presence.PRESENT, Presence.SILENT, Presence.CUT, Presence.ENDED

# A pair that is missing cannot come about: a session that is cut off has no connection by which a
# message could arrive, one that is present does not expire, no connection leads to an ended one.
TRANSITIONS: dict[tuple[Presence, Change], Presence] = {
    (_P, Change.HELLO): _P,  # by another connection, because the client found the first one broken
    (_S, Change.HELLO): _P,
    (_C, Change.HELLO): _P,
    (_P, Change.MESSAGE): _P,
    (_S, Change.MESSAGE): _P,  # any message brings a silent client back, even the answer to a probe
    (_P, Change.SILENCE): _S,
    (_S, Change.SILENCE): _S,
    (_C, Change.SILENCE): _C,
    (_P, Change.LOST): _C,
    (_S, Change.LOST): _C,
    (_S, Change.EXPIRED): _E,
    (_C, Change.EXPIRED): _E,
    (_P, Change.LEFT): _E,
    (_S, Change.LEFT): _E,
    (_C, Change.LEFT): _E,
}


@dataclass(slots=True)
class Pending:
    """A request that the client has not confirmed: under way while `answer` is None."""

    answer: bytes | None = None
    opened: str | None = None  # the instance whose stream the answer tells of


@dataclass(slots=True, eq=False)
class Session:
    """State of one client at the server; it outlives the connections it is carried over."""

    id: bytes
    user: str
    heard: float  # when the last message came
    peer: bytes | None = None  # routing id of the connection; None while there is none
    presence: Presence = Presence.CUT
    away_since: float | None = None  # when it was last present; None while it is
    pending: dict[int, Pending] = field(default_factory=dict)  # by number, in order
    # Told in each welcome. A client whose session was forgotten may never read the welcome that
    # says so, if that connection breaks; by another mark it knows the next one's session for a new
    # one, too.
    mark: int = field(default_factory=lambda: secrets.randbits(63))
    highest: int = 0  # request number
    answer_bytes: int = 0
    streams: dict[str, Outlet] = field(default_factory=dict)  # by instance
    outgoing: list[bytes] = field(default_factory=list)  # frames that wait to be sent together

    @property
    def scope(self) -> str | None:
        """The user whose programs and instances the session sees; None for those of all users."""
        return None if self.user == LOCAL_USER else self.user

    @property
    def is_present(self) -> bool:
        """Whether items may be sent to it."""
        return self.presence is Presence.PRESENT

    def check_admin(self, admins: Collection[str]) -> None:
        """Refuses what only the operator may do: a user without a key, or one of the admins.

        Raises:
            ApiError: `permission-denied`.
        """
        if self.user != LOCAL_USER and self.user not in admins:
            raise ApiError(
                "permission-denied",
                f"user {self.user!r} may not do this; the server's `admins` may, and every client"
                " that connects from its own machine without a key",
            )

    def acts_for(self, user: str, admins: Collection[str]) -> str:
        """The user that a request is about: the session's, or another one that the operator names.

        Raises:
            ApiError: `permission-denied`.
        """
        if user and user != self.user:
            self.check_admin(admins)
        return user or self.user

    def change(self, change: Change, now: float) -> None:
        """Moves on in the table above, and tells its streams whether they have a reader."""
        before, self.presence = self.presence, TRANSITIONS[self.presence, change]
        if self.presence is before:
            return
        if self.presence is Presence.PRESENT:
            self.away_since = None
            for outlet in self.streams.values():
                outlet.present()
        elif before is Presence.PRESENT:
            self.away_since = now
            for outlet in self.streams.values():
                outlet.absent(now)

    # Requests

    def confirm(self, answered_below: int) -> list[int]:
        """Forgets requests whose answers the client has; returns those that it gave up."""
        given_up = []
        while self.pending:
            number = next(iter(self.pending))
            if number >= answered_below:
                break
            request = self.pending.pop(number)
            if request.answer is None:
                given_up.append(number)
            else:
                self.answer_bytes -= len(request.answer)
        return given_up

    @property
    def takes_no_answers(self) -> bool:
        """Whether it has opened more requests, or left more answers unconfirmed, than it may."""
        return len(self.pending) > MAX_PENDING or self.answer_bytes > MAX_ANSWER_BYTES

    def answered(self, answer: Response | Failure, frame: bytes) -> bool:
        """Keeps an answer until it is confirmed. False if the client has given the request up."""
        request = self.pending.get(answer.number)
        if request is None:
            return False
        request.answer = frame
        if isinstance(answer, Response) and isinstance(answer.value, dict):
            request.opened = answer.value.get("instance")
        self.answer_bytes += len(frame)
        return True
