"""The check that a Python program compiles, at upload rather than at launch.

`compile` holds the interpreter's lock to its end; some hundred bytes of hostile source keep it busy
for minutes, fill the memory or exhaust the stack. So this runs in a confined process.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from pie_control.errors import ProgramRejected
from pie_control.programs.adapter_check import check_adapter
from pie_py.device_programs.program import ProgramFault
from pie_py.device_programs.reader import check_text
from pie_py.device_programs.scope import Text
from pie_py.wire import javascript, modules
from pie_py.wire.adapter_file import is_adapter

MAX_SOURCE_BYTES = 1 << 20
_CONTROL = re.compile(rb"[^\t\n\f\r\x20-\x7e\x80-\xff]")  # what no text file has


def check_file(path: str, name: str) -> None:
    """As `check_program`, of a program in a file, or of an adapter, by `check_adapter`."""
    warnings.simplefilter("ignore")
    data = Path(path).read_bytes()
    if is_adapter(data):
        check_adapter(data)
    else:
        check_program(data, name)


def check_program(data: bytes, name: str) -> None:
    """Checks that every module of an uploaded Python program compiles; none is run. Blocking.

    The data is a source, or several as `pie_py.wire.modules` or `pie_py.wire.javascript` packs
    them. JavaScript is compiled where it runs: of that, only the form is checked.

    Raises:
        ProgramRejected: with the place of the mistake.
    """
    if data.startswith(modules.SAMPLER):
        _check_sampler(data.removeprefix(modules.SAMPLER), f"{name}.py")
        return
    is_javascript = data.startswith(javascript.MARK)
    if not (is_javascript or data.startswith(modules.MARK)):
        check_source(data, f"{name}.py")
        return
    try:
        sources = javascript.unpack(data) if is_javascript else modules.unpack(data)
    except modules.BadProgram as error:
        raise ProgramRejected(f"{name}: {error}") from None
    for path, source in sources.items():
        if is_javascript:
            _check_text(source, f"{name}/{path}", "JavaScript")
        else:
            check_source(source, f"{name}/{path}")


def _check_sampler(data: bytes, filename: str) -> None:
    _check_text(data, filename, "sampler's")
    try:
        check_text(Text(filename, 1, data.decode()))
    except ProgramFault as error:
        raise ProgramRejected(str(error)) from None


def check_source(data: bytes, filename: str) -> None:
    """Checks that a Python source compiles; it is not run. Blocking.

    Raises:
        ProgramRejected: with the place of the mistake.
    """
    _check_text(data, filename, "Python")
    try:
        compile(data, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        line, text = error.lineno, (error.text or "").strip()
        place = filename if line is None else f"{filename}, line {line}"
        shown = f"\n    {text:.200}" if text else ""
        raise ProgramRejected(f"{place}: {error.msg}{shown}") from None
    except (RecursionError, MemoryError):
        raise ProgramRejected(f"{filename} is nested too deeply to compile") from None


def _check_text(data: bytes, filename: str, language: str) -> None:
    if len(data) > MAX_SOURCE_BYTES:
        raise ProgramRejected(
            f"{filename} has {len(data)} bytes; a {language} source has {MAX_SOURCE_BYTES} at most"
        )
    place = _first_byte_that_is_no_text(data)
    if place is not None:
        raise ProgramRejected(
            f"{filename} is neither Wasm nor a {language} source in UTF-8 (byte {place})"
        )


def _first_byte_that_is_no_text(data: bytes) -> int | None:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    control = _CONTROL.search(data)
    return control.start() if control else None
