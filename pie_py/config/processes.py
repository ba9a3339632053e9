"""The parent's side of a child process: its start, its reports, its end, and the next one.

`pie_py.config.child` has the child's side.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

LOAD_SECONDS = 600.0  # for a model to be loaded, before a process that serves it is ready
STOP_SECONDS = 10.0
MOST_LINE = 1 << 20


def python_command(*arguments: str) -> list[str]:
    """The command of a child that runs this Python, such as `python_command("-m", "pie_control")`.

    All children are started by it. Without `-P`, `-m` and `-c` import from the folder one stands in
    before the standard library: a user's `random.py` there would stop the server, and a stranger's
    would run in it. PYTHONPATH, which a user sets on purpose, still counts.
    """
    return [sys.executable, "-P", *arguments]


class Child:
    """A module that runs as a child of this process; its standard input ends with it."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        reports: bool = True,
    ) -> None:
        """Starts `python -m MODULE ARGUMENTS`; the arguments that end it with its parent are among
        them, if it takes such. The environment, and where its standard error goes, are this
        process's by default. If it `reports`, standard output has lines of JSON, for `next_line`;
        else it goes to the log. Raises `OSError` if there is no room for its log, or for a process.
        """
        own = partial(os.open, mode=0o600)  # what users send is in it
        with nullcontext() if log is None else open(log, "ab", opener=own) as output:
            self._process = subprocess.Popen(
                python_command("-m", module, *arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if reports else output,
                stderr=output,
                env=env,
                start_new_session=True,  # Ctrl-C is this process's to handle
            )
        self._buffer = b""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """With which it has ended; None while it runs."""
        return self._process.poll()

    def next_line(self, seconds: float | None = None) -> dict[str, Any] | None:
        """Its next report; None if there is none within so long. Raises `EOFError` at its end."""
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(stdout, select.POLLIN)
        while b"\n" not in self._buffer:
            if not poll.poll(None if seconds is None else seconds * 1e3):
                return None
            part = os.read(stdout, 65536)
            if not part or len(self._buffer) > MOST_LINE:
                raise EOFError
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            report: Any = json.loads(line)
        except ValueError:
            return {}
        return report if isinstance(report, dict) else {}

    def wait(self) -> int:
        """Waits for its end and returns its exit status."""
        return self._process.wait()

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._process.terminate()

    def kill(self) -> int:
        """Ends it at once, if it has not ended; returns its exit status."""
        self._process.kill()
        return self._process.wait()

    def ask_to_end(self) -> None:
        """Closes its standard input, as the end of this process does; of one that does not report,
        which may not look there yet, sends SIGTERM.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.stdout is None:
            self.terminate()

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Has it end in order, and kills it after so long; returns its exit status."""
        self.ask_to_end()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return self.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Backoff:
    """The pauses before a process that has ended is started again.

    The first is short, each further one twice as long, up to a bound. After a process that has
    lived for long the next pause is the first one again.
    """

    FIRST_SECONDS = 0.5
    MOST_SECONDS = 30.0
    WELL_SECONDS = 10.0

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        first: float = FIRST_SECONDS,
        most: float = MOST_SECONDS,
    ) -> None:
        """The process starts now. The first pause has so many seconds, the longest one `most`."""
        self._clock = clock
        self._first = self._next = first
        self._most = most
        self.start()

    def start(self) -> None:
        """The process starts now."""
        self._started = self._clock()

    def pause(self) -> float:
        """The process has ended: seconds until it may start again."""
        if self._clock() - self._started > self.WELL_SECONDS:
            self._next = self._first
        pause, self._next = self._next, min(2 * self._next, self._most)
        return pause


AnyChild = TypeVar("AnyChild", bound=Child)


class Supervisor(Generic[AnyChild]):
    """Keeps a child running: when it has ended, another one starts after a pause."""

    def __init__(
        self,
        name: str,
        start: Callable[[], AnyChild],
        on_lost: Callable[[str, float], None],
        *,
        attend: Callable[[AnyChild], object] = Child.wait,
        child: AnyChild | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        """Supervises a child, the first one if it runs already, from now on, in a thread.

        After an OSError `start` is called again. `on_lost` gets the reason, and the seconds until
        the next start; `attend` gets each child, and returns once it has ended.
        """
        self.name = name
        self.child = child
        self.starts = 0
        self._start = start
        self._on_lost = on_lost
        self._attend = attend
        self._backoff = Backoff() if backoff is None else backoff
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask_to_end(self) -> None:
        """Has the child end in order, and starts no other."""
        self._stopping.set()
        if (child := self.child) is not None:
            child.ask_to_end()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Ends the child, kills it after so long, and starts no other."""
        self._stopping.set()
        if (child := self.child) is not None:
            child.stop(seconds)
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._backoff.start()
            try:
                reason = f"it exited with status {self._one_life()}"
            except OSError as error:  # no room for its log, or for a process
                reason = f"it cannot be started: {error}"
            if self._stopping.is_set():
                return
            pause = self._backoff.pause()
            self._on_lost(reason, pause)
            self._stopping.wait(pause)

    def _one_life(self) -> int:
        with self.child or self._start() as child:
            self.child = child
            self.starts += 1
            if not self._stopping.is_set():
                self._attend(child)
            self.child = None
            return child.stop() if self._stopping.is_set() else child.kill()


class GroupTime:
    """The CPU time of the processes of a group, by /proc: what limits count on a busy machine."""

    def __init__(self, group: int) -> None:
        """Takes the group's number."""
        self._group = group
        self._ticks = os.sysconf("SC_CLK_TCK")
        self.used = 0.0  # seconds of the CPU, at the last look

    def goes_on(self) -> bool:
        """True if the group has used a CPU since the last look, or waits for one or for a disk."""
        used, waits = 0.0, False
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                # Behind the name, which a process may give itself, of any bytes.
                state, _, group, *rest = file.read_bytes().rpartition(b")")[2].split()
                if int(group) == self._group:
                    used += sum(map(int, rest[8:12])) / self._ticks
                    waits = waits or state in b"RDTt"
        before, self.used = self.used, used
        return waits or used > before
