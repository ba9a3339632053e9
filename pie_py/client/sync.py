"""The client in plain synchronous code: the same names, run by an event loop in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pie_py.client import client as asynchronous
from pie_py.client import instance as async_instance
from pie_py.client.client import PATIENCE_SECONDS
from pie_py.client.errors import ClientError
from pie_py.client.functions import Function
from pie_py.config.keys import ClientKey

Value = TypeVar("Value")


async def _within(seconds: float | None, wait: Callable[[], Awaitable[Value]]) -> Value:
    with anyio.fail_after(seconds):
        return await wait()


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

    def receive(self, timeout: float | None = None) -> str | bytes | None:
        """See `Instance.receive`.

        Raises:
            TimeoutError: if nothing has come in so many seconds; a later call gets what comes then.
        """
        return self._portal.call(_within, timeout, self._instance.receive)

    def result(self, timeout: float | None = None) -> str:
        """See `Instance.result`.

        Raises:
            TimeoutError: if it has not ended in so many seconds; it goes on.
        """
        return self._portal.call(_within, timeout, self._instance.result)

    @property
    def ended(self) -> bool:
        """See `Instance.ended`."""
        return self._instance.ended

    def send(self, message: str | bytes) -> None:
        """See `Instance.send`."""
        self._portal.call(self._instance.send, message)

    def cancel(self) -> None:
        """See `Instance.cancel`."""
        self._portal.call(self._instance.cancel)

    def detach(self) -> None:
        """See `Instance.detach`."""
        self._portal.call(self._instance.detach)

    def logs(self, after: int = 0) -> dict[str, Any]:
        """See `Instance.logs`."""
        return self._portal.call(self._instance.logs, after)


class Client:
    """As `pie_py.client.Client`, blocking: `with Client() as client: ...`. Any thread may use it."""

    def __init__(
        self,
        endpoint: str | None = None,
        key: str | Path | ClientKey | None = None,
        *,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """See `Client`."""
        self._make = partial(asynchronous.Client, endpoint, key, patience=patience)
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._client: asynchronous.Client | None = None

    def __enter__(self) -> Client:
        """Connects; see `Client`."""
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
        """Disconnects; see `Client`."""
        self._stack.close()
        self._portal = self._client = None

    def server_info(self) -> dict[str, Any]:
        """See `Client.server_info`."""
        return self._call(lambda client: client.server_info())

    def models(self) -> list[dict[str, Any]]:
        """See `Client.models`."""
        return self._call(lambda client: client.models())

    def adapters(self) -> list[dict[str, Any]]:
        """See `Client.adapters`."""
        return self._call(lambda client: client.adapters())

    def load_adapter(self, name: str, folder: str | Path, model: str | None = None) -> None:
        """See `Client.load_adapter`."""
        self._call(lambda client: client.load_adapter(name, folder, model))

    def unload_adapter(self, name: str, model: str | None = None) -> None:
        """See `Client.unload_adapter`."""
        self._call(lambda client: client.unload_adapter(name, model))

    def mcp_servers(self) -> list[dict[str, Any]]:
        """See `Client.mcp_servers`."""
        return self._call(lambda client: client.mcp_servers())

    def register_mcp(
        self,
        name: str,
        url: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """See `Client.register_mcp`."""
        self._call(
            lambda client: client.register_mcp(name, url, headers=headers, command=command, env=env)
        )

    def unregister_mcp(self, name: str) -> None:
        """See `Client.unregister_mcp`."""
        self._call(lambda client: client.unregister_mcp(name))

    def programs(self) -> list[dict[str, Any]]:
        """See `Client.programs`."""
        return self._call(lambda client: client.programs())

    def instances(self, *, ended: bool = False) -> list[dict[str, Any]]:
        """See `Client.instances`."""
        return self._call(lambda client: client.instances(ended=ended))

    def stats(self) -> dict[str, Any]:
        """See `Client.stats`."""
        return self._call(lambda client: client.stats())

    def logs(self, instance_id: str, after: int = 0) -> dict[str, Any]:
        """See `Client.logs`."""
        return self._call(lambda client: client.logs(instance_id, after))

    def upload(self, program: str | Path | bytes, name: str | None = None) -> str:
        """See `Client.upload`."""
        return self._call(lambda client: client.upload(program, name))

    def launch(self, program: str, args: Sequence[str] = (), *, detached: bool = False) -> Instance:
        """See `Client.launch`."""
        return self._wrap(
            self._call(lambda client: client.launch(program, args, detached=detached))
        )

    def attach(self, instance_id: str) -> Instance:
        """See `Client.attach`."""
        return self._wrap(self._call(lambda client: client.attach(instance_id)))

    def kill(self, instance_id: str) -> bool:
        """See `Client.kill`."""
        return self._call(lambda client: client.kill(instance_id))

    def result(self, instance_id: str) -> str:
        """See `Client.result`."""
        return self._call(lambda client: client.result(instance_id))

    def answer(
        self, request: str, functions: Sequence[Function | Callable[..., Any]] = (), **options: Any
    ) -> dict[str, Any]:
        """See `Client.answer`."""
        return self._call(lambda client: client.answer(request, functions, **options))

    @property
    def user(self) -> str:
        """See `Client.user`."""
        _, client = self._connected()
        return client.user

    def _call(self, call: Callable[[asynchronous.Client], Awaitable[Value]]) -> Value:
        portal, client = self._connected()
        return portal.call(call, client)

    def _wrap(self, instance: async_instance.Instance) -> Instance:
        portal, _ = self._connected()
        return Instance(portal, instance)

    def _connected(self) -> tuple[BlockingPortal, asynchronous.Client]:
        if self._portal is None or self._client is None:
            raise ClientError("the client is not connected: use it in `with Client() as client:`")
        return self._portal, self._client
