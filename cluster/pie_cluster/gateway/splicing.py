"""Bytes between pairs of connected sockets, carried by one thread.

What comes by one socket of a pair goes out by the other. What that does not take at once is kept,
and nothing more is read until it has gone: so TCP holds up the sender, and a pair takes no more
memory than a chunk each way. When one socket has ended, the other gets what is left, and ends.
"""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

CHUNK_BYTES = 256 << 10  # read at once, so that all have their turn; as much is kept at most
BROKEN = select.EPOLLHUP | select.EPOLLERR


class _End:
    """One socket of a pair."""

    def __init__(self, connected: socket.socket, on_end: Callable[[], Any]) -> None:
        self.socket = connected
        self.on_end = on_end
        self.other = self
        self.waiting = memoryview(b"")  # what the socket has not taken
        self.watched = select.EPOLLIN  # the events that the thread waits for
        self.is_open = True


class Splicing:
    """Carries bytes in the thread that calls `run`."""

    def __init__(self) -> None:
        """Carries nothing before `run`."""
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._added: deque[tuple[_End, _End]] = deque()
        self._ends: dict[int, _End] = {}  # by descriptor
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._stopped = False

    def add(self, one: socket.socket, other: socket.socket, on_end: Callable[[], Any]) -> None:
        """Takes a pair of sockets that do not block. Callable from any thread.

        Args:
            one: connected, as the other is; both are closed when they have ended.
            other: of the pair.
            on_end: called once then, in the thread of `run`.
        """
        ends = _End(one, on_end), _End(other, on_end)
        ends[0].other, ends[1].other = ends[1], ends[0]
        self._added.append(ends)
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Has `run` close all sockets and return. Callable from any thread."""
        self._stopped = True
        os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """Carries until `stop`."""
        try:
            while not self._stopped:
                woken = False
                for descriptor, events in self._epoll.poll():
                    if descriptor == self._wake:
                        woken = True
                    elif (end := self._ends.get(descriptor)) is not None:
                        self._handle(end, events)
                if woken:  # after the others: a new socket may have a descriptor that was theirs
                    os.eventfd_read(self._wake)  # first: what is added later wakes again
                    self._take()
        finally:
            self._take()
            for end in list(self._ends.values()):
                self._close(end)
            self._epoll.close()
            os.close(self._wake)

    def _take(self) -> None:
        while self._added:
            for end in self._added.popleft():
                self._ends[end.socket.fileno()] = end
                self._epoll.register(end.socket, end.watched)

    def _handle(self, end: _End, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(end)
        if not end.is_open:
            return
        if end.watched & select.EPOLLIN:
            if events & (select.EPOLLIN | BROKEN):
                self._read(end)
        elif events & BROKEN:  # told whatever is waited for
            self._finish(end)

    def _read(self, end: _End) -> None:
        try:
            count = end.socket.recv_into(self._chunk)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self._finish(end)
            return
        other = end.other
        other.waiting = self._chunk[:count]
        if self._send(other) and other.waiting:
            other.waiting = memoryview(bytes(other.waiting))  # the chunk is read into again
            self._watch(other, other.watched | select.EPOLLOUT)
            self._watch(end, end.watched & ~select.EPOLLIN)

    def _flush(self, end: _End) -> None:
        if self._send(end) and not end.waiting:
            if end.other.is_open:
                self._watch(end, end.watched & ~select.EPOLLOUT)
                self._watch(end.other, end.other.watched | select.EPOLLIN)
            else:
                self._finish(end)

    def _send(self, end: _End) -> bool:
        """Sends what waits, as far as the socket takes it; whether the socket is still there."""
        try:
            sent = end.socket.send(end.waiting)
        except BlockingIOError:
            return True
        except OSError:
            self._finish(end)
            return False
        end.waiting = end.waiting[sent:]
        return True

    def _finish(self, end: _End) -> None:
        """A socket has ended: the other one does once it has taken what waits for it."""
        self._close(end)
        other = end.other
        if other.is_open and other.waiting:
            self._watch(other, select.EPOLLOUT)
            return
        if other.is_open:
            self._close(other)
        end.on_end()

    def _watch(self, end: _End, events: int) -> None:
        self._epoll.modify(end.socket, events)
        end.watched = events

    def _close(self, end: _End) -> None:
        self._epoll.unregister(end.socket)
        del self._ends[end.socket.fileno()]
        end.is_open = False
        end.waiting = memoryview(b"")
        end.socket.close()
