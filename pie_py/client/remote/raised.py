"""Exceptions of an inferlet, raised again at the caller with the frames that they had there."""

from __future__ import annotations

import ast
import json
import linecache
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, TracebackType
from typing import Any

from pie_py.client.errors import InferletFailed
from pie_py.client.remote.values import CannotTravel, loads
from pie_py.config.printable import printable

MOST_CHAINED, MOST_FRAMES = 100, 1000  # exceptions behind one, and places in their tracebacks
MOST_TEXT = 1 << 16  # characters
_MEANINGFUL = ("unittest", "bdb", "pdb", "doctest")  # skip a test, or end a debugger
_MARK = "__inferlet__"  # a global of frames that were made here


def inferlet_frames(error: BaseException) -> TracebackType | None:
    """The traceback of an exception from its first frame in an inferlet on; None without one."""
    trace = error.__traceback__
    while trace is not None and _MARK not in trace.tb_frame.f_globals:
        trace = trace.tb_next
    return trace


def rebuilt(
    report: dict[str, Any], types: Mapping[str, type], origin: Callable[[str], str]
) -> Exception:
    """The exception that an inferlet has raised, of its own type where that is known here.

    What an inferlet says must not end the caller's process, its tasks or its loops, nor mean
    something to a framework around the call: so it is always an `Exception`, of a type of Python's
    own or of one of `types` that the function was sent with, by their names on the way; all others
    are an `InferletFailed`. `origin` gives the caller's file for a file of the inferlet.
    """
    chain: list[dict[str, Any]] = []
    following: dict[str, Any] | None = report
    while following is not None and len(chain) < MOST_CHAINED:
        chain.append(following)
        following = following["inner"]
    most = max(10, MOST_FRAMES // len(chain))
    error: Exception | None = None
    for each in reversed(chain):
        inner, error = error, _error(each, types)
        if each["is_cause"]:
            error.__cause__ = inner
        else:
            error.__context__ = inner
            error.__suppress_context__ = inner is None
        frames = each["frames"]
        if len(frames) > most:  # the first ones, and those where it was raised
            frames = frames[: most // 2] + frames[-most // 2 :]
        trace = None
        for file, line, name in reversed(frames):
            frame = _frame(origin(file), line, printable(name))
            trace = TracebackType(trace, frame, frame.f_lasti, line)
        # Not its own method, which a report could have replaced.
        BaseException.with_traceback(error, trace)
    assert error is not None
    return error


def _error(report: dict[str, Any], types: Mapping[str, type]) -> Exception:
    try:
        shown = json.dumps(_shown(json.loads(report["value"])))
        value = loads(shown, lambda name: _exception(name, types))
    except Exception:  # noqa: BLE001  of whatever an inferlet has written
        value = None
    if isinstance(value, Exception):
        return value
    return InferletFailed("failed", printable(report["text"], MOST_TEXT, lines=True))


def _shown(part: Any) -> Any:
    """The text of an exception, without characters on which a terminal acts."""
    if isinstance(part, str):
        return printable(part, None, lines=True)
    if isinstance(part, list):
        return [_shown(each) for each in part]
    return {key: _shown(each) for key, each in part.items()} if isinstance(part, dict) else part


def _exception(name: str, types: Mapping[str, type]) -> type:
    """A type that the caller has imported already; of strangers nothing but exceptions."""
    if name in types:
        return types[name]
    if name == f"{CannotTravel.__module__}:{CannotTravel.__qualname__}":  # of what it returns
        return CannotTravel
    module, _, path = name.partition(":")
    top = module.partition(".")[0]
    known = top == "inferlet" or (top in sys.stdlib_module_names and top not in _MEANINGFUL)
    found: Any = sys.modules.get(module) if known else None
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, Exception):
        raise LookupError(name)
    if issubclass(found, StopIteration | StopAsyncIteration):  # end loops
        raise LookupError(name)
    return found


def _frame(file: str, line: int, name: str) -> FrameType:
    """A frame that looks as if it ran a line of a file."""
    linecache.getlines(file)
    tree = ast.parse("frame = sys._getframe()")
    for node in ast.walk(tree):
        if isinstance(node, ast.expr | ast.stmt):  # without columns, which would be underlined
            node.lineno = node.end_lineno = line
            node.col_offset = node.end_col_offset = -1
    code: CodeType = compile(tree, file, "exec").replace(co_name=name, co_qualname=name)
    space: dict[str, Any] = {"sys": sys, "__name__": name, "__file__": file, _MARK: True}
    exec(code, space)
    found: FrameType = space.pop("frame")
    return found
