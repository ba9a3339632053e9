"""The program that runs in the inferlet: calls the caller's function, or a class's methods one by
one, and answers in messages: bytes that begin with a mark.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import io
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import field, make_dataclass
from functools import partial, reduce
from types import ModuleType
from typing import Any

from inferlet import session
from inferlet._guest.modules import own_files
from inferlet._guest.options import signature
from inferlet._json import dumps as as_json
from pie_py.client.remote.values import CannotTravel, dumps, loads

MARK = b"\0call "  # what else a program sends is its own
PART = 1 << 16  # characters
RUNNER = ("/main.py", "/pie_py/client/remote/values.py")  # files whose frames no traceback shows


def tell(kind: str, **facts: Any) -> None:
    """Tells the caller something."""
    session.send_blob(MARK + json.dumps({"kind": kind, **facts}).encode())


class Output(io.TextIOBase):
    """Standard output or error: whole lines go to the caller."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._line = ""

    def write(self, text: str, /) -> int:
        """Sends the lines that the text completes; keeps the rest."""
        lines, newline, rest = (self._line + text).rpartition("\n")
        self._line = rest
        self._send(lines + newline)
        return len(text)

    def flush(self) -> None:
        """Sends the rest of a line."""
        self._send(self._line)
        self._line = ""

    def _send(self, text: str) -> None:
        # In parts: a message has a bound, what is printed has none.
        for start in range(0, len(text), PART):
            tell(self._kind, text=text[start : start + PART])


def type_of(name: str) -> type:
    """The type of a name on the way."""
    module, _, path = name.partition(":")
    found: type = reduce(getattr, path.split("."), importlib.import_module(module))  # type: ignore[assignment]
    return found


def name_of(kind: type) -> str:
    """Its name on the way."""
    return f"{kind.__module__}:{kind.__qualname__}"


def made_model(module: str, name: str, fields: list[tuple[str, str | None]]) -> type:
    """A dataclass in place of a pydantic model."""
    made: list[Any] = []
    for one, default in fields:
        factory = None if default is None else partial(loads, default, type_of)
        made.append((one, Any) if factory is None else (one, Any, field(default_factory=factory)))
    return make_dataclass(name, made, kw_only=True, module=module)  # type: ignore[call-arg]


def load(asked: dict[str, Any]) -> ModuleType:
    """The caller's module, with what its functions use."""
    name = asked["module"]
    names = (piece.removesuffix(".py").replace("/", ".") for piece in asked["pieces"])
    specs = [importlib.util.find_spec(piece) for piece in names]  # while none is imported
    module = ModuleType(name)
    sys.modules[name] = module
    space = vars(module)
    for one, (source, path) in asked["imports"].items():
        found: Any = importlib.import_module(source)
        space[one] = reduce(getattr, path.split("."), found) if path else found
    for one, fields in asked["models"].items():
        space[one] = made_model(name, one, fields)
    late = {}  # data of types that the module defines
    for one, text in asked["given"].items():
        try:
            space[one] = loads(text, type_of)
        except AttributeError:
            late[one] = text
    for spec in specs:
        assert spec is not None
        assert spec.loader is not None
        module.__spec__ = spec
        spec.loader.exec_module(module)
    space |= {one: loads(text, type_of) for one, text in late.items()}
    space |= {one: space[other] for one, other in asked["aliases"].items()}
    return module


def raised(error: BaseException) -> dict[str, Any]:
    """An exception as the caller can raise it again."""
    try:
        value = dumps(error, "the exception", name_of)
    except CannotTravel:
        value = None
    inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return {
        "value": value,
        "text": "".join(traceback.format_exception_only(error)).strip(),
        "frames": [
            (frame.f_code.co_filename, line, frame.f_code.co_name)
            for frame, line in traceback.walk_tb(error.__traceback__)
            if frame.f_code.co_filename in own_files
            and not frame.f_code.co_filename.endswith(RUNNER)
        ],
        "is_cause": error.__cause__ is not None,
        "inner": None if inner is None else raised(inner),
    }


async def call(target: Callable[..., Any], args: str, number: int) -> Any:
    """One call: tells what it yields, and what it returns or raises; returns that, too."""
    try:
        given, options = loads(args, type_of)
        answer = target(*given, **options)
        if inspect.isasyncgen(answer):
            async for value in answer:
                tell("yield", n=number, value=dumps(value, "what it yields", name_of))
            answer = None
        elif inspect.isgenerator(answer):
            for value in answer:
                tell("yield", n=number, value=dumps(value, "what it yields", name_of))
            answer = None
        elif inspect.isawaitable(answer):
            answer = await answer
        returned = None if inspect.isclass(target) else answer
        text = dumps(returned, "what it returns", name_of)
    except BaseException as error:
        flush()
        if not isinstance(error, Exception | SystemExit):
            raise  # which fails the program
        tell("raise", n=number, **raised(error))
        return None
    flush()
    tell("return", n=number, value=text)
    return answer


async def call_one(target: Callable[..., Any], request: dict[str, Any]) -> None:
    """One of several calls: whatever it raises is told as its own."""
    try:
        await call(target, request["args"], request["n"])
    except BaseException as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise  # another one has ended the program
        tell("raise", n=request["n"], **raised(error))


async def call_several(target: Callable[..., Any]) -> None:
    """Calls of one function, as they come and at once, until an empty list of them does."""
    tasks: set[asyncio.Task[None]] = set()
    while requests := json.loads(await session.receive_blob()):
        for request in requests:
            task = asyncio.create_task(call_one(target, request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)


def of_fields(main: Callable[..., Any]) -> Callable[..., Any]:
    """A program's `main`, called with the fields of an object; its result is plain JSON."""
    takes_input = next(iter(signature(main).parameters), "") == "input"

    async def called(**fields: Any) -> Any:
        answer = main(fields) if takes_input else main(**fields)
        return json.loads(as_json(await answer if inspect.isawaitable(answer) else answer))

    return called


def flush() -> None:
    """Sends what was printed without a newline."""
    sys.stdout.flush()
    sys.stderr.flush()


async def main(args: list[str]) -> str:
    """Reads the request and does it."""
    asked = json.loads(args[0])
    sys.stdout, sys.stderr = Output("out"), Output("err")
    try:
        entry = getattr(load(asked), asked["entry"])
        if asked.get("of_fields"):
            entry = of_fields(entry)
    except (Exception, SystemExit) as error:  # noqa: BLE001  it goes to the caller
        tell("raise", n=0, **raised(error))
        return ""
    if asked["args"] is None:
        await call_several(entry)
        return ""
    made = await call(entry, asked["args"], 0)
    if inspect.isclass(entry) and made is not None:
        while (request := json.loads(await session.receive_blob()))["method"] is not None:
            await call(getattr(made, request["method"]), request["args"], request["n"])
    return ""
