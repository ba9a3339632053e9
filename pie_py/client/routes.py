"""The seam between a client and where its instances run: one server, or nodes that a gateway names.

A gateway redirects: it says where an instance is, and the client goes there.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.abc

from pie_py.client.connection import Connection
from pie_py.client.errors import ClientError, ConnectionLost, RpcError
from pie_py.client.session import DURABLE_PATIENCE
from pie_py.client.stream import Stream
from pie_py.config.endpoint import BadEndpoint, Endpoint, parse_endpoint
from pie_py.config.keys import ClientKey
from pie_py.wire import methods
from pie_py.wire.methods import prefix_hashes

Value = TypeVar("Value")

SILENT_SECONDS = 2.5  # of a node that answers a ping each 2 s: its machine may be cut off
TRIES = 6  # of a launch, each on another node
COMES_SECONDS = 30.0  # that a node has from taking a durable instance to its being alive there
AGAIN_SECONDS = 0.3  # before a durable instance is looked for again
MOST_MOVED = 1024  # durable instances of which the present node is remembered


class Route:
    """Which connections lead to instances: to one server, all of them are at its connection."""

    def __init__(self, server: Connection) -> None:
        """Takes the connection to the server that the client was given."""
        self.server = server
        # Instances that are read from, by id.
        self.readers: WeakValueDictionary[str, Any] = WeakValueDictionary()

    async def at(self, instance: str, act: Callable[[Connection], Awaitable[Value]]) -> Value:
        """Acts at the server or node that has an instance."""
        return await act(self.server)

    async def ask(self, asked: methods.OfInstance[Value]) -> Value:
        """The answer of the server or node that has an instance."""

        async def act(connection: Connection) -> Value:
            return await connection.ask(asked)

        return await self.at(asked.instance, act)

    async def launch(
        self,
        program: str,
        near: str | None,
        prompt: str,
        start: Callable[[Connection, str], Awaitable[Value]],
        *,
        durable: bool,
    ) -> Value:
        """Has `start` launch a program, by its name or hash, at a connection."""
        return await start(self.server, program)


class Redirected(Route):
    """A gateway says where instances are; there is one connection to each node that has some."""

    def __init__(
        self,
        gateway: Connection,
        key: ClientKey | None,
        patience: float,
        tasks: anyio.abc.TaskGroup,
        cut_seconds: float,
    ) -> None:
        """Has no connection to a node yet. A node of which nothing is known is looked for so many
        seconds; one that is as silent as the gateway is lost after `cut_seconds`.
        """
        self._cut_seconds = cut_seconds
        super().__init__(gateway)
        self._key = key
        self._patience = patience
        self._tasks = tasks
        self._nodes: dict[str, Connection] = {}  # by life
        self._connecting: dict[str, anyio.Lock] = {}
        self._moved: dict[str, str] = {}  # lives where durable instances are, by instance

    async def _of_instance(self, instance: str, *, lost: bool = False) -> Connection:
        """The connection to the node that an instance runs on; if `lost`, the last one that was
        told does not have it any more. Raises `RpcError`: `node-lost` if that node has ended, and
        the instance with it; `busy` if it is durable and no node has taken it yet; `not-found` of
        an id of no cluster.
        """
        life = self._moved.get(instance, instance.rpartition("@")[2])
        known = self._known(life)
        if known is not None and not lost:
            return known
        there = await self._ask(methods.Where(instance, lost=lost))
        connection = await self._reach(there)
        self._note(instance, there["node"])
        return connection

    def _note(self, instance: str, life: str) -> None:
        """An instance is at the node of a life, perhaps not the one in its id."""
        self._moved.pop(instance, None)
        if life != instance.rpartition("@")[2]:
            self._moved[instance] = life
            if len(self._moved) > MOST_MOVED:
                del self._moved[next(iter(self._moved))]

    async def at(self, instance: str, act: Callable[[Connection], Awaitable[Value]]) -> Value:
        """Acts at the node that has an instance: at another one if a durable one's node is lost."""
        lost: RpcError | None = None
        comes = math.inf  # until when it may be about to go on where it is not found
        until = anyio.current_time() + DURABLE_PATIENCE
        while True:
            try:
                connection = await self._of_instance(instance, lost=lost is not None)
            except RpcError as error:
                if error.code != "busy" or anyio.current_time() > until:
                    raise error if lost is None else lost from None
                await anyio.sleep(AGAIN_SECONDS)
                continue
            try:
                return await act(connection)
            except RpcError as error:
                now = anyio.current_time()
                if error.code == "not-found":
                    comes = min(comes, now + COMES_SECONDS)
                may_come = error.code == "node-lost" or (error.code == "not-found" and now < comes)
                if not may_come or now > until:
                    raise
                lost = error
            await anyio.sleep(AGAIN_SECONDS)

    async def _follow(self, stream: Stream, why: str) -> None:
        """Has the stream of a durable instance go on where that does, whose node is lost."""
        until = anyio.current_time() + DURABLE_PATIENCE
        while stream.is_open:
            problem: ClientError
            try:
                there = await self._ask(methods.Where(stream.instance, lost=True))
            except RpcError as error:
                problem = error
                if error.code == "node-lost":  # it has no journal
                    stream.finish("failed", why)
                    return
            except ClientError as error:
                stream.close(error)
                return
            else:
                try:
                    await stream.move(await self._reach(there))
                    self._note(stream.instance, there["node"])
                    return
                except ClientError as error:  # it is not there yet
                    problem = error
            if anyio.current_time() > until:
                stream.close(problem)
                return
            await anyio.sleep(AGAIN_SECONDS)

    async def launch(
        self,
        program: str,
        near: str | None,
        prompt: str,
        start: Callable[[Connection, str], Awaitable[Value]],
        *,
        durable: bool,
    ) -> Value:
        """Launches a program, by its name or hash, where the gateway says: near an instance or an
        export of a name, if given, or what is cached of its prompt's beginning. `start` launches on
        a connection, by the hash.

        A node that takes no more, or ends before it has answered, has not run the program: the
        gateway names another one. Where users have used up their share, they may have it elsewhere.
        A durable instance outlives its node: one that ends may have begun it.
        """
        refused: dict[str, RpcError] = {}  # by life
        prefixes = prefix_hashes(prompt)
        for attempt in range(TRIES):
            try:
                there = await self._ask(methods.Place(program, near, list(refused), prefixes))
            except RpcError as error:
                # That a node has refused it tells more than that no other one has room.
                raise next(iter(refused.values()), error) from None
            again: tuple[str, ...] = ("busy", "node-lost")
            try:
                connection = await self._reach(there)
                again = ("busy",) if durable else again
                return await start(connection, there["hash"])
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
        connection.session.on_moved = lambda stream, why: self._tasks.start_soon(
            partial(self._follow, stream, why)
        )
        try:
            await self._tasks.start(connection.run)
            self._tasks.start_soon(self._watch, life, connection)
            problem = await connection.ready()
        except BaseException:
            connection.session.leave()  # who comes next makes another one
            raise
        if problem is not None:
            if isinstance(problem, RpcError):
                raise problem
            raise RpcError("node-lost", f"node {life} is not reached: {problem}")
        self._nodes[life] = connection
        return connection

    async def _watch(self, life: str, connection: Connection) -> None:
        """While the node is not reached, asks the gateway whether it is lost."""
        session, since = connection.session, anyio.current_time()
        while session.error is None:
            await anyio.sleep(0.25)
            if session.silent_seconds < SILENT_SECONDS or session.error is not None:
                since = anyio.current_time() - min(session.silent_seconds, SILENT_SECONDS)
                continue
            with anyio.move_on_after(since + self._cut_seconds - anyio.current_time()) as cut:
                try:
                    await self.server.ask(methods.Where(life, broken=True))
                except RpcError as error:
                    if error.code == "node-lost":
                        session.lose(f"node-lost: {error.message}")
                except ClientError:
                    if self.server.session.error is not None:
                        return  # its patience decides
                since = anyio.current_time()
            if cut.cancelled_caught:
                session.lose(f"node-lost: neither node {life} nor the gateway answers")
