"""The client in plain synchronous code: the methods of `pie_py.client`, which wait for results.

An event loop in a thread runs them. A method is a line here: the asynchronous one whose parameters
and documentation it has, and how its result comes. `receive` and `result` of an instance take a
`timeout`, too.
"""

from __future__ import annotations

import atexit
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial, wraps
from inspect import signature
from threading import Lock
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pie_py.client import client as asynchronous
from pie_py.client import instance as async_instance
from pie_py.client.errors import ClientError
from pie_py.client.remote import call as async_call
from pie_py.client.remote.raised import inferlet_frames

Thing = TypeVar("Thing")
Value = TypeVar("Value")
Made = TypeVar("Made")
Parameters = ParamSpec("Parameters")
Method = Callable[Concatenate[Any, Parameters], Value]
_END = object()


class _Proxy(Generic[Thing]):
    """A thing of the asynchronous client, and the event loop where it lives."""

    def __init__(self, portal: BlockingPortal, thing: Thing) -> None:
        self._portal = portal
        self._thing = thing

    def __repr__(self) -> str:
        return repr(self._thing)

    def _reach(self) -> tuple[BlockingPortal, Thing]:
        return self._portal, self._thing


def _ask(portal: BlockingPortal, call: Callable[[], Awaitable[Value]]) -> Value:
    """The result of a function of the loop. An exception of an inferlet has its own frames alone:
    those of the loop above them would hide them.
    """
    future = portal.start_task_soon(call)
    try:
        return future.result()
    except Exception as error:
        error.__traceback__ = inferlet_frames(error) or error.__traceback__
        raise
    finally:
        # Interrupted, as by Control-C, it must not go on: it would take the next message.
        future.cancel()


def _iterate(portal: BlockingPortal, values: AsyncIterator[Value]) -> Iterator[Value]:
    # A value that an interrupted caller no longer waits for is given up before the end. The lock
    # is made in the loop: the caller may be in one of its own, as in a notebook.
    turn = portal.call(anyio.Lock)

    async def following() -> Any:
        async with turn:
            return await anext(values, _END)

    async def close() -> None:
        async with turn:
            await values.aclose()  # type: ignore[attr-defined]

    try:
        while (value := _ask(portal, following)) is not _END:
            yield value
    finally:
        with suppress(RuntimeError):  # the client was closed before, and the loop with it
            portal.call(close)


def _like(
    model: Method[Parameters, Any],
) -> Callable[[Callable[..., Value]], Method[Parameters, Value]]:
    """Gives a function the parameters and the documentation of an asynchronous method."""

    def decorate(function: Callable[..., Value]) -> Method[Parameters, Value]:
        text = model.__doc__ or ""
        for old, new in (("async with", "with"), ("async for", "for"), ("await ", "")):
            text = text.replace(old, new)
        wraps(model)(function).__doc__ = text
        seen = signature(model)
        returns = str(seen.return_annotation).replace("AsyncIterator", "Iterator")
        function.__dict__["__signature__"] = seen.replace(return_annotation=returns)
        return function

    return decorate


def _waits(method: Method[Parameters, Awaitable[Value]]) -> Method[Parameters, Value]:
    """The method that waits for what an asynchronous one returns."""

    @_like(method)
    def call(self: _Proxy[Any], *args: Any, **options: Any) -> Value:
        portal, thing = self._reach()
        return _ask(portal, partial(method, thing, *args, **options))

    return call


def _makes(
    kind: Callable[[BlockingPortal, Value], Made], method: Method[Parameters, Awaitable[Value]]
) -> Method[Parameters, Made]:
    """As `_waits`; what the asynchronous method returns becomes a proxy."""
    wait = _waits(method)

    @_like(method)
    def call(self: _Proxy[Any], *args: Any, **options: Any) -> Made:
        return kind(self._reach()[0], wait(self, *args, **options))

    return call


