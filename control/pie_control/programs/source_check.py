"""Whether a Python program compiles, told at upload rather than at launch."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from pie_control.errors import ProgramRejected
from pie_py.wire import modules

MAX_SOURCE_BYTES = 1 << 20
_SMALL_BYTES = 16 << 10
_CHILD_SECONDS = 20
_CONTROL = re.compile(rb"[^\t\n\f\r\x20-\x7e\x80-\xff]")  # what no text file has

# `compile` holds the interpreter's lock to its end, and a hostile source may exhaust its stack.
# What is more than a few milliseconds' work is done by another process.
_CHILD = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
try:
    compile(sys.stdin.buffer.read(), sys.argv[1], "exec", dont_inherit=True)
    fault = None
except SyntaxError as error:
    fault = [error.msg, error.lineno, error.text]
print(json.dumps(fault))
"""


def check_program(data: bytes, name: str) -> None:
    """Checks that every module of an uploaded Python program compiles; none is run. Blocking.

    Args:
        data: a source, or several as `pie_py.wire.modules` packs them.
        name: of the program, for messages.

    Raises:
        ProgramRejected: with the place of the mistake.
    """
    if not data.startswith(modules.MARK):
        check_source(data, f"{name}.py")
        return
    try:
        sources = modules.unpack(data)
    except modules.BadProgram as error:
        raise ProgramRejected(f"{name}: {error}") from None
    for path, source in sources.items():
        check_source(source, f"{name}/{path}")


def check_source(data: bytes, filename: str) -> None:
    """Checks that a Python source compiles; it is not run. Blocking.

    Raises:
        ProgramRejected: with the place of the mistake.
    """
    if len(data) > MAX_SOURCE_BYTES:
        raise ProgramRejected(
            f"{filename} has {len(data)} bytes; a Python source has {MAX_SOURCE_BYTES} at most"
        )
    place = _first_byte_that_is_no_text(data)
    if place is not None:
        raise ProgramRejected(
            f"{filename} is neither Wasm nor a Python source in UTF-8 (byte {place})"
        )
    if len(data) <= _SMALL_BYTES:
        _check_here(data, filename)
    else:
        _check_in_child(data, filename)


def _first_byte_that_is_no_text(data: bytes) -> int | None:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    control = _CONTROL.search(data)
    return control.start() if control else None


def _check_here(data: bytes, filename: str) -> None:
    try:
        compile(data, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _rejected(filename, error.msg, error.lineno, error.text) from None
    except (RecursionError, MemoryError):
        raise _too_deep(filename) from None


def _check_in_child(data: bytes, filename: str) -> None:
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "ignore", "-c", _CHILD, filename],
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_CHILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise _too_deep(filename) from None
    if child.returncode != 0:
        raise _too_deep(filename)
    fault = json.loads(child.stdout)
    if fault is not None:
        raise _rejected(filename, *fault)


def _rejected(filename: str, message: str, line: int | None, text: str | None) -> ProgramRejected:
    place = filename if line is None else f"{filename}, line {line}"
    shown = f"\n    {text.strip():.200}" if text and text.strip() else ""
    return ProgramRejected(f"{place}: {message}{shown}")


def _too_deep(filename: str) -> ProgramRejected:
    return ProgramRejected(f"{filename} is nested too deeply to compile")
