"""Sockets between the members of a cluster and its directory.

Off loopback they are encrypted by CURVE, with one key pair that all members have: who does not hold
it is not let in.
"""

from __future__ import annotations

import logging
import os

import zmq
from zmq.utils import z85

from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import KeyPair
from pie_py.wire.zmq_socket import Socket, keep_alive, new_router

log = logging.getLogger("pie.cluster")

FRAME_BYTES = 1 << 20  # of one message, at most
IDENTITY_BYTES = 16
RECONNECT_MS = 50


def member_dealer(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, pair: KeyPair | None
) -> zmq.Socket[bytes]:
    """A member's socket, connected to the directory.

    Its routing id is random and stays over reconnections, so that the other end knows the sender
    again.
    """
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, int(parse_endpoint(endpoint).is_ipv6))
    # The first byte must not be 0.
    socket.setsockopt(zmq.ROUTING_ID, b"m" + os.urandom(IDENTITY_BYTES))
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    socket.setsockopt(zmq.IMMEDIATE, 1)  # what cannot be sent now is said again
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES)
    keep_alive(socket)
    if pair is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, pair.public.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    socket.connect(endpoint)
    return socket


def member_router(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: str, pair: KeyPair | None
) -> zmq.Socket[bytes]:
    """The socket that members connect to, not bound yet. With a pair its context needs a `Gate`."""
    socket = new_router(context)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, int(parse_endpoint(endpoint).is_ipv6))
    socket.setsockopt(zmq.MAXMSGSIZE, FRAME_BYTES)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a member that connects again keeps its routing id
    socket.setsockopt(zmq.SNDHWM, 10_000)
    socket.setsockopt(zmq.RCVHWM, 100_000)
    keep_alive(socket)
    if pair is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, b"pie-cluster")
    return socket


class Gate:
    """Who may connect to a context's `member_router`: ZeroMQ asks before it lets a connection in
    (ZAP).
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], pair: KeyPair) -> None:
        """To be made before the router is bound."""
        self._public = pair.public
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("inproc://zeromq.zap.01")

    async def run(self) -> None:
        """Answers until cancelled."""
        questions = Socket(self._socket)
        while True:
            while questions.has_input():
                self._answer()
            await questions.wait()

    def _answer(self) -> None:
        """Members may."""
        version, number, _, address, _, mechanism, *credentials = self._socket.recv_multipart()
        key = z85.encode(credentials[0]).decode() if credentials else ""
        member = mechanism == b"CURVE" and key == self._public
        if not member:
            log.warning("refused a connection from %s", address.decode("ascii", "replace"))
        status = (b"200", b"OK", b"member") if member else (b"400", b"no member", b"")
        self._socket.send_multipart((version, number, *status, b""))
