"""The door of HTTP: how many connections are open and how much of the thread's time their reading
takes, of each *party*.

A connection belongs to the address that it comes from, a stranger's, until a request on it has been
admitted; from then on to that request's user. All of a connection's bytes are read in the thread
that streams to others, so each party has its part of the time. Who has used it up rests: what is
sent stays in the sockets' buffers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from pie_gateway.http.limits import Bucket

# From the beginning of a connection or the end of an answer until the next head is there.
HEAD_SECONDS = 10.0
REQUEST_SECONDS = 2e-4  # that a request takes of the thread beside its bytes, about
# Seconds of it that a party may take in each second, and at once.
STRANGER, STRANGERS, USER = (0.1, 0.05), (0.2, 0.1), (0.5, 0.1)
# Connections that an address may make in each second, and at once; those of users do not count.
ARRIVALS = (500.0, 500.0)
TICK_SECONDS, IDLE_SECONDS = 0.02, 0.5


class Connection(Protocol):
    """One connection, as the door sees it."""

    def drop(self) -> None:
        """Cuts it off."""

    def go_on(self) -> None:
        """Reads on after a rest, while `Door.may_read`."""


@dataclass(slots=True, eq=False)
class Party:
    """An address, or a user."""

    user: str  # empty for a stranger's address
    time: Bucket  # seconds of the thread
    arrivals: Bucket  # connections that it may make
    connections: dict[Connection, None] = field(default_factory=dict)  # the oldest first
    # Those of them that have something to read.
    resting: dict[Connection, None] = field(default_factory=dict)


class Door:
    """All connections. Strangers have a quarter of them, and a user half."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        """Takes how many connections there may be, and a clock in seconds."""
        self._most = most
        self._clock = clock
        self._parties: dict[str, Party] = {}  # addresses; users behind an "@"
        self._party_of: dict[Connection, Party] = {}
        self._all_strangers = Bucket(*STRANGERS, clock)
        self._strangers = 0  # connections
        self._waiting: dict[Connection, float] = {}  # until when a head must have come, in order
        self._rests = anyio.Event()

    def takes(self, address: str) -> bool:
        """True if one more connection from an address is taken: not while it connects too often."""
        party = self._parties.get(party_name(address))
        return party is None or party.arrivals.left() > 0

    def enter(self, connection: Connection, address: str) -> None:
        """A stranger has connected. Of the address with most of them the oldest one makes way."""
        if self._strangers >= max(1, self._most // 4):
            addresses = (party for party in self._parties.values() if not party.user)
            crowd = max(addresses, key=lambda party: len(party.connections))
            self._drop(next(iter(crowd.connections)))
        party = self._party(party_name(address), "", STRANGER)
        party.arrivals.take(1)
        self._join(connection, party)
        self.waits(connection)

    def leave(self, connection: Connection) -> None:
        """It has ended. Idempotent."""
        self._waiting.pop(connection, None)
        party = self._party_of.pop(connection, None)
        if party is not None:
            del party.connections[connection]
            self._strangers -= not party.user
            party.resting.pop(connection, None)

    def admit(self, connection: Connection, user: str, *, alone: bool) -> bool:
        """A request on it is a user's; returns whether they may have one more. If `alone`, there
        are no other users, so that they may have all.
        """
        party = self._party_of.get(connection)
        if party is None or party.user == user:
            return True
        joined = self._party(f"@{user}", user, USER)
        if not alone and len(joined.connections) >= max(1, self._most // 2):
            return False
        self.spend(connection, -REQUEST_SECONDS)
        party.arrivals.take(-1)
        rests = connection in party.resting
        self.leave(connection)
        self._join(connection, joined)
        if rests:
            self.rest(connection)
        return True

    def waits(self, connection: Connection) -> None:
        """The head of a request has to come from now on."""
        self._waiting.pop(connection, None)
        if connection in self._party_of:
            self._waiting[connection] = self._clock() + HEAD_SECONDS

    def has_head(self, connection: Connection) -> None:
        """It has come, and an answer is under way."""
        self._waiting.pop(connection, None)

    def may_read(self, connection: Connection) -> bool:
        """True if its party has time left."""
        party = self._party_of.get(connection)
        if party is None or party.time.left() <= 0:
            return False
        return bool(party.user) or self._all_strangers.left() > 0

    def rest(self, connection: Connection) -> None:
        """It reads on when its party has time again."""
        party = self._party_of.get(connection)
        if party is not None:
            party.resting[connection] = None
            self._rests.set()

    def spend(self, connection: Connection, seconds: float) -> None:
        """Its party has taken time."""
        party = self._party_of.get(connection)
        if party is not None:
            party.time.take(seconds)
            if not party.user:
                self._all_strangers.take(seconds)

    async def run(self) -> None:
        """Lets connections go on, and drops those that are late, until cancelled."""
        while True:
            with anyio.move_on_after(IDLE_SECONDS):
                await self._rests.wait()
                await anyio.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """Does what is due by now."""
        now = self._clock()
        while self._waiting and (late := next(iter(self._waiting.items())))[1] <= now:
            self._drop(late[0])
        self._rests = anyio.Event()
        for name, party in list(self._parties.items()):
            resting, party.resting = party.resting, {}
            for connection in resting:
                if self.may_read(connection):
                    connection.go_on()
                else:
                    self.rest(connection)
            if not party.connections and party.time.is_full() and party.arrivals.is_full():
                del self._parties[name]

    def _party(self, name: str, user: str, time: tuple[float, float]) -> Party:
        if name not in self._parties:
            clock = self._clock
            self._parties[name] = Party(user, Bucket(*time, clock), Bucket(*ARRIVALS, clock))
        return self._parties[name]

    def _join(self, connection: Connection, party: Party) -> None:
        self._party_of[connection] = party
        party.connections[connection] = None
        self._strangers += not party.user

    def _drop(self, connection: Connection) -> None:
        self.leave(connection)
        connection.drop()


def party_name(address: str) -> str:
    """Whose an address is: of IPv6 a customer has a network of 64 bits at least."""
    if ":" not in address:
        return address
    found = ipaddress.ip_address(address.partition("%")[0])
    assert isinstance(found, ipaddress.IPv6Address)
    return str(found.ipv4_mapped or ipaddress.IPv6Address(int(found) >> 64 << 64))
