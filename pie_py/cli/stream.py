"""Shows what an instance sends, until it ends or the user has enough."""

from __future__ import annotations

import ast
import asyncio
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from stat import S_ISFIFO, S_ISSOCK
from types import FrameType
from typing import TextIO

import anyio
import anyio.lowlevel
import click

from pie_py.build.modules import read_modules
from pie_py.cli.connect import EXIT_INTERRUPTED, At
from pie_py.cli.console import LOOK_SECONDS, alive, print_text, say
from pie_py.client import Client, ClientError, Instance
from pie_py.config.printable import printable
from pie_py.wire.modules import pack

DEBUGGER = Path(__file__).parent / "guests" / "pie_debugger.py"
MARK = b"\0pdb "  # begins what pdb in a program sends
_PART = 1 << 16  # bytes of standard input that are read at once
MOST_LINE = (
    64 << 20
)  # bytes, or of a whole text; servers take messages of 2 MiB, unless their operator allows more


class Output:
    """Standard output, as bytes, unbuffered; a text always ends with a newline."""

    def __init__(self) -> None:
        self._open_line = False
        self._to_terminal = sys.stdout.isatty()

    def write(self, message: str | bytes) -> None:
        """Writes a message, as it is unless a terminal shows it."""
        if self._to_terminal:  # which acts on control characters
            text = message if isinstance(message, str) else message.decode(errors="replace")
            message = printable(text, None, lines=True)
        data = message.encode("utf-8", "replace") if isinstance(message, str) else message
        if data:
            try:
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            except OSError:
                _give_up(sys.stdout)
                raise
            self._open_line = isinstance(message, str) and not message.endswith("\n")

    def end(self) -> None:
        """Ends the last line."""
        if self._open_line:
            self.write("\n")


def _give_up(stream: TextIO) -> None:
    """Has a stream without a reader go nowhere: the interpreter would fail when it flushes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _tell(text: str) -> None:
    """As `say`. Raises `OSError` if standard error has no reader."""
    try:
        say(text)
    except OSError:
        _give_up(sys.stderr)
        raise


class LogLines:
    """The log of an instance, `print` in a program included, on standard error as it comes."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._after = 0

    async def follow(self) -> None:
        """Shows new lines now and then, until it is cancelled."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            with suppress(ClientError):  # the reader of the messages gets it, if it lasts
                await self.show_new()

    async def show_new(self) -> None:
        """Shows the lines that have come since."""
        found = await self._instance.logs(self._after)
        self._after = found["next"]
        for line in found["lines"]:
            _tell(line["text"])


class Interrupt:
    """The scope that Ctrl-C and SIGTERM cancel, and if one came.

    It is the signals' handler from before the event loop is made until that is closed: with
    another, an interrupt could come between two steps of the loop's own work, and break it.
    """

    def __init__(self) -> None:
        self.scope: anyio.CancelScope | None = None
        self.came = False
        self._loop: asyncio.AbstractEventLoop | None = None  # that runs

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Receives a signal."""
        self.came = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.scope is not None:
            self.scope.cancel()

    @contextmanager
    def cancels(self) -> Iterator[None]:
        """Has signals cancel what runs within, or the scope it names, as one that came before."""
        with anyio.CancelScope() as self.scope:
            self._loop = asyncio.get_running_loop()
            try:
                if self.came:
                    self._cancel()
                yield
            finally:
                self._loop = None


def run_interruptible(main: Callable[[Interrupt], Awaitable[int]]) -> int:
    """Runs `main` and returns its exit status; Ctrl-C and SIGTERM cancel it, or the scope it names.

    It cannot be left by an interrupt: that only ends it sooner.
    """
    interrupt = Interrupt()

    async def watched() -> int:
        with interrupt.cancels():
            return await main(interrupt)
        return EXIT_INTERRUPTED

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        status = anyio.run(watched)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    return EXIT_INTERRUPTED if interrupt.came else status


def show_at(
    at: At,
    begin: Callable[[Client], Awaitable[Instance]],
    on_interrupt: Callable[[Instance], Awaitable[None]],
    *,
    detach: bool = False,
    logs: bool = False,
    typed: bool = True,
) -> int:
    """Begins an instance, and shows it, or, with `detach`, prints its id; the exit status."""

    async def main(interrupt: Interrupt) -> int:
        async with Client(at.endpoint, at.key) as client:
            instance = await begin(client)
            if detach:
                print_text(instance.id)
                return 0
            return await show(client, instance, interrupt, on_interrupt, logs=logs, typed=typed)

    return run_interruptible(main)


