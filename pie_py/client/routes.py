"""The seam between a client and where its instances run: one server, or nodes that a gateway names.

A gateway redirects: it says where an instance is, and the client goes there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import anyio
import anyio.abc

from pie_py.client.connection import Connection
from pie_py.client.errors import ClientError, ConnectionLost, RpcError
from pie_py.config.endpoint import BadEndpoint, Endpoint, parse_endpoint
from pie_py.config.keys import ClientKey
from pie_py.wire import methods
from pie_py.wire.prefixes import prefix_hashes

Value = TypeVar("Value")

SILENT_SECONDS = 2.5  # of a node that answers a ping each 2 s: its machine may be cut off
TRIES = 6  # of a launch, each on another node
NODE_LOST = "node-lost: "  # what texts of instances begin with that have ended with their node


class ResultStored(RpcError):
    """An instance has ended with its node, and how it has ended is all that is left of it."""

    def __init__(self, instance: str, state: str, text: str) -> None:
        super().__init__("node-lost", f"{instance} has ended; its result is stored: ask for that")
        self.state = state
        self.text = text


class Route:
    """Which connections lead to instances: to one server, all of them are at its connection."""

    def __init__(self, server: Connection) -> None:
        """Takes the connection to the server that the client was given."""
        self.server = server

    async def of_instance(self, instance: str) -> tuple[Connection, str]:
        """The connection to where an instance is, and its id there."""
        return self.server, instance

    async def moved(self, instance: str, text: str) -> tuple[Connection, str] | None:
        """As `of_instance`, of one that has ended with a text and goes on elsewhere; None if it
        does not.
        """
        return None

    async def launch(
        self,
        program: str,
        near: str | None,
        prompt: str,
        start: Callable[[Connection, str], Awaitable[Value]],
        *,
        recorded: bool,
    ) -> Value:
        """Has `start` launch a program, by its name or hash, at a connection."""
        return await start(self.server, program)

    async def end_of(self, instance: str) -> dict[str, str]:
        """`state` and `text` of an instance, once it has ended for good."""
        return await self.server.ask(methods.Result(instance))


class Redirected(Route):
    """A gateway says where instances are; there is one connection to each node that has some."""

    def __init__(
        self,
        gateway: Connection,
        key: ClientKey | None,
        patience: float,
        tasks: anyio.abc.TaskGroup,
    ) -> None:
        """Has no connection to a node yet. A node of which nothing is known is looked for so many
        seconds.
        """
        super().__init__(gateway)
        self._key = key
        self._patience = patience
        self._tasks = tasks
        self._nodes: dict[str, Connection] = {}  # by life
        self._connecting: dict[str, anyio.Lock] = {}

    async def of_instance(self, instance: str, *, lost: bool = False) -> tuple[Connection, str]:
        """The connection to the node that an instance runs on, and its id there: another one if it
        was launched again. If `lost`, that node has answered that the instance has ended with
        `node-lost`.

        Raises:
            RpcError: `node-lost` if that node has ended; `not-found` of an id of no cluster.
            ResultStored: if it has ended, and its result was stored.
        """
        known = self._known(instance.rpartition("@")[2])
        if known is not None and not lost:
            return known, instance
        there = await self._ask(methods.Where(instance, lost=lost))
        if "state" in there:
            raise ResultStored(instance, there["state"], there["text"])
        return await self._reach(there), there.get("instance", instance)

    async def launch(
        self,
        program: str,
        near: str | None,
        prompt: str,
        start: Callable[[Connection, str], Awaitable[Value]],
        *,
        recorded: bool,
    ) -> Value:
        """Launches a program, by its name or hash, where the gateway says: near an instance or an
        export of a name, if given, or what is cached of its prompt's beginning. `start` launches on
        a connection, by the hash.

        A node that takes no more, or ends before it has answered, has not run the program: the
        gateway names another one. Where users have used up their share, they may have it elsewhere.
        A recorded launch outlives its node: one that ends may have recorded it.
        """
        again = ("busy",) if recorded else ("busy", "node-lost")
        refused: dict[str, RpcError] = {}  # by life
        prefixes = prefix_hashes(prompt)
        for attempt in range(TRIES):
            try:
                there = await self._ask(methods.Place(program, near, list(refused), prefixes))
            except RpcError as error:
                # That a node has refused it tells more than that no other one has room.
                raise next(iter(refused.values()), error) from None
            try:
                return await start(await self._reach(there), there["hash"])
            except RpcError as error:
                if attempt == TRIES - 1:
                    raise
                if error.code == "limit-exceeded":
                    refused[there["node"]] = error
                    continue
                if error.code not in again:
                    raise
            await anyio.sleep(0.1 * 2**attempt)
        raise AssertionError("the last try returns or raises")

    async def moved(self, instance: str, text: str) -> tuple[Connection, str] | None:
        """Where an instance goes on that has ended with a text; None if it does not.

        Raises:
            ResultStored: if it has ended there, too.
        """
        if not text.startswith(NODE_LOST):
            return None
        try:
            return await self.of_instance(instance, lost=True)
        except ResultStored:
            raise
        except RpcError as error:
            if error.code != "node-lost":
                raise
            return None

    async def end_of(self, instance: str) -> dict[str, str]:
        """How an instance ends, in its last run if it is launched again."""
        try:
            return await self._last_end(*await self.of_instance(instance))
        except ResultStored as ended:
            return {"state": ended.state, "text": ended.text}

    async def _last_end(self, connection: Connection, present: str) -> dict[str, str]:
        while True:
            ended: dict[str, str] | None = None
            lost: RpcError | None = None
            try:
                ended = await connection.ask(methods.Result(present))
            except RpcError as error:
                if error.code != "node-lost":
                    raise
                lost = error
            try:
                moved = await self.moved(present, NODE_LOST if ended is None else ended["text"])
            except RpcError as error:
                if error.code != "busy":
                    raise
                await anyio.sleep(1.0)  # its next run is to come
                continue
            if moved is not None:
                connection, present = moved
            elif ended is not None:
                return ended
            else:
                assert lost is not None
                raise lost

    def _known(self, life: str) -> Connection | None:
        connection = self._nodes.get(life)
        if connection is None or connection.session.error is not None:
            return None
        return connection

    async def _ask(self, asked: methods.Method[dict[str, Any]]) -> dict[str, Any]:
        """Asks the gateway, which may be started again meanwhile: to ask twice does no harm."""
        while True:
            try:
                return await self.server.ask(asked)
            except ConnectionLost:
                if self.server.session.error is not None:
                    raise

    async def _reach(self, there: dict[str, Any]) -> Connection:
        life: str = there["node"]
        connection = self._known(life)
        if connection is not None:
            return connection
        lock = self._connecting.setdefault(life, anyio.Lock())
        async with lock:
            connection = self._known(life)
            if connection is None:
                connection = await self._connect(life, there)
        return connection

    def _way(self, there: dict[str, Any]) -> tuple[Endpoint, ClientKey | None]:
        """A node's endpoint, and the key for it."""
        try:
            endpoint = parse_endpoint(there["endpoint"])
        except BadEndpoint as error:
            raise RpcError("internal", f"the gateway names no endpoint: {error}") from None
        key = self._key
        if key is not None and there["key"]:
            key = replace(key, server=there["key"])
        return endpoint, None if endpoint.is_loopback else key

    async def _connect(self, life: str, there: dict[str, Any]) -> Connection:
        endpoint, key = self._way(there)
        connection = Connection(endpoint, key, self._patience)
        connection.session.life = life
        await self._tasks.start(connection.run)
        self._tasks.start_soon(self._watch, life, connection)
        problem = await connection.ready()
        if problem is not None:
            if isinstance(problem, RpcError):
                raise problem
            raise RpcError("node-lost", f"node {life} is not reached: {problem}")
        self._nodes[life] = connection
        return connection

    async def _watch(self, life: str, connection: Connection) -> None:
        """While the node is not reached, asks the gateway whether it is lost."""
        session = connection.session
        while session.error is None:
            await anyio.sleep(0.25)
            if session.silent_seconds < SILENT_SECONDS or session.error is not None:
                continue
            try:
                await self.server.ask(methods.Where(life, broken=True))
            except RpcError as error:
                if error.code == "node-lost":
                    session.lose(f"node-lost: {error.message}")
            except ClientError:
                if self.server.session.error is not None:
                    return  # its patience decides
