"""Exceptions of an inferlet, raised again at the caller with the frames that they had there."""

from __future__ import annotations

import builtins
import linecache
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any

from pie_py.client.errors import InferletFailed
from pie_py.client.remote.values import loads


def rebuilt(told: dict[str, Any], types: Mapping[str, type], origin: Callable[[str], str]) -> Any:
    """The exception that an inferlet has told of, of its own type where that is known here.

    Args:
        told: as the inferlet has written it.
        types: of the caller, by their names on the way.
        origin: the caller's file for a file of the inferlet.
    """
    try:
        error = loads(told["value"], lambda name: _exception(name, types))
    except (TypeError, LookupError, AttributeError):
        error = InferletFailed("failed", told["text"])
    inner = None if told["inner"] is None else rebuilt(told["inner"], types, origin)
    if told["is_cause"]:
        error.__cause__ = inner
    else:
        error.__context__ = inner
        error.__suppress_context__ = inner is None
    trace = None
    for file, line, name in reversed(told["frames"]):
        trace = TracebackType(trace, _frame(origin(file), line, name), -1, line)
    return error.with_traceback(trace)


def _exception(name: str, types: Mapping[str, type]) -> type:
    """A type that the caller has imported already; of strangers nothing but exceptions."""
    if name in types:
        return types[name]
    module, _, path = name.partition(":")
    found: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, Exception | SystemExit):
        raise LookupError(name)
    return found


def _frame(file: str, line: int, name: str) -> FrameType:
    """A frame that looks as if it ran a line of a file."""
    linecache.getlines(file)
    code: CodeType = compile("frame = sys._getframe()", file, "exec")
    space: dict[str, Any] = {"sys": sys, "__name__": name, "__file__": file}
    exec(code.replace(co_name=name, co_qualname=name, co_firstlineno=line), space)
    found: FrameType = space.pop("frame")
    return found