async def show(
    client: Client,
    instance: Instance,
    interrupt: Interrupt,
    on_interrupt: Callable[[Instance], Awaitable[None]],
    *,
    logs: bool = False,
    typed: bool = True,
) -> int:
    """Writes an instance's messages and result to standard output, and with `logs` what it logs to
    standard error; returns the exit status. If `typed`, lines of standard input are messages to it.

    An interrupt calls `on_interrupt`; so does a reader of standard output that has gone. If that is
    `cancel`, standard input's end ends the instance too. Raises `ClientError` if the instance fails
    or the server is lost.
    """
    output = Output()
    problem: Exception | None = None
    lines = LogLines(instance)
    source = StandardInput()

    async def shown() -> None:
        async for message in _messages(instance, typed):
            if isinstance(message, bytes) and message.startswith(MARK):
                output.end()
                await converse(instance, message, source)
            else:
                output.write(message)
        text = await instance.result()
        if text:
            output.end()
            output.write(text)
        output.end()

    async def left() -> None:
        if interrupt.came or isinstance(problem, OSError):
            with suppress(OSError):  # the interrupt has ended the reader, too
                output.end()
            await on_interrupt(instance)
        if logs:
            with suppress(ClientError):
                await lines.show_new()

    async def guarded(step: Callable[[], Awaitable[None]]) -> None:
        nonlocal problem
        try:
            await step()
        except Exception as error:  # noqa: BLE001  raised below, once the terminal is restored
            problem = problem or error
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        interrupt.scope = tasks.cancel_scope  # the client goes on, to tell the server
        if logs:
            tasks.start_soon(guarded, lines.follow)
        if typed:
            to_end = on_interrupt is cancel
            passing = partial(source.pass_on, client, instance, to_end=to_end)
            tasks.start_soon(guarded, passing)
        try:
            await guarded(shown)
        finally:
            with anyio.move_on_after(5, shield=True):
                await guarded(left)
            tasks.cancel_scope.cancel()
    if problem is not None and not isinstance(problem, BrokenPipeError):
        with suppress(OSError):
            output.end()
        raise problem
    return 0


async def _messages(instance: Instance, typed: bool) -> AsyncIterator[str | bytes]:
    """Its messages; before the first the seconds, unless that would hide what is typed."""
    with ExitStack() as silence:
        if not typed:
            silence.enter_context(alive("reads"))
        async for message in instance:
            silence.close()
            yield message


async def cancel(instance: Instance) -> None:
    """An interrupted `run` or `launch` ends what it started."""
    with suppress(OSError):  # its reader has gone
        _tell(f"cancelling {instance.id}")
    await instance.cancel()


async def leave(instance: Instance) -> None:
    """An interrupted `attach` lets the instance be."""
    await instance.detach()
    _tell(f"detached from {instance.id}; `pie-py attach {instance.id}` comes back")


def has_debugger(program: bytes) -> bool:
    """True if lines of standard input are for the debugger in a program, and no messages."""
    return DEBUGGER.name.encode() in program


def with_debugger(path: Path) -> bytes:
    """A Python program, with the debugger if it has a `breakpoint()`; raises as `read_program`."""
    modules = read_modules(path)
    if any(_breaks(source) for source in modules.values()):
        modules[DEBUGGER.name] = DEBUGGER.read_bytes()
    return pack(modules)


async def converse(instance: Instance, message: bytes, source: StandardInput) -> None:
    """Does what a message of the debugger wants: shows a text, or sends the user's next line."""
    kind, _, text = message.removeprefix(MARK).partition(b" ")
    if kind == b"shows":
        print_text(text.decode(errors="replace"), err=True, nl=False)
        return
    line = await source.line()
    await instance.send(b"" if line is None else f"{line}\n".encode())


def _breaks(source: bytes) -> bool:
    """True if a module calls `breakpoint`."""
    if b"breakpoint" not in source:
        return False
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False  # the server says what is wrong with it
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(isinstance(one, ast.Name) and one.id == "breakpoint" for one in calls)


class StandardInput:
    """Lines of standard input: of a terminal, a pipe or a file.

    Nothing is read before an instance waits for a message: what reads none leaves standard input to
    the commands behind it.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._ended = False
        try:
            self._file = sys.stdin.fileno()
            mode = os.fstat(self._file).st_mode
        except (AttributeError, OSError, ValueError):  # closed, or a test's
            self._file, mode = -1, 0
        # A file is always ready, and epoll refuses it.
        self._can_wait = S_ISFIFO(mode) or S_ISSOCK(mode) or os.isatty(self._file)

    async def line(self) -> str | None:
        """The next line without its end; None after the last. Cancelled, it leaves the line. Raises
        `ClickException`: it is too long.
        """
        while b"\n" not in self._rest[-_PART:] and not self._ended:
            if self._can_wait:
                await anyio.wait_readable(self._file)
            else:
                await anyio.lowlevel.checkpoint()
            part = os.read(self._file, _PART)
            self._ended = not part
            self._rest += part
            if len(self._rest) > MOST_LINE and b"\n" not in part:
                raise click.ClickException(
                    f"a line of standard input has more than {MOST_LINE >> 20} MiB, unlike messages"
                )
        if not self._rest:
            return None
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace").removesuffix("\r")

    async def pass_on(self, client: Client, instance: Instance, *, to_end: bool) -> None:
        """Sends an instance each line, once it waits for a message. With `to_end` an empty text
        tells it of the end; if it waits for more then, it is cancelled.
        """
        if self._file < 0:
            return
        with suppress(ClientError):  # the reader of the messages gets it, too
            await self._until_wanted(client, instance)
            try:
                while (line := await self.line()) is not None:
                    await instance.send(line)
            except click.ClickException as error:
                say(f"{error.message}: cancelling {instance.id}")
                await instance.cancel()
                return
            if to_end:
                await instance.send("")
                await self._until_wanted(client, instance, alone=True)
                say(f"{instance.id} waits for a message, and standard input has ended: cancelling")
                await instance.cancel()

    async def _until_wanted(
        self, client: Client, instance: Instance, *, alone: bool = False
    ) -> None:
        """Returns once the instance waits for a message: for that `alone`, or there is one."""
        pause = 0.02  # seconds; then ever longer
        while True:
            if alone or self._rest or select.select([self._file], [], [], 0)[0]:
                waits = (await client.inspect(instance.id))["waits"]
                wanted = [one for one in waits if one.startswith("client of ")]
                if wanted and not (alone and wanted != waits):
                    return
            await anyio.sleep(pause)
            pause = min(1.5 * pause, LOOK_SECONDS)
