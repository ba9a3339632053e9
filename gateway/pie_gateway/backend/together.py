"""Instances of the library's program that serve several requests of a batch, at once and one after
the other.

If one ends by a limit, each of the requests that it had is made once more, by an instance of its
own: which of them it was shows there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress

import anyio
import msgspec
from anyio.abc import TaskGroup

from pie_gateway.backend.generation import Seat, end
from pie_py.client import ClientError, InferletFailed, Instance, RpcError

AT_ONCE = 16  # requests in one instance
MOST = 1000  # that one gets in its life: its memory and its time on the CPU are bounded
LONG = 64 << 10  # characters that are sent together; a longer request has an instance of its own

Begin = Callable[[str], Awaitable[Instance]]  # launches the program with an argument
_answer = msgspec.json.Decoder(tuple[int, str | None, list[msgspec.Raw]]).decode


class _Host:
    """An instance of several requests."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.seats: dict[int, tuple[Seat, str]] = {}  # by number, with what is asked
        self._count = 0
        self._waiting: deque[tuple[int, str]] = deque()  # to be sent together
        self._sends = False
        self.is_closed = False

    async def seat(self, argument: str) -> Seat:
        """A place for a request. Raises `ClientError`: the instance is not reached."""
        self._count += 1
        seat = Seat(self.instance.id)
        self.seats[self._count] = seat, argument
        self._waiting.append((self._count, argument))
        self.is_closed = self.is_closed or self._count == MOST
        await self.send()
        return seat

    async def send(self) -> None:
        """Sends what waits, unless it is being done. Raises as `seat`."""
        if self._sends:
            return
        self._sends = True
        try:
            while self._waiting:
                some, size = list[tuple[int, str]](), 0
                while self._waiting and size + len(self._waiting[0][1]) <= LONG:
                    some.append(self._waiting.popleft())
                    size += len(some[-1][1])
                await self.instance.send(msgspec.json.encode(some).decode())
            if self.is_closed:
                await self.instance.send("[]")  # which has it end when all is answered
        except RpcError as error:
            if error.code not in ("cancelled", "node-lost"):
                await end(self.instance)  # its reader sees that, and all is made again
        finally:
            self._sends = False

    async def read(self) -> None:
        """Takes its answers until it ends. Raises `ClientError`: no more can come."""
        while (message := await self.instance.receive()) is not None:
            number, error, told = _answer(message)
            seat, _ = self.seats.pop(number)
            seat.answer(told, None if error is None else InferletFailed("failed", error))


class Together:
    """The instances that requests of one batch share."""

    def __init__(self, tasks: TaskGroup) -> None:
        """Takes the tasks that read them."""
        self._tasks = tasks
        self._hosts: dict[Hashable, list[_Host]] = {}  # by what requests of one have in common
        self._alone: set[str] = set()  # what an instance had that has ended
        self._opening = anyio.Lock()

    async def launch(self, begin: Begin, alike: Hashable, argument: str) -> Instance | Seat:
        """A place for a request in one that is alike, or its own. Raises as `begin`."""
        if len(argument) > LONG or argument in self._alone:
            return await begin(argument)
        async with self._opening:
            hosts = self._hosts.setdefault(alike, [])
            open_ones = (each for each in hosts if not each.is_closed)
            host = next((each for each in open_ones if len(each.seats) < AT_ONCE), None)
            if host is None:
                host = _Host(await begin("several"))
                hosts.append(host)
                self._tasks.start_soon(self._serve, host, hosts)
        return await host.seat(argument)

    async def close(self) -> None:
        """All requests are answered: the instances end."""
        for host in [each for hosts in self._hosts.values() for each in hosts]:
            host.is_closed = True
            with suppress(ClientError):
                await host.send()

    async def _serve(self, host: _Host, hosts: list[_Host]) -> None:
        try:
            with suppress(ClientError):  # what it has not answered is made again
                await host.read()
        finally:
            host.is_closed = True
            hosts.remove(host)
            for seat, argument in host.seats.values():
                self._alone.add(argument)
                seat.answer([], RpcError("node-lost", "an instance of several requests has ended"))
            await end(host.instance)
