"""Authentication of connections: answers ZeroMQ's authentication requests (ZAP, RFC 27).

pyzmq's `zmq.auth.Authenticator` is not used: it lets in connections without a key (NULL), and an
exception in the look-up of a key ends it. This refuses all but CURVE, and goes on. A connection
whose key is removed later may say nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog
import trio
import zmq
from zmq.utils import z85

from pie_py.config.keys import LOCAL_USER, KeyStore, KnownUsers
from pie_py.wire.zmq_socket import Socket

log = structlog.get_logger("pie.rpc")

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
ZAP_DOMAIN = b"pie"
LOOK_SECONDS = 0.5  # between two looks whether keys were removed
MOST_QUESTIONS = 64  # looked up at once: strangers' keys may take a while


class NotKnownNow(Exception):
    """It is not known at present if a key is a user's: the client may try again."""


class Users(Protocol):
    """Users by their public keys."""

    async def find(self, key: str) -> str | None:
        """The user of a key; None if no user has it. Raises NotKnownNow if that is not known."""

    @property
    def changes(self) -> int:
        """Another number whenever keys may have been removed."""


class FolderUsers:
    """Those whose keys are in the data folder; a cluster's members have the operator's rights."""

    def __init__(self, keys: KeyStore, member: str = "") -> None:
        """Takes the members' public key, if there are members."""
        self._known = KnownUsers(keys)
        self._member = member

    async def find(self, key: str) -> str | None:
        """The user of a key; None if no user has it."""
        return LOCAL_USER if key == self._member else self._known.look().get(key)

    @property
    def changes(self) -> int:
        """Another number whenever keys may have been removed."""
        self._known.look()
        return self._known.changes


class Authenticator:
    """Maps a client's public key to its user; ZeroMQ has proved that it holds the secret."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], users: Users, keys: KeyStore
    ) -> None:
        """Lets in `users`; `keys` is where the last use of each key is kept."""
        self._users = users
        self._keys = keys
        self._let_in: dict[str, str] = {}  # users by key
        self._removed: set[str] = set()  # keys that were let in
        router = context.socket(zmq.ROUTER)  # one answer need not wait for another
        router.setsockopt(zmq.LINGER, 0)
        router.bind(ZAP_ENDPOINT)
        self._socket = Socket(router)
        self._limiter = trio.CapacityLimiter(MOST_QUESTIONS)

    async def run(self) -> None:
        """Answers until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            while True:
                while (frames := self._socket.receive_frames()) is not None:
                    parts = [frame.bytes for frame in frames]
                    route, request = parts[:2], parts[2:]  # a routing id and an empty frame
                    nursery.start_soon(self._answer, route, request)
                await self._socket.wait()

    def close(self) -> None:
        """Closes the socket; every connection is refused from then on."""
        self._socket.close()

    def user_of(self, frame: zmq.Frame) -> tuple[str, bool]:
        """The user of a frame's connection, and whether it may speak: its key is there."""
        tag = frame.get("User-Id")
        assert isinstance(tag, str)
        user, _, key = tag.partition(" ")
        return user, key not in self._removed

    async def _answer(self, route: Sequence[bytes], request: Sequence[bytes]) -> None:
        number = request[1] if len(request) > 1 else b""
        key = _key(request)
        user = None if key is None else await self._find(key, _address(request))
        if user is None or key is None:
            log.warning("refused a connection", address=_address(request))
            answer = [b"400", b"no user has this key", b"", b""]
        else:
            self._let_in[key] = user
            self._removed.discard(key)
            self._keys.note_use(key)
            answer = [b"200", b"OK", f"{user} {key}".encode(), b""]
        self._socket.send(*route, ZAP_VERSION, number, *answer)

    async def _find(self, key: str, address: str) -> str | None:
        """The user of a key; None if no user has it, or that is not known in time.

        ZeroMQ has an answer for the latter, after which neither side does anything; so the
        connection waits here, as long as handshakes may take.
        """
        with trio.move_on_after(25.0):  # ZeroMQ gives a handshake 30
            while True:
                try:
                    async with self._limiter:
                        return await self._users.find(key)
                except NotKnownNow as error:
                    log.warning("a connection has to wait", address=address, reason=str(error))
                except Exception:  # such as a folder that may not be read; the server goes on
                    log.exception("the users' keys cannot be looked up")
                    return None
                await trio.sleep(LOOK_SECONDS)
        return None

    async def _watch(self) -> None:
        """Looks again for the keys that were let in, whenever some may have been removed."""
        seen: int | None = None
        while True:
            try:
                changes = self._users.changes
                if changes != seen:
                    for key, user in list(self._let_in.items()):
                        if await self._users.find(key) != user:
                            log.warning("a key was removed", user=user)
                            self._removed.add(key)
                            del self._let_in[key]
                    seen = changes
            except NotKnownNow as error:
                log.warning("whether keys were removed is not known yet", reason=str(error))
            except Exception:
                log.exception("the users' keys cannot be looked up")
            await trio.sleep(LOOK_SECONDS)


def _key(request: Sequence[bytes]) -> str | None:
    """The key of a connection that encrypts; None of any other."""
    match request:
        case [version, _, domain, _, _, b"CURVE", key] if version == ZAP_VERSION:
            if domain == ZAP_DOMAIN and len(key) == 32:
                return z85.encode(key).decode("ascii")
    return None


def _address(request: Sequence[bytes]) -> str:
    return request[3].decode("ascii", "replace") if len(request) > 3 else "?"
