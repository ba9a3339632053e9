"""ZeroMQ sockets in an event loop.

A socket's descriptor signals edges: it becomes readable when the socket's events change, and any send
or receive may take that signal. So after every send and receive, ask `has_input` before waiting.
"""

from __future__ import annotations

from typing import Any

import zmq

_INPUT = int(zmq.POLLIN)  # an enum's `&` is slow


def descriptor(socket: zmq.Socket[Any]) -> int:
    """The file descriptor to wait on until it is readable."""
    value = socket.getsockopt(zmq.FD)
    assert isinstance(value, int)
    return value


def has_input(socket: zmq.Socket[Any]) -> bool:
    """Whether a message can be received now."""
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return events & _INPUT != 0
