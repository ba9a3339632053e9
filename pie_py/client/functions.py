"""Functions of the client that a model calls: the inferlet asks for them, and they run here.

::

    async def fetch_weather(city: str) -> str: ...

    async with Client() as client:
        answer = await client.answer("fetch weather with city Paris.", [fetch_weather])
        print(answer["text"])
"""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal, get_type_hints

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread

from pie_py.build.modules import MAIN, read_program
from pie_py.client.errors import ClientError, RpcError, unreadable
from pie_py.client.instance import Instance, Launcher
from pie_py.client.remote.call import end
from pie_py.config.printable import printable
from pie_py.config.shipped_files import shipped_folder

MOST_CHARACTERS = 1 << 18  # of a result that are sent; the model gets to see fewer

Mode = Literal["async", "sync", "sync_parallel"]


@dataclass(frozen=True)
class Function:
    """A function that a model may call.

    Attributes:
        run: asynchronous, or a plain one, which runs in a thread. Its parameters' types and its
            docstring describe it to the model.
        seconds: how long a call is expected to take.
        timeout: seconds after which a call is given up.
        name: the function's own if None.
    """

    run: Callable[..., Any]
    seconds: float = 0.1
    timeout: float | None = None
    name: str | None = None

    @property
    def called(self) -> str:
        """The name by which the model calls it."""
        return self.name or self.run.__name__

    def specification(self) -> dict[str, Any]:
        """The description for the inferlet: OpenAI's form, with times."""
        from pydantic import TypeAdapter  # takes long to import, and few need it

        hints = get_type_hints(self.run)
        properties: dict[str, Any] = {}
        required = []
        for name, parameter in inspect.signature(self.run).parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"{self.called} takes *{name}: a model can't know what that is")
            properties[name] = TypeAdapter(hints[name]).json_schema() if name in hints else {}
            if parameter.default is parameter.empty:
                required.append(name)
        found: dict[str, Any] = {
            "type": "function",
            "function": {
                "name": self.called,
                "description": inspect.getdoc(self.run) or "",
                "parameters": {"type": "object", "properties": properties, "required": required},
            },
            "seconds": self.seconds,
        }
        return found if self.timeout is None else {**found, "timeout": self.timeout}


@dataclass
class FunctionHost:
    """Runs functions for one instance, concurrently, and sends it their results."""

    instance: Instance
    functions: Mapping[str, Callable[..., Any]]
    _scopes: dict[int, anyio.CancelScope] = field(default_factory=dict)

    def take(self, message: Mapping[str, Any], tasks: anyio.abc.TaskGroup) -> bool:
        """Starts or cancels a call if the message asks for it; whether it does."""
        if message.get("type") == "execute":
            begun = self._scopes[message["number"]] = anyio.CancelScope()
            tasks.start_soon(self._run, message, begun)
        elif message.get("type") == "cancel":
            scope = self._scopes.get(message["number"])
            if scope is not None:
                scope.cancel()
        else:
            return False
        return True

    async def _run(self, message: Mapping[str, Any], scope: anyio.CancelScope) -> None:
        number = message["number"]
        with scope:
            try:
                await anyio.lowlevel.checkpoint_if_cancelled()  # it may have been, before it began
                text = await self._call(message)
            finally:
                self._scopes.pop(number, None)  # two calls may have one number
            with suppress(ClientError):  # it has ended, and needs no result any more
                try:
                    await self.instance.send(text)
                except RpcError as error:  # the server takes none of its size
                    await self.instance.send(_result(number, error=str(error)))

    async def _call(self, message: Mapping[str, Any]) -> str:
        """The message with a call's result. Whatever the function does, this call alone fails."""
        number, function = message["number"], self.functions.get(message["name"])
        if function is None:
            return _result(number, error=f"the client has no function {message['name']}")
        call = partial(function, **message["arguments"])
        try:
            if inspect.iscoroutinefunction(function):
                value = await call()
            else:
                value = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
            return _result(number, **_told(value))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, and a task of its own that was cancelled
            is_cancelled = isinstance(error, anyio.get_cancelled_exc_class())
            if is_cancelled and anyio.current_effective_deadline() == -math.inf:
                raise  # the call itself is
            name = type(error).__name__
            try:
                text = str(error)
            except Exception:  # noqa: BLE001  raised below, outside of the group
                text = ""
            return _result(number, error=(f"{name}: {text}" if text else name)[:MOST_CHARACTERS])


