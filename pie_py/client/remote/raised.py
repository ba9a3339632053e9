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

    It is always an `Exception`: what an inferlet says must not end the caller's process or its
    tasks, as `SystemExit`, `KeyboardInterrupt` and `GeneratorExit` would, so these are an
    `InferletFailed`.

    Args:
        report: as the inferlet has written it.
        types: of the caller, by their names on the way.
        origin: the caller's file for a file of the inferlet.
    """
    try:
        value = loads(report["value"], lambda name: _exception(name, types))
    except (TypeError, LookupError, AttributeError):
        value = None
    error = value if isinstance(value, Exception) else InferletFailed("failed", report["text"])
    inner = None if report["inner"] is None else rebuilt(report["inner"], types, origin)
    if report["is_cause"]:
        error.__cause__ = inner
    else:
        error.__context__ = inner
        error.__suppress_context__ = inner is None
    trace = None
    for file, line, name in reversed(report["frames"]):
        frame = _frame(origin(file), line, name)
        trace = TracebackType(trace, frame, frame.f_lasti, line)
    return error.with_traceback(trace)


def _exception(name: str, types: Mapping[str, type]) -> type:
    """A type that the caller has imported already; of strangers nothing but exceptions."""
    if name in types:
        return types[name]
    module, _, path = name.partition(":")
    found: Any = builtins if module == "builtins" else sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not issubclass(found, Exception):
        raise LookupError(name)
    return found


def _frame(file: str, line: int, name: str) -> FrameType:
    """A frame that looks as if it ran a line of a file."""
    linecache.getlines(file)
    code: CodeType = compile("frame = sys._getframe()", file, "exec")
    space: dict[str, Any] = {"sys": sys, "__name__": name, "__file__": file, _MARK: True}
    exec(
        code.replace(
            co_name=name,
            co_qualname=name,
            co_firstlineno=line,
            co_linetable=_line_table(len(code.co_code)),
        ),
        space,
    )
    found: FrameType = space.pop("frame")
    return found


def _line_table(code_bytes: int) -> bytes:
    """All instructions are of the first line, and none has columns, which would be underlined.

    CPython's location table: entries of up to eight instructions of two bytes; kind 13 is a line
    without columns, here 0 lines further.
    """
    left, table = code_bytes // 2, b""
    while left > 0:
        some = min(left, 8)
        table += bytes([0x80 | 13 << 3 | some - 1, 0])
        left -= some
    return table
