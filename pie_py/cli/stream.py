"""Shows what an instance sends, until it ends or the user has enough."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import anyio.abc

from pie_py.cli import debugging
from pie_py.cli.connect import EXIT_INTERRUPTED
from pie_py.cli.console import say
from pie_py.client import ClientError, Instance

POLL_SECONDS = 0.3


class Output:
    """Standard output, as bytes, unbuffered; a text always ends with a newline."""

    def __init__(self) -> None:
        self._open_line = False

    def write(self, message: str | bytes) -> None:
        """Writes a message as it is."""
        data = message.encode("utf-8", "replace") if isinstance(message, str) else message
        if data:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            self._open_line = isinstance(message, str) and not message.endswith("\n")

    def end(self) -> None:
        """Ends the last line."""
        if self._open_line:
            self.write("\n")


class LogLines:
    """What an instance logs, `print` in a program included, on standard error as it comes."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._after = 0

    async def follow(self) -> None:
        """Shows new lines now and then, until it is cancelled."""
        with suppress(ClientError):  # the reader of the messages gets it, too
            while True:
                await anyio.sleep(POLL_SECONDS)
                await self.show_new()

    async def show_new(self) -> None:
        """Shows the lines that have come since."""
        found = await self._instance.logs(self._after)
        self._after = found["next"]
        for line in found["lines"]:
            say(line["text"])


async def show(
    instance: Instance, on_interrupt: Callable[[Instance], Awaitable[None]], *, logs: bool = False
) -> int:
    """Writes an instance's messages and result to standard output and returns the exit status.

    With `logs`, what it logs goes to standard error.

    Ctrl-C and SIGTERM call `on_interrupt`; so does a reader of standard output that has gone.

    Raises:
        ClientError: if the instance fails or the server is lost.
    """
    output = Output()
    status = 0
    async with anyio.create_task_group() as tasks:
        interrupted = anyio.Event()
        await tasks.start(_watch_signals, interrupted, tasks.cancel_scope)
        problem: Exception | None = None
        lines = LogLines(instance)
        if logs:
            tasks.start_soon(lines.follow)
        try:
            async for message in instance:
                if isinstance(message, bytes) and message.startswith(debugging.MARK):
                    output.end()
                    await debugging.converse(instance, message)
                else:
                    output.write(message)
            text = await instance.result()
            if text:
                output.end()
                output.write(text)
            output.end()
        except BrokenPipeError:
            # The interpreter would complain when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            with anyio.CancelScope(shield=True):
                await on_interrupt(instance)
        except Exception as error:
            problem = error
        finally:
            if interrupted.is_set():
                status = EXIT_INTERRUPTED
                output.end()
                with anyio.move_on_after(5, shield=True):
                    await on_interrupt(instance)
        tasks.cancel_scope.cancel()
    if logs:
        with suppress(ClientError), anyio.move_on_after(5):
            await lines.show_new()
    if problem is not None and status == 0:
        output.end()
        raise problem
    return status


async def _watch_signals(
    interrupted: anyio.Event,
    scope: anyio.CancelScope,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            interrupted.set()
            scope.cancel()
            return


async def cancel(instance: Instance) -> None:
    """An interrupted `run` or `launch` ends what it started."""
    say(f"cancelling {instance.id}")
    await instance.cancel()


async def leave(instance: Instance) -> None:
    """An interrupted `attach` lets the instance be."""
    await instance.detach()
    say(f"detached from {instance.id}; `pie-py attach {instance.id}` comes back")
