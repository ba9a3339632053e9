"""A ZeroMQ socket in an event loop: the one place that knows how ZeroMQ announces input.

Four faults of libzmq 4.3 are worked round here.

*Edges.* A socket's descriptor becomes readable when the socket's events *change* (an edge), and any
send or receive may consume that signal while input is still there, also one that fails. So a task
that waits for the descriptor alone may wait forever. `Socket` looks for input after each send and
wakes the waiting task.

*Parts.* Messages between processes have one frame (after the routing id, on a ROUTER): a receiver
that has read some parts of a message when the connection breaks is aborted (`!_more` in fq.cpp).

*Heartbeats.* ZeroMQ's own are off: one that comes due on a connection that broke while its input
was held back aborts the process (4.3.5, an assertion in out_event). `keep_alive` has the kernel
look instead.

*Routing ids.* They can be foretold, see `new_router`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import sniffio
import zmq

_INPUT = int(zmq.POLLIN)  # an enum's `&` is slow


def has_input(socket: zmq.Socket[Any]) -> bool:
    """True if a message can be received now."""
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return events & _INPUT != 0


def new_router(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """A ROUTER whose routing ids no peer can foretell.

    libzmq counts them up from `rand()`, with the C library's seed, which is the same in every
    process. But any peer may claim an id that is free. If one has the id that the counter comes to,
    the process aborts (an assertion in socket_base.cpp). One that has the id of a connection that
    has broken is sent what was meant for that.
    """
    ctypes.CDLL(None).srand(int.from_bytes(os.urandom(4), "little"))
    return context.socket(zmq.ROUTER)


def keep_alive(socket: zmq.Socket[Any]) -> None:
    """Has the kernel close connections whose other machine is gone, within a minute."""
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 30)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)


@dataclass(frozen=True)
class Readiness:
    """How an event loop waits for a descriptor.

    Attributes:
        wait: returns once the descriptor is readable.
        wake: raises `woken` in the task that is in `wait`.
        woken: that exception.
        checkpoint: lets others run.
    """

    wait: Callable[[int], Awaitable[None]]
    wake: Callable[[int], None]
    woken: type[Exception]
    checkpoint: Callable[[], Awaitable[None]]


def _readiness() -> Readiness:
    """The running loop's. trio's own functions: by way of anyio a wait takes 60 calls more."""
    if sniffio.current_async_library() == "trio":
        from trio import ClosedResourceError, lowlevel

        return Readiness(
            lowlevel.wait_readable,
            lowlevel.notify_closing,
            ClosedResourceError,
            lowlevel.checkpoint,
        )
    return Readiness(
        anyio.wait_readable,
        anyio.notify_closing,
        anyio.ClosedResourceError,
        anyio.lowlevel.checkpoint,
    )


class Socket:
    """Sends and receives without blocking; one task waits for input. Works under asyncio and
    trio."""

    def __init__(self, socket: zmq.Socket[Any]) -> None:
        """Takes a socket, which only this object uses from now on."""
        self._socket = socket
        descriptor = socket.getsockopt(zmq.FD)
        assert isinstance(descriptor, int)
        self._descriptor = descriptor
        self._waits = False  # a task is in `wait`
        self._readiness: Readiness | None = None  # of the event loop, once a task has waited

    def has_input(self) -> bool:
        """True if a message can be received now."""
        found = has_input(self._socket)
        if found:
            self.wake()  # asking has consumed the signal that the task waits for
        return found

    def receive(self) -> bytes | None:
        """The next message of one frame; None if there is none."""
        if not has_input(self._socket):  # asking is cheaper than an exception
            return None
        return self._socket.recv(zmq.NOBLOCK)

    def receive_frames(self) -> list[zmq.Frame] | None:
        """The next message's frames without copying them, a ROUTER's with the routing id first."""
        if not has_input(self._socket):
            return None
        return self._socket.recv_multipart(zmq.NOBLOCK, copy=False)

    def send(self, *frames: bytes | zmq.Frame) -> int | None:
        """Sends one message, after the routing id on a ROUTER. Returns None, or what is in the way:
        `zmq.EAGAIN` (no connection, or one whose queue is full) or `zmq.EHOSTUNREACH` (a ROUTER's
        connection is gone).
        """
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            return error.errno
        finally:
            if self._waits and has_input(self._socket):
                self.wake()  # the send, even one that failed, has consumed the task's signal
        return None

    async def wait(self) -> None:
        """Waits until there may be input, or until `wake`; others run in any case. One task at a
        time."""
        if self._readiness is None:
            self._readiness = _readiness()
        if has_input(self._socket):
            await self._readiness.checkpoint()
            return
        self._waits = True
        try:
            await self._readiness.wait(self._descriptor)
        except self._readiness.woken:
            pass
        finally:
            self._waits = False

    def wake(self) -> None:
        """Ends `wait` in the task that is in it."""
        if self._waits and self._readiness is not None:
            self._waits = False  # once: each time takes calls of the system
            self._readiness.wake(self._descriptor)

    def close(self, linger: int | None = None) -> None:
        """Closes the socket, which goes on sending for `linger` milliseconds."""
        self._socket.close(linger)
