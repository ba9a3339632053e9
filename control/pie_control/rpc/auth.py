"""Decides which connections are let in: answers ZeroMQ's authentication requests (ZAP, RFC 27).

pyzmq's `zmq.auth.Authenticator` is not used: it lets in connections without a key (NULL), and an
exception in the look-up of a key ends it. This refuses all but CURVE, and goes on.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog
import zmq
from zmq.utils import z85

from pie_py.config.keys import KeyStore
from pie_py.wire.zmq_socket import Socket

log = structlog.get_logger("pie.rpc")

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
ZAP_VERSION = b"1.0"
ZAP_DOMAIN = b"pie"


class Authenticator:
    """Maps a client's public key to its user; ZeroMQ has proved that it holds the secret."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: KeyStore) -> None:
        self._keys = keys
        reply = context.socket(zmq.REP)
        reply.setsockopt(zmq.LINGER, 0)
        reply.bind(ZAP_ENDPOINT)
        self._socket = Socket(reply)

    async def run(self) -> None:
        """Answers until cancelled."""
        while True:
            while (frames := self._socket.receive_frames()) is not None:
                self._socket.send(*self._answer([frame.bytes for frame in frames]))
            await self._socket.wait()

    def close(self) -> None:
        """Closes the socket; every connection is refused from then on."""
        self._socket.close()

    def _answer(self, request: Sequence[bytes]) -> list[bytes]:
        number = request[1] if len(request) > 1 else b""
        user = self._user(request)
        if user is None:
            log.warning("refused a connection", address=_address(request))
            return [ZAP_VERSION, number, b"400", b"no user has this key", b"", b""]
        return [ZAP_VERSION, number, b"200", b"OK", user.encode(), b""]

    def _user(self, request: Sequence[bytes]) -> str | None:
        match request:
            case [version, _, domain, _, _, b"CURVE", key] if version == ZAP_VERSION:
                if domain != ZAP_DOMAIN or len(key) != 32:
                    return None
                # Read at each connection: a key added or removed counts from the next one on.
                try:
                    return self._keys.users().get(z85.encode(key).decode("ascii"))
                except Exception:  # such as a folder that may not be read; the server goes on
                    log.exception("the users' keys cannot be looked up")
        return None


def _address(request: Sequence[bytes]) -> str:
    return request[3].decode("ascii", "replace") if len(request) > 3 else "?"
