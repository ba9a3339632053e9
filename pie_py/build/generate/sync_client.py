"""The synchronous client, from the asynchronous one: the same methods, run by an event loop in a
thread.

What differs is written here: how an instance is iterated over, how the client connects, and how
long a call waits (`TIMEOUTS`). Signatures and documentation are those of the asynchronous methods.
"""

from __future__ import annotations

import ast
import textwrap

from pie_py.build.generate.source import REPOSITORY, format_python, notice

FOLDER = REPOSITORY / "pie_py" / "client"

# Methods of an instance that wait for as long as the caller wants, and what their TimeoutError
# means.
TIMEOUTS = {
    "receive": "if nothing has come in so many seconds; a later call gets what comes then.",
    "result": "if it has not ended in so many seconds; it goes on.",
}

_HEAD = '''
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
'''

_CALL = '''

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
'''

_REMOTE = '''

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
'''

_CLIENT = '''

class Client:
    """`pie_py.client.Client`, blocking: `with Client() as client: ...`. Any thread may use it."""

    {init}
        self._make = partial(asynchronous.Client, {given})
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None
        self._client: asynchronous.Client | None = None

    def __enter__(self) -> Client:
        """{enter}"""
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
        """{leave}"""
        self._stack.close()
        self._portal = self._client = None
'''

_TAIL = """
    def _call(self, call: Callable[..., Awaitable[Value]], *args: Any, **options: Any) -> Value:
        portal, client = self._connected()
        return _ask(portal, partial(call, client, *args, **options))

    def _connected(self) -> tuple[BlockingPortal, asynchronous.Client]:
        if self._portal is None or self._client is None:
            raise ClientError("the client is not connected: use it in `with Client() as client:`")
        return self._portal, self._client
"""

_Method = ast.FunctionDef | ast.AsyncFunctionDef


def render() -> str:
    """The text of `pie_py/client/sync.py`."""
    client = _methods("client.py", "Client")
    init = client["__init__"]
    head = _CLIENT.format(
        init=textwrap.indent(f"{_signature(init)}\n{_docstring(init)}", "    ").strip(),
        given=_given(init.args),
        enter=textwrap.indent(_documentation(client["__aenter__"]), " " * 8).strip() + "\n        ",
        leave=_documentation(client["__aexit__"]),
    )
    parts = []
    for text, file, name in (
        (_HEAD, "instance.py", "Instance"),
        (_CALL, "remote/call.py", "Call"),
        (_REMOTE, "remote/call.py", "Remote"),
    ):
        methods = _methods(file, name).items()
        parts += [text, *(_of_thing(name, method) for one, method in methods if _is_public(one))]
    parts += [head]
    parts += [_of_client(method) for name, method in client.items() if _is_public(name)]
    parts += [_TAIL]
    return notice("#", "pie_py/client") + format_python("\n".join(parts))


def _methods(file: str, name: str) -> dict[str, _Method]:
    tree = ast.parse((FOLDER / file).read_text(encoding="utf-8"))
    [found] = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name]
    methods = [one for one in found.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {method.name: method for method in methods}


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _of_thing(kind: str, method: _Method) -> str:
    """A method of what the client returns."""
    call = f"self._{kind.lower()}.{method.name}"
    if isinstance(method, ast.FunctionDef):  # a property
        return _property(method, call)
    if kind == "Instance" and method.name in TIMEOUTS:
        raises = f"    TimeoutError: {TIMEOUTS[method.name]}"
        body = f"return _ask(self._portal, _within, timeout, {call})"
        return _method(method, body, extra="timeout: float | None = None", raises=raises)
    given = ", ".join(filter(None, ("self._portal", call, _given(method.args))))
    return _method(method, _returned(method, f"_ask({given})"))


def _of_client(method: _Method) -> str:
    if isinstance(method, ast.FunctionDef) and method.args.args[0].arg == "cls":
        return _constructor(method)
    if isinstance(method, ast.FunctionDef):
        return _property(method, f"self._connected()[1].{method.name}")
    returns = ast.unparse(method.returns or ast.Constant(None))
    if returns == "AsyncIterator[Any]":
        method.returns = ast.parse("Iterator[Any]", mode="eval").body
        values = f"self._connected()[1].{method.name}({_given(method.args)})"
        return _method(method, f"return _iterate(self._connected()[0], {values})")
    given = ", ".join(filter(None, (f"asynchronous.Client.{method.name}", _given(method.args))))
    call = f"self._call({given})"
    if returns in ("Instance", "Call", "Remote"):
        call = f"{returns}(self._connected()[0], {call})"
    return _method(method, _returned(method, call))


def _constructor(method: _Method) -> str:
    """A class method that returns a client in another way than `__init__`."""
    made = f"partial(asynchronous.Client.{method.name}, {_given(method.args)})"
    body = f"made = cls()\n    made._make = {made}\n    return made"
    return "    @classmethod\n" + _method(method, body)


def _returned(method: _Method, call: str) -> str:
    is_none = isinstance(method.returns, ast.Constant) and method.returns.value is None
    return call if is_none else f"return {call}"


def _property(method: _Method, value: str) -> str:
    return "    @property\n" + _method(method, f"return {value}")


def _method(method: _Method, body: str, extra: str = "", raises: str = "") -> str:
    text = "\n".join((_signature(method, extra), _docstring(method, raises), f"    {body}", ""))
    return textwrap.indent(text, "    ")


def _signature(method: _Method, extra: str = "") -> str:
    arguments = ", ".join(filter(None, (ast.unparse(method.args), extra)))
    return f"def {method.name}({arguments}) -> {ast.unparse(method.returns or ast.Constant(None))}:"


def _docstring(method: _Method, raises: str = "") -> str:
    text = _documentation(method)
    if raises:
        text += f"\n{raises}" if "\nRaises:" in text else f"\n\nRaises:\n{raises}"
    end = "\n" if "\n" in text else ""
    return textwrap.indent(f'"""{text}{end}"""', "    ")


def _documentation(method: _Method) -> str:
    text = ast.get_docstring(method)
    assert text is not None, f"{method.name} has no docstring"
    for old, new in (("async with", "with"), ("async for", "for"), ("await ", "")):
        text = text.replace(old, new)
    return text


def _given(arguments: ast.arguments) -> str:
    """The arguments of a call that passes a method's own on."""
    given = [
        one.arg
        for one in (*arguments.posonlyargs, *arguments.args)
        if one.arg not in ("self", "cls")
    ]
    if arguments.vararg is not None:
        given.append(f"*{arguments.vararg.arg}")
    given += [f"{one.arg}={one.arg}" for one in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        given.append(f"**{arguments.kwarg.arg}")
    return ", ".join(given)
