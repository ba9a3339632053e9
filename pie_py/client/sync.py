# Generated from pie_py/client by `python -m pie_py.build.generate`; do not edit.
"""The client in plain synchronous code: the same names, run by an event loop in a thread."""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pie_py.client import client as asynchronous
from pie_py.client import instance as async_instance
from pie_py.client.client import PATIENCE_SECONDS
from pie_py.client.errors import ClientError
from pie_py.client.functions import Function
from pie_py.client.remote import call as async_call
from pie_py.client.remote.raised import inferlet_frames
from pie_py.config.keys import ClientKey

Value = TypeVar("Value")
Arguments = TypeVarTuple("Arguments")
_END = object()


async def _within(seconds: float | None, wait: Callable[[], Awaitable[Value]]) -> Value:
    with anyio.fail_after(seconds):
        return await wait()


def _ask(
    portal: BlockingPortal, call: Callable[[*Arguments], Awaitable[Value]], *args: *Arguments
) -> Value:
    """What a function of the loop returns. An exception of an inferlet has its own frames alone:
    those of the loop above them would hide them.
    """
    try:
        return portal.call(call, *args)
    except Exception as error:
        error.__traceback__ = inferlet_frames(error) or error.__traceback__
        raise


def _iterate(portal: BlockingPortal, values: AsyncIterator[Any]) -> Iterator[Any]:
    async def following() -> Any:
        return await anext(values, _END)

    async def close() -> None:
        await values.aclose()  # type: ignore[attr-defined]

    try:
        while (value := _ask(portal, following)) is not _END:
            yield value
    finally:
        portal.call(close)


class Instance:
    """As `pie_py.client.Instance`, blocking."""

    def __init__(self, portal: BlockingPortal, instance: async_instance.Instance) -> None:
        self._portal = portal
        self._instance = instance
        self.id = instance.id
        self.program = instance.program

    def __repr__(self) -> str:
        return f"<Instance {self.id}>"

    def __iter__(self) -> Iterator[str | bytes]:
        while (message := self.receive()) is not None:
            yield message

    @property
    def node(self) -> str | None:
        """The node of the cluster that it runs on, and which of its lives, as `n7.3`; None on a
        server without a cluster.
        """
        return self._instance.node

    def receive(self, timeout: float | None = None) -> str | bytes | None:
        """The next message, text or bytes; None when the instance has ended and sent no more.

        Raises:
            ClientError: if no more can come though the instance may live: the connection was lost
                for good, or another client reads now.
            TimeoutError: if nothing has come in so many seconds; a later call gets what comes then.
        """
        return _ask(self._portal, _within, timeout, self._instance.receive)

    def result(self, timeout: float | None = None) -> str:
        """Waits for the end and returns the result. Messages that were not read are kept meanwhile.

        Raises:
            UsageError: if the inferlet did not understand its arguments.
            InferletFailed: if it ended otherwise without a result.
            ClientError: as `receive`.
            TimeoutError: if it has not ended in so many seconds; it goes on.
        """
        return _ask(self._portal, _within, timeout, self._instance.result)

    @property
    def ended(self) -> bool:
        """Whether the instance is known to have ended."""
        return self._instance.ended

    def send(self, message: str | bytes) -> None:
        """Sends text or bytes; waits while the mailbox is full. Cancelled, it may have sent.

        Raises:
            RpcError: `limit-exceeded` (too large), `cancelled` (the instance has ended),
                `invalid-argument` (a text with lone surrogates).
        """
        _ask(self._portal, self._instance.send, message)

    def cancel(self) -> None:
        """Ends the instance. Its `result` raises InferletFailed with state "killed"."""
        _ask(self._portal, self._instance.cancel)

    def detach(self) -> None:
        """Stops reading. The instance ends a minute or so later if it was not launched detached."""
        _ask(self._portal, self._instance.detach)

    def logs(self, after: int = 0) -> dict[str, Any]:
        """`lines` that it logged, from number `after` on; `next`, the `after` of a later call."""
        return _ask(self._portal, self._instance.logs, after)


class Call:
    """As `pie_py.client.Call`, blocking."""

    def __init__(self, portal: BlockingPortal, call: async_call.Call) -> None:
        self._portal = portal
        self._call = call
        self.instance = Instance(portal, call.instance)

    def __repr__(self) -> str:
        return repr(self._call)

    def __iter__(self) -> Iterator[Any]:
        return _iterate(self._portal, aiter(self._call))

    def result(self) -> Any:
        """What the function returns.

        Raises:
            InferletFailed: it was ended: by a limit, or by `cancel`. What the function itself has
                raised comes as it is if its type is known here, else as InferletFailed.
            TypeError: it yields: iterate over it.
        """
        return _ask(self._portal, self._call.result)

    def cancel(self) -> None:
        """Ends it."""
        _ask(self._portal, self._call.cancel)