def _iterates(
    method: Method[Parameters, AsyncIterator[Value]],
) -> Method[Parameters, Iterator[Value]]:
    """The method that returns a plain iterator for an asynchronous one."""

    @_like(method)
    def call(self: _Proxy[Any], *args: Any, **options: Any) -> Iterator[Value]:
        portal, thing = self._reach()
        return _iterate(portal, method(thing, *args, **options))

    return call


def _reads(model: Any) -> Any:
    """The property that an asynchronous thing has."""
    return property(lambda self: model.fget(self._reach()[1]), doc=model.__doc__)


class Instance(_Proxy[async_instance.Instance]):
    """As `pie_py.client.Instance`, blocking."""

    def __init__(self, portal: BlockingPortal, instance: async_instance.Instance) -> None:
        super().__init__(portal, instance)
        self.id = instance.id
        self.program = instance.program

    def __iter__(self) -> Iterator[str | bytes]:
        while (message := self.receive()) is not None:
            yield message

    node: str | None = _reads(async_instance.Instance.node)
    ended: bool = _reads(async_instance.Instance.ended)
    has_message: bool = _reads(async_instance.Instance.has_message)

    def receive(self, timeout: float | None = None) -> str | bytes | None:
        """The next message, text or bytes; None when the instance has ended and sent no more.

        Raises:
            ClientError: if no more can come though the instance may live: the connection was lost
                for good, or another client reads now.
            TimeoutError: if nothing has come in so many seconds; a later call gets what comes then.
        """
        return self._within(timeout, self._thing.receive)

    def result(self, timeout: float | None = None) -> str:
        """Waits for the end and returns the result. Messages that were not read are kept meanwhile.

        Raises:
            UsageError: if the inferlet did not understand its arguments.
            InferletFailed: if it ended otherwise without a result.
            ClientError: as `receive`.
            TimeoutError: if it has not ended in so many seconds; it goes on.
        """
        return self._within(timeout, self._thing.result)

    send = _waits(async_instance.Instance.send)
    cancel = _waits(async_instance.Instance.cancel)
    calls = _waits(async_instance.Instance.calls)

    branch = _makes(lambda portal, made: Instance(portal, made), async_instance.Instance.branch)
    detach = _waits(async_instance.Instance.detach)
    logs = _waits(async_instance.Instance.logs)

    def _within(self, seconds: float | None, wait: Callable[[], Awaitable[Value]]) -> Value:
        async def limited() -> Value:
            with anyio.fail_after(seconds):
                return await wait()

        return _ask(self._portal, limited)


class Call(_Proxy[async_call.Call]):
    """As `pie_py.client.Call`, blocking."""

    def __init__(self, portal: BlockingPortal, call: async_call.Call) -> None:
        super().__init__(portal, call)
        self.instance = Instance(portal, call.instance)

    def __iter__(self) -> Iterator[Any]:
        return _iterate(self._portal, aiter(self._thing))

    result = _waits(async_call.Call.result)
    cancel = _waits(async_call.Call.cancel)


class Remote(_Proxy[async_call.Remote]):
    """As `pie_py.client.Remote`, blocking: methods return their results, or iterators."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the object."""
        method = getattr(self._thing, name)

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

    close = _waits(async_call.Remote.close)


