"""The server's socket: its options, its encryption, and where it listens."""

from __future__ import annotations

import os

import zmq

from pie_control.rpc.auth import ZAP_DOMAIN
from pie_py.config.endpoint import Endpoint, answers, in_use
from pie_py.config.keys import KeyPair
from pie_py.wire.zmq_socket import keep_alive

QUEUE_MESSAGES = 2000  # to one connection that does not take them; more cut it off


class EndpointInUse(Exception):
    """Something else listens there."""


class EndpointRefused(Exception):
    """The server does not listen there as it is configured."""


def configure(socket: zmq.Socket[bytes], endpoint: Endpoint, frame_bytes: int) -> None:
    """Sets a ROUTER's options, before it listens. A larger frame breaks its connection."""
    socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes)
    # A send to a connection that is gone or full fails, rather than vanishing.
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, 100)
    keep_alive(socket)
    socket.setsockopt(zmq.IPV6, int(endpoint.is_ipv6))


def encrypt(socket: zmq.Socket[bytes], pair: KeyPair) -> None:
    """Lets in only clients that encrypt and whose key the authenticator knows."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)


def bind(socket: zmq.Socket[bytes], endpoint: Endpoint) -> str:
    """Listens; returns the endpoint with the port that was bound.

    Raises:
        EndpointInUse: if something else listens there.
        EndpointRefused: if the operating system does not allow it.
    """
    if endpoint.path is not None and answers(endpoint):
        raise EndpointInUse(in_use(endpoint))  # ZeroMQ would replace that server's socket silently
    try:
        socket.bind(endpoint.text)
    except zmq.ZMQError as error:
        if error.errno == zmq.EADDRINUSE:
            raise EndpointInUse(in_use(endpoint)) from None
        raise EndpointRefused(f"cannot listen on {endpoint.text}: {error.strerror}") from None
    if endpoint.path is not None:
        os.chmod(endpoint.path, 0o600)  # everyone who can write to the socket is user `local`
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return bound.rstrip(b"\0").decode()
