"""Standard input, whose lines an instance gets as messages."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from stat import S_ISFIFO, S_ISSOCK

import anyio

from pie_py.cli.console import LOOK_SECONDS, say
from pie_py.client import Client, ClientError, Instance


class StandardInput:
    """Lines of standard input: of a terminal, a pipe or a file.

    Nothing is read before an instance waits for a message: what reads none leaves standard input to
    the commands behind it.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._ended = False
        try:
            self._file = sys.stdin.fileno()
            mode = os.fstat(self._file).st_mode
        except (AttributeError, OSError, ValueError):  # closed, or a test's
            self._file, mode = -1, 0
        # A file is always ready, and epoll refuses it.
        self._can_wait = S_ISFIFO(mode) or S_ISSOCK(mode) or os.isatty(self._file)

    async def line(self) -> str | None:
        """The next line without its end; None after the last. Cancelled, it leaves the line."""
        while b"\n" not in self._rest and not self._ended:
            if self._can_wait:
                await anyio.wait_readable(self._file)
            part = os.read(self._file, 1 << 16)
            self._ended = not part
            self._rest += part
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
            while (line := await self.line()) is not None:
                await instance.send(line)
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