class Client(_Proxy[asynchronous.Client]):
    """`pie_py.client.Client`, blocking: `with Client() as client: ...`. Any thread may use it.

    Without `with`, as in a notebook, its first use connects, and the end of the program or `close`
    disconnects.
    """

    @_like(asynchronous.Client.__init__)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._make = partial(asynchronous.Client, *args, **options)
        self._make()  # so that wrong arguments are an error here
        self._stack: ExitStack | None = None  # while it is connected
        self._closed = False
        self._connecting = Lock()

    def __repr__(self) -> str:
        return f"<Client, {'not ' * (self._stack is None)}connected>"

    @classmethod
    def local(cls, *models: str, **settings: Any) -> Client:
        """A client of the server that runs on this machine; if none does, of one that it starts.

            with Client.local() as client: ...

        A server that it has started ends with the client.

        Args:
            models: folders, hub ids or names to serve; with any, a server is started in any case.
            settings: fields of `ServerConfig`; likewise.
        """
        made = cls()
        made._make = partial(asynchronous.Client.local, *models, **settings)
        return made

    def __enter__(self) -> Client:
        """Connects.

        Raises:
            ServerUnreachable: if no server answers at the endpoint, or not with this key.
        """
        with ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            manager = self._portal.wrap_async_context_manager(self._make())
            self._thing = stack.enter_context(manager)
            self._stack = stack.pop_all()
            self._closed = False
        return self

    def __exit__(self, *_: object) -> None:
        """Disconnects. Instances that were not launched detached end a minute or so later."""
        if self._stack is not None:
            self._stack.close()
        self._stack = None
        self._closed = True

    def close(self) -> None:
        """Disconnects, as the end of `with` does. A second call does nothing."""
        atexit.unregister(self.close)
        self.__exit__()

    def _reach(self) -> tuple[BlockingPortal, asynchronous.Client]:
        with self._connecting:
            if self._closed:
                raise ClientError("the client is closed, and no longer connected: make a new one")
            if self._stack is None:
                self.__enter__()
                atexit.register(self.close)
        return super()._reach()

    is_alive: bool = _reads(asynchronous.Client.is_alive)
    user: str = _reads(asynchronous.Client.user)
    server_info = _waits(asynchronous.Client.server_info)
    models = _waits(asynchronous.Client.models)
    load_model = _waits(asynchronous.Client.load_model)
    unload_model = _waits(asynchronous.Client.unload_model)
    pause_model = _waits(asynchronous.Client.pause_model)
    resume_model = _waits(asynchronous.Client.resume_model)
    update_weights = _waits(asynchronous.Client.update_weights)
    adapters = _waits(asynchronous.Client.adapters)
    load_adapter = _waits(asynchronous.Client.load_adapter)
    upload_adapter = _waits(asynchronous.Client.upload_adapter)
    upload_tensors = _waits(asynchronous.Client.upload_tensors)
    unload_adapter = _waits(asynchronous.Client.unload_adapter)
    mcp_servers = _waits(asynchronous.Client.mcp_servers)
    register_mcp = _waits(asynchronous.Client.register_mcp)
    unregister_mcp = _waits(asynchronous.Client.unregister_mcp)
    programs = _waits(asynchronous.Client.programs)
    make_current = _waits(asynchronous.Client.make_current)
    instances = _waits(asynchronous.Client.instances)
    quota = _waits(asynchronous.Client.quota)
    usage = _waits(asynchronous.Client.usage)
    stats = _waits(asynchronous.Client.stats)
    logs = _waits(asynchronous.Client.logs)
    trace = _waits(asynchronous.Client.trace)
    inspect = _waits(asynchronous.Client.inspect)
    remove_program = _waits(asynchronous.Client.remove_program)
    upload = _waits(asynchronous.Client.upload)
    launch = _makes(Instance, asynchronous.Client.launch)
    attach = _makes(Instance, asynchronous.Client.attach)
    resume = _waits(asynchronous.Client.resume)
    branch = _makes(Instance, asynchronous.Client.branch)
    calls = _waits(asynchronous.Client.calls)
    send = _waits(asynchronous.Client.send)
    kill = _waits(asynchronous.Client.kill)
    await_tools = _waits(asynchronous.Client.await_tools)
    result = _waits(asynchronous.Client.result)
    answer = _waits(asynchronous.Client.answer)
    run = _waits(asynchronous.Client.run)
    stream = _iterates(asynchronous.Client.stream)
    map = _waits(asynchronous.Client.map)
    spawn = _makes(Call, asynchronous.Client.spawn)
    create = _makes(Remote, asynchronous.Client.create)
