"""Turns of a loop that all users share: each has a budget of its thread's time, and what exceeds it
is counted and logged, with where it was and whose work it was.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

BUDGET_SECONDS = 0.05  # of a turn, in CPU time of the thread: a busy machine makes none longer
LOG_SECONDS = 1.0  # from one line of the log to the next
FRAMES = 12
# Local variables with an attribute `user`, from which it is told whose work a turn was.
_OF_USER = ("exchange", "inbound", "instance", "session", "owner")


class Turns:
    """The turns of one thread."""

    def __init__(self, loop: str) -> None:
        """Takes what the loop is called in the log."""
        self.long, self.worst = 0, 0.0  # turns over the budget, and seconds of the longest
        self._loop = loop
        self._thread = 0  # none yet
        self._began = self._cpu = 0.0
        self._seen: tuple[float, str, str] = (0.0, "", "")  # of a turn: begin, user, stack
        self._logged = -LOG_SECONDS

    def begin(self, timeout: float = 0.0) -> None:
        """A turn begins. `timeout`, of trio's instruments, says nothing here."""
        if not self._thread:
            self._thread = threading.get_ident()
            threading.Thread(target=self._watch, name=f"turns of {self._loop}", daemon=True).start()
        self._cpu = time.thread_time()
        self._began = time.perf_counter()

    def end(self, timeout: float = 0.0) -> bool:
        """A turn ends: the loop waits. Returns whether there was one."""
        began, self._began = self._began, 0.0
        if began and time.perf_counter() - began > BUDGET_SECONDS:
            self._note(began, time.thread_time() - self._cpu)
        return bool(began)

    def _note(self, began: float, seconds: float) -> None:
        if seconds <= BUDGET_SECONDS:
            return
        self.long += 1
        self.worst = max(self.worst, seconds)
        now = time.monotonic()
        if now - self._logged < LOG_SECONDS:
            return
        self._logged = now
        import structlog  # it takes long, and is imported before there is a long turn

        seen, user, stack = self._seen
        where = {"user": user, "stack": stack} if seen == began else {}
        structlog.get_logger("pie.turns").warning(
            "a long turn", loop=self._loop, ms=round(seconds * 1000), **where
        )

    def _watch(self) -> None:
        """Looks where a turn is that has taken half of its budget."""
        while True:
            time.sleep(BUDGET_SECONDS / 2)
            began = self._began
            if not began or self._seen[0] == began:
                continue
            if time.perf_counter() - began < BUDGET_SECONDS / 2:
                continue
            frame = sys._current_frames().get(self._thread)
            if frame is not None and self._began == began:
                self._seen = (began, *_told(frame))


def _told(frame: FrameType) -> tuple[str, str]:
    """The user whose work a frame does, if it is known, and the innermost calls."""
    calls: list[str] = []
    user = ""
    for at in _frames(frame):
        if len(calls) < FRAMES:
            calls.append(f"{at.f_code.co_filename}:{at.f_lineno} {at.f_code.co_name}")
        if not user:
            found = (getattr(at.f_locals.get(name), "user", "") for name in _OF_USER)
            user = next((each for each in found if isinstance(each, str) and each), "")
    return user, " < ".join(calls)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back