class Remote:
    """As `pie_py.client.Remote`, blocking: methods return their results, or iterators."""

    def __init__(self, portal: BlockingPortal, remote: async_call.Remote) -> None:
        self._portal = portal
        self._remote = remote

    def __repr__(self) -> str:
        return repr(self._remote)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the object."""
        method = getattr(self._remote, name)

        def call(*args: Any, **options: Any) -> Any:
            answer = method(*args, **options)
            if isinstance(answer, AsyncIterator):
                return _iterate(self._portal, answer)
            return _ask(self._portal, lambda: answer)

        return call

    def __enter__(self) -> Remote:
        """The object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """As `close`."""
        self.close()

    def close(self) -> None:
        """Ends the object; does nothing if it has ended."""
        _ask(self._portal, self._remote.close)


class Client:
    """`pie_py.client.Client`, blocking: `with Client() as client: ...`. Any thread may use it."""

    def __init__(
        self,
        endpoint: str | None = None,
        key: str | Path | ClientKey | None = None,
        *,
        patience: float = PATIENCE_SECONDS,
        relay: bool | None = None,
    ) -> None:
        """Nothing is done before `with`.

        Args:
            endpoint: `tcp://host:port` or `ipc://path`; the environment's PIE_PY_ENDPOINT or the
                default unless given.
            key: a key or the path of a key file, for a server that wants one; the environment's
                PIE_PY_KEY unless given, if the endpoint is on another machine.
            patience: seconds to look for the server when it does not answer.
            relay: reach a cluster's nodes through its gateway, where only its address is reached;
                by default if the environment's PIE_PY_RELAY is 1. One server needs no relay.
        """
        self._make = partial(asynchronous.Client, endpoint, key, patience=patience, relay=relay)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._client: asynchronous.Client | None = None

    def __enter__(self) -> Client:
        """Connects.

        Raises:
            ServerUnreachable: if no server answers at the endpoint, or not with this key.
        """
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            manager = portal.wrap_async_context_manager(self._make())
            client: asynchronous.Client = stack.enter_context(manager)
            self._portal, self._client = portal, client
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Disconnects. Instances that were not launched detached end a minute or so later."""
        self._stack.close()
        self._portal = self._client = None

    @classmethod
    def local(cls, *models: str, **settings: Any) -> Client:
        """A client of the server that runs on this machine; if none does, of one that it starts.

            with Client.local() as client: ...

        A server that it has started ends with the client.

        Args:
            models: folders or hub ids to serve; with any, a server is started in any case.
            settings: fields of `ServerConfig`; likewise.
        """
        made = cls()
        made._make = partial(asynchronous.Client.local, *models, **settings)
        return made

    def server_info(self) -> dict[str, Any]:
        """Versions, limits and load of the server."""
        return self._call(asynchronous.Client.server_info)

    def models(self) -> list[dict[str, Any]]:
        """The models being served, the default one first."""
        return self._call(asynchronous.Client.models)

    def adapters(self) -> list[dict[str, Any]]:
        """`model` and `name` of the LoRA adapters that inferlets may use."""
        return self._call(asynchronous.Client.adapters)

    def load_adapter(self, name: str, folder: str | Path, model: str | None = None) -> None:
        """Loads an adapter that PEFT has saved; only the operator may.

        Args:
            name: how inferlets are to call it.
            folder: on the server's machine, absolute.
            model: which it is for; the default one if not given.

        Raises:
            RpcError: `permission-denied`, `invalid-argument`, `already-exists`, `unknown-model`,
                `limit-exceeded`, `worker-lost`.
        """
        self._call(asynchronous.Client.load_adapter, name, folder, model)

    def unload_adapter(self, name: str, model: str | None = None) -> None:
        """Unloads an adapter that no instance uses; only the operator may.

        Raises:
            RpcError: `permission-denied`, `not-found`, `busy`, `unknown-model`.
        """
        self._call(asynchronous.Client.unload_adapter, name, model)

    def mcp_servers(self) -> list[dict[str, Any]]:
        """MCP servers that this user's inferlets may use: `name`, `own` (this user's), `at`."""
        return self._call(asynchronous.Client.mcp_servers)

    def register_mcp(
        self,
        name: str,
        url: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Registers an MCP server for this user's inferlets alone.

        It is known until `unregister_mcp`, or until the server stops, which keeps it nowhere.
        Nothing is sent to it before an inferlet uses it.

        Args:
            name: how inferlets call it.
            url: of streamable HTTP; a host that the operator lets inferlets send requests to.
            headers: sent with every request, for keys.
            command: instead of a URL, a program and its arguments, run on the server's machine;
                most operators don't allow that.
            env: variables of the command.

        Raises:
            RpcError: `invalid-argument`, `permission-denied`, `already-exists`, `limit-exceeded`.
            TypeError: what should be texts is none.
        """
        self._call(
            asynchronous.Client.register_mcp, name, url, headers=headers, command=command, env=env
        )

    def unregister_mcp(self, name: str) -> None:
        """Forgets an MCP server that this user has registered; calls under way fail.

        Raises:
            RpcError: `not-found`, `permission-denied` (it is the operator's).
        """
        self._call(asynchronous.Client.unregister_mcp, name)

    def programs(self) -> list[dict[str, Any]]:
        """The user's uploaded programs, oldest first."""
        return self._call(asynchronous.Client.programs)

    def instances(self, *, ended: bool = False, all_users: bool = False) -> list[dict[str, Any]]:
        """The user's instances that run, and those that `ended` lately if asked for.

        With `all_users` those of all, which only the operator may ask for.

        Raises:
            RpcError: `permission-denied`.
        """
        return self._call(asynchronous.Client.instances, ended=ended, all_users=all_users)

    def quota(self, *, all_users: bool = False) -> list[dict[str, Any]]:
        """What the user has of what one user may have; with `all_users` all users, which
        only the operator may ask for.

        Returns:
            Of each user `user`, `weight`, `priority`, `launches` a second, and `kinds`, each with
            what he `has` and `may` have; null for what is lent while it is free.

        Raises:
            RpcError: `permission-denied`.
        """
        return self._call(asynchronous.Client.quota, all_users=all_users)

    def stats(self) -> dict[str, Any]:
        """Numbers of each model's scheduler and pools."""
        return self._call(asynchronous.Client.stats)

    def logs(self, instance_id: str, after: int = 0) -> dict[str, Any]:
        """`lines` that an instance logged, from number `after` on; `next`; `ended`."""
        return self._call(asynchronous.Client.logs, instance_id, after)

    def trace(self, instance_id: str, after: int = 0) -> dict[str, Any]:
        """What an instance has done over time, as far as the server keeps it.

        Args:
            instance_id: alive, or ended lately.
            after: number of the first span, `next` of an earlier answer.

        Returns:
            `spans` (`track`: wait or batch; `name`, `begin_ns`, `end_ns`, `size`, `device_ns`),
            `next`, `open` (the wait under way, a span), and of the instance `program`, `begun_ns`
            and `ended_ns`.

        Raises:
            RpcError: `not-found`; `unsupported` if the server keeps no traces.
        """
        return self._call(asynchronous.Client.trace, instance_id, after)

    def inspect(self, instance_id: str) -> dict[str, Any]:
        """What an instance waits for, and its pages: `waits`, `queued_commands`, `models`.

        Raises:
            RpcError: `not-found`.
        """
        return self._call(asynchronous.Client.inspect, instance_id)

    def remove_program(self, name: str, *, force: bool = False) -> list[dict[str, Any]]:
        """Removes the user's programs of a name, former ones too, or of a content hash.

        Args:
            name: or the hash, or six or more digits of it.
            force: also with running instances, which are ended.

        Returns:
            What was removed, as `programs` tells it.

        Raises:
            RpcError: `not-found`; `busy` while instances run; `permission-denied` if the program is
                another user's.
        """
        return self._call(asynchronous.Client.remove_program, name, force=force)

    def upload(self, program: str | Path | bytes, name: str | None = None) -> str:
        """Uploads a component or a program in Python or JavaScript; returns its content hash.

        The modules beside a source that it imports are part of the program. Bytes that the server
        has are not sent again.

        Args:
            program: a file's path, that of a folder with `main.py`, `main.js` or `main.ts`, or the
                bytes themselves.
            name: what to call it; the file's name without its ending unless given.

        Raises:
            BadProgram, OSError: its files make no program, or cannot be read.
            RpcError: `program-rejected` with the reason if it cannot run there, `limit-exceeded` if
                it is too large, `invalid-argument` for a bad name.
        """
        return self._call(asynchronous.Client.upload, program, name)

    def launch(
        self,
        program: str,
        args: Sequence[str] = (),
        *,
        detached: bool = False,
        near: str | None = None,
        restart: int = 0,
        keep: bool = False,
    ) -> Instance:
        """Starts an instance of an uploaded program, by name or content hash, and reads from it.

        A detached one lives on without a client, and keeps what it sends (up to a limit) for who
        attaches; its `Instance` here only sends, kills and so on.

        In a cluster it starts on the node of `near`, an instance's id or the name of an export of
        yours, while there is room; else on the best one. One server has one place for all.

        In a cluster with a database, an instance whose node is lost is launched again on another
        one, `restart` times at most; its former id leads to the new run. With `keep` its result is
        there after its node has ended. Either lives on without a client.

        Raises:
            RpcError: `not-found`, `limit-exceeded`, `program-rejected`, `worker-lost`; in a
                cluster `near-gone`, `node-lost`, and `busy` if no node has room;
                `unsupported` with `restart` or `keep` where no database is.
        """
        return Instance(
            self._connected()[0],
            self._call(
                asynchronous.Client.launch,
                program,
                args,
                detached=detached,
                near=near,
                restart=restart,
                keep=keep,
            ),
        )

    def attach(self, instance_id: str) -> Instance:
        """Reads from an instance, in place of the client that reads from it now.

        Messages that were not acknowledged come first. An instance that has ended can be attached
        to for a while: its last messages and its result are kept.

        Raises:
            RpcError: `not-found`.
        """
        return Instance(self._connected()[0], self._call(asynchronous.Client.attach, instance_id))

    def send(self, instance_id: str, message: str | bytes) -> None:
        """Sends to an instance without reading from it; waits while its mailbox is full.

        Raises:
            RpcError: `not-found`, `limit-exceeded`, `cancelled` (it has ended), `busy` (a message
                of this client waits for room).
        """
        self._call(asynchronous.Client.send, instance_id, message)

    def kill(self, instance_id: str) -> bool:
        """Ends an instance. Returns whether it was alive."""
        return self._call(asynchronous.Client.kill, instance_id)

    def result(self, instance_id: str) -> str:
        """Waits for an instance's end without reading from it, and returns its result.

        Raises:
            UsageError, InferletFailed: if it ended without a result.
            RpcError: `not-found`.
        """
        return self._call(asynchronous.Client.result, instance_id)

    def answer(
        self, request: str, functions: Sequence[Function | Callable[..., Any]] = (), **options: Any
    ) -> dict[str, Any]:
        """Has a model answer with functions that run here; see `pie_py.client.functions`."""
        return self._call(asynchronous.Client.answer, request, functions, **options)

    def run(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Runs a function of this program in an inferlet and returns what it returns.

            async def capital(country: str) -> str:
                context = Context(Model.load()).fill(f"The capital of {country} is")
                return context.generate(Sampler.argmax(), max_tokens=8).collect_text()

            print(client.run(capital, "France"))

        Its source goes, with what it uses of its module: functions, classes, imports, plain data.
        Arguments and results are JSON's values, bytes, tuples, sets, enums, dataclasses and
        pydantic models (there a dataclass of the same fields). What it prints is printed here.

        Raises:
            CannotTravel: it uses something that is no data, or has no source.
            InferletFailed: it was ended by a limit, or raised what is not known here; what else it
                raises comes as it is, with the lines of its file.
        """
        return self._call(asynchronous.Client.run, function, *args, **options)

    def stream(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Iterator[Any]:
        """As `run`, of a function that yields: `for value in client.stream(function)`."""
        return _iterate(
            self._connected()[0], self._connected()[1].stream(function, *args, **options)
        )

    def map(
        self,
        function: Callable[..., Any],
        /,
        *inputs: Iterable[Any],
        at_once: int = 32,
        return_exceptions: bool = False,
        progress: bool | None = None,
    ) -> list[Any]:
        """Runs a function for each input, many at once; results come in the inputs' order.

        Args:
            function: as in `run`.
            inputs: one iterable for each of its parameters, as in Python's `map`.
            at_once: most inferlets alive at a time.
            return_exceptions: what a call raises is its result; else the first one ends the others
                and is raised.
            progress: a bar on standard error; by default if that is a terminal.
        """
        return self._call(
            asynchronous.Client.map,
            function,
            *inputs,
            at_once=at_once,
            return_exceptions=return_exceptions,
            progress=progress,
        )

    def spawn(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Call:
        """Starts a function as `run` does, and does not wait for it.

        Raises:
            CannotTravel, RpcError: it could not be started.
        """
        return Call(
            self._connected()[0], self._call(asynchronous.Client.spawn, function, *args, **options)
        )

    def create(self, kind: Callable[..., Any], /, *args: Any, **options: Any) -> Remote:
        """Makes an object of a class in an inferlet, where it lives and is called.

        with client.create(Agent, "Ada") as agent:
            print(agent.ask("How are you?"))
        """
        return Remote(
            self._connected()[0], self._call(asynchronous.Client.create, kind, *args, **options)
        )

    @property
    def is_alive(self) -> bool:
        """Whether requests may still succeed: the server has not been lost for good."""
        return self._connected()[1].is_alive

    @property
    def user(self) -> str:
        """Who the server takes this client for."""
        return self._connected()[1].user

    def _call(self, call: Callable[..., Awaitable[Value]], *args: Any, **options: Any) -> Value:
        portal, client = self._connected()
        return _ask(portal, partial(call, client, *args, **options))

    def _connected(self) -> tuple[BlockingPortal, asynchronous.Client]:
        if self._portal is None or self._client is None:
            raise ClientError("the client is not connected: use it in `with Client() as client:`")
        return self._portal, self._client
