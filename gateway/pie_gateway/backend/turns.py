"""Conversations that wait for their tools, told to the server, which keeps what it has cached of
them by the time that such waits take.

The calls that a turn has made come back with their results, by their ids: so the turn that goes on
is known without a name for the conversation. Where a client writes ids of its own, a name helps.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress

from pie_py.client import Client, ClientError

MOST = 4096  # calls whose results are awaited


class Turns:
    """Which instance has served the turn that made a call, of one user."""

    def __init__(self, client: Client) -> None:
        """Takes what reaches the server."""
        self._client = client
        self._telling: set[asyncio.Task[None]] = set()  # the loop itself holds no task
        self._instances: OrderedDict[str, str] = OrderedDict()  # by call, and by conversation

    def ended(self, instance: str, calls: Mapping[str, str], session: str | None) -> None:
        """A turn has ended with calls, whose names these are by their ids, in a conversation that
        may have a name; without calls, a person reads its answer.
        """
        for key in (*calls, *([f"of {session}"] if session and calls else [])):
            self._instances[key] = instance
        while len(self._instances) > MOST:
            self._instances.popitem(last=False)
        self._begin_to_tell(instance, [*calls.values()], person=not calls)

    def begins(self, results: Iterable[str], session: str | None) -> None:
        """A turn begins with results of calls, by their ids as clients have them."""
        keys = [each.rpartition("_")[2] for each in results]
        found = {self._instances.pop(key, None) for key in keys} - {None}
        if keys and session:
            named = self._instances.pop(f"of {session}", None)
            found = found or {named}
        for instance in found:
            if instance is not None:
                self._begin_to_tell(instance, [])

    def _begin_to_tell(self, instance: str, tools: list[str], *, person: bool = False) -> None:
        """No turn waits for it: the server hears things in the order in which they are told."""
        task = asyncio.create_task(self._tell(instance, tools, person))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, instance: str, tools: list[str], person: bool) -> None:
        with suppress(ClientError):  # its record or its node is gone, and its pages with it
            await self._client.await_tools(instance, tools, person=person)
