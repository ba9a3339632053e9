"""The processes, and whose job is next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgpack
import structlog
import trio

from pie_control.confined.process import LENGTH_BYTES
from pie_control.errors import ApiError, ProgramRejected, Shortage
from pie_control.fairness import FairQueue, Owner
from pie_py.config.processes import GroupTime, python_command
from pie_py.config.services import ConfinedConfig

log = structlog.get_logger("pie.confined")

_IDLE_SECONDS = 30.0  # without using a CPU or waiting for one, after which a process is ended
_MOST_ANSWER = 64 << 20  # bytes
# Sees no more of the server than the modules that it imports: no environment, no open files.
_START = (
    "import sys; sys.path[:] = sys.argv[1:]; from pie_control.confined.process import main; main()"
)


class JobStopped(ApiError):
    """A job needed more time or memory than it may have, or ended its process."""

    def __init__(self, reason: str) -> None:
        super().__init__("limit-exceeded", reason)


class ConfinedPool:
    """A few processes, started when they are needed. Users take turns, and so do their instances.

    Fewer of them than there are work for one user at a time. A job that breaks a limit takes its
    process with it, and nothing else.
    """

    def __init__(self, config: ConfinedConfig) -> None:
        self._config = config
        self._of_user = max(1, config.processes - 1)
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._under_way = 0
        self._running: Counter[str] = Counter()  # by user
        self._waiting: FairQueue[trio.Event] = FairQueue(credit=0.0)
        self._turns: set[trio.Event] = set()  # of those in `_waiting` that are still wanted

    async def call(
        self,
        owner: Owner,
        what: str,
        function: Callable[..., Any],
        *args: Any,
        seconds: float = 5.0,
    ) -> Any:
        """Calls a function at the top of a module in a process, with what msgpack takes and within
        seconds of the CPU. Cancelled, it ends the process. `what` names what the job is about, such
        as "the grammar", in messages.

        Raises:
            JobStopped: if it needed too much.
            ApiError: as the function, or `out-of-resources` if no process can be started.
            ProgramRejected: as the function.
        """
        await self._turn(owner)
        started = time.monotonic()
        process: _Process | None = None
        keep = False
        try:
            process = self._idle.pop() if self._idle else _started(self._config.memory)
            self._busy.add(process)
            kind, value, grown = await process.call(function, args, seconds)
            keep = not grown
            return _result(what, kind, value, self._config.memory)
        except _Ended as ended:
            why = _why(ended.status, seconds, self._config.memory)
            raise JobStopped(f"{what} {why}") from None
        finally:
            if process is not None:
                self._busy.discard(process)
                if keep:
                    self._idle.append(process)
                else:
                    process.end()
            self._under_way -= 1
            self._running[owner.user] -= 1
            self._waiting.charge(owner, time.monotonic() - started)
            self._give_turns()

    def close(self) -> None:
        """Ends the processes. New jobs start new ones."""
        for process in [*self._idle, *self._busy]:
            process.end()
        self._idle.clear()

    async def _turn(self, owner: Owner) -> None:
        """Waits until the owner may have a process."""
        turn = trio.Event()
        self._turns.add(turn)
        self._waiting.push(owner, turn)
        self._give_turns()
        try:
            await turn.wait()
        except trio.Cancelled:
            if turn in self._turns:  # it is passed over when its turn comes
                self._turns.discard(turn)
            else:
                self._under_way -= 1
                self._running[owner.user] -= 1
                self._give_turns()
            raise

    def _give_turns(self) -> None:
        while self._under_way < self._config.processes:
            taken = self._waiting.pop(lambda user: self._running[user] < self._of_user)
            if taken is None:
                break
            owner, turn = taken
            if turn in self._turns:
                self._turns.discard(turn)
                self._under_way += 1
                self._running[owner.user] += 1
                turn.set()
        self._running += Counter()  # without those at zero


class _Ended(Exception):
    """The process has ended within a job."""

    def __init__(self, status: int) -> None:
        self.status = status


def call_alone(
    what: str, memory: int, function: Callable[..., Any], *args: Any, seconds: float
) -> Any:
    """As `ConfinedPool.call`, of a process for this job alone, for which this one waits."""
    job = _job(function, args, seconds)
    done = subprocess.run(**_command(memory), input=job, stdout=subprocess.PIPE, check=False)
    try:
        kind, value, _ = msgpack.unpackb(done.stdout[LENGTH_BYTES:])
    except ValueError:
        raise JobStopped(f"{what} {_why(done.returncode, seconds, memory)}") from None
    return _result(what, kind, value, memory)


def _command(memory: int) -> dict[str, Any]:
    """How a process is started, but for its pipes."""
    return {
        "args": python_command("-I", "-S", "-c", _START, *sys.path),
        "env": {
            "PIE_PY_CONFINED_BYTES": str(memory),
            "TOKENIZERS_PARALLELISM": "false",
            "RAYON_NUM_THREADS": "1",
        },
        "process_group": 0,  # a terminal's signals are for the control process
    }


def _job(function: Callable[..., Any], args: tuple[Any, ...], seconds: float) -> bytes:
    job: bytes = msgpack.packb((function.__module__, function.__name__, args, seconds))
    return len(job).to_bytes(LENGTH_BYTES) + job


class _Process:
    """One process, and its two pipes."""

    def __init__(self, memory: int) -> None:
        self._process = subprocess.Popen(
            **_command(memory), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._input = trio.lowlevel.FdStream(os.dup(self._process.stdin.fileno()))
            self._output = trio.lowlevel.FdStream(os.dup(self._process.stdout.fileno()))
        except OSError:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process.stdin.close()
            self._process.stdout.close()

    async def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], seconds: float
    ) -> tuple[str, Any, bool]:
        """The kind of the answer, its value, and whether the process has grown too large.

        Raises:
            _Ended: if the process ends.
            ApiError: `busy` if it is ended from here.
        """
        try:
            await self._input.send_all(_job(function, args, seconds))
            size = int.from_bytes(await self._receive(LENGTH_BYTES))
            if size > _MOST_ANSWER:
                raise _Ended(-signal.SIGKILL)
            kind, value, grown = msgpack.unpackb(await self._receive(size))
        except trio.BrokenResourceError:
            raise _Ended(await self._status()) from None
        except trio.ClosedResourceError:  # by `end`
            raise ApiError("busy", "the server is stopping") from None
        return kind, value, grown

    async def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            more = await self._some(size - len(data))
            if not more:
                raise _Ended(await self._status())
            data += more
        return bytes(data)

    async def _some(self, size: int) -> bytes:
        """The bytes that come next; none of a process that has come to a halt, which is ended."""
        time = GroupTime(self._process.pid)
        while True:
            with trio.move_on_after(_IDLE_SECONDS):
                return bytes(await self._output.receive_some(size))
            if not time.goes_on():
                self._process.kill()
                return b""

    async def _status(self) -> int:
        return await trio.to_thread.run_sync(self._process.wait)

    def end(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._input.close()
        self._output.close()
        # Its memory takes the kernel a tenth of a second to free.
        threading.Thread(target=self._process.wait, daemon=True).start()


def _started(memory: int) -> _Process:
    """A new process. Raises ApiError `out-of-resources`."""
    try:
        return _Process(memory)
    except OSError as error:
        log.warning("no confined process can be started", problem=str(error))
        raise Shortage(
            f"the server cannot start a process ({error.strerror})", "out-of-resources"
        ) from None


def _result(what: str, kind: str, value: Any, memory: int) -> Any:
    if kind == "ok":
        return value
    if kind == "memory":
        raise JobStopped(f"{what} takes more than {memory >> 20} MiB, or is nested too deep")
    if kind == "rejected":
        raise ProgramRejected(value)
    raise ApiError(kind, value)  # type: ignore[arg-type] # as the function raised it


def _why(status: int, seconds: float, memory: int) -> str:
    if status == -signal.SIGXCPU:
        return f"takes more than {seconds:g} s of CPU time"
    if status == -signal.SIGABRT:  # Rust's allocator
        return f"takes more than {memory >> 20} MiB"
    log.warning("a confined process has ended", status=status)
    if status == -signal.SIGKILL:
        return "takes too much, or has come to a halt"
    return "is nested too deep"
