"""The ranks of another machine, as the first one sees them, by way of their host."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress

import psutil
import zmq

from pie_cluster.wire.ranks import (
    BEAT_SECONDS,
    Beat,
    Leave,
    Lost,
    Pass,
    Start,
    ToHost,
    decode_to_first,
    encode,
)
from pie_cluster.wire.sockets import member_dealer
from pie_inference.errors import LoadError
from pie_py.config.keys import KeyPair

START_MS = 5000  # for a host to answer
SILENT_SECONDS = 2.5  # without an answer, after which a machine is taken for lost
STILL_SECONDS = 1.0  # between two looks: this process stood still, which is not the host's silence
LINGER_MS = 1000  # for the last message


def use_interface_of(address: str) -> None:
    """Has this process, and those that it starts, reach other ranks by an address of this machine.
    The host's name may lead elsewhere. Raises `LoadError` if the machine has no such address.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
            return
    raise LoadError(f"ranks on several machines: {address} is no address of this machine")


class RemoteRanks:
    """Ranks that a host has started. Two threads use it: one passes on, one looks."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        pair: KeyPair | None,
        start: Start,
    ) -> None:
        """Has the host start them; the pair is that of the cluster's members, None on loopback.
        Raises `LoadError` if it does not answer.
        """
        self._endpoint = endpoint
        self._lock = threading.Lock()  # a socket is one thread's at a time
        self._socket = member_dealer(context, endpoint, pair)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._passed = 0
        self._said = self._heard = self._looked = time.monotonic()
        try:
            self._start(start)
        except LoadError:
            self._socket.close()
            raise

    def pass_on(self, frame: bytes) -> None:
        """Tells them what this rank has been told. What is not sent is missed by the host, which
        counts.
        """
        with self._lock:
            self._passed += 1
            self._send(Pass(frame))

    def failure(self) -> str | None:
        """Why the worker has to end; None while all is well. To be asked all the time."""
        now = time.monotonic()
        with self._lock:
            if self._socket.closed:
                return None
            if now - self._said > BEAT_SECONDS:
                self._said = now
                self._send(Beat(self._passed))
            while self._socket.poll(0):
                self._heard = now
                match decode_to_first(self._socket.recv()):
                    case Lost(reason):
                        return reason
        if now - self._looked > STILL_SECONDS:
            self._heard = now
        self._looked = now
        if now - self._heard > SILENT_SECONDS:
            return f"{self._endpoint} says nothing for {SILENT_SECONDS:g} s"
        return None

    def close(self) -> None:
        """Has the host end them."""
        with self._lock:
            self._send(Leave())
            self._socket.close(LINGER_MS)

    def _start(self, start: Start) -> None:
        if self._socket.poll(START_MS, zmq.POLLOUT):
            self._send(start)
            if self._socket.poll(START_MS):
                match decode_to_first(self._socket.recv()):
                    case Lost(reason):
                        raise LoadError(f"{self._endpoint}: {reason}")
                return
        raise LoadError(
            f"no host of ranks answers at {self._endpoint} within {START_MS // 1000} s: is its"
            " machine reached, and is it of this cluster?"
        )

    def _send(self, message: ToHost) -> None:
        # Without a connection it is dropped: `failure` tells that, or the host if it comes back.
        with suppress(zmq.Again):
            self._socket.send(encode(message), zmq.NOBLOCK)