def _told(value: Any) -> dict[str, Any]:
    """A result as it is told: what JSON can't express as text, and cut if it is long."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    text = value
    if not isinstance(value, str):
        try:
            text = json.dumps(value, allow_nan=False, default=str)
        except (TypeError, ValueError):  # NaN, a key that is no text, a list that holds itself
            value = text = str(value)
    if len(text) > MOST_CHARACTERS:
        return {"text": text[:MOST_CHARACTERS], "length": len(text)}
    return {"value": value}


def _result(number: Any, **facts: Any) -> str:
    """A message to the inferlet, with halves of surrogate pairs as JSON's escapes."""
    message = {"type": "result", "number": number, **facts}
    text = json.dumps(message, ensure_ascii=False, default=str)
    return text.encode(errors="backslashreplace").decode()


@cache
def _program() -> bytes:
    """`async_function_calling` with its modules, as it is uploaded."""
    return read_program(shipped_folder("inferlets") / "async_function_calling" / MAIN)


async def answer(
    client: Launcher,
    request: str,
    functions: Sequence[Function | Callable[..., Any]] = (),
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    mode: Mode = "async",
    options: Sequence[str] = (),
    tasks: AsyncIterable[str] | None = None,
    on_event: Callable[[dict[str, Any]], None] | None = None,
    program: bytes | None = None,
) -> dict[str, Any]:
    """Has a model answer a request, with functions of this program and other tools.

    Args:
        client: connected.
        request: what is to be done.
        functions: that run here.
        tools: that run elsewhere, as in a tools file.
        mode: asynchronous calls, or one of the ways to compare them with.
        options: further ones of the inferlet `async_function_calling`.
        tasks: what the user says meanwhile; each becomes an interrupt as it comes.
        on_event: gets each event.
        program: takes the place of the inferlet `async_function_calling`, with the same options.

    Returns:
        `text`, the model's last words, and the record of calls, times and tokens; `ended`, `done`
        or what there was too little of; `warnings`, what may be wrong with it. Each of these is a
        `UserWarning` of Python, too.

    Raises:
        ValueError: there is nothing to call.
        UsageError, InferletFailed: the inferlet did not understand, or failed.
        ClientError: no server.
    """
    own = any(option.partition("=")[0] == "--tools" for option in options)
    if not functions and not tools and not own:
        raise ValueError(
            "`answer` has a model call functions, and was given neither `functions` nor `tools`."
            " For an answer without calls, run a program: `client.run(function)`, or `pie-py ask`"
        )
    hosted = [one if isinstance(one, Function) else Function(one) for one in functions]
    specifications = [*(one.specification() for one in hosted), *map(dict, tools)]
    source = await anyio.to_thread.run_sync(_program) if program is None else program
    uploaded = await client.upload(source, name="async_function_calling")
    given = ["--events", f"--mode={mode}", f"--request={request}", *options]
    if specifications:
        given.append(f"--tools={json.dumps(specifications)}")
    if tasks is not None:
        given.append("--interactive")
    instance = await client.launch(uploaded, given)
    host = FunctionHost(instance, {one.called: one.run for one in hosted})
    return await _answered(instance, host, tasks, on_event)


async def _answered(
    instance: Instance,
    host: FunctionHost,
    tasks: AsyncIterable[str] | None,
    on_event: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    """Runs functions as events ask for them, until the instance's result is there."""
    problems: list[Exception] = []  # raised outside of the group, which would wrap them
    found: dict[str, Any] = {}

    async def tell(tasks: AsyncIterable[str]) -> None:
        try:
            await _tell(instance, tasks)
        except Exception as error:  # noqa: BLE001  raised below, outside of the group
            problems.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        if tasks is not None:
            group.start_soon(tell, tasks)
        try:
            async for message in instance:
                event = _object(message, instance)
                if host.take(event, group):
                    continue
                if event.get("type") == "warning":
                    warnings.warn(printable(event.get("text"), 500), stacklevel=2)
                if on_event is not None:
                    on_event(event)
            found = _object(await instance.result(), instance)
        except Exception as error:  # noqa: BLE001  raised below, outside of the group
            problems.append(error)
        finally:
            group.cancel_scope.cancel()
            await end(instance)
    if problems:
        raise problems[0]
    return found


def _object(text: str | bytes, instance: Instance) -> dict[str, Any]:
    """An object that an inferlet has sent, which is data, and may be nonsense.

    Raises:
        ClientError: if it is no object, or asks for a call and does not say of what.
    """
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise TypeError("no object")
        if found.get("type") in ("execute", "cancel"):
            hash(found["number"])
        if found.get("type") == "execute":
            dict(**found["arguments"])
            hash(found["name"])
    except Exception as error:
        raise unreadable(f"a message of {instance.id}", error) from error
    return found


async def _tell(instance: Instance, tasks: AsyncIterable[str]) -> None:
    with suppress(ClientError):  # it has ended; what it says, or why, tells its result
        async for text in tasks:
            await instance.send(json.dumps({"type": "user", "text": text}))
        await instance.send(json.dumps({"type": "close"}))
